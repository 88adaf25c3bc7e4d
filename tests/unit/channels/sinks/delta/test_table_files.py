"""Key ranges of data files that other writers of a Delta table have written."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta.compaction import MergeMode
from channels.sinks.delta.sink import DeltaSink
from channels.sinks.delta.table_files import table_files
from tests.support.delta_rows import rows_of

UNSIGNED = pa.decimal128(20, 0)  # BIGINT UNSIGNED
TABLE = TargetTable("ods.t", (TargetColumn("id", UNSIGNED, False), TargetColumn("n", pa.int64(), True)), ("id",))
KEYS = [Decimal(8_159_259_302_431_290_920), Decimal(9_747_148_318_381_983_535)]  # a double rounds both of them


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((str(value), UNSIGNED) for value in (0, 10**15 - 1, 2**53 + 1, *KEYS, 2**63 - 1, 2**63, 2**64 - 1)),
        *((f"-{value}", UNSIGNED) for value in (10**15 - 1, 2**53 + 1, *KEYS, 2**63, 10**20 - 1)),
        *((value, pa.decimal128(20, 2)) for value in ("1.25", "-0.01", "815925930243129092.11", "90071992547409.93")),
        *((value, pa.decimal128(38, 10)) for value in ("1234567890123456789012345678.1234567891", "-0.1234567891")),
        ("9" * 38, pa.decimal128(38, 0)),
    ],
)
def test_decimal_bounds_of_deltalake_include_the_value(value: str, kind: pa.DataType, tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([Decimal(value)], kind)}))
    (file,) = table_files(DeltaTable(tmp_path), ["id"])
    assert not file.low[0].is_valid or file.low[0].as_py() <= Decimal(value)
    assert not file.high[0].is_valid or file.high[0].as_py() >= Decimal(value)


def test_decimal_bounds_of_few_digits_are_exact(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([Decimal(7), Decimal(123_456_789_012_345)], UNSIGNED)}))
    (file,) = table_files(DeltaTable(tmp_path), ["id"])
    assert (file.low[0].as_py(), file.high[0].as_py()) == (7, 123_456_789_012_345)


@pytest.mark.parametrize("mode", ["rewrite", "deletion_vectors"])
def test_large_unsigned_keys_are_replaced_after_optimize(mode: MergeMode, tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, merge=mode, threads=1)
    sink.ensure_table(TABLE)
    for checkpoint, key in enumerate([*KEYS, *KEYS], 1):
        columns = {"id": pa.array([key], UNSIGNED), "n": pa.array([checkpoint], pa.int64())}
        batch = pa.RecordBatch.from_pydict({**columns, DELETED: pa.array([False]), SEQUENCE: pa.array([0])})
        load = sink.part_writer(TABLE)(LoadName("shop", "0badcafe", 1, checkpoint, TABLE.name, 0), iter([batch]))
        assert load is not None
        position = BinlogPosition("b.000001", 4 + checkpoint)
        sink.commit([load], SinkCheckpoint("shop", "0badcafe", 1, checkpoint, position, position, checkpoint))
        if checkpoint == len(KEYS):
            DeltaTable(tmp_path / "ods/t").optimize.compact()
    sink.close()
    found = sorted((row["id"], row["n"]) for row in rows_of(tmp_path / "ods/t"))
    assert found == [(KEYS[0], 3), (KEYS[1], 4)]
