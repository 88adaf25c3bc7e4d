"""TABLE_MAP events: parse the description of the table whose rows follow, and make a TableSchema of it.

Source: MySQL source, libs/mysql/binlog/event/rows_event.h (Table_map_event, optional metadata).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdc.model.position import Position
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.charsets import Charset, charset_of
from cdc.mysql.values import text
from cdc.mysql.values.kernels import SLACK_BYTES
from cdc.sources.binlog.decoder.events import ByteCursor, Malformed

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 15, 16, 17, 18, 19
MARIADB_BLOB_COMPRESSED, MARIADB_VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255

_META_BYTES = {
    FLOAT: 1, DOUBLE: 1, NEWDECIMAL: 2, BIT: 2, TIME2: 1, DATETIME2: 1, TIMESTAMP2: 1, VARCHAR: 2, VAR_STRING: 2,
    STRING: 2, ENUM: 2, SET: 2, BLOB: 1, JSON: 1, GEOMETRY: 1, VECTOR: 1, MARIADB_BLOB_COMPRESSED: 1,
    MARIADB_VARCHAR_COMPRESSED: 2,
}  # fmt: skip
_NO_META = {TINY, SHORT, LONG, LONGLONG, INT24, YEAR, DATE, TIME, DATETIME, TIMESTAMP}
_NUMERIC = {TINY, SHORT, INT24, LONG, LONGLONG, FLOAT, DOUBLE, NEWDECIMAL, YEAR}
_CHARACTER = {STRING, VAR_STRING, VARCHAR, BLOB, MARIADB_BLOB_COMPRESSED, MARIADB_VARCHAR_COMPRESSED}
_BINARY_COLLATION = 63
_INTEGER_KINDS = {
    TINY: Kind.TINYINT, SHORT: Kind.SMALLINT, INT24: Kind.MEDIUMINT, LONG: Kind.INT, LONGLONG: Kind.BIGINT,
}  # fmt: skip
_TEMPORAL_KINDS = {
    DATETIME2: Kind.DATETIME, TIMESTAMP2: Kind.TIMESTAMP, TIME2: Kind.TIME, DATETIME: Kind.DATETIME,
    TIMESTAMP: Kind.TIMESTAMP, TIME: Kind.TIME,
}  # fmt: skip
_GEOMETRY_NAMES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection",
)  # fmt: skip
_NOT_ASCII = ("ucs2", "utf16", "utf32", "swe7")  # ASCII bytes are not ASCII text there
_BYTES_PER_CHARACTER = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "ujis": 3, "eucjpms": 3, "ucs2": 2,
    "sjis": 2, "cp932": 2, "gbk": 2, "gb2312": 2, "big5": 2, "euckr": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """One column as a TABLE_MAP describes it. Fields that the row metadata does not have are None."""

    type: int  # real type: ENUM and SET instead of the STRING that carries them
    meta: int  # the metadata bytes as one number, the first byte lowest
    nullable: bool
    unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[bytes, ...] | None = None  # of ENUM and SET, in the column's charset
    geometry: int = 0
    visible: bool = True
    dimensions: int = 0

    @property
    def width(self) -> int:
        """Return the bytes of a value; for a type of variable size, minus the bytes of its length prefix."""
        meta, low, high = self.meta, self.meta & 0xFF, self.meta >> 8
        fixed = {
            TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8, FLOAT: 4, DOUBLE: 8, YEAR: 1, DATE: 3, TIME: 3,
            DATETIME: 8, TIMESTAMP: 4,
        }.get(self.type)  # fmt: skip
        if fixed is not None:
            return fixed
        if self.type in (DATETIME2, TIMESTAMP2, TIME2):
            return {DATETIME2: 5, TIMESTAMP2: 4, TIME2: 3}[self.type] + (low + 1) // 2
        if self.type == NEWDECIMAL:
            return decimal_bytes(low, high)
        if self.type == BIT:
            return high + (low > 0)
        if self.type in (ENUM, SET):
            return high
        if self.type in (VARCHAR, VAR_STRING, MARIADB_VARCHAR_COMPRESSED):
            return -1 if meta <= 255 else -2
        if self.type == STRING:
            return -1 if self.max_bytes <= 255 else -2
        return -low  # BLOB, JSON, GEOMETRY, VECTOR: the metadata is the number of length bytes

    @property
    def max_bytes(self) -> int:
        """Return the length limit. For CHAR and BINARY, the type byte has the upper bits of the length, inverted."""
        low, high = self.meta & 0xFF, self.meta >> 8
        return high | ((low & 0x30) ^ 0x30) << 4 if self.type == STRING else self.meta


@dataclass(frozen=True, slots=True)
class TableMap:
    """A parsed TABLE_MAP without its table id."""

    database: str
    table: str
    flags: int
    columns: tuple[MappedColumn, ...]
    key: tuple[int, ...] | None  # column indexes in key order; None: not in the row metadata
    mariadb: bool

    @property
    def name(self) -> str:
        """Return ``database.table``."""
        return f"{self.database}.{self.table}"

    @property
    def complete(self) -> bool:
        """Return whether names, key, charsets and labels are known (row metadata FULL): enough for a schema.

        False for MariaDB, where UUID, INET and JSON columns look like BINARY and TEXT.
        """
        return not self.mariadb and all(
            column.name is not None and (column.type not in (ENUM, SET) or column.labels is not None)
            for column in self.columns
        )


def table_name(content: bytes) -> tuple[str, str]:
    """Return database and table of a TABLE_MAP's ``content``, which begins after the table id."""
    cursor = ByteCursor(content, 2)
    database = cursor.take(cursor.uint(1))
    cursor.take(1)
    table = cursor.take(cursor.uint(1))
    return database.decode("utf-8", "replace"), table.decode("utf-8", "replace")


