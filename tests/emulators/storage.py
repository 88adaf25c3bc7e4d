"""Tables of the emulators in DuckDB: typed, checked row by row, merged by key, delete sign and sequence.

A table ``ods.orders`` is a base table ``ods."orders#rows"`` with hidden columns and a view ``ods.orders`` of what a
reader sees. A load's rows pass ``check`` (text to types, with the refusals of the real servers) and then ``apply``.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa

SIGN, SEQUENCE, VERSION, ORDER = "__DORIS_DELETE_SIGN__", "__DORIS_SEQUENCE_COL__", "__DORIS_VERSION_COL__", "__order"

_INTEGERS = {"TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INT": "INTEGER", "BIGINT": "BIGINT", "LARGEINT": "HUGEINT"}
_PLAIN = {"FLOAT": "REAL", "DOUBLE": "DOUBLE", "DATE": "DATE", "DATETIME": "TIMESTAMP", "BOOLEAN": "BOOLEAN",
          "VARBINARY": "BLOB"}  # fmt: skip
_ZONED = r"(Z|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column as its CREATE TABLE gave it."""

    name: str
    type: str  # DECIMAL(12,2), VARCHAR(40), ARRAY<FLOAT>
    nullable: bool = True
    default: str | None = None
    comment: str = ""

    @property
    def base(self) -> str:
        return self.type.partition("(")[0].partition("<")[0]

    @property
    def parameters(self) -> tuple[int, ...]:
        inside = self.type.partition("(")[2].rstrip(")")
        return tuple(int(part) for part in inside.split(",")) if inside else ()

    @property
    def stored(self) -> str:
        """DuckDB's type."""
        if self.base in _INTEGERS:
            return _INTEGERS[self.base]
        if self.base == "DECIMAL":
            return f"DECIMAL({','.join(map(str, self.parameters or (9, 0)))})"
        if self.base == "ARRAY":
            inner = replace(self, type=self.type.partition("<")[2].rpartition(">")[0])
            return f"{inner.stored}[]"
        return _PLAIN.get(self.base, "VARCHAR")


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A range of the partition column: from ``low`` on, below ``high``; None: without an end."""

    name: str
    low: str | None
    high: str | None

    @property
    def range(self) -> str:
        """As SHOW PARTITIONS prints it."""
        return f"[types: [DATEV2]; keys: [{self.low or '0000-01-01'}]; ..types: [DATEV2]; keys: [{self.high}]; )"


@dataclass(slots=True)
class StoredTable:
    """A table and what its loads may do."""

    database: str
    name: str
    columns: tuple[StoredColumn, ...]
    key: tuple[str, ...]
    model: str  # UNIQUE, DUPLICATE, AGGREGATE, PRIMARY
    sequence_type: str | None = None  # of the hidden column
    sequence_column: str | None = None  # a visible column that serves as sequence
    delete_sign: bool = True
    properties: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    tail: str = ""  # PARTITION BY ..., DISTRIBUTED BY ..., as given
    partition_column: str | None = None
    partitions: list[StoredPartition] = field(default_factory=list)
    version: int = 1
    created: str = ""  # CREATE_TIME, in UTC
    renamed: dict[str, str] = field(default_factory=dict)  # a name that a prepared load may know -> today's
    ids: dict[str, str] = field(default_factory=dict)  # of renamed columns: today's name -> the first name
    stored: tuple[str, str] = ("", "")  # its schema and view in DuckDB, where names ignore case

    @property
    def base(self) -> str:
        return f"{quoted(self.stored[0])}.{quoted(self.stored[1] + '#rows')}"

    @property
    def view(self) -> str:
        return f"{quoted(self.stored[0])}.{quoted(self.stored[1])}"

    def column(self, name: str) -> StoredColumn:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Checked:
    """A load's rows after their checks."""

    rows: pa.Table | None  # typed; None when nothing is left
    total: int
    bad: tuple[str, ...]  # a line for each refused row, first ones first


