"""Tables as ``information_schema`` describes them now. The metadata in the binlog lacks a part of this.

Source: MySQL manual, "INFORMATION_SCHEMA Tables"; MariaDB knowledge base, "Information Schema".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from sqlglot.errors import SqlglotError

from cdc.errors import CdcError, SchemaMismatch, SourceActionRequired, SourceUnavailable
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.table_names import table_of, table_text
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.foreign_keys import rules_of
from cdc.mysql.server import Server

SYSTEM_DATABASES = ("mysql", "information_schema", "performance_schema", "sys")
_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(\*|`(?:[^`]|``)+`)\.(\*|`(?:[^`]|``)+`) TO ", re.IGNORECASE)
_NO_TABLE_ACCESS, _NO_SUCH_TABLE = 1142, 1146  # ER_TABLEACCESS_DENIED_ERROR, ER_NO_SUCH_TABLE
_TABLES_PER_QUERY = 200  # keeps a statement short on servers with tens of thousands of tables

KINDS = {
    "integer": Kind.INT,
    "tinytext": Kind.TEXT,
    "mediumtext": Kind.TEXT,
    "longtext": Kind.TEXT,
    "tinyblob": Kind.BLOB,
    "mediumblob": Kind.BLOB,
    "longblob": Kind.BLOB,
    **dict.fromkeys(
        (
            "point",
            "linestring",
            "polygon",
            "multipoint",
            "multilinestring",
            "multipolygon",
            "geomcollection",
            "geometrycollection",
        ),
        Kind.GEOMETRY,
    ),
    **{kind.value: kind for kind in Kind},
}
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET)
_SIZED = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.BINARY, Kind.VARBINARY, Kind.BLOB)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.S)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "\\": "\\"}

Name = tuple[str, str]  # database and table


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key whose action changes rows of the child table."""

    child: str
    parent: str
    constraint: str
    action: str  # "ON DELETE CASCADE"


def mapped_tables(server: Server, maps: Callable[[str, str], bool]) -> tuple[Name, ...]:
    """Return the base tables of the server for which ``maps`` is true, ordered by name."""
    rows = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.TABLES "
        f"WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN {SYSTEM_DATABASES} "
        "ORDER BY TABLE_SCHEMA, TABLE_NAME"
    )
    return tuple((row["d"], row["t"]) for row in rows if maps(row["d"], row["t"]))


def table_schemas(
    server: Server,
    names: Sequence[Name],
    leave_out: Callable[[str, str, CdcError], bool] = lambda database, table, error: False,
) -> dict[Name, TableSchema]:
    """Return the current schemas of ``names``. Tables that do not exist are omitted.

    ``leave_out``: see ``TableFilter``; called for a table with a column of an unknown type.
    Raises: SchemaMismatch - a column has an unknown type; SourceUnavailable.
    """
    found: dict[Name, TableSchema] = {}
    for start in range(0, len(names), _TABLES_PER_QUERY):
        found |= _schemas(server, names[start : start + _TABLES_PER_QUERY], leave_out)
    return found


def _schemas(
    server: Server, names: Sequence[Name], leave_out: Callable[[str, str, CdcError], bool]
) -> dict[Name, TableSchema]:
    where = f"(TABLE_SCHEMA, TABLE_NAME) IN ({', '.join(['(%s, %s)'] * len(names))})"
    arguments = tuple(part for name in names for part in name)
    tables = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, TABLE_TYPE AS kind, TABLE_COMMENT AS remark, "
        f"TABLE_COLLATION AS sorting FROM information_schema.TABLES WHERE {where}",
        arguments,
    )
    described = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, COLUMN_NAME AS name, DATA_TYPE AS base, COLUMN_TYPE AS type, "
        "IS_NULLABLE AS nullable, CHARACTER_MAXIMUM_LENGTH AS length, NUMERIC_PRECISION AS digits, "
        "NUMERIC_SCALE AS scale, DATETIME_PRECISION AS fsp, CHARACTER_SET_NAME AS charset, "
        "COLUMN_COMMENT AS remark, EXTRA AS extra, GENERATION_EXPRESSION AS expression "
        f"FROM information_schema.COLUMNS WHERE {where} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
        arguments,
    )
    columns: dict[Name, list[Column]] = defaultdict(list)
    versioned: set[Name] = set()
    unknown: set[Name] = set()
    for row in described:
        try:
            columns[row["d"], row["t"]].append(_column(row))
        except SchemaMismatch as error:
            if not leave_out(row["d"], row["t"], error):
                raise
            unknown.add((row["d"], row["t"]))
        if _text(row["expression"]).upper() == "ROW START":
            versioned.add((row["d"], row["t"]))
    keys = _keys(server, where, arguments)
    schemas = {}
    for row in tables:
        name = (row["d"], row["t"])
        if name in unknown:
            continue
        if row["kind"] == "SYSTEM VERSIONED" and name not in versioned:
            columns[name] += [_period("row_start"), _period("row_end")]  # in row events, not in information_schema
        key = keys.get(name)
        if key is None:
            key = _unique_key(server, name, columns[name])
        charset = _charset(_text(row["sorting"]).partition("_")[0])
        schemas[name] = TableSchema(*name, tuple(columns[name]), key, _text(row["remark"]), charset=charset)
    return schemas


