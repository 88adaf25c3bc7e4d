"""Keys that order a table's rows: SQL for comparisons, key values as text, and values between two keys.

A key value is bound to a statement as text and cast there to the type of its column. It is therefore compared exactly
in the order of the index: text by its stored bytes in its own collation, numbers without rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.snapshot import Bound, Chunk
from cdc.mysql.catalog import quoted, quoted_column
from cdc.mysql.result_rows import has_odd_labels
from cdc.mysql.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "\0"  # marks a parameter: the only character that no identifier and no text of a statement contains

_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
_BYTES = (Kind.BINARY, Kind.VARBINARY, Kind.BLOB)
_WHOLE = (
    Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET,
)  # fmt: skip
_FLOATS = (Kind.FLOAT, Kind.DOUBLE)
_MOMENTS = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of the index that orders a table's rows."""

    column: Column
    collation: str = ""  # of a text column

    @property
    def name(self) -> str:
        """The quoted name for a statement."""
        return quoted_column(self.column.name)

    @property
    def bound(self) -> str:
        """A SQL expression with one parameter, the text of a bound. It compares like the values of the column."""
        column, kind = self.column, self.column.kind
        if kind in _TEXTS:
            return f"CONVERT(UNHEX({MARK}) USING {column.charset}) COLLATE {self.collation}"
        if kind in _BYTES:
            return f"UNHEX({MARK})"
        # MySQL derives the type of a parameter from its context: as TIME it converts some texts wrongly, and as a
        # number it accepts a sign. The result of CONCAT is always text.
        text = f"CONCAT({MARK})"
        if kind in _WHOLE:
            return f"CAST({text} AS {'SIGNED' if kind in _SIGNED and not column.unsigned else 'UNSIGNED'})"
        if kind in _FLOATS:
            return f"({text} + 0e0)"
        if kind is Kind.DECIMAL:
            return f"CAST({text} AS DECIMAL({column.precision},{column.scale}))"
        if kind is Kind.DATE:
            return f"CAST({text} AS DATE)"
        if kind in _MOMENTS:
            return f"CAST({text} AS DATETIME(6))"
        if kind is Kind.TIME:
            return f"CAST({text} AS TIME(6))"
        return f"CAST({text} AS {kind.value.upper()})"  # MariaDB's UUID and INET

    @property
    def sql_literal(self) -> str:
        """A SQL expression that returns the text of a bound for the column's value."""
        kind = self.column.kind
        if kind in _TEXTS or kind in _BYTES:
            return f"HEX({self.name})"
        if kind in (Kind.BIT, Kind.ENUM, Kind.SET):
            return f"CAST(CAST({self.name} AS UNSIGNED) AS CHAR)"
        if self.is_approximate:
            return f"CAST({self.name} + 0e0 AS CHAR)"
        return f"CAST({self.name} AS CHAR)"

    @property
    def returns(self) -> str:
        """A SQL condition: the column's value as ``sql_literal`` is the same value again as ``bound``."""
        bound = self.bound.replace(MARK, self.sql_literal)
        return f"{bound} IS NOT NULL" if self.is_approximate else f"{self.name} <=> {bound}"

    def text_of(self, value: pa.Scalar, raw: bytes) -> str:
        """Return the text of a bound for a value that was read: ``raw`` from the server, ``value`` decoded."""
        kind = self.column.kind
        if kind in _TEXTS or kind in _BYTES:
            return raw.hex()
        if kind in (Kind.BIT, Kind.ENUM, Kind.SET):
            return str(int.from_bytes(raw, "little"))
        if kind in (Kind.DATETIME, Kind.TIMESTAMP):
            return _moment_text(value.value)
        if kind is Kind.DATE:
            return _moment_text(value.value * 86_400_000_000)[:10]
        if kind in _FLOATS:
            return repr(float(value.as_py()))
        return str(value.as_py())

    @property
    def is_approximate(self) -> bool:
        """Whether ``sql_literal`` may lose digits: MySQL truncates the text of an expression to 22 characters.

        The value of a FLOAT is only exact as an expression. The text of a DOUBLE(M,D) has D decimals, also if its value
        has more.

        As a bound between two chunks it is correct: each row is in exactly one of them. As the last bound of a table it
        could omit rows.
        """
        return self.column.kind is Kind.FLOAT or (self.column.kind is Kind.DOUBLE and "(" in self.column.type)

    @property
    def splits(self) -> bool:
        """Whether a value between two others can be computed."""
        return self.column.kind in (*_TEXTS, *_BYTES, *_WHOLE, *_FLOATS, *_MOMENTS, Kind.DECIMAL)

    def midpoint(self, low: str, high: str, part: float, alphabet: str = "") -> str | None:
        """Return the text of a value at fraction ``part`` between ``low`` and ``high``; None if it cannot be computed.

        ``alphabet``: characters in the order of the column's collation. A text may still be outside of the range in
        that order, so the caller must ask the server before it uses the value.
        """
        kind = self.column.kind
        try:
            if kind in _WHOLE:
                first, last = int(low), int(high)
                return str(first + int((last - first) * part)) if last > first else None
            if kind is Kind.DECIMAL:
                step = Decimal(1).scaleb(-self.column.scale)
                first_decimal = Decimal(low)
                found = (first_decimal + (Decimal(high) - first_decimal) * Decimal(part)).quantize(step)
                return str(found)
            if kind in _FLOATS:
                return repr(float(low) + (float(high) - float(low)) * part)
            if kind in _MOMENTS:
                return self._moment_midpoint(low, high, part)
            if kind in _BYTES:
                return _bytes_midpoint(bytes.fromhex(low), bytes.fromhex(high), part).hex()
            if kind in _TEXTS:
                return self._text_midpoint(low, high, part, alphabet)
        except (ValueError, ArithmeticError, LookupError):
            return None  # the year 0, an infinite number, or a charset that Python does not have
        return None

    def _moment_midpoint(self, low: str, high: str, part: float) -> str:
        first, last = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (low, high))
        middle = first + (last - first) * part
        text = _moment_text((middle - _EPOCH) // timedelta(microseconds=1))
        return text[:10] if self.column.kind is Kind.DATE else text

    def characters(self, bound: str) -> str:
        """Return the characters of a text column's bound. Raises: LookupError, ValueError - Python cannot decode it."""
        return bytes.fromhex(bound).decode(self._codec)

    @property
    def _codec(self) -> str:
        return _PYTHON_CODECS.get(self.column.charset, self.column.charset)

    def _text_midpoint(self, low: str, high: str, part: float, alphabet: str) -> str:
        first, last = self.characters(low), self.characters(high)
        shared = 0
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        base = len(alphabet) + 1  # digit 0 is the end of the text
        numbers = []
        for text in (first, last):
            digits = [alphabet.find(text[i]) + 1 if i < len(text) else 0 for i in range(shared, shared + _DIGITS)]
            numbers.append(sum(digit * base ** (_DIGITS - 1 - i) for i, digit in enumerate(digits)))
        middle = numbers[0] + int((numbers[1] - numbers[0]) * part)
        found = [middle // base ** (_DIGITS - 1 - i) % base for i in range(_DIGITS)]
        text = first[:shared] + "".join(alphabet[digit - 1] for digit in found if digit)
        return text.encode(self._codec).hex()


_DIGITS = 4  # number of characters after the common prefix by which the distance of two texts is computed
_SIGNED = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_PYTHON_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "ucs2": "utf-16-be",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ujis": "euc_jp", "euckr": "cp949",
    "sjis": "shift_jis", "koi8r": "koi8_r", "koi8u": "koi8_u", "greek": "iso8859_7", "hebrew": "iso8859_8",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The index that orders a table's rows, and SQL for ranges of it."""

    table: str  # quoted
    index: str  # quoted; "" if no index orders the rows
    columns: tuple[KeyColumn, ...]  # () if no index orders the rows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.column.name for one in self.columns)

    @property
    def text(self) -> str:
        """The order as text. Ranges of keys that were planned in another order have other rows.

        It contains the labels of ENUM and SET, because their bounds are the numbers of labels.
        """
        return ", ".join(
            f"{one.name.casefold()} {one.collation} {one.column.labels or ''}".rstrip() for one in self.columns
        )

    def tail(self, chunk: Chunk, where: str | None = None, *, descending: bool = False) -> tuple[str, list[str]]:
        """Return FROM, WHERE and ORDER BY for the rows of ``chunk`` in key order, and the parameters."""
        sql, bounds = self.rows_of(chunk, where)
        if not self.columns:
            return sql, bounds
        direction = " DESC" if descending else ""
        return sql + " ORDER BY " + ", ".join(f"{column.name}{direction}" for column in self.columns), bounds

    def rows_of(self, chunk: Chunk, where: str | None = None) -> tuple[str, list[str]]:
        """Return FROM and WHERE for the rows of ``chunk``, and the parameters, one per ``MARK``."""
        if not self.columns:
            return f" FROM {self.table}" + (f" WHERE ({where})" if where else ""), []
        terms: list[str] = []
        bounds: list[str] = []
        for values, sign, last in ((chunk.above, ">", ">"), (chunk.upto, "<", "<=")):
            if values is not None:
                term, used = self._beyond(values, sign, last)
                terms.append(term)
                bounds += used
        if where:
            terms.append(f"({where})")
        sql = f" FROM {self.table} FORCE INDEX ({self.index})"
        if terms:
            sql += f" WHERE {' AND '.join(terms)}"
        return sql, bounds

    def _beyond(self, values: Bound, sign: str, last: str) -> tuple[str, list[str]]:
        """Return ``(a, b) > (x, y)`` in the form for which servers use a range of the index."""
        first = self.columns[0]
        terms: list[str] = []
        bounds: list[str] = []
        for count in range(min(len(values), len(self.columns))):
            equal = [f"{column.name} = {column.bound}" for column in self.columns[:count]]
            column = self.columns[count]
            compare = last if count == len(values) - 1 else sign
            terms.append("(" + " AND ".join([*equal, f"{column.name} {compare} {column.bound}"]) + ")")
            bounds += values[: count + 1]
        if len(terms) == 1:
            return terms[0], bounds
        # repeat the first column alone, because not every server finds the range in the alternatives
        return f"({first.name} {sign}= {first.bound} AND ({' OR '.join(terms)}))", [values[0], *bounds]


def key_order_of(server: Server, schema: TableSchema, key: Sequence[str]) -> KeyOrder:
    """Return the unique index over exactly the columns ``key``, preferably the primary key, if it orders the rows."""
    table = quoted((schema.database, schema.table))
    indexes: dict[str, list[dict[str, Any]]] = {}
    for row in server.ask(f"SHOW KEYS FROM {table} WHERE Non_unique = 0"):
        indexes.setdefault(row["Key_name"], []).append(row)
    requested = {name.casefold() for name in key}
    for name, parts in sorted(indexes.items(), key=lambda item: item[0] != "PRIMARY"):
        # ORDER BY does not have the order of a prefix, a descending column, a function or a hash
        plain = all(
            row["Column_name"] and not row["Sub_part"] and row["Collation"] == "A" and row["Index_type"] == "BTREE"
            for row in parts
        )
        if plain and requested and {str(row["Column_name"]).casefold() for row in parts} == requested:
            collations = _collations(server, schema)
            columns = [schema.column(row["Column_name"]) for row in parts]
            if any(has_odd_labels(column) for column in columns):
                continue
            known = tuple(KeyColumn(column, collations.get(column.name, "")) for column in columns)
            return KeyOrder(table, quoted_column(name), known)
    return KeyOrder(table, "", ())


def _collations(server: Server, schema: TableSchema) -> dict[str, str]:
    rows = server.ask(
        "SELECT COLUMN_NAME AS name, COLLATION_NAME AS collation FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLLATION_NAME IS NOT NULL",
        (schema.database, schema.table),
    )
    return {row["name"]: row["collation"] for row in rows}


def _moment_text(micros: int) -> str:
    return str(np.datetime64(micros, "us")).replace("T", " ")  # datetime of Python has no year 0


def _bytes_midpoint(low: bytes, high: bytes, part: float) -> bytes:
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    first, last = (int.from_bytes(value[shared : shared + 7].ljust(7, b"\0"), "big") for value in (low, high))
    middle = first + int((last - first) * part)
    return low[:shared] + middle.to_bytes(7, "big").rstrip(b"\0")