class Storage:
    """DuckDB and the catalogue of tables."""

    def __init__(self, *, string_limit: int = 1 << 20) -> None:
        self._duck = duckdb.connect(":memory:", config={"threads": 1})
        self._lock = threading.RLock()
        self.tables: dict[tuple[str, str], StoredTable] = {}
        self.databases: dict[str, str] = {}  # name -> its schema in DuckDB
        self.string_limit = string_limit
        self.lower_case_table_names = 0
        self._created = 0

    def query(self, sql: str) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
        """Names, DuckDB's types and rows."""
        with self._lock:
            found = self._duck.execute(sql)
            names = [entry[0] for entry in found.description or ()]
            types = [str(entry[1]) for entry in found.description or ()]
            return names, types, found.fetchall()

    def arrow(self, sql: str) -> pa.Table:
        """A query's rows in Arrow."""
        with self._lock:
            return self._duck.sql(sql).to_arrow_table()

    def find(self, database: str, name: str) -> StoredTable | None:
        """The table of that name, as ``lower_case_table_names`` has it: 0 exact, else case is ignored."""
        found = self.tables.get((database, name))
        if found is None and self.lower_case_table_names:
            same = (
                one
                for (owner, other), one in self.tables.items()
                if owner == database and other.lower() == name.lower()
            )
            found = next(same, None)
        return found

    def create_database(self, name: str) -> None:
        with self._lock:
            if name not in self.databases:
                self.databases[name] = _free_name(name, self.databases.values())
                self._duck.execute(f"CREATE SCHEMA {quoted(self.databases[name])}")

    def drop_database(self, name: str) -> None:
        with self._lock:
            if name in self.databases:
                self._duck.execute(f"DROP SCHEMA {quoted(self.databases.pop(name))} CASCADE")
            self.tables = {key: table for key, table in self.tables.items() if key[0] != name}

    def create(self, table: StoredTable) -> None:
        with self._lock:
            if self.lower_case_table_names == 1:
                table.name = table.name.lower()
            schema = self.databases[table.database]
            taken = [other.stored[1] for other in self.tables.values() if other.database == table.database]
            table.stored = (schema, _free_name(table.name, taken))
            columns = [f"{quoted(column.name)} {column.stored}" for column in table.columns]
            columns += [f'"{SIGN}" TINYINT', f'"{SEQUENCE}" HUGEINT', f'"{VERSION}" BIGINT']
            self._duck.execute(f"CREATE TABLE {table.base} ({', '.join(columns)})")
            # real servers count in seconds; here no two tables are created in the same one
            self._created += 1
            table.created = str(datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=self._created))
            self.tables[table.database, table.name] = table
            self._make_view(table)

    def drop(self, table: StoredTable) -> None:
        with self._lock:
            self._duck.execute(f"DROP VIEW {table.view}; DROP TABLE {table.base}")
            del self.tables[table.database, table.name]

    def add_column(self, table: StoredTable, column: StoredColumn) -> None:
        with self._lock:
            default = "" if column.default is None else f" DEFAULT {_default(column)}"
            self._duck.execute(f'DROP VIEW {table.view}; ALTER TABLE {table.base} ADD COLUMN {quoted(column.name)} '
                               f"{column.stored}{default}")  # fmt: skip
            table.columns = (*table.columns, column)
            table.renamed.pop(column.name, None)
            self._make_view(table)

    def drop_column(self, table: StoredTable, name: str) -> None:
        with self._lock:
            self._duck.execute(f"DROP VIEW {table.view}; ALTER TABLE {table.base} DROP COLUMN {quoted(name)}")
            table.columns = tuple(column for column in table.columns if column.name != name)
            table.ids.pop(name, None)
            self._make_view(table)

    def rename_column(self, table: StoredTable, name: str, new: str) -> None:
        with self._lock:
            self._duck.execute(
                f"DROP VIEW {table.view}; ALTER TABLE {table.base} RENAME {quoted(name)} TO {quoted(new)}"
            )
            table.columns = tuple(
                replace(column, name=new) if column.name == name else column for column in table.columns
            )
            table.ids[new] = table.ids.pop(name, name)
            table.renamed = {old: new if now == name else now for old, now in table.renamed.items()} | {name: new}
            self._make_view(table)

    def modify_column(self, table: StoredTable, column: StoredColumn) -> None:
        with self._lock:
            self._duck.execute(
                f"DROP VIEW {table.view}; ALTER TABLE {table.base} ALTER {quoted(column.name)} TYPE {column.stored}"
            )
            table.columns = tuple(column if column.name == old.name else old for old in table.columns)
            self._make_view(table)

    def truncate(self, table: StoredTable) -> None:
        with self._lock:
            self._duck.execute(f"DELETE FROM {table.base}")

    def _make_view(self, table: StoredTable) -> None:
        names = ", ".join(quoted(column.name) for column in table.columns)
        self._duck.execute(f'CREATE VIEW {table.view} AS SELECT {names} FROM {table.base} WHERE "{SIGN}" = 0')

    def check(self, table: StoredTable, fields: pa.Table, *, strict: bool, zone_hours: float = 8) -> Checked:
        """Cast and refuse.

        Shape: ``fields`` holds text, its columns named as the table's, hidden names included, in load order.
        A table column that is missing takes its default.
        """
        if not fields.num_rows:
            return Checked(None, 0, ())
        given = set(fields.column_names)
        now = table.columns  # another thread may rename one
        columns = [column for column in now if column.name in given]
        values, refusals = [], []
        for column in columns:
            value = _cast(column, zone_hours)
            values.append(f"{value} AS {quoted(column.name)}")
            refusals += list(_refusals(column, value, strict=strict, string_limit=self.string_limit))
        if table.partition_column is not None:
            value = _cast(table.column(table.partition_column), zone_hours)
            within = " OR ".join(
                f"({value} >= '{part.low or '0001-01-01'}' AND {value} < '{part.high}')" for part in table.partitions
            )
            refusals.append((f"NOT ({within or 'false'})", "'no partition for this tuple. tuple='"))
        values += [f"{_default(column)} AS {quoted(column.name)}" for column in now if column.name not in given]
        sign = f'COALESCE(TRY_CAST("{SIGN}" AS TINYINT), 0)' if SIGN in given else "0"
        order = table.sequence_column or (SEQUENCE if SEQUENCE in given else None)
        sequence = f"TRY_CAST({quoted(order)} AS HUGEINT)" if order in given else "NULL"
        bad = " ".join(f"WHEN {test} THEN {message}" for test, message in refusals)
        sql = (
            f'SELECT {", ".join(values)}, {sign} AS "{SIGN}", {sequence} AS "{SEQUENCE}", '
            f"row_number() OVER () AS {ORDER}, {f'CASE {bad} END' if bad else 'NULL::VARCHAR'} AS bad FROM fields"
        )
        with self._lock:
            typed = self._duck.sql(sql).to_arrow_table()
        bad_rows = typed.filter(typed["bad"].is_valid())
        lines = tuple(
            f"Reason: {row.pop('bad')} src line [{' '.join(str(v) for v in row.values())}];"
            for row in bad_rows.slice(0, 100).to_pylist()
        ) + ("",) * max(0, bad_rows.num_rows - 100)
        return Checked(typed.filter(typed["bad"].is_null()).drop_columns("bad"), typed.num_rows, lines)

    def apply(self, table: StoredTable, loads: Iterable[pa.Table]) -> None:
        """Make rows visible as one version: the larger sequence wins, of equal ones the later row.

        Rows are of the table's columns when they were checked. The real servers know columns by number: a name may have
        changed since, and a column that was added has its default. Rows of a table that was dropped in the meantime are
        left out of their transaction, as both servers do when they publish it.
        """
        with self._lock:
            if all(other.stored != table.stored for other in self.tables.values()):
                return
            table.version += 1
            for rows in loads:
                self._apply(table, rows)

    def apply_together(self, loads: Iterable[tuple[StoredTable, list[pa.Table]]]) -> None:
        """The same for several tables, at one moment."""
        with self._lock:
            for table, rows in loads:
                self.apply(table, rows)

    def _apply(self, table: StoredTable, rows: pa.Table) -> None:
        today = {column.name for column in table.columns}  # a name that is used again is the new column's
        rows = rows.rename_columns(
            [name if name in today else table.renamed.get(name, name) for name in rows.column_names]
        )
        names = ", ".join(
            quoted(column.name) if column.name in rows.column_names else f"{_default(column)} AS {quoted(column.name)}"
            for column in table.columns
        )
        columns = f'{names}, "{SIGN}", "{SEQUENCE}", {table.version} AS "{VERSION}"'
        if table.model not in ("UNIQUE", "PRIMARY"):
            self._duck.execute(f"INSERT INTO {table.base} BY NAME SELECT {columns} FROM rows")
            return

        def place(side: str) -> str:  # NULL is lowest
            return f'COALESCE({side}"{SEQUENCE}", -99999999999999999999999999999999999999)'

        keys = ", ".join(map(quoted, table.key))
        same = " AND ".join(f"old.{quoted(name)} IS NOT DISTINCT FROM new.{quoted(name)}" for name in table.key)
        self._duck.execute("BEGIN")
        try:
            self._duck.execute(
                f"CREATE TEMP TABLE new_rows AS SELECT * FROM rows "
                f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {place('')} DESC, {ORDER} DESC) = 1"
            )
            self._duck.execute(
                f"DELETE FROM new_rows AS new USING {table.base} AS old WHERE {same} AND {place('new.')} < {place('old.')}"
            )
            self._duck.execute(f"DELETE FROM {table.base} AS old USING new_rows AS new WHERE {same}")
            self._duck.execute(f"INSERT INTO {table.base} BY NAME SELECT {columns} FROM new_rows")
            self._duck.execute("DROP TABLE new_rows; COMMIT")
        except duckdb.Error:
            self._duck.execute("ROLLBACK")  # else every later statement is refused
            raise


