"""Keys that order a table's rows: how their values are compared, told as text, and found in between.

Every value of a key travels as text, bound to a statement and cast there to the column's own type, so that a key is
compared just as the index orders it: text by its stored bytes under its own collation, numbers without rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from cdc.binlog.catalog import quoted, quoted_column
from cdc.binlog.result_rows import has_odd_labels
from cdc.binlog.server import Server
from cdc.schema import Column, Kind, TableSchema
from cdc.snapshot.chunks import Bound, Chunk

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "\0"  # stands for a parameter: the one character that no identifier and no text of a statement holds

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
    collation: str = ""  # of text

    @property
    def name(self) -> str:
        """As an identifier of the source."""
        return quoted_column(self.column.name)

    @property
    def bound(self) -> str:
        """An expression with one parameter: a bound's text as a value that compares as the column does."""
        column, kind = self.column, self.column.kind
        if kind in _TEXTS:
            return f"CONVERT(UNHEX({MARK}) USING {column.charset}) COLLATE {self.collation}"
        if kind in _BYTES:
            return f"UNHEX({MARK})"
        # MySQL derives a parameter's type from where it stands: as TIME it reads some texts wrongly, and as a number it
        # takes a sign. The result of CONCAT is text everywhere.
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
    def told(self) -> str:
        """An expression that gives a bound's text for the column's value."""
        kind = self.column.kind
        if kind in _TEXTS or kind in _BYTES:
            return f"HEX({self.name})"
        if kind in (Kind.BIT, Kind.ENUM, Kind.SET):
            return f"CAST(CAST({self.name} AS UNSIGNED) AS CHAR)"
        if kind is Kind.FLOAT:
            return f"CAST({self.name} + 0e0 AS CHAR)"
        return f"CAST({self.name} AS CHAR)"

    def text_of(self, value: pa.Scalar, raw: bytes) -> str:
        """The bound's text for a value that was read: ``raw`` as the server sent it, ``value`` as it was decoded."""
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
        """Whether ``told`` may lose digits: MySQL cuts the text of a FLOAT's value at 22 characters.

        Two chunks that meet at such a bound still hold every row once. As a table's last bound it would leave out rows.
        """
        return self.column.kind is Kind.FLOAT

    @property
    def splits(self) -> bool:
        """Whether values between two others can be named."""
        return self.column.kind in (*_TEXTS, *_BYTES, *_WHOLE, *_FLOATS, *_MOMENTS, Kind.DECIMAL)

    def between(self, low: str, high: str, part: float, alphabet: str = "") -> str | None:
        """Text of a value that lies at ``part`` of the way from ``low`` to ``high``; None where there is none.

        ``alphabet``: characters in the order of the column's collation. Of text, what is found may still lie
        elsewhere in that order: the server is asked before it is used.
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
                return self._moment_between(low, high, part)
            if kind in _BYTES:
                return _bytes_between(bytes.fromhex(low), bytes.fromhex(high), part).hex()
            if kind in _TEXTS:
                return self._text_between(low, high, part, alphabet)
        except (ValueError, ArithmeticError, LookupError):
            return None  # a year 0, an infinite number, a charset that Python does not know
        return None

    def _moment_between(self, low: str, high: str, part: float) -> str:
        first, last = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (low, high))
        middle = first + (last - first) * part
        text = _moment_text((middle - _EPOCH) // timedelta(microseconds=1))
        return text[:10] if self.column.kind is Kind.DATE else text

    def characters(self, bound: str) -> str:
        """Text for a bound's text. Raises: LookupError, ValueError - Python does not know it."""
        return bytes.fromhex(bound).decode(self._codec)

    @property
    def _codec(self) -> str:
        return _PYTHON_CODECS.get(self.column.charset, self.column.charset)

    def _text_between(self, low: str, high: str, part: float, alphabet: str) -> str:
        first, last = self.characters(low), self.characters(high)
        shared = 0
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        base = len(alphabet) + 1  # 0 stands for the text's end
        numbers = []
        for text in (first, last):
            digits = [alphabet.find(text[i]) + 1 if i < len(text) else 0 for i in range(shared, shared + _DIGITS)]
            numbers.append(sum(digit * base ** (_DIGITS - 1 - i) for i, digit in enumerate(digits)))
        middle = numbers[0] + int((numbers[1] - numbers[0]) * part)
        found = [middle // base ** (_DIGITS - 1 - i) % base for i in range(_DIGITS)]
        text = first[:shared] + "".join(alphabet[digit - 1] for digit in found if digit)
        return text.encode(self._codec).hex()


_DIGITS = 4  # characters behind the shared ones that tell how far apart two texts are
_SIGNED = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_PYTHON_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "ucs2": "utf-16-be",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ujis": "euc_jp", "euckr": "cp949",
    "sjis": "shift_jis", "koi8r": "koi8_r", "koi8u": "koi8_u", "greek": "iso8859_7", "hebrew": "iso8859_8",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """The index that orders a table's rows, and the statements over ranges of it."""

    table: str  # quoted
    index: str  # quoted; "" where no index orders the rows
    columns: tuple[KeyColumn, ...]  # () likewise

    def tail(self, chunk: Chunk, where: str | None = None, *, descending: bool = False) -> tuple[str, list[str]]:
        """Everything behind the column list for the rows of ``chunk`` in key order, and its parameters."""
        sql, bounds = self.rows_of(chunk, where)
        if not self.columns:
            return sql, bounds
        direction = " DESC" if descending else ""
        return sql + " ORDER BY " + ", ".join(f"{column.name}{direction}" for column in self.columns), bounds

    def rows_of(self, chunk: Chunk, where: str | None = None) -> tuple[str, list[str]]:
        """Return FROM and WHERE for the rows of ``chunk``, and the values that stand for ``MARK`` in it."""
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
        """``(a, b) > (x, y)`` in the form that servers find a range of an index in."""
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
        # the first column alone again: not every server sees through the alternatives
        return f"({first.name} {sign}= {first.bound} AND ({' OR '.join(terms)}))", [values[0], *bounds]


def order_of(server: Server, schema: TableSchema, key: Sequence[str]) -> Order:
    """The unique index over just the columns ``key``, the clustered one before others, if it orders the rows."""
    table = quoted((schema.database, schema.table))
    indexes: dict[str, list[dict[str, Any]]] = {}
    for row in server.ask(f"SHOW KEYS FROM {table} WHERE Non_unique = 0"):
        indexes.setdefault(row["Key_name"], []).append(row)
    wanted = {name.casefold() for name in key}
    for name, parts in sorted(indexes.items(), key=lambda item: item[0] != "PRIMARY"):
        # a prefix, a part in descending order, a function or a hash is not the order that ORDER BY gives
        plain = all(
            row["Column_name"] and not row["Sub_part"] and row["Collation"] == "A" and row["Index_type"] == "BTREE"
            for row in parts
        )
        if plain and wanted and {str(row["Column_name"]).casefold() for row in parts} == wanted:
            collations = _collations(server, schema)
            columns = [schema.column(row["Column_name"]) for row in parts]
            if any(has_odd_labels(column) for column in columns):
                continue
            known = tuple(KeyColumn(column, collations.get(column.name, "")) for column in columns)
            return Order(table, quoted_column(name), known)
    return Order(table, "", ())


def _collations(server: Server, schema: TableSchema) -> dict[str, str]:
    rows = server.ask(
        "SELECT COLUMN_NAME AS name, COLLATION_NAME AS collation FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLLATION_NAME IS NOT NULL",
        (schema.database, schema.table),
    )
    return {row["name"]: row["collation"] for row in rows}


def _moment_text(micros: int) -> str:
    return str(np.datetime64(micros, "us")).replace("T", " ")  # Python's own calendar lacks the year 0


def _bytes_between(low: bytes, high: bytes, part: float) -> bytes:
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    first, last = (int.from_bytes(value[shared : shared + 7].ljust(7, b"\0"), "big") for value in (low, high))
    middle = first + int((last - first) * part)
    return low[:shared] + middle.to_bytes(7, "big").rstrip(b"\0")
