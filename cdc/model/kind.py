"""Kinds of columns of the source. Source: MySQL manual, "Data Types"; docs/reference/types.md."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """The kind of a column: it determines the format of its values."""

    TINYINT = "tinyint"
    SMALLINT = "smallint"
    MEDIUMINT = "mediumint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    CHAR = "char"
    VARCHAR = "varchar"
    TEXT = "text"  # all sizes
    BINARY = "binary"
    VARBINARY = "varbinary"
    BLOB = "blob"  # all sizes
    ENUM = "enum"
    SET = "set"
    JSON = "json"  # MySQL's binary documents; MariaDB's JSON is TEXT
    GEOMETRY = "geometry"
    VECTOR = "vector"
    UUID = "uuid"  # MariaDB
    INET4 = "inet4"  # MariaDB
    INET6 = "inet6"  # MariaDB
