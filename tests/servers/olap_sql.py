"""The SQL port that the stand-ins share: MySQL's protocol in front, a parsed statement and DuckDB behind."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import duckdb
from mysql_mimic import IdentityProvider, MysqlServer, NativePasswordAuthPlugin, ResultColumn, ResultSet, Session, User
from mysql_mimic.errors import ErrorCode, MysqlError
from mysql_mimic.types import ColumnType
from sqlglot import exp, parse_one
from sqlglot.dialects.doris import Doris
from sqlglot.errors import ParseError
from sqlglot.tokens import TokenType

from tests.servers.olap_storage import Storage, StoredColumn, StoredTable

logging.getLogger("mysql_mimic").setLevel(logging.CRITICAL)  # it logs every refused statement

Rows = tuple[Sequence[str], Sequence[Sequence[Any]]]


class SqlRefused(Exception):
    """The server's refusal of a statement."""

    def __init__(self, message: str, code: int = 1105) -> None:
        super().__init__(message)
        self.code = code


class Dialect(Doris):
    """Doris's, with LARGEINT, which sqlglot's own does not know."""

    class Tokenizer(Doris.Tokenizer):
        KEYWORDS: ClassVar = {**Doris.Tokenizer.KEYWORDS, "LARGEINT": TokenType.INT128}


@dataclass(slots=True)
class Context:
    """Who asks, and where."""

    user: str
    database: str | None
    variables: dict[str, str] = field(default_factory=dict)  # that SET gave, in lower case


class SqlPort:
    """A MySQL-protocol server in a thread; ``execute(sql, context)`` does the work."""

    def __init__(self, users: dict[str, str], execute: Callable[[str, Context], Rows], port: int = 0) -> None:
        self._users, self._execute = users, execute
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, started), daemon=True)
        self._thread.start()
        if not started.wait(10):
            raise TimeoutError("the SQL port did not open")

    def _run(self, port: int, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda *_: None)  # of connections that stop() cancels
        self._loop.run_until_complete(self._serve(port, started))

    async def _serve(self, port: int, started: threading.Event) -> None:
        self._stopped = asyncio.Event()
        server = MysqlServer(
            session_factory=lambda: _Session(self._execute), identity_provider=_Identities(self._users)
        )
        await server.start_server(host="127.0.0.1", port=port)
        self.port: int = next(iter(server.sockets())).getsockname()[1]
        started.set()
        await self._stopped.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Close the port and every connection."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)
        self._loop.close()


class _Identities(IdentityProvider):
    def __init__(self, users: dict[str, str]) -> None:
        self._users = users

    def get_plugins(self) -> list[Any]:
        return [NativePasswordAuthPlugin()]

    async def get_user(self, username: str) -> User | None:
        if username not in self._users:
            return None
        password = self._users[username]
        stored = NativePasswordAuthPlugin.create_auth_string(password) if password else None
        return User(name=username, auth_string=stored, auth_plugin=NativePasswordAuthPlugin.name)


class _Session(Session):
    def __init__(self, execute: Callable[[str, Context], Rows]) -> None:
        super().__init__()
        self._run = execute
        self._given: dict[str, str] = {}

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> Any:
        if match := re.fullmatch(r"\s*USE\s+`?(\w+)`?\s*;?\s*", sql, re.IGNORECASE):
            self.database = match[1]
            return None
        if match := re.fullmatch(r"\s*SET\s+(?:SESSION\s+)?(\w+)\s*=\s*'?([^']*?)'?\s*;?\s*", sql, re.IGNORECASE):
            self._given[match[1].lower()] = match[2].lower()
            return None
        if re.match(r"\s*(SET|COMMIT|ROLLBACK|BEGIN)\b", sql, re.IGNORECASE):
            return None
        context = Context(self.username or "", self.database, self._given)
        try:
            names, rows = await asyncio.get_running_loop().run_in_executor(None, self._run, sql, context)
        except SqlRefused as error:
            code = ErrorCode(error.code) if error.code in set(ErrorCode) else ErrorCode.UNKNOWN_ERROR
            raise MysqlError(f"errCode = 2, detailMessage = {error}", code) from error
        if not names:
            return None
        return ResultSet(rows, [ResultColumn(*_column(name, [row[i] for row in rows])) for i, name in enumerate(names)])


