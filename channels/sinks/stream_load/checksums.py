"""Checksums of the rows of a key range, computed by Doris or StarRocks, and the same checksums of Arrow rows.

A row is written as one text: its values as texts without a choice of form, with a comma in between. A text of free form
has its length in bytes before it, and NULL is written as N, so different rows are different texts. The checksum of a
range is the number of its rows and two sums over the MD5 of these texts, which do not depend on the order of the rows.

Only functions with the same documented definition in both products are used: MD5 (RFC 1321), CONV, SUBSTRING, LENGTH,
HEX, CONCAT, CONCAT_WS, DATE_FORMAT, casts of numbers to text, SUM of DECIMAL. Each type and the sum are tried once with
known values on the cluster itself, so that another version with another definition is noticed: its columns, or all, are
then compared by rows. Not part of checksums are types without one text per value: FLOAT, DOUBLE, JSON, ARRAY.

Source: the manuals of both, "Functions".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.mysql.values.md5 import DIGITS, digest_sums
from channels.sinks.row_ranges import KeyRange, RangeChecksum
from channels.sinks.stream_load.encoding import text_of
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.key_pages import QUERY_S
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.statements import escape_percent, quoted, quoted_table
from channels.sinks.stream_load.types import ColumnType

logger = logging.getLogger(__name__)

Terms = list[tuple[str, tuple[Any, ...]]]  # conditions, and the values that are bound to each

_INTEGERS = {
    "BOOLEAN": (0, 1),
    "TINYINT": (-128, 127),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INT": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "LARGEINT": (0, 2**64 - 1),
}
_DATES = ("1000-01-01", "2024-02-29", "9999-12-31")
_TIMES = ("1000-01-01 00:00:00.000000", "2024-02-29 13:05:59.987654", "9999-12-31 23:59:59.000001")
_TEXTS = ("", "N", "a,b", " é漢😀 \\ '")
_BYTES = ("", "00ff80")
_NULL = "N"
# RAND() is below 1. Its value is unknown to the planner, so the engine that reads rows computes the result.
_KNOWN = "IF(RAND() > 2, '', %s)"
_HALVES = tuple(f"SUM(CAST(CONV(SUBSTRING(h, {first}, {DIGITS}), 16, 10) AS DECIMAL(20, 0)))" for first in (1, 17))


def text_sql(column: str, kind: ColumnType) -> str | None:
    """Return the expression for the text of a value of ``kind``, for a statement with values.

    None: the type is not part of checksums. ``column``: an expression.
    """
    if kind.base == "BOOLEAN":
        return f"CAST(CAST({column} AS INT) AS STRING)"
    if kind.base in _INTEGERS or (kind.base == "DECIMAL" and len(kind.parameters) == 2):
        return f"CAST({column} AS STRING)"
    if kind.base in ("DATE", "DATETIME"):
        form = "%%Y-%%m-%%d" if kind.base == "DATE" else "%%Y-%%m-%%d %%H:%%i:%%s.%%f"
        return f"DATE_FORMAT({column}, '{form}')"
    if kind.base == "VARBINARY":
        return f"LOWER(HEX({column}))"
    return f"CONCAT(CAST(LENGTH({column}) AS STRING), ':', {column})" if kind.is_text else None


def texts_of(values: pa.ChunkedArray | pa.Array, kind: ColumnType) -> pa.Array:
    """Return the texts that ``text_sql`` has for ``values`` in a column of ``kind``.

    Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError - a value is no value of this type.
    """
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if kind.base == "DECIMAL":
        column = column.cast(pa.decimal128(38, kind.parameters[1]))
    elif kind.base == "DATE":
        column = column.cast(pa.date32())
    elif kind.base == "DATETIME":
        column = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)))
    text = text_of(column)
    if kind.is_text:
        return pc.binary_join_element_wise(pc.binary_length(text).cast(pa.string()), text, ":")
    return text


class ChecksumProbe:
    """Tries the functions of checksums on a cluster, each once. Calls: any thread."""

    def __init__(self, sql: FrontendSql, datetime_digits: int) -> None:
        """``datetime_digits``: of a DATETIME without parameters."""
        self._sql, self._datetime_digits = sql, datetime_digits
        self._known: dict[str, bool] = {}

    def has(self, kind: ColumnType, values: pa.DataType) -> bool:
        """Return whether columns of ``kind`` with ``values`` can be part of checksums. Raises: SinkUnavailable."""
        if text_sql("v", kind) is None or (kind.base == "VARBINARY" and not pa.types.is_binary(values)):
            return False
        if kind.is_text:
            kind = ColumnType("STRING")  # the length does not matter
        return self._try("sums", self._has_sums) and self._try(str(kind), lambda: self._has_type(kind))

    def _try(self, what: str, test: Callable[[], bool]) -> bool:
        if what not in self._known:
            try:
                self._known[what] = test()
            except SqlError as error:
                logger.debug("the functions of checksums are refused: %s", error)
                self._known[what] = False
            if not self._known[what]:
                logger.warning(
                    "%s computes no checksums of %s as expected: verifications compare rows instead",
                    self._sql.messages.name, "rows" if what == "sums" else what,
                )  # fmt: skip
        return self._known[what]

    def _has_sums(self) -> bool:
        rows = " UNION ALL ".join(f"SELECT {_KNOWN} AS v" for _ in _TEXTS)
        digests = f"SELECT MD5(CONCAT_WS(',', v, v)) AS h FROM ({rows}) AS a"
        found = self._sql.texts(f"SELECT COUNT(*), {', '.join(_HALVES)} FROM ({digests}) AS b", _TEXTS)
        texts = pa.array([f"{text},{text}" for text in _TEXTS], pa.string())
        return _checksum(found) == RangeChecksum(len(_TEXTS), digest_sums(texts))

    def _has_type(self, kind: ColumnType) -> bool:
        samples = self._samples(kind)
        value = f"to_binary({_KNOWN}, 'hex')" if kind.base == "VARBINARY" else f"CAST({_KNOWN} AS {kind})"
        selected = ", ".join([str(text_sql(value, kind))] * len(samples))
        values = tuple(sample for sample in samples for _ in range(2 if kind.is_text else 1))
        (found,) = self._sql.texts(f"SELECT {selected}", values)
        return list(found) == list(texts_of(_typed(samples, kind), kind).to_pylist())

    def _samples(self, kind: ColumnType) -> tuple[str, ...]:
        if kind.base in _INTEGERS:
            return tuple(map(str, (*_INTEGERS[kind.base], 0)))
        if kind.base == "DECIMAL":
            precision, scale = kind.parameters
            digits = ("0", "1", "9" * precision, "9" * (precision - 1) + "0")
            plain = [_with_point(one, scale) for one in digits]
            return (*plain, *(f"-{one}" for one in plain[1:]))
        if kind.base == "DATETIME":
            count = (kind.parameters or (self._datetime_digits,))[0]
            return tuple(one[: 19 + (count and count + 1)] for one in _TIMES)
        return {"DATE": _DATES, "VARBINARY": _BYTES}.get(kind.base, _TEXTS)


class ClusterChecksums:
    """See ``RangeChecksums``."""

    def __init__(
        self,
        sql: FrontendSql,
        table: str,
        schema: pa.Schema,
        kinds: Sequence[ColumnType],
        terms: Callable[[KeyRange], Terms],
    ) -> None:
        """``schema``, ``kinds``: of the columns of the checksums. ``terms``: returns the conditions of a range."""
        self.columns = tuple(schema.names)
        self._sql, self._schema, self._kinds, self._terms = sql, schema, kinds, terms
        texts = [
            f"IFNULL({text_sql(escape_percent(quoted(name)), kind)}, '{_NULL}')"
            for name, kind in zip(schema.names, kinds, strict=True)
        ]
        self._statement = (
            f"SELECT /*+ SET_VAR(query_timeout = {QUERY_S}) */ COUNT(*), {', '.join(_HALVES)} FROM "
            f"(SELECT MD5(CONCAT_WS(',', {', '.join(texts)})) AS h FROM {escape_percent(quoted_table(table))}"
        )
        self._is_refused = False

    def of_range(self, range: KeyRange) -> RangeChecksum | None:
        """See ``RangeChecksums``. After a refusal, the cluster is not asked again."""
        if self._is_refused:
            return None
        terms = self._terms(range)
        where = f" WHERE {' AND '.join(f'({term})' for term, _ in terms)}" if terms else ""
        values = tuple(value for _, some in terms for value in some)
        statement = f"{self._statement}{where}) AS x"
        try:
            return _checksum(self._sql.texts(statement if values else statement.replace("%%", "%"), values or None))
        except SqlError as error:
            logger.warning("a checksum is refused, so rows are compared instead: %s", error)
            self._is_refused = True
            return None

    def of_rows(self, rows: pa.Table) -> RangeChecksum | None:
        """See ``RangeChecksums``."""
        try:
            texts = [
                pc.fill_null(texts_of(rows.column(field.name).cast(field.type), kind), _NULL)
                for field, kind in zip(self._schema, self._kinds, strict=True)
            ]
            joined = pc.binary_join_element_wise(*texts, ",")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return RangeChecksum(rows.num_rows, digest_sums(joined))


def _checksum(answer: Sequence[Sequence[str | None]]) -> RangeChecksum:
    ((count, *sums),) = answer
    first, second = (int(Decimal(one or 0)) for one in sums)  # a sum over no row is NULL
    return RangeChecksum(int(count or 0), (first, second))


def _typed(samples: Sequence[str], kind: ColumnType) -> pa.Array:
    """Return texts as values of the Arrow type that a column of ``kind`` has."""
    if kind.base == "VARBINARY":
        return pa.array([bytes.fromhex(one) for one in samples], pa.binary())
    if kind.base in _INTEGERS:
        arrow = pa.decimal128(20, 0)
    elif kind.base == "DECIMAL":
        arrow = pa.decimal128(38, kind.parameters[1])
    else:
        arrow = {"DATE": pa.date32(), "DATETIME": pa.timestamp("us")}.get(kind.base, pa.string())
    return pa.array(samples, pa.string()).cast(arrow)


def _with_point(digits: str, scale: int) -> str:
    padded = digits.rjust(scale + 1, "0")
    return f"{padded[:-scale]}.{padded[-scale:]}" if scale else padded
