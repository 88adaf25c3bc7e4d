"""The columns of plain rows, from the types in the job file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.sources.kafka.formats.fields import parse_path, schema_of_fields, schema_of_types


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("BOOLEAN", pa.int8()), ("tinyint", pa.int8()), ("SMALLINT", pa.int16()), ("INT", pa.int32()),
        ("Integer", pa.int32()), ("BIGINT", pa.int64()), ("LONG", pa.int64()), ("FLOAT", pa.float32()),
        ("DOUBLE", pa.float64()), ("DECIMAL(20, 4)", pa.decimal128(20, 4)), ("DECIMAL", pa.decimal128(10, 0)),
        ("STRING", pa.string()), ("VARCHAR(5)", pa.string()), ("BINARY", pa.binary()), ("DATE", pa.date32()),
        ("TIMESTAMP", pa.timestamp("us", "UTC")), ("TIMESTAMP(3)", pa.timestamp("us", "UTC")),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
    ],
)  # fmt: skip
def test_schema_of_fields_types(text, arrow):
    for suffix, nullable in (("", True), (" NOT NULL", False), (" not  null ", False)):
        (column,) = schema_of_fields("d", "t", {"c": text + suffix}, ()).columns
        assert column.arrow == arrow and column.nullable is nullable


@pytest.mark.parametrize("text", ["ARRAY<INT>", "STRUCT<a: INT>", "TEXTUAL", "", "DECIMAL(40,2)", "ENUM('a')", "JSON"])
def test_schema_of_fields_other_type_raises(text):
    with pytest.raises(ConfigError, match="not supported"):
        schema_of_fields("d", "t", {"c": text}, ())


def test_schema_of_fields_key_must_be_a_field():
    assert schema_of_fields("d", "t", {"b": "INT", "a": "INT"}, ("a", "b")).key == ("a", "b")
    with pytest.raises(ConfigError, match="key column x"):
        schema_of_fields("d", "t", {"a": "INT"}, ("x",))


def test_parse_path():
    assert parse_path("$.a.b") == ("a", "b") and parse_path("$['a.b']['c d'].é") == ("a.b", "c d", "é")


@pytest.mark.parametrize("path", ["address", "$", "$.", "$.a[0]", "$..a", "$.a.*", "$['a", ""])
def test_parse_path_other_text_raises(path):
    with pytest.raises(ConfigError, match="path"):
        parse_path(path)


def test_schema_of_types_takes_the_types_of_mysql():
    types = {"id": "bigint unsigned NOT NULL", "at": "DATETIME", "at6": "datetime(6)", "e": "enum('a','b')"}
    found = schema_of_types("d", "t", types, ("id",))
    assert [column.fsp for column in found.columns] == [0, 0, 6, 0] and found.columns[3].labels == ("a", "b")
    assert found.columns[0].unsigned and not found.columns[0].nullable and found.columns[1].nullable
    with pytest.raises(ConfigError, match="not a type of MySQL"):
        schema_of_types("d", "t", {"at": "TIMESTAMP_NTZ"}, ())
    with pytest.raises(ConfigError, match="key column x"):
        schema_of_types("d", "t", types, ("x",))