def parse_table_map(content: bytes, *, mariadb: bool) -> TableMap:
    """Parse a TABLE_MAP's ``content``: from after the table id to before the checksum. Raises: Malformed."""
    cursor = ByteCursor(content)
    flags = cursor.uint(2)
    names = []
    for _ in range(2):
        names.append(cursor.take(cursor.uint(1)).decode("utf-8", "replace"))
        cursor.take(1)
    count = cursor.pint()
    types = cursor.take(count)
    metadata = ByteCursor(cursor.take(cursor.pint()))
    columns = [_column(code, metadata) for code in types]
    nullable = cursor.take((count + 7) // 8)
    optional = _optional_metadata(cursor)
    key: tuple[int, ...] | None = None
    if 8 in optional:
        key = tuple(_pints(optional[8]))
    elif 9 in optional:
        key = tuple(_pints(optional[9])[::2])
    elif 4 in optional:
        key = ()
    if key and max(key) >= count:
        raise Malformed("the key has a column that the table map does not have")
    details = _details(columns, optional, mariadb=mariadb)
    return TableMap(
        names[0],
        names[1],
        flags,
        tuple(
            MappedColumn(kind, meta, bool(nullable[i >> 3] >> (i & 7) & 1), **details[i])
            for i, (kind, meta) in enumerate(columns)
        ),
        key,
        mariadb,
    )


def _column(code: int, metadata: ByteCursor) -> tuple[int, int]:
    if code in _NO_META:
        return code, 0
    width = _META_BYTES.get(code)
    if width is None:
        raise Malformed(f"column type {code} is unknown")
    meta = metadata.uint(width)
    if code == STRING and meta & 0xFF in (ENUM, SET):
        code = meta & 0xFF
    low, high = meta & 0xFF, meta >> 8
    bad = (
        (code in (BLOB, JSON, GEOMETRY, VECTOR, MARIADB_BLOB_COMPRESSED) and not 1 <= low <= 4)
        or (code == ENUM and high not in (1, 2))
        or (code == SET and not 1 <= high <= 8)
        or (code == NEWDECIMAL and not (1 <= low <= 65 and high <= min(low, 38)))
        or (code in (DATETIME2, TIMESTAMP2, TIME2) and low > 6)
        or (code == BIT and not (low < 8 and 1 <= high * 8 + low <= 64))
    )
    if bad:
        raise Malformed(f"column type {code} cannot have the metadata {meta:#x}")
    return code, meta


def _optional_metadata(cursor: ByteCursor) -> dict[int, bytes]:
    optional = {}
    while cursor.left:
        kind = cursor.uint(1)
        optional[kind] = cursor.take(cursor.pint())
    return optional


def _pints(data: bytes) -> list[int]:
    cursor, numbers = ByteCursor(data), []
    while cursor.left:
        numbers.append(cursor.pint())
    return numbers


def _details(columns: list[tuple[int, int]], optional: dict[int, bytes], *, mariadb: bool) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = [{} for _ in columns]

    def of(*types: int) -> list[int]:
        return [i for i, (code, _) in enumerate(columns) if code in types]

    def set_values(field: str, indexes: list[int], values: list[int]) -> None:
        for i, value in zip(indexes, values, strict=False):
            details[i][field] = value

    numeric = of(*_NUMERIC)
    if 1 in optional:
        set_values("unsigned", numeric, [bool(bit) for bit in _bits(optional[1], len(numeric))])
    character = of(*_CHARACTER, GEOMETRY if mariadb else VECTOR)
    set_values("collation", character, _collations(optional, 2, 3, len(character)))
    labelled = of(ENUM, SET)
    set_values("collation", labelled, _collations(optional, 10, 11, len(labelled)))
    if 4 in optional:
        names = ByteCursor(optional[4])
        for detail in details:
            detail["name"] = names.take(names.pint()).decode("utf-8", "replace")
    for kind, code in ((5, SET), (6, ENUM)):
        if kind in optional:
            cursor = ByteCursor(optional[kind])
            for i in of(code):
                details[i]["labels"] = tuple(cursor.take(cursor.pint()) for _ in range(cursor.pint()))
    if 7 in optional:
        set_values("geometry", of(GEOMETRY), _pints(optional[7]))
    if 12 in optional:
        set_values("visible", list(range(len(columns))), [bool(bit) for bit in _bits(optional[12], len(columns))])
    if 13 in optional:
        set_values("dimensions", of(VECTOR), _pints(optional[13]))
    return details


def _bits(data: bytes, count: int) -> list[int]:
    if len(data) * 8 < count:
        raise Malformed(f"a bitmap of {count} bits has {len(data)} bytes")
    return [data[i >> 3] >> (7 - (i & 7)) & 1 for i in range(count)]


def _collations(optional: dict[int, bytes], default_kind: int, each_kind: int, count: int) -> list[int]:
    if each_kind in optional:
        return _pints(optional[each_kind])
    if default_kind not in optional:
        return []
    numbers = _pints(optional[default_kind])
    if not numbers:
        raise Malformed("the list of charsets has no default")
    default, *exceptions = numbers
    collations = [default] * count
    for index, collation in zip(exceptions[::2], exceptions[1::2], strict=False):
        if index >= count:
            raise Malformed("the list of charsets has a column that the table map does not have")
        collations[index] = collation
    return collations


def decimal_bytes(precision: int, scale: int) -> int:
    """Return the bytes of a DECIMAL(precision, scale) value: on each side 4 per 9 digits, and fewer for the rest."""
    rest_bytes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    whole = precision - scale
    return whole // 9 * 4 + rest_bytes[whole % 9] + scale // 9 * 4 + rest_bytes[scale % 9]


def schema_of(table_map: TableMap, since: Position | None) -> TableSchema:
    """Return the schema of a complete TABLE_MAP. The type texts are as SHOW COLUMNS prints them."""
    columns = tuple(_schema_column(column, "mariadb" if table_map.mariadb else "mysql") for column in table_map.columns)
    key = tuple(columns[i].name for i in table_map.key or ())
    return TableSchema(table_map.database, table_map.table, columns, key, since=since)


def _schema_column(column: MappedColumn, flavor: str) -> Column:
    charset = ""
    if column.collation is not None and column.collation != _BINARY_COLLATION:
        charset = charset_of(column.collation, flavor)
    kind, fields = _kind_and_fields(column, charset)
    unsigned = bool(column.unsigned) and kind not in (Kind.YEAR,)
    labels = tuple(text_of(label, charset or "utf8mb4") for label in column.labels or ())
    made = Column(
        name=column.name or "",
        kind=kind,
        type="",
        unsigned=unsigned,
        nullable=column.nullable,
        charset=charset if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET) else "",
        labels=labels,
        visible=column.visible,
        **fields,
    )
    fields["type"] = _type_text(made, column)
    return Column(**{**{name: getattr(made, name) for name in Column.__slots__}, **fields})


