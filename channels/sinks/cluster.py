"""What Doris and StarRocks have in common beside Stream Load's HTTP: the SQL port, names and texts, their partitions.

Both speak MySQL's protocol and share much of their SQL, for StarRocks began as Doris.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pymysql

from cdc.errors import SinkForeign, SinkUnavailable, TargetMismatch
from cdc.position import position_from_json
from channels.sinks.base import CheckpointMark, Finding, TargetColumn, TargetTable, foreign
from channels.sinks.stream_load import IDLE_S, Access, waits

CHECKPOINTS = "_cdc_checkpoints"
ENOUGH_RUNNING = 250  # transactions at once: what a long checkpoint may have prepared, and room for others

_AUTH_CODES = (1044, 1045, 1227)
_WAIT = "It is tried again; see that FE and BE are up and reachable from driver and executors."
# lines of SHOW CREATE TABLE: within them anything may stand in a comment
_BY_RANGE = re.compile(r"^\s*PARTITION\s+BY\s+RANGE", re.IGNORECASE | re.MULTILINE)
_MADE_BY_ITSELF = re.compile(r'^\s*"dynamic_partition\.enable"\s*=\s*"true"', re.IGNORECASE | re.MULTILINE)
_FILLERS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN"), "0"),
    **dict.fromkeys(("VARCHAR", "STRING", "VARBINARY"), ""),
    "JSON": "{}",
    "DATE": "1970-01-01",
    "DATETIME": "1970-01-01 00:00:00",
}


@dataclass(frozen=True, slots=True)
class Product:
    """What messages say of a cluster."""

    name: str
    grants: str  # what its user needs; {user} is put in

    def unavailable(self, error: object, **where: object) -> SinkUnavailable:
        """It cannot be reached for now."""
        return SinkUnavailable(f"{self.name} does not answer: {error}.", mend=_WAIT, **where)

    def denied(self, text: str, username: str) -> TargetMismatch:
        """User, password or privileges do not do."""
        return TargetMismatch(
            f"{self.name} refuses the user: {text.strip()}.",
            mend=f"Check sink.username and sink.password; {self.grants.format(user=username)}.",
            user=username,
        )

    def refused(self, error: SqlError, **where: object) -> SinkUnavailable:
        """A statement was refused, for a reason that may pass."""
        return SinkUnavailable(
            f"{self.name} refuses a statement: {error}.",
            mend="It is tried again; run it by hand to see more.",
            statement=error.statement.split("VALUES")[0][:200],
            **where,
        )


class SqlError(Exception):
    """The FE refused a statement; the caller says what that means."""

    def __init__(self, text: str, statement: str) -> None:
        super().__init__(text)
        self.statement = statement


class FrontendSql:
    """The FEs' SQL port, one connection, made again when it is lost. For the driver alone."""

    def __init__(self, access: Access, port: int, product: Product) -> None:
        self._access, self._port, self._product = access, port, product
        self._connection: pymysql.Connection[Any] | None = None
        self._asked_at = 0.0
        self._lock = threading.Lock()

    def ask(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Rows of a statement, by column. Raises: SinkUnavailable - also where it is refused; TargetMismatch."""
        try:
            return self.rows(statement, values)
        except SqlError as error:
            raise self._product.refused(error) from error

    def rows(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Rows of a statement, by column. Raises: SinkUnavailable, TargetMismatch; SqlError - refused."""
        with self._lock:
            if time.monotonic() - self._asked_at >= IDLE_S:
                self._drop()
            last: Exception | None = None
            for host in (*self._access.fe, *self._access.fe):  # one that the FE closed while idle is made again
                try:
                    connection = self._connected(host)
                    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
                        cursor.execute(statement, values)
                        self._asked_at = time.monotonic()
                        return list(cursor.fetchall())
                except pymysql.MySQLError as error:
                    # PyMySQL's own complaints, of packets or a closed line, have no number
                    code, text = error.args[0] if error.args else "", str(error.args[-1] if error.args else error)
                    # StarRocks has numbers of its own for a privilege that is missing
                    if code in _AUTH_CODES or "access denied" in text.lower():
                        self._drop()
                        raise self._product.denied(text, self._access.username) from error
                    is_refusal = isinstance(code, int) and not 2000 <= code < 3000
                    if is_refusal and not isinstance(error, pymysql.err.InterfaceError):
                        raise SqlError(text, statement) from error
                    self._drop()
                    last = error
            raise self._product.unavailable(last, fe=", ".join(self._access.fe), sql_port=self._port) from last

    def _connected(self, host: str) -> pymysql.Connection[Any]:
        if self._connection is None:
            name = host.rpartition(":")[0].strip("[]")
            self._connection = pymysql.connect(
                host=name, port=self._port, user=self._access.username, password=self._access.password, autocommit=True,
                charset="utf8mb4", connect_timeout=int(self._access.connect_timeout_s) or 1, read_timeout=120,
            )  # fmt: skip
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        with self._lock:
            self._drop()

    # ---- the catalogue

    def has_table(self, name: str) -> bool:
        """Whether there is a table ``database.table``."""
        database, _, table = name.partition(".")
        return bool(
            self.ask(
                "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (database, table),
            )
        )

    def creation_times(self, names: Iterable[str]) -> dict[str, str]:
        """Return when each of the tables ``names`` was created; one that does not exist is left out.

        Source: ``information_schema.tables`` of Doris and StarRocks, which an account sees with SELECT on the table.
        """
        wanted = set(names)
        found = {}
        for database in sorted({name.partition(".")[0] for name in wanted}):
            rows = self.ask(
                "SELECT TABLE_NAME, CREATE_TIME FROM information_schema.tables WHERE TABLE_SCHEMA = %s", (database,)
            )
            for table, created in (tuple(row.values()) for row in rows):
                found[f"{database}.{table}"] = str(created)
        return {name: created for name, created in found.items() if name in wanted}

    def databases_with(self, table: str) -> list[str]:
        """Databases that have a table of this name."""
        found = self.ask("SELECT TABLE_SCHEMA FROM information_schema.tables WHERE TABLE_NAME = %s", (table,))
        return sorted({str(next(iter(row.values()))) for row in found})

    def marks(self, databases: Iterable[str], job: str) -> list[CheckpointMark]:
        """The newest mark of ``job`` in each of ``databases`` that has one; each has a ``_cdc_checkpoints``."""
        # StarRocks keeps a row for each run: every commit asks, and of years of restarts one row alone comes
        newest = "ORDER BY `sequence` DESC, `fence` DESC, `checkpoint` DESC LIMIT 1"
        found = []
        for database in sorted(databases):
            table = f"{quoted(database)}.{quoted(CHECKPOINTS)}"
            found += [_mark(job, row) for row in self.ask(f"SELECT * FROM {table} WHERE job = %s {newest}", (job,))]
        return found

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """The newest mark of ``job`` in any database's ``_cdc_checkpoints``."""
        return max(self.marks(self.databases_with(CHECKPOINTS), job), key=_age, default=None)

    def is_recorded(self, job: str, incarnation: str, checkpoint: int) -> bool:
        """Return True if ``checkpoint`` is the newest one of that incarnation in ``_cdc_checkpoints``.

        Raises: SinkForeign - a newer one is there: it does not prove that this one was committed.
        """
        mark = self.last_checkpoint(job)
        if mark is None or mark.incarnation != incarnation:
            return False
        refuse_newer(mark, checkpoint)
        return mark.checkpoint == checkpoint


def claim(
    sql: FrontendSql,
    databases: Iterable[str],
    mark: CheckpointMark,
    record: Callable[[str, CheckpointMark], None],
    visible_timeout_s: float,
) -> None:
    """See ``Sink.claim``: by the rows of ``_cdc_checkpoints``, which are read back. Raises: SinkForeign."""
    recorded, databases = set(sql.databases_with(CHECKPOINTS)), set(databases)
    for database in sorted(databases):
        known = next(iter(sql.marks({database} & recorded, mark.job)), None)
        if known is not None and known.incarnation == mark.incarnation:
            if known.fence > mark.fence:
                raise foreign(known)
            if known.fence < mark.fence:  # who adopts goes on above its sequences, whether it has committed or not
                record(database, replace(known, fence=mark.fence))
            continue
        if known is not None and known.sequence >= mark.sequence:
            raise foreign(known)
        record(database, mark)
    deadline = time.monotonic() + visible_timeout_s
    for pause in waits(0.02, 0.5):
        others = [known for known in sql.marks(databases, mark.job) if known.incarnation != mark.incarnation]
        # an older claim is seen until ours is published, which takes its time on a busy cluster
        if time.monotonic() > deadline or not others or any(known.sequence >= mark.sequence for known in others):
            break
        time.sleep(pause)
    check_claim(sql, databases, mark)


def check_claim(sql: FrontendSql, databases: Iterable[str], mark: CheckpointMark) -> list[CheckpointMark]:
    """Return the marks of ``databases``. Raises: SinkForeign - another run has claimed one of them since."""
    marks = sql.marks(databases, mark.job)
    for known in marks:
        if known.incarnation != mark.incarnation or known.fence > mark.fence:
            raise foreign(known)
    return marks


def check_commit(sql: FrontendSql, databases: Iterable[str], mark: CheckpointMark) -> None:
    """Check that ``mark`` may be committed: an equal checkpoint is a repeat.

    Raises: SinkForeign - another run has claimed a database, or a database has a newer checkpoint than ``mark``.
    """
    for known in check_claim(sql, databases, mark):
        refuse_newer(known, mark.checkpoint)


def refuse_newer(known: CheckpointMark, checkpoint: int) -> None:
    """Raises: SinkForeign - the sink has a newer checkpoint than the one that is to be committed."""
    if known.checkpoint > checkpoint:
        raise SinkForeign(
            f"The sink has checkpoint {known.checkpoint} of job {known.job}, and the job commits checkpoint "
            f"{checkpoint}.",
            mend=f"The state file is older than the sink, or two processes run the job: `cdc stop {known.job}` in the "
            "other CDC_HOME, or bring the newer state file back. If it is lost: `cdc start JOB.yaml --adopt`.",
            incarnation=known.incarnation,
            fence=known.fence,
            checkpoint=known.checkpoint,
            position=known.position,
        )


# ---- limits


def running_findings(
    sql: FrontendSql,
    product: Product,
    tables: Sequence[TargetTable],
    quotas: Mapping[str, int] = MappingProxyType({}),
    raise_quota: str = "",
) -> Iterator[Finding]:
    """Whether a database takes as many prepared loads as a checkpoint of ``tables`` has: one for each at least.

    ``quotas``: of databases that have a limit of their own; ``raise_quota``: how one is raised.
    """
    try:
        rows = sql.rows("ADMIN SHOW FRONTEND CONFIG LIKE 'max_running_txn_num_per_db'")
    except (SqlError, TargetMismatch):
        rows = []  # only administrators may ask; a load that meets the limit waits and says so
    for database, count in sorted(Counter(table.name.partition(".")[0] for table in tables).items()):
        limit = quotas.get(database, int(rows[0]["Value"]) if rows else None)
        wanted = max(ENOUGH_RUNNING, 2 * count)
        if limit is None or limit >= wanted:
            continue
        mend = (
            raise_quota
            if database in quotas
            else 'ADMIN SET FRONTEND CONFIG ("max_running_txn_num_per_db" = "{limit}")'
        )
        yield Finding(
            f"{product.name} allows {limit} running transactions in database {database}, and a checkpoint of this job "
            f"may have {wanted}.",
            mend.format(database=quoted(database), limit=4 * wanted),
            fatal=limit < count,
        )


def _age(mark: CheckpointMark) -> tuple[int, int, int]:
    return mark.sequence, mark.fence, mark.checkpoint


def _mark(job: str, row: Mapping[str, Any]) -> CheckpointMark:
    return CheckpointMark(
        job,
        row["incarnation"],
        int(row["fence"]),
        int(row["checkpoint"]),
        position_from_json(json.loads(row["first_position"])),
        position_from_json(json.loads(row["position"])),
        int(row["sequence"]),
    )


def mark_row(mark: CheckpointMark) -> dict[str, str | int]:
    """The row of ``_cdc_checkpoints`` that says ``mark``."""
    return {
        "job": mark.job,
        "sequence": mark.sequence,
        "incarnation": mark.incarnation,
        "fence": mark.fence,
        "checkpoint": mark.checkpoint,
        "first_position": json.dumps(mark.first.to_json()),
        "position": json.dumps(mark.position.to_json()),
    }


# ---- tables


def ordered(table: TargetTable) -> list[TargetColumn]:
    """Key columns first, in key order: both want them so."""
    columns = {column.name: column for column in table.columns}
    return [columns[name] for name in table.key] + [column for column in table.columns if column.name not in table.key]


def fillers(table: TargetTable, base: Callable[[TargetColumn], str]) -> dict[str, str]:
    """What deletes send where they carry no value: NULL in a NOT NULL column is refused even of a row that goes.

    ``base``: the name of a column's type in the target.
    """
    return {
        column.name: _FILLERS.get(base(column), "[]")
        for column in table.columns
        if not column.nullable and column.name not in table.key
    }


def partition_findings(
    table: TargetTable, statement: str, partitions: Sequence[Mapping[str, Any]], today: datetime.date
) -> Iterator[Finding]:
    """A table partitioned by date whose last partition ends before ``today``: rows of today would be refused.

    ``partitions``: SHOW PARTITIONS.
    """
    if _MADE_BY_ITSELF.search(statement) or not _BY_RANGE.search(statement):
        return
    ends = [re.findall(r"keys: \[(\d{4}-\d{2}-\d{2})", str(row["Range"]).rpartition("..")[2]) for row in partitions]
    last = max((datetime.date.fromisoformat(found[0]) for found in ends if found), default=None)
    if last is None or len([found for found in ends if found]) < len(ends) or last > today:
        return  # not by date, or one without an end
    tomorrow = today + datetime.timedelta(days=1)
    yield Finding(
        f"{table.name}: the last partition ends at {last}, and rows of today have none",
        f'ALTER TABLE {target(table.name)} ADD PARTITION `p{today:%Y%m%d}` VALUES [("{last}"), ("{tomorrow}"))',
        fatal=False,  # of a table that only has rows of then, none may ever come
    )


def target(table: str) -> str:
    """The name ``database.table`` in a statement."""
    return ".".join(quoted(part) for part in table.split(".", 1))


def quoted(name: str) -> str:
    """A name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """A string in quotes."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
