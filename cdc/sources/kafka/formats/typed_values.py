"""Values of plain JSON and CSV to Arrow arrays: one parser per column, chosen by the column's type.

Texts and numbers are both accepted where they mean the same. Moments are texts, because a number does not say its unit.
Binary values are base64.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdc.errors import DecodeError, SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.values import text
from cdc.sources.canal.layout import LayoutColumn
from cdc.sources.canal.value_parsers import value_parser
from cdc.sources.kafka.formats import typed_kernels
from cdc.sources.kafka.formats.json_kernels import ARRAY, FALSE, NUMBER, OBJECT, TRUE
from cdc.sources.kafka.formats.json_slices import Texts, shown
from cdc.sources.kafka.formats.rows import PRODUCER_HINT, TEXT_KINDS, ColumnPlan, Parser

_WHOLE = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT, Kind.YEAR, Kind.BIT)
_NUMBERS = (*_WHOLE, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE)
_BYTES = (Kind.BINARY, Kind.VARBINARY, Kind.BLOB)
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
ANY_KIND = (*TEXT_KINDS, NUMBER, TRUE, FALSE, OBJECT, ARRAY)


def plain_plan(column: Column, schema: TableSchema, zone_us: int = 0) -> ColumnPlan:
    """Return how the values of a column are read. Raises: SchemaMismatch - its type has no form in JSON.

    ``zone_us``: how far moments without a zone are ahead of UTC, for TIMESTAMP columns.
    """
    kind = column.kind
    if kind in _NUMBERS:
        parse = _by_canal(column, schema)
        if kind in _WHOLE:
            return ColumnPlan(column, _with_booleans(parse), (*TEXT_KINDS, NUMBER, TRUE, FALSE))
        return ColumnPlan(column, parse)
    if kind is Kind.DATE:
        return ColumnPlan(column, _by_canal(column, schema), TEXT_KINDS)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP):
        zones = kind is Kind.TIMESTAMP
        return ColumnPlan(
            column, lambda texts: moments(texts, column.arrow, zones, zone_us if zones else 0), TEXT_KINDS
        )
    if kind in _BYTES:
        width = column.length if kind is Kind.BINARY else None
        return ColumnPlan(column, lambda texts: text.binary_array(*base64(texts), width), TEXT_KINDS)
    if kind in _TEXTS:
        return ColumnPlan(column, utf8, ANY_KIND)
    if kind in (Kind.TIME, Kind.ENUM, Kind.SET):
        return ColumnPlan(column, utf8, TEXT_KINDS)
    raise SchemaMismatch(
        f"A {kind.value.upper()} column cannot be read from this format.",
        hint="Remove the column from the mapping.",
        table=schema.name,
        column=column.name,
    )


def _by_canal(column: Column, schema: TableSchema) -> Parser:
    received = LayoutColumn(0, column.name, column.type, False)
    parse = value_parser(column, received, schema, 0)
    return lambda texts: parse((texts.data, texts.starts, texts.lengths))


def _with_booleans(parse: Parser) -> Parser:
    def parse_any(texts: Texts) -> pa.Array | tuple[pa.Array, int]:
        boolean = (texts.kinds == TRUE) | (texts.kinds == FALSE)
        if not boolean.any():
            return parse(texts)
        lengths = np.where(boolean, np.int32(-1), texts.lengths)
        array = parse(Texts(texts.data, texts.starts, lengths, texts.kinds))
        assert isinstance(array, pa.Array)
        bits = pa.array((texts.kinds == TRUE).astype(np.int8)).cast(array.type)
        return pc.if_else(pa.array(boolean), bits, array)

    return parse_any


def bad_value(texts: Texts, row: int, what: str) -> DecodeError:
    """Return the error for a value that is not ``what``."""
    return DecodeError(f"The value {shown(texts.bytes(row))} is not {what}.", hint=PRODUCER_HINT, row=row)


def utf8(texts: Texts) -> pa.Array:
    """Return texts as Arrow. Raises: DecodeError - one is not UTF-8."""
    return text.utf8_array(texts.data, texts.starts, texts.lengths)


def base64(texts: Texts) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
    """Return the bytes of base64 texts: buffer, starts and lengths. Raises: DecodeError."""
    out = np.empty(int(np.maximum(texts.lengths, 0).sum(dtype=np.int64)) + 8, np.uint8)
    starts, lengths = np.empty_like(texts.starts), np.empty_like(texts.lengths)
    row = typed_kernels.base64_bytes(texts.data, texts.starts, texts.lengths, out, starts, lengths)
    if row >= 0:
        raise bad_value(texts, row, "base64")
    return out, starts, lengths


def moments(texts: Texts, kind: pa.DataType, zones: bool, zone_us: int = 0) -> tuple[pa.Array, int]:
    """Return moments in ISO 8601, and the number of zero and invalid dates that became NULL. Raises: DecodeError."""
    out = np.empty(len(texts), np.int64)
    valid = np.empty(len(texts), np.bool_)
    row, invalid = typed_kernels.iso_moments(texts.data, texts.starts, texts.lengths, zones, zone_us, out, valid)
    if row >= 0:
        raise bad_value(texts, row, "a date and time" + ("" if zones else " without a zone"))
    return pa.array(out, kind, mask=None if valid.all() else ~valid), invalid


def documents(texts: Texts) -> pa.Array:
    """Return JSON documents with blanks as MySQL prints them."""
    out = np.empty(2 * int(np.maximum(texts.lengths, 0).sum(dtype=np.int64)) + 8, np.uint8)
    starts, lengths = np.empty_like(texts.starts), np.empty_like(texts.lengths)
    typed_kernels.spaced_json(texts.data, texts.starts, texts.lengths, out, starts, lengths)
    return text.utf8_array(out, starts, lengths)
