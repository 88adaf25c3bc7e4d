"""Values that tests of the Doris sink share: a table, its rows, a job's names, a sink on a stand-in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdc.batch import FENCE_STEP, LoadName, PreparedLoad
from cdc.position import BinlogPosition
from cdc.schema import DELETED, SEQUENCE
from channels.sinks.base import CheckpointMark, TargetColumn, TargetTable
from channels.sinks.doris import DorisSink
from tests.servers.doris.settings import DorisSettings
from tests.servers.doris.stand_in import DorisStandIn

USER = ("cdc", "s:ec@ret")
TABLE = TargetTable(
    "ods.orders",
    (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("name", pa.string(), True, "varchar(10)")),
    ("id",),
)


def stand_in(**settings: Any) -> DorisStandIn:
    return DorisStandIn(DorisSettings(users={"root": "", USER[0]: USER[1]}, **settings))


def sink_on(doris: DorisStandIn, **arguments: Any) -> DorisSink:
    given = {"username": USER[0], "password": USER[1], "sql_port": doris.sql_port, "pause_s": 0.01, **arguments}
    return DorisSink(doris.fe, **given)


def name_of(checkpoint: int = 1, task: int = 0, channel: str = TABLE.name, **changes: Any) -> LoadName:
    return replace(LoadName("shop", "0a1b2c3d", 1, checkpoint, channel, task), **changes)


def mark_of(checkpoint: int = 1, sequence: int | None = None) -> CheckpointMark:
    sequence = FENCE_STEP + checkpoint * 1000 if sequence is None else sequence
    return CheckpointMark(
        "shop", "0a1b2c3d", 1, checkpoint, BinlogPosition("mysql-bin.000001", 4 + checkpoint), sequence
    )


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
    sink: DorisSink, *rows: tuple[int, str | None, bool, int], name: LoadName | None = None, table: TargetTable = TABLE
) -> PreparedLoad:
    load = sink.part_writer(table)(name or name_of(), iter([rows_of(*rows)]))
    assert load is not None
    return load


def committed_once(doris: DorisStandIn, labels: Iterable[str]) -> None:
    """Each label was made visible by one transaction, however many were begun."""
    for label in labels:
        visible = [each for each in doris.loads() if each["label"] == label and each["status"] == "VISIBLE"]
        assert len(visible) == 1, (label, [each for each in doris.loads() if each["label"] == label])