def _keys(server: Server, where: str, arguments: tuple[object, ...]) -> dict[Name, tuple[str, ...]]:
    rows = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, COLUMN_NAME AS name FROM information_schema.STATISTICS "
        f"WHERE {where} AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX",
        arguments,
    )
    keys: dict[Name, tuple[str, ...]] = {}
    for row in rows:
        name = (row["d"], row["t"])
        keys[name] = (*keys.get(name, ()), row["name"])
    return keys


def _unique_key(server: Server, name: Name, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the first unique key over NOT NULL columns, in the order of SHOW KEYS, which is the server's order."""
    nullable = {column.name: column.nullable for column in columns}
    indexes: dict[str, list[str | None]] = {}
    for row in server.ask(f"SHOW KEYS FROM {quoted(name)} WHERE Non_unique = 0"):
        indexes.setdefault(row["Key_name"], []).append(row["Column_name"])
    for index in indexes.values():
        named = [column for column in index if column is not None]  # a functional part has no column
        if len(named) == len(index) and not any(nullable.get(column, True) for column in named):
            return tuple(named)
    return ()


def quoted(name: Name) -> str:
    """Return ``database.table``, quoted for a statement."""
    return ".".join(quoted_column(part) for part in name)


def quoted_column(name: str) -> str:
    """Return a column or another identifier, quoted for a statement."""
    return "`" + name.replace("`", "``") + "`"


def _column(row: dict[str, Any]) -> Column:
    kind = KINDS.get(row["base"].lower())
    if kind is None:
        raise SchemaMismatch(
            f"Column {row['name']} has a type that this version does not know: {row['base']}.",
            hint="Remove the table from `channels`, or change the type of the column.",
            table=table_text(row["d"], row["t"]),
        )
    type_text = _text(row["type"])
    extra = (row["extra"] or "").upper()
    length = int(row["length"] or 0) if kind in _SIZED else 0
    if kind is Kind.BIT:
        length = int(row["digits"] or 1)
    elif kind is Kind.VECTOR:
        length = int("".join(filter(str.isdigit, type_text)) or 0)
    decimal = kind is Kind.DECIMAL
    temporal = kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
    return Column(
        name=row["name"],
        kind=kind,
        type=type_text,
        unsigned="unsigned" in type_text.split("'")[0] and kind not in (Kind.ENUM, Kind.SET),
        nullable=row["nullable"] == "YES",
        length=length,
        precision=int(row["digits"] or 0) if decimal else 0,
        scale=int(row["scale"] or 0) if decimal else 0,
        fsp=int(row["fsp"] or 0) if temporal else 0,
        charset=_charset(row["charset"]) if kind in _TEXTS else "",
        labels=labels_of(type_text) if kind in (Kind.ENUM, Kind.SET) else (),
        comment=_text(row["remark"]),
        generated=bool(_text(row["expression"])) and "GENERATED" in extra and "ROW " not in _text(row["expression"]),
        visible="INVISIBLE" not in extra,
        auto_increment="AUTO_INCREMENT" in extra,
    )


def _charset(name: str | None) -> str:
    return {"utf8": "utf8mb3", "uca1400": ""}.get(name or "", name or "")  # a collation without its charset: unknown


def labels_of(type_text: str) -> tuple[str, ...]:
    """Return the labels of an ENUM or SET type in the form of information_schema."""
    inside = type_text[type_text.index("(") :]
    return tuple(_unescaped(match) for match in _LABEL.findall(inside))


def _unescaped(label: str) -> str:
    plain = label.replace("''", "'")
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), plain, flags=re.S)


def _period(name: str) -> Column:
    return Column(name, Kind.TIMESTAMP, "timestamp(6)", nullable=False, fsp=6, generated=True, visible=False)


def cascades(server: Server, maps: Callable[[str, str], bool]) -> tuple[ForeignKey, ...]:
    """Return the foreign keys by which the server itself changes rows of a mapped table.

    Raises: SourceActionRequired - the account may not see the definition of a mapped table.
    """
    rows = (
        _mariadb_rules(server, maps)
        if server.mariadb
        else server.ask(
            "SELECT CONSTRAINT_SCHEMA AS d, TABLE_NAME AS t, UNIQUE_CONSTRAINT_SCHEMA AS p, "
            "REFERENCED_TABLE_NAME AS parent, CONSTRAINT_NAME AS name, DELETE_RULE AS deleted, UPDATE_RULE AS updated "
            "FROM information_schema.REFERENTIAL_CONSTRAINTS"
        )
    )
    found = []
    for row in rows:
        for verb, rule in (("DELETE", row.get("deleted")), ("UPDATE", row.get("updated"))):
            if rule in ("CASCADE", "SET NULL", "SET DEFAULT") and maps(row["d"], row["t"]):
                child, parent = table_text(row["d"], row["t"]), table_text(row["p"], row["parent"])
                found.append(ForeignKey(child, parent, row["name"], f"ON {verb} {rule}"))
    return tuple(found)


