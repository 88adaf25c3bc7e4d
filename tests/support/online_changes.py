"""The statements that gh-ost and pt-online-schema-change write to the binlog when they change a table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pymysql

from cdc.demo.local_servers import LocalServer

DEADLOCK = 1213
_TRIGGERS = (
    "CREATE TRIGGER pt_osc_{t}_del AFTER DELETE ON {d}.{t} FOR EACH ROW DELETE IGNORE FROM {d}._{t}_new WHERE {same}",
    "CREATE TRIGGER pt_osc_{t}_upd AFTER UPDATE ON {d}.{t} FOR EACH ROW BEGIN "
    "DELETE IGNORE FROM {d}._{t}_new WHERE !({kept}) AND {same}; "
    "REPLACE INTO {d}._{t}_new ({c}) VALUES ({n}); END",
    "CREATE TRIGGER pt_osc_{t}_ins AFTER INSERT ON {d}.{t} FOR EACH ROW REPLACE INTO {d}._{t}_new ({c}) VALUES ({n})",
)


class Writers:
    """Writers of a table, which write at the same time and can be made to wait."""

    def __init__(self) -> None:
        self._locks: list[threading.Lock] = []

    def join(self) -> threading.Lock:
        """Return a lock that a new writer holds during each transaction."""
        self._locks.append(threading.Lock())
        return self._locks[-1]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let all writers wait until the end of the block."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield


def gh_ost(
    server: LocalServer,
    database: str,
    clauses: str,
    writers: Writers,
    *,
    table: str = "orders",
    end: bool = True,
    update: str = "",
) -> str:
    """Run the statements of gh-ost, and return the final one. Without ``end`` it is interrupted while it copies rows.

    ``update``: SET and WHERE of an update of copied rows, which gh-ost repeats in the copy.
    Writers wait while rows are copied: gh-ost has applied all their changes when it renames the tables.
    """
    d, t = database, table
    server.execute(
        f"DROP /* gh-ost */ TABLE IF EXISTS `{d}`.`_{t}_gho`",
        f"DROP /* gh-ost */ TABLE IF EXISTS `{d}`.`_{t}_ghc`",
        f"CREATE /* gh-ost */ TABLE `{d}`.`_{t}_ghc` (id BIGINT AUTO_INCREMENT, last_update TIMESTAMP NOT NULL "
        "DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, hint VARCHAR(64) CHARSET ascii NOT NULL, "
        "value VARCHAR(4096) CHARSET ascii NOT NULL, PRIMARY KEY (id), UNIQUE KEY hint_uidx (hint))",
        f"CREATE /* gh-ost */ TABLE `{d}`.`_{t}_gho` LIKE `{d}`.`{t}`",
        f"ALTER /* gh-ost */ TABLE `{d}`.`_{t}_gho` {clauses}",
        f"INSERT INTO `{d}`.`_{t}_ghc` (hint, value) VALUES ('state', 'Migrated')",
    )
    names = ", ".join(_shared(server, d, t, f"_{t}_gho"))
    rename = f"RENAME /* gh-ost */ TABLE `{d}`.`{t}` TO `{d}`.`_{t}_del`, `{d}`.`_{t}_gho` TO `{d}`.`{t}`"
    copy = f"INSERT IGNORE INTO `{d}`._{t}_gho ({names}) SELECT {names} FROM `{d}`.{t}"
    if not end:
        server.execute(f"{copy} LIMIT 10")
        return rename
    server.execute(
        f"CREATE TABLE `{d}`.`_{t}_del` (id INT AUTO_INCREMENT PRIMARY KEY) COMMENT='ghost-cut-over-sentry'",
        f"DROP TABLE `{d}`.`_{t}_del`",
    )
    updates = [f"UPDATE `{d}`.`{each}` {update}" for each in (t, f"_{t}_gho") if update]
    with writers.waiting():
        server.execute(copy, *updates, rename)
    server.execute(f"DROP TABLE IF EXISTS `{d}`.`_{t}_ghc`", f"DROP TABLE IF EXISTS `{d}`.`_{t}_del`")
    return rename


def pt_osc_begin(server: LocalServer, database: str, clauses: str, *, table: str = "orders") -> None:
    """Run the statements of pt-online-schema-change up to the triggers."""
    d, t = database, table
    with server.connect(d) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE `{t}`")
        text = cursor.fetchone()[1].replace(f"CREATE TABLE `{t}`", f"CREATE TABLE `{d}`.`_{t}_new`", 1)
        cursor.execute(text)
        cursor.execute(f"ALTER TABLE `{d}`.`_{t}_new` {clauses}")
        cursor.execute(
            "SELECT COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE CONSTRAINT_NAME = 'PRIMARY' "
            "AND TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (d, t),
        )
        key = [row[0] for row in cursor.fetchall()]
        shared = _shared(server, d, t, f"_{t}_new")
        values = {
            "d": d,
            "t": t,
            "c": ", ".join(shared),
            "n": ", ".join(f"NEW.{one}" for one in shared),
            "same": " AND ".join(f"{d}._{t}_new.{one} <=> OLD.{one}" for one in key),
            "kept": " AND ".join(f"OLD.{one} <=> NEW.{one}" for one in key),
        }
        for trigger in _TRIGGERS:
            cursor.execute(trigger.format(**values))


def pt_osc_end(server: LocalServer, database: str, *, table: str = "orders", drop_swap: bool = False) -> str:
    """Copy the rows, exchange the tables, and return the statement that does it: the last of two with ``drop_swap``."""
    d, t = database, table
    names = ", ".join(_shared(server, d, t, f"_{t}_new"))
    copy = f"INSERT LOW_PRIORITY IGNORE INTO `{d}`._{t}_new ({names}) SELECT {names} FROM `{d}`.{t} LOCK IN SHARE MODE"
    while True:  # the tool repeats a copy that was chosen as the victim of a deadlock with a writer
        try:
            server.execute(copy)
        except pymysql.err.OperationalError as error:
            if error.args[0] != DEADLOCK:
                raise
        else:
            break
    if drop_swap:
        rename = f"RENAME TABLE `{d}`._{t}_new TO `{d}`.{t}"
        server.execute(f"DROP TABLE IF EXISTS `{d}`.{t}", rename)
        return rename
    rename = f"RENAME TABLE `{d}`.{t} TO `{d}`._{t}_old, `{d}`._{t}_new TO `{d}`.{t}"
    server.execute(
        rename,
        f"DROP TABLE IF EXISTS `{d}`._{t}_old",
        *(f"DROP TRIGGER IF EXISTS `{d}`.pt_osc_{t}_{one}" for one in ("del", "upd", "ins")),
    )
    return rename


def _shared(server: LocalServer, database: str, table: str, copy: str) -> list[str]:
    """Return the columns that both tables have and that a statement can fill."""
    found = []
    with server.connect(database) as connection, connection.cursor() as cursor:
        for name in (table, copy):
            cursor.execute(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
                "AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION",
                (database, name),
            )
            found.append([row[0] for row in cursor.fetchall()])
    return [name for name in found[0] if name in found[1]]
