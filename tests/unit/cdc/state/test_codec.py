"""Saved values that an older version wrote."""

import json

from cdc.model.schema import Column, Kind, TableSchema
from cdc.state.codec import from_json, to_json


def test_schema_saved_without_charset_has_an_unknown_one():
    schema = TableSchema("shop", "t", (Column("id", Kind.INT, "int"),), ("id",), charset="latin1")
    saved = json.loads(to_json(schema))
    assert from_json(TableSchema, json.dumps(saved)) == schema
    del saved["charset"]
    older = from_json(TableSchema, json.dumps(saved))
    assert older.charset == "" and older.same_shape(schema)
