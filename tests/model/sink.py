"""A sink in an SQLite file: durable, commits load by load, and keeps a log of every row that became visible."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from json import dumps
from json import loads as from_json

import pyarrow as pa

from cdc.errors import LoadRejected, PreparedLoadLost, SinkUnavailable
from cdc.model.batch import PreparedLoad, TargetState
from cdc.model.position import position_from_json
from cdc.model.schema import DELETED
from channels.sinks.base import LoadState, SinkCheckpoint
from channels.sinks.key_pages import key_page
from channels.sinks.labels import label_for, label_prefix

TABLES = """
CREATE TABLE IF NOT EXISTS loads (label TEXT PRIMARY KEY, state TEXT, payload BLOB);
CREATE TABLE IF NOT EXISTS aborted (prefix TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS rows (target TEXT, id INT, op INT, PRIMARY KEY (target, id));
CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, target TEXT, id INT, op INT, deleted INT,
    checkpoint_id INT);
CREATE TABLE IF NOT EXISTS tables (target TEXT PRIMARY KEY, identity TEXT DEFAULT (hex(randomblob(8))), done INT DEFAULT -1);
CREATE TABLE IF NOT EXISTS marks (job TEXT PRIMARY KEY, mark TEXT);
"""


class FileSink:
    """Implements Sink."""

    tasks_in_order = False

    def __init__(self, path):
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = threading.RLock()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")  # in tests only the process dies, not the machine
        self._connection.executescript(TABLES)
        self.tables = {}
        self.commits = 0
        self.maintained = []  # the names of each call

    @contextmanager
    def _transaction(self):
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def _all(self, sql, *values):
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def ensure_table(self, table):
        self.tables[table.name] = table
        with self._transaction() as sql:
            sql.execute("INSERT OR IGNORE INTO tables (target) VALUES (?)", (table.name,))

    def check(self, tables):
        return ()

    def ddl(self, table):
        return f"CREATE TABLE {table.name}"

    def part_writer(self, table):
        return self._write

    def _write(self, name, rows):
        batches = list(rows)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        label = label_for(name)
        with self._transaction() as sql:
            dead = sql.execute("SELECT prefix FROM aborted WHERE substr(?, 1, length(prefix)) = prefix", (label,))
            if dead.fetchone():
                raise LoadRejected("The label was aborted.", hint="Use a new one.", label=label)
            sql.execute("INSERT INTO loads VALUES (?, 'PREPARED', ?)", (label, out.getvalue().to_pybytes()))
        count = sum(batch.num_rows for batch in batches)
        return PreparedLoad(name, name.channel, count, 10 * count, {"label": label})

    def acquire_ownership(self, mark, targets):
        pass

    def commit(self, loads, checkpoint):
        lost = [label_for(load.name) for load in loads if self.state(load) in (LoadState.UNKNOWN, LoadState.ABORTED)]
        if lost:
            raise PreparedLoadLost("Loads are lost.", hint="They are loaded again.", labels=lost)
        for load in loads:
            if self.state(load) is LoadState.PREPARED:
                self._apply(load)
        with self._transaction() as sql:
            mark = dumps(
                {
                    "job": checkpoint.job,
                    "incarnation": checkpoint.incarnation,
                    "fence": checkpoint.fence,
                    "checkpoint": checkpoint.checkpoint,
                    "first": checkpoint.first.to_json(),
                    "position": checkpoint.position.to_json(),
                    "sequence": checkpoint.sequence,
                }
            )
            sql.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (checkpoint.job, mark))
        self.commits += 1

    def _apply(self, load):
        with self._transaction() as sql:
            label = label_for(load.name)
            (payload,) = sql.execute("SELECT payload FROM loads WHERE label = ?", (label,)).fetchone()
            if payload is None:  # another process was faster
                return
            sql.execute("UPDATE tables SET done = max(done, ?) WHERE target = ?", (load.name.checkpoint, load.table))
            if not sql.execute("SELECT changes()").fetchone()[0]:
                raise SinkUnavailable("There is no such table.", hint="Restore it.", table=load.table)
            for row in pa.ipc.open_stream(payload).read_all().to_pylist():
                if row[DELETED]:
                    sql.execute("DELETE FROM rows WHERE target = ? AND id = ?", (load.table, row["id"]))
                else:
                    sql.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (load.table, row["id"], row["op"]))
                sql.execute(
                    "INSERT INTO log (target, id, op, deleted, checkpoint_id) VALUES (?, ?, ?, ?, ?)",
                    (load.table, row["id"], row["op"], row[DELETED], load.name.checkpoint),
                )
            sql.execute("UPDATE loads SET state = 'COMMITTED', payload = NULL WHERE label = ?", (label,))

    def abort(self, job, incarnation, fence, checkpoint):
        prefix = label_prefix(job, incarnation, fence, checkpoint)
        with self._transaction() as sql:
            sql.execute("INSERT OR IGNORE INTO aborted VALUES (?)", (prefix,))
            sql.execute(
                "UPDATE loads SET state = 'ABORTED', payload = NULL"
                " WHERE substr(label, 1, length(?)) = ? AND state = 'PREPARED'",
                (prefix, prefix),
            )

    def lose(self, load):
        """Lose a prepared load, as a sink whose prepared loads expire."""
        with self._transaction() as sql:
            sql.execute("DELETE FROM loads WHERE label = ? AND state = 'PREPARED'", (label_for(load.name),))

    def state(self, load):
        found = self._all("SELECT state FROM loads WHERE label = ?", label_for(load.name))
        return LoadState(found[0][0]) if found else LoadState.UNKNOWN

    def last_checkpoint(self, job):
        found = self._all("SELECT mark FROM marks WHERE job = ?", job)
        if not found:
            return None
        mark = from_json(found[0][0])
        positions = {name: position_from_json(mark[name]) for name in ("first", "position")}
        return SinkCheckpoint(**{**mark, **positions})

    def identity(self, *, create):
        return "file"

    def target_states(self, job, incarnation, targets):
        found = {name: TargetState(*rest) for name, *rest in self._all("SELECT target, identity, done FROM tables")}
        return {name: found[name] for name in targets if name in found}

    def keys(self, table, after, limit):
        keys = pa.table({"id": pa.array(sorted(self.rows().get(table.name, {})), pa.int32())})
        return key_page(keys, after, limit)

    def maintain(self, tables, is_stopped):
        self.maintained.append({table.name for table in tables})

    def close(self):
        with self._lock:
            self._connection.close()

    # for the assertions of tests

    def rows(self):
        """Return target -> key -> op."""
        tables = {}
        for target, key, op in self._all("SELECT target, id, op FROM rows"):
            tables.setdefault(target, {})[key] = op
        return tables

    def log(self):
        """Return ops in the order in which they became visible."""
        return [op for (op,) in self._all("SELECT op FROM log ORDER BY number")]

    def shown(self):
        """Return target, key, op and whether it was deleted, in the order in which they became visible."""
        found = self._all("SELECT target, id, op, deleted FROM log ORDER BY number")
        return [(target, key, op, bool(deleted)) for target, key, op, deleted in found]

    def prepared(self):
        """Return labels that are prepared and neither committed nor aborted."""
        return [label for (label,) in self._all("SELECT label FROM loads WHERE state = 'PREPARED'")]
