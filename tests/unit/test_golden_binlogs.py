"""Small binlogs of real servers, recorded by ``tests/data/record.py``: replayed, they give what SELECT gave."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from cdc.schema import DELETED, TableSchema
from tests.answers import Everything, comparable, decode_bytes, differing

FOLDER = Path(__file__).parents[1] / "data"


class Saved:
    """Schemas out of the golden file, for a server whose table maps do not tell all."""

    def __init__(self, schemas):
        self.schemas = schemas

    def schema(self, table_map):
        return self.schemas[table_map.table]


def golden(kind):
    answer = json.loads((FOLDER / f"{kind}.json").read_text(), parse_float=float)
    schemas = {table: TableSchema.from_json(told["schema"]) for table, told in answer.items()}
    return (FOLDER / f"{kind}.binlog").read_bytes(), schemas, {table: told["rows"] for table, told in answer.items()}


@pytest.mark.parametrize("chunk", [1 << 20, 997])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_recorded_binlog_replays_to_what_select_gave(kind, chunk):
    # given
    data, schemas, wanted = golden(kind)

    # when
    decoded = decode_bytes(data, tables=Saved(schemas), selection=Everything("golden"), chunk=chunk)

    # then
    for table, schema in schemas.items():
        rows = decoded.rows(table)
        left = {}
        for row, gone in zip(comparable(rows, schema), rows.column(DELETED).to_pylist(), strict=True):
            identity = tuple(row[name] for name in schema.key)
            if gone:
                del left[identity]
            else:
                left[identity] = row
        found = [{name: _plain(value) for name, value in left[identity].items()} for identity in sorted(left)]
        assert differing(found, wanted[table]) == []


def _plain(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return int(value) if isinstance(value, Decimal) else value
