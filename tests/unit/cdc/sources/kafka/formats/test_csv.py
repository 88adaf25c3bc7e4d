"""Plain rows as CSV: quotes, NULL, tombstones, and a fault for each line that cannot be read."""

from __future__ import annotations

import csv
import datetime
import io
import pickle
import random
from decimal import Decimal

import pytest

from cdc.model.schema import DELETED
from cdc.sources.kafka.formats.csv import Csv
from cdc.sources.kafka.formats.fields import schema_of_fields
from tests.support.kafka_messages import MappedTables, block_of, rows_of
from tests.support.seeds import seed_of

FIELDS = {"id": "BIGINT NOT NULL", "note": "STRING", "price": "DECIMAL(10,2)", "at": "TIMESTAMP_NTZ", "flag": "BOOLEAN"}


def tables_of(fields=FIELDS, columns=()):
    return MappedTables(schemas=(schema_of_fields("shop", "orders", fields, ("id",)),), columns=columns)


def decoded(*lines, keys=None, fields=FIELDS, columns=(), **options):
    return Csv(tables_of(fields, columns), **options).decode(block_of([*lines], keys))


def test_lines_have_typed_values():
    found = decoded(
        '1,"a ""b"", c",12.5,2024-02-29 01:02:03,true', "2,\\N,\\N,\\N,\\N", "3,,-1,\\N,0\r\n", '4,"\\N",1,\\N,"1"\n'
    )
    assert rows_of(found) == [
        {"id": 1, "note": 'a "b", c', "price": Decimal("12.50"), "at": datetime.datetime(2024, 2, 29, 1, 2, 3), "flag": 1,
         DELETED: False},
        {"id": 2, "note": None, "price": None, "at": None, "flag": None, DELETED: False},
        {"id": 3, "note": "", "price": Decimal("-1.00"), "at": None, "flag": 0, DELETED: False},
        {"id": 4, "note": "\\N", "price": Decimal("1.00"), "at": None, "flag": 1, DELETED: False},
    ]  # fmt: skip
    assert not found.faults


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "fewer"), ("1,a", "fewer"), ("1,a,1,\\N,1,", "more"), ('1,"a,1', "does not end"), ('1,"a"b,1,\\N,1', "follows"),
        ("1,a,1,\\N,1\n2,b,1,\\N,1", "line"), ("x,a,1,\\N,1", "column id"), ("\\N,a,1,\\N,1", "key is NULL"),
        ("1,a,,\\N,1", "column price"), ('1,"', "does not end"),
    ],
)  # fmt: skip
def test_unreadable_line_is_a_fault(line, reason):
    found = decoded("7,a,1,\\N,1", line, "8,b,1,\\N,1")
    assert [row["id"] for row in rows_of(found)] == [7, 8]
    assert [fault.message for fault in found.faults] == [1] and reason in found.faults[0].reason


def test_only_needed_columns_are_read_and_another_separator_is_used():
    found = decoded("1|a,b|not a number|\\N|1", separator="|", columns=("id", "note"))
    assert rows_of(found) == [{"id": 1, "note": "a,b", DELETED: False}]


def test_tombstone_deletes_the_key_of_its_message():
    found = decoded("1,a,1,\\N,1", None, "3,c,1,\\N,1", None, keys=[None, b"2", None, b'{"id": 4}'])
    assert [(row["id"], row[DELETED]) for row in rows_of(found)] == [(1, False), (2, True), (3, False), (4, True)]
    assert found.tables[0].message.tolist() == [0, 1, 2, 3]


def test_random_lines_equal_the_csv_module():
    rng = random.Random(seed_of())
    fields = {"id": "INT", "a": "STRING", "b": "STRING"}
    texts = ["".join(rng.choices('a",\n\r \\Né', k=rng.randrange(8))) for _ in range(2000)]
    rows = [(number, *rng.choices(texts, k=2)) for number in range(1000)]
    lines = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow(row)
        lines.append(out.getvalue())
    found = decoded(*lines, fields=fields)
    assert not found.faults and [(row["id"], row["a"], row["b"]) for row in rows_of(found)] == rows


def test_format_can_be_pickled():
    assert rows_of(pickle.loads(pickle.dumps(Csv(tables_of()))).decode(block_of(["1,a,1,\\N,1"])))