def _column(name: str, values: list[Any]) -> tuple[str, ColumnType]:
    kinds = {type(value).__name__ for value in values if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else "str"
    found = {"int": "LONGLONG", "float": "DOUBLE", "Decimal": "NEWDECIMAL", "datetime": "DATETIME", "date": "DATE"}
    return name, ColumnType[found.get(kind, "VAR_STRING")]


class SqlStatements:
    """Statements that the stand-ins have in common, over one Storage. Subclasses add their own."""

    dialect: ClassVar[type[Doris]] = Dialect

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def execute(self, sql: str, context: Context) -> Rows:
        """Run one statement. Raises: SqlRefused."""
        try:
            return self._statement(sql.strip().rstrip(";"), context)
        except (duckdb.Error, ParseError) as error:
            raise SqlRefused(str(error).splitlines()[0]) from error

    def special(self, sql: str, context: Context) -> Rows | None:
        """Statements of one product alone; None where it is not one of them."""
        raise NotImplementedError

    def hidden(self, table: StoredTable, context: Context) -> tuple[StoredColumn, ...]:
        """Hidden columns that this session wants to see."""
        return ()

    def build(self, create: exp.Create, database: str, name: str) -> StoredTable:
        """The table that a CREATE TABLE makes."""
        raise NotImplementedError

    def _statement(self, sql: str, context: Context) -> Rows:
        if (rows := self.special(sql, context)) is not None:
            return rows
        match re.split(r"\s+", sql, maxsplit=2)[0].upper():
            case "SHOW" | "DESC" | "DESCRIBE":
                return self._show(sql, context)
        tree = parse_one(sql, dialect=self.dialect)
        match tree:
            case exp.Create(kind="DATABASE" | "SCHEMA"):
                return self._create_database(tree)
            case exp.Drop(kind="DATABASE" | "SCHEMA"):
                self.storage.drop_database(tree.find(exp.Table).name)
                return [], []
            case exp.Create(kind="TABLE"):
                return self._create_table(tree, context)
            case exp.Drop(kind="TABLE"):
                return self._drop_table(tree, context)
            case exp.TruncateTable():
                self.storage.truncate(self.table(tree.expressions[0], context))
                return [], []
            case exp.Insert():
                return self.insert(tree, context)
            case exp.Alter():
                return self.alter(tree, context)
        names, _, rows = self.storage.query(self.for_duckdb(tree, context))
        return names, rows

    def for_duckdb(self, tree: exp.Expression, context: Context) -> str:
        """The statement in DuckDB's dialect, every table with its database."""
        for table in tree.find_all(exp.Table):
            if not table.args.get("db") and table.name.lower() not in {c.alias_or_name for c in tree.find_all(exp.CTE)}:
                table.set("db", exp.to_identifier(context.database or ""))
            if table.db.lower() != "information_schema":
                self.table(table, context)
            elif table.name.lower() == "tables":
                table.replace(self._tables().subquery("tables"))
        return tree.sql("duckdb")

    def _tables(self) -> exp.Query:
        """information_schema.tables, as far as the sinks ask for it."""
        rows = [
            f"({exp.Literal.string(one.database)}, {exp.Literal.string(one.name)}, TIMESTAMP '{one.created}')"
            for one in self.storage.tables.values()
        ]
        values = ", ".join(rows or ["(NULL, NULL, NULL)"])
        return parse_one(
            f"SELECT * FROM (VALUES {values}) AS t(TABLE_SCHEMA, TABLE_NAME, CREATE_TIME)", dialect="duckdb"
        )

    def table(self, node: exp.Expression, context: Context) -> StoredTable:
        """The table named. Raises: SqlRefused - unknown."""
        database = node.args["db"].name if node.args.get("db") else context.database or ""
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        found = self.storage.tables.get((database, node.name))
        if found is None:
            raise SqlRefused(f"Table [{node.name}] does not exist in database [{database}].", 1051)
        return found

    def _create_database(self, tree: exp.Create) -> Rows:
        if tree.this.name in self.storage.databases and not tree.args.get("exists"):
            raise SqlRefused(f"Can't create database '{tree.this.name}'; database exists", 1007)
        self.storage.create_database(tree.this.name)
        return [], []

    def _create_table(self, tree: exp.Create, context: Context) -> Rows:
        node = tree.this.this
        database = node.args["db"].name if node.args.get("db") else context.database or ""
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        if (database, node.name) in self.storage.tables:
            if tree.args.get("exists"):
                return [], []
            raise SqlRefused(f"Table '{node.name}' already exists", 1050)
        self.storage.create(self.build(tree, database, node.name))
        return [], []

    def _drop_table(self, tree: exp.Drop, context: Context) -> Rows:
        try:
            self.storage.drop(self.table(tree.find(exp.Table), context))
        except SqlRefused:
            if not tree.args.get("exists"):
                raise
        return [], []

    def insert(self, tree: exp.Insert, context: Context) -> Rows:
        """INSERT: rows are checked and applied at once."""
        schema = tree.this
        table = self.table(schema.this if isinstance(schema, exp.Schema) else schema, context)
        names = [n.name for n in schema.expressions] if isinstance(schema, exp.Schema) else [
            column.name for column in table.columns
        ]  # fmt: skip
        source = self.for_duckdb(tree.expression, context) if tree.expression.find(exp.Table) else (
            tree.expression.sql("duckdb")
        )  # fmt: skip
        given = ", ".join(f'"{name}"' for name in names)
        self.load(table, f"SELECT {', '.join(f'CAST({g} AS VARCHAR) AS {g}' for g in given.split(', '))} "
                         f"FROM ({source}) AS given ({given})")  # fmt: skip
        return [], []

    def load(self, table: StoredTable, text_rows: str) -> None:
        """Rows of a query of text into ``table``. Raises: SqlRefused - a row is refused."""
        fields = self.storage.arrow(text_rows)
        checked = self.storage.check(table, fields, strict=True)
        if checked.bad:
            raise SqlRefused(f"Insert has filtered data in strict mode. {checked.bad[0]}")
        if checked.rows is not None:
            self.storage.apply(table, [checked.rows])

    def alter(self, tree: exp.Alter, context: Context) -> Rows:
        """ADD, DROP and MODIFY COLUMN."""
        table = self.table(tree.this, context)
        for action in tree.args["actions"]:
            match action:
                case exp.ColumnDef():
                    self.storage.add_column(table, column_of(action))
                case exp.Drop():
                    self.storage.drop_column(table, action.find(exp.Column).name)
                case exp.ModifyColumn():
                    self.storage.modify_column(table, column_of(action.this))
                case _:
                    raise SqlRefused(f"not supported by the stand-in: {action.sql(Dialect)}")
        return [], []

    def _show(self, sql: str, context: Context) -> Rows:
        words = re.sub(r"[`;]", "", sql).split()
        upper = [word.upper() for word in words]
        if upper[:2] == ["SHOW", "DATABASES"]:
            return ["Database"], [(name,) for name in sorted({*self.storage.databases, "information_schema"})]
        if upper[:2] == ["SHOW", "TABLES"]:
            database = words[3] if len(words) > 3 else context.database
            names = sorted(name for owner, name in self.storage.tables if owner == database)
            return [f"Tables_in_{database}"], [(name,) for name in names]
        if upper[:3] == ["SHOW", "CREATE", "TABLE"]:
            table = self._named(words[3], context)
            return ["Table", "Create Table"], [(table.name, self.create_text(table))]
        if upper[:3] == ["SHOW", "PARTITIONS", "FROM"]:
            table = self._named(words[3], context)
            return ["PartitionName", "PartitionKey", "Range"], [
                (part.name, table.partition_column, part.range) for part in table.partitions
            ]
        if upper[0] in ("DESC", "DESCRIBE"):
            table = self._named(words[-1], context)
            return ["Field", "Type", "Null", "Key", "Default", "Extra"], [
                (c.name, shown(c.type), "Yes" if c.nullable else "No", str(c.name in table.key).lower(), c.default, "")
                for c in (*table.columns, *self.hidden(table, context))
            ]
        if upper[:2] == ["SHOW", "FULL"]:
            table = self._named(words[-1], context)
            return ["Field", "Type", "Collation", "Null", "Key", "Default", "Extra", "Privileges", "Comment"], [
                (c.name, shown(c.type), None, "YES" if c.nullable else "NO", "YES" if c.name in table.key else "",
                 c.default, "", "", c.comment)
                for c in (*table.columns, *self.hidden(table, context))
            ]  # fmt: skip
        raise SqlRefused(f"not supported by the stand-in: {sql}")

    def _named(self, text: str, context: Context) -> StoredTable:
        database, _, name = text.rpartition(".")
        node = exp.to_table(f"{database or context.database}.{name}")
        return self.table(node, context)

    def create_text(self, table: StoredTable) -> str:
        """What SHOW CREATE TABLE prints."""
        lines = [
            f"  `{c.name}` {shown(c.type)} {'NULL' if c.nullable else 'NOT NULL'}"
            + (f' DEFAULT "{c.default}"' if c.default is not None else "")
            + (f' COMMENT "{c.comment}"' if c.comment else "")
            for c in table.columns
        ]
        keys = ", ".join(f"`{name}`" for name in table.key)
        properties = ",\n".join(f'"{name}" = "{value}"' for name, value in table.properties.items())
        body = ",\n".join(lines)
        comment = f"COMMENT '{table.comment}'\n" if table.comment else ""
        return (
            f"CREATE TABLE `{table.name}` (\n{body}\n) ENGINE=OLAP\n{table.model} KEY({keys})\n{comment}"
            f"{table.tail}\nPROPERTIES (\n{properties}\n);"
        )


def column_of(node: exp.ColumnDef) -> StoredColumn:
    """The column that a definition makes."""
    kinds = [constraint.args["kind"] for constraint in node.constraints]
    null = next((kind for kind in kinds if isinstance(kind, exp.NotNullColumnConstraint)), None)
    default = next((kind.this for kind in kinds if isinstance(kind, exp.DefaultColumnConstraint)), None)
    comment = next((kind.name for kind in kinds if isinstance(kind, exp.CommentColumnConstraint)), "")
    text = node.kind.sql(Dialect).upper().replace("INT128", "LARGEINT").replace(", ", ",")
    return StoredColumn(
        node.name,
        text,
        null is None or bool(null.args.get("allow_null")),
        None if default is None or isinstance(default, exp.Null) else default.name,
        comment,
    )


def shown(type_text: str) -> str:
    """A type as SHOW prints it."""
    return {"STRING": "text", "JSONB": "json"}.get(type_text, type_text.lower())