def _mariadb_rules(server: Server, maps: Callable[[str, str], bool]) -> list[dict[str, Any]]:
    ansi_quotes = "ANSI_QUOTES" in server.ask("SELECT @@SESSION.sql_mode AS mode")[0]["mode"]
    rows = []
    for database, table in mapped_tables(server, maps):
        name = f"{quoted_column(database)}.{quoted_column(table)}"
        try:
            text = _text(server.ask(f"SHOW CREATE TABLE {name}")[0]["Create Table"])
            rules = list(rules_of(text, database, ansi_quotes=ansi_quotes))
        except (Unreadable, SqlglotError, SourceUnavailable) as error:
            code = error.__cause__.args[0] if isinstance(error.__cause__, pymysql.err.MySQLError) else 0
            if code == _NO_SUCH_TABLE:  # dropped after `mapped_tables`
                continue
            if isinstance(error, SourceUnavailable) and code != _NO_TABLE_ACCESS:
                raise
            raise SourceActionRequired(
                f"The foreign keys of {database}.{table} cannot be read.",
                hint=f"Run `GRANT SELECT ON {name} TO ...`, and check `SHOW CREATE TABLE {name}`: the binlog of "
                "MariaDB lacks rows of child tables that ON DELETE and ON UPDATE change.",
                server=server.endpoint,
            ) from error
        for owner, parent, constraint, verb, action in rules:
            row = {"d": database, "t": table, "p": owner, "parent": parent, "name": constraint}
            rows.append({**row, "deleted" if verb == "DELETE" else "updated": action})
    return rows


def writes_beyond(server: Server, name: Name, maps: Callable[[str, str], bool]) -> str | None:
    """Return why a statement that writes table ``name`` may also write mapped tables; None if it cannot.

    A statement on a table of the database ``mysql`` cannot, because these tables cannot have triggers. They are not
    looked up: cloud services log changes of their own tables there as statements, whatever ``binlog_format`` is, and
    most accounts may not see these tables.
    Source: MySQL manual, "CREATE TRIGGER Statement"; MySQL error ER_NO_TRIGGERS_ON_SYSTEM_SCHEMA.
    """
    if name[0] == "mysql":
        return None
    tables = server.ask(
        "SELECT TABLE_TYPE AS kind FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", name
    )
    if not tables:
        return "it does not exist, or this account may not see it without `GRANT SELECT`"
    if "VIEW" in tables[0]["kind"]:
        return "a view may write mapped tables"
    triggers = server.ask(
        "SELECT TRIGGER_NAME AS name FROM information_schema.TRIGGERS "
        "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s",
        name,
    )
    if triggers:
        return f"its trigger {triggers[0]['name']} may write mapped tables"
    if not _may_see_triggers(server, name):
        return f"this account may not see its triggers without `GRANT TRIGGER ON {quoted_column(name[0])}.*`"
    try:
        keys, reached = cascades(server, lambda *_: True), [table_text(*name)]
    except SourceActionRequired as error:
        return f"mapped tables may change with it: {error.message}"
    for parent in reached:  # the loop appends to it
        for key in keys:
            if key.parent != parent or key.child in reached:
                continue
            if maps(*table_of(key.child)):
                return f"its foreign keys change {key.child} with it ({key.constraint}, {key.action})"
            reached.append(key.child)
    return None


def _may_see_triggers(server: Server, name: Name) -> bool:
    """Return whether the account has TRIGGER on the table. Without it information_schema shows no triggers.

    Source: MySQL manual, "The INFORMATION_SCHEMA TRIGGERS Table"; "SHOW GRANTS Statement".
    """
    for row in server.ask("SHOW GRANTS"):
        grant = _GRANT.match(str(next(iter(row.values()))))
        if grant is None or not {"TRIGGER", "ALL PRIVILEGES"} & {each.strip() for each in grant[1].split(",")}:
            continue
        database, table = (re.sub(r"\\([_%])", r"\1", part.strip("`")) for part in (grant[2], grant[3]))
        if database in ("*", name[0]) and table in ("*", name[1]):
            return True
    return False


def is_sequence(server: Server, name: Name) -> bool:
    """Return whether ``name`` is a sequence of MariaDB, whose changes are logged as row events."""
    rows = server.ask(
        "SELECT TABLE_TYPE AS kind FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", name
    )
    return bool(rows) and rows[0]["kind"] == "SEQUENCE"


def system_versioned(server: Server, maps: Callable[[str, str], bool]) -> tuple[str, ...]:
    """Return the mapped tables with system versioning (MariaDB). Their deletes are logged as updates."""
    rows = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.TABLES WHERE TABLE_TYPE = 'SYSTEM VERSIONED'"
    )
    return tuple(table_text(row["d"], row["t"]) for row in rows if maps(row["d"], row["t"]))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