def text_of(raw: bytes, charset: str) -> str:
    """Return ``raw``, which is in a charset of the server, as text. Raises: DecodeError - it is not well-formed."""
    if raw.isascii() and not charset.startswith(_NOT_ASCII):
        return raw.decode("ascii")
    data = np.frombuffer(raw + bytes(SLACK_BYTES), np.uint8)
    array = text.text_array(data, np.zeros(1, np.int64), np.array([len(raw)], np.int32), Charset(charset))
    return str(array[0].as_py())


def _kind_and_fields(column: MappedColumn, charset: str) -> tuple[Kind, dict]:
    code, low, high = column.type, column.meta & 0xFF, column.meta >> 8
    per_character = _BYTES_PER_CHARACTER.get(charset, 1)
    binary = column.collation == _BINARY_COLLATION
    if code in _INTEGER_KINDS:
        return _INTEGER_KINDS[code], {}
    if code in _TEMPORAL_KINDS:
        return _TEMPORAL_KINDS[code], {"fsp": low}
    if code == NEWDECIMAL:
        return Kind.DECIMAL, {"precision": low, "scale": high}
    if code == BIT:
        return Kind.BIT, {"length": high * 8 + low}
    if code in (VARCHAR, VAR_STRING):
        return (Kind.VARBINARY if binary else Kind.VARCHAR), {"length": column.meta // per_character}
    if code == STRING:
        return (Kind.BINARY if binary else Kind.CHAR), {"length": column.max_bytes // per_character}
    if code == BLOB:
        return (Kind.BLOB if binary else Kind.TEXT), {"length": (1 << 8 * low) - 1}
    if code == VECTOR:
        return Kind.VECTOR, {"length": column.dimensions}
    plain = {
        FLOAT: Kind.FLOAT, DOUBLE: Kind.DOUBLE, YEAR: Kind.YEAR, DATE: Kind.DATE, ENUM: Kind.ENUM, SET: Kind.SET,
        JSON: Kind.JSON, GEOMETRY: Kind.GEOMETRY,
    }  # fmt: skip
    if code not in plain:
        raise Malformed(f"column type {code} needs the server's description of the table")
    return plain[code], {}


def _type_text(column: Column, mapped: MappedColumn) -> str:
    sign = " unsigned" if column.unsigned else ""
    if column.kind is Kind.DECIMAL:
        return f"decimal({column.precision},{column.scale}){sign}"
    if column.kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and column.fsp:
        return f"{column.kind.value}({column.fsp})"
    if column.kind in (Kind.TEXT, Kind.BLOB):
        size = ("tiny", "", "medium", "long")[(mapped.meta & 0xFF) - 1]
        return f"{size}{column.kind.value}"
    if column.kind in (Kind.ENUM, Kind.SET):
        labels = ",".join("'" + label.replace("'", "''") + "'" for label in column.labels)
        return f"{column.kind.value}({labels})"
    if column.kind is Kind.GEOMETRY:
        return _GEOMETRY_NAMES[mapped.geometry] if mapped.geometry < len(_GEOMETRY_NAMES) else "geometry"
    if column.length:
        return f"{column.kind.value}({column.length})"
    return f"{column.kind.value}{sign}"