def quoted(name: str) -> str:
    """A name as DuckDB quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _free_name(name: str, taken: Iterable[str]) -> str:
    """``name``, with a number at its end where DuckDB takes it, or its base table, for one of ``taken``."""
    used = {text for other in taken for text in (other.casefold(), f"{other}#rows".casefold())}
    found, number = name, 0
    while used & {found.casefold(), f"{found}#rows".casefold()}:
        number += 1
        found = f"{name}#{number}"
    return found


def _default(column: StoredColumn) -> str:
    if column.default in (None, "NULL"):  # the servers store the text NULL and read it as no value
        return "NULL"
    text = str(column.default).replace("'", "''")
    return f"CAST('{text}' AS {column.stored})"


def _cast(column: StoredColumn, zone_hours: float) -> str:
    name = quoted(column.name)
    if column.base in _INTEGERS:
        return f"CASE WHEN regexp_full_match({name}, '[+-]?[0-9]+') THEN TRY_CAST({name} AS {column.stored}) END"
    if column.base == "DATETIME":
        shifted = (
            f"CASE WHEN regexp_matches({name}, '{_ZONED}') THEN INTERVAL ({zone_hours}) HOUR ELSE INTERVAL 0 HOUR END"
        )
        moment = f"TRY_CAST({name} AS TIMESTAMP) + {shifted}"
        digits = (column.parameters or (0,))[0]
        if digits == 6:
            return moment
        unit = 10 ** (6 - digits)  # extra digits are rounded
        return f"time_bucket(INTERVAL '{unit} microseconds', {moment} + INTERVAL '{unit // 2} microseconds')"
    if column.stored == "VARCHAR":
        return name
    if column.stored == "BLOB":
        return f"CASE WHEN regexp_full_match({name}, '([0-9A-Fa-f]{{2}})*') THEN unhex({name}) END"
    return f"TRY_CAST({name} AS {column.stored})"


def _refusals(column: StoredColumn, value: str, *, strict: bool, string_limit: int) -> Iterable[tuple[str, str]]:
    """Tests in SQL, each with the message (in SQL) of the rows that it refuses."""
    name, shown = quoted(column.name), column.name.replace("'", "''")
    if strict or not column.nullable:
        mode = f"value is incorrect while strict mode is {str(strict).lower()}"
        yield f"{name} IS NOT NULL AND {value} IS NULL", f"'column({shown}) {mode}, src value is ' || {name}"
    if not column.nullable:
        yield f"{value} IS NULL", f"'column({shown}) values is null while columns is not nullable.'"
    if column.base in ("VARCHAR", "CHAR"):
        limit = (column.parameters or (1,))[0]
        text = f"the length of input is too long than schema. column_name: {shown}; schema length: {limit};"
        yield f"strlen({name}) > {limit}", f"'{text} actual length: ' || strlen({name}) || ';'"
    if column.base in ("STRING", "TEXT"):
        text = f"the length of input string is too long than vec schema. column_name: {shown};"
        yield f"strlen({name}) > {string_limit}", f"'{text} limit length: {string_limit};'"
    if column.base in ("JSON", "JSONB"):
        yield f"{name} = ''", "'jsonb with size 0 is invalid'"
        yield f"{name} IS NOT NULL AND NOT json_valid({name})", f"'parse json value failed for column {shown}'"
