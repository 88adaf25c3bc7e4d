"""Small binlogs of real servers, recorded by ``tests/data/record.py``: decoding them gives the rows of SELECT."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from cdc.model.schema import DELETED, TableSchema
from cdc.state.codec import from_json
from tests.support.answers import Everything, comparable, decode_bytes, differing

FOLDER = Path(__file__).parents[5] / "data"


class Saved:
    """Schemas from the golden file, for a server with incomplete table maps."""

    def __init__(self, schemas):
        self.schemas = schemas

    def schema(self, table_map):
        return self.schemas[table_map.table]


def golden(kind):
    answer = json.loads((FOLDER / f"{kind}.json").read_text(), parse_float=float)
    schemas = {table: from_json(TableSchema, json.dumps(told["schema"])) for table, told in answer.items()}
    return (FOLDER / f"{kind}.binlog").read_bytes(), schemas, {table: told["rows"] for table, told in answer.items()}


@pytest.mark.parametrize("chunk", [1 << 20, 997])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_recorded_binlog_gives_the_rows_of_select(kind, chunk):
    # given
    data, schemas, wanted = golden(kind)

    # when
    decoded = decode_bytes(data, tables=Saved(schemas), table_filter=Everything("golden"), chunk=chunk)

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
