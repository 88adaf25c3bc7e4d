"""Values that tests of the cluster sinks share: a table, its rows, a job's names, a real cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pymysql
import pytest

from cdc.errors import PreparedLoadLost, TargetMismatch
from cdc.model.batch import FENCE_STEP, LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import Sink, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.labels import label_for
from channels.sinks.stream_load.http import ClusterAddress
from tests.emulators.storage import StoredColumn

USER = ("cdc", "s:ec@ret")
TABLE = TargetTable(
    "ods.orders",
    (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("name", pa.string(), True, "varchar(10)")),
    ("id",),
)
# tables with a column without a type in both products, and its name
UNTYPED = (
    (replace(TABLE, columns=(*TABLE.columns, TargetColumn("words", pa.list_(pa.string()), True))), "words"),
    (replace(TABLE, columns=(*TABLE.columns, TargetColumn("sums", pa.list_(pa.decimal128(9, 2)), True))), "sums"),
    (
        replace(TABLE, columns=(TargetColumn("ratio", pa.float64(), False), *TABLE.columns), key=("ratio", "id")),
        "ratio",
    ),
)


class Cluster(Protocol):
    """What both emulators report."""

    def loads(self) -> list[dict[str, Any]]:
        """Return all loads ever: label, table, state, rows."""


class RealCluster:
    """A cluster that the environment names, ``http://user:password@fe:8030``, SQL at port 9030 or ?sql_port=N.

    Its database ``ods`` is dropped first, with all labels.
    """

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self.user = (unquote(url.username or "root"), unquote(url.password or ""))
        self.fe = [f"{url.hostname}:{url.port or 8030}"]
        self.sql_port = int(parse_qs(url.query).get("sql_port", ["9030"])[0])
        self._host = url.hostname or ""

    def __enter__(self) -> RealCluster:
        self.execute("DROP DATABASE IF EXISTS ods FORCE")
        return self

    def __exit__(self, *_: object) -> None:
        self.execute("DROP DATABASE IF EXISTS ods FORCE")

    def execute(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names and rows."""
        name, password = self.user
        with pymysql.connect(host=self._host, port=self.sql_port, user=name, password=password) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [entry[0] for entry in cursor.description or ()], list(cursor.fetchall())


def address_of(cluster: Any, arguments: dict[str, Any]) -> ClusterAddress:
    """Return the address of ``cluster``. Fields of an address are moved out of ``arguments``."""
    username, password = cluster.user if isinstance(cluster, RealCluster) else USER
    given = {"fe": cluster.fe, "username": username, "password": password, "sql_port": cluster.sql_port}
    given |= {name: arguments.pop(name) for name in ClusterAddress.__slots__ if name in arguments}
    return ClusterAddress(**given | {"fe": tuple(given["fe"]), "backends": tuple(given.get("backends", ()))})


def name_of(checkpoint: int = 1, task: int = 0, channel: str = TABLE.name, **changes: Any) -> LoadName:
    return replace(LoadName("shop", "0a1b2c3d", 1, checkpoint, channel, task), **changes)


def mark_of(checkpoint: int = 1, sequence: int | None = None) -> SinkCheckpoint:
    sequence = FENCE_STEP + checkpoint * 1000 if sequence is None else sequence
    first, last = (BinlogPosition("mysql-bin.000001", 4 + number) for number in (checkpoint - 1, checkpoint))
    return SinkCheckpoint("shop", "0a1b2c3d", 1, checkpoint, first, last, sequence)


def rows_of(*rows: tuple[int, str | None, bool, int]) -> pa.RecordBatch:
    """Rows of TABLE: id, name, deleted, sequence."""
    ids, names, deleted, sequences = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names, pa.string()),
            DELETED: pa.array(deleted, pa.bool_()),
            SEQUENCE: pa.array(sequences, pa.int64()),
        }
    )


def write(
    sink: Sink, *rows: tuple[int, str | None, bool, int], name: LoadName | None = None, table: TargetTable = TABLE
) -> PreparedLoad:
    given = rows_of(*rows).rename_columns([*(column.name for column in table.columns), DELETED, SEQUENCE])
    load = sink.part_writer(table)(name or name_of(), iter([given]))
    assert load is not None
    return load


def resize_name(cluster: Any, length: int) -> None:
    """Change the length of the column ``name`` of TABLE, also to a shorter one, which no server does by itself."""
    storage = cluster.storage
    storage.modify_column(storage.tables["ods", "orders"], StoredColumn("name", f"VARCHAR({length})"))


def committed_once(cluster: Cluster, labels: Iterable[str]) -> None:
    """Assert that exactly one transaction of each label became visible."""
    for label in labels:
        visible = [each for each in cluster.loads() if each["label"] == label and each["status"] == "VISIBLE"]
        assert len(visible) == 1, (label, [each for each in cluster.loads() if each["label"] == label])


def gives_up_loads_of_a_gone_column(cluster: Any, sink: Sink) -> None:
    """Assert that loads after a DROP COLUMN are never committed, not even after the column exists again.

    The cluster accepts such loads and drops the values of the column without an error.
    """
    sink.ensure_table(TABLE)
    sink.commit([write(sink, (1, "a", False, 1))], mark_of())
    cluster.execute("ALTER TABLE ods.orders DROP COLUMN name")
    load = write(sink, (1, "b", False, 1001), name=name_of(2))
    with pytest.raises(PreparedLoadLost) as caught:
        sink.commit([load], mark_of(2))
    assert caught.value.context["labels"] == [label_for(load.name)]
    with pytest.raises(TargetMismatch, match="column name is missing"):
        write(sink, (1, "b", False, 1001), name=name_of(2, attempt=1))
    cluster.execute("ALTER TABLE ods.orders ADD COLUMN name VARCHAR(40) NULL")
    with pytest.raises(PreparedLoadLost):
        sink.commit([load], mark_of(2))
    sink.commit([write(sink, (1, "b", False, 1001), name=name_of(2, attempt=1))], mark_of(2))
    assert cluster.rows("SELECT id, name FROM ods.orders") == [(1, "b")]
