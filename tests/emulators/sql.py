"""The SQL port of the emulators: MySQL's protocol, statements parsed by sqlglot and run by DuckDB."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import duckdb
from mysql_mimic import IdentityProvider, MysqlServer, NativePasswordAuthPlugin, ResultColumn, ResultSet, Session, User
from mysql_mimic.errors import ErrorCode, MysqlError
from mysql_mimic.types import ColumnType
from sqlglot import exp, parse_one
from sqlglot.dialects.doris import Doris
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import TokenType

from tests.emulators.alters import (
    SHOWN,
    AlterRefused,
    check_add,
    check_drop,
    check_modify,
    check_rename,
    is_longer_text,
)
from tests.emulators.faults import Fault
from tests.emulators.functions import translate_functions
from tests.emulators.names import IDENTIFIER, TABLE, Misnamed, Unquote, doubled, identifiers
from tests.emulators.storage import StoredColumn, StoredPartition, StoredTable, quoted
from tests.emulators.transactions import Status

logging.getLogger("mysql_mimic").setLevel(logging.CRITICAL)  # it logs every refused statement

Rows = tuple[Sequence[str], Sequence[Sequence[Any]]]

_SYNCED = "SYNC"  # in the variables of a session: its next query sees all commits
_USE = re.compile(rf"\s*USE\s+({IDENTIFIER})\s*;?\s*", re.IGNORECASE)
_SHOW_TABLES = re.compile(rf"SHOW\s+TABLES(?:\s+(?:FROM|IN)\s+({IDENTIFIER}))?", re.IGNORECASE)
_ADD_PARTITION = re.compile(
    rf'ALTER\s+TABLE\s+({TABLE})\s+ADD\s+PARTITION\s+`?(\w+)`?\s+VALUES\s*\[\("([^"]*)"\),\s*\("([^"]*)"\)\)',
    re.IGNORECASE,
)
_RENAME = re.compile(
    rf"ALTER\s+TABLE\s+({TABLE})\s+RENAME\s+COLUMN\s+({IDENTIFIER})\s+(TO\s+)?({IDENTIFIER})", re.IGNORECASE
)
_SET_PROPERTY = re.compile(rf'ALTER\s+TABLE\s+({TABLE})\s+SET\s*\("(\w+)"\s*=\s*"(\w+)"\)', re.IGNORECASE)
_SHOW_ALTER = re.compile(
    rf"SHOW\s+ALTER\s+TABLE\s+COLUMN(?:\s+FROM\s+({IDENTIFIER}))?(?:\s+WHERE\s+TableName\s*=\s*(?:'([^']*)'|\"([^\"]*)\"))?"
    r"(?:\s+ORDER\s+BY\s+CreateTime\s+DESC)?(?:\s+LIMIT\s+(\d+))?",
    re.IGNORECASE,
)
_SHOW_ONE = re.compile(
    rf"(SHOW\s+CREATE\s+TABLE|SHOW\s+PARTITIONS\s+FROM|DESC(?:RIBE)?|SHOW\s+FULL\s+COLUMNS\s+FROM)\s+({TABLE})",
    re.IGNORECASE,
)


class SqlRefused(Exception):
    """The server's refusal of a statement."""

    def __init__(self, message: str, code: int = 1105) -> None:
        super().__init__(message)
        self.code = code


class ConnectionCut(Exception):
    """The server cuts the connection instead of an answer."""


class Dialect(Doris):
    """Doris's, with LARGEINT, which sqlglot's own does not know."""

    class Tokenizer(Doris.Tokenizer):
        KEYWORDS: ClassVar = {**Doris.Tokenizer.KEYWORDS, "LARGEINT": TokenType.INT128}


@dataclass(slots=True)
class Context:
    """User, database and variables of a session."""

    user: str
    database: str | None
    variables: dict[str, str] = field(default_factory=dict)  # set by SET, in lower case
    message: str = ""  # of the OK packet


class SqlPort:
    """A server of MySQL's protocol in a thread. ``execute(sql, context)`` runs the statements."""

    def __init__(
        self, users: dict[str, str], execute: Callable[[str, Context], Rows], port: int = 0, unquote: Unquote = doubled
    ) -> None:
        self._users, self._execute, self._unquote = users, execute, unquote
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, started), daemon=True)
        self._thread.start()
        if not started.wait(120):
            raise TimeoutError("the SQL port did not open")

    def _run(self, port: int, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda *_: None)  # of connections that stop() cancels
        self._loop.run_until_complete(self._serve(port, started))

    async def _serve(self, port: int, started: threading.Event) -> None:
        self._stopped = asyncio.Event()
        server = MysqlServer(
            session_factory=lambda: _Session(self._execute, self._unquote), identity_provider=_Identities(self._users)
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
        self._thread.join(120)
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
    def __init__(self, execute: Callable[[str, Context], Rows], unquote: Unquote) -> None:
        super().__init__()
        self._run, self._unquote = execute, unquote
        self._given: dict[str, str] = {}

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> Any:
        vars(self.connection).pop("ok", None)
        if match := _USE.fullmatch(sql):
            self.database = self._unquote(match[1])
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
        except ConnectionCut:
            self.connection.stream.writer.transport.abort()
            return None
        if not names:
            self.connection.ok = partial(_ok, self.connection, context.message)
            return None
        rows = [tuple(int(one) if isinstance(one, bool) else one for one in row) for row in rows]  # sent as TINYINT
        return ResultSet(rows, [ResultColumn(*_column(name, [row[i] for row in rows])) for i, name in enumerate(names)])


def _ok(connection: Any, message: str, **fields: Any) -> bytes:
    """Return an OK packet with a message, which mysql_mimic does not send."""
    packet: bytes = type(connection).ok(connection, **fields)
    return packet + message.encode()


def _column(name: str, values: list[Any]) -> tuple[str, ColumnType]:
    kinds = {type(value).__name__ for value in values if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else "str"
    found = {"int": "LONGLONG", "float": "DOUBLE", "Decimal": "NEWDECIMAL", "datetime": "DATETIME", "date": "DATE"}
    return name, ColumnType[found.get(kind, "VAR_STRING")]


class Names(Protocol):
    """The rules of a product for new names."""

    def check_database(self, name: str) -> None: ...

    def check_table(self, name: str) -> None: ...

    def check_column(self, name: str) -> None: ...


class SqlStatements:
    """The statements that both products share. Subclasses add their own."""

    dialect: ClassVar[type[Doris]] = Dialect
    unquote: ClassVar[Unquote] = staticmethod(doubled)
    node_statement: ClassVar[str]  # the pattern of statements that list nodes
    light_property: ClassVar[str]  # of tables whose columns are added and dropped without a rewrite
    rename_to: ClassVar[bool]  # RENAME COLUMN a TO b, in contrast to RENAME COLUMN a b

    def __init__(self, cluster: Any, names: Names) -> None:
        self.cluster, self.storage, self.names = cluster, cluster.storage, names

    def execute(self, sql: str, context: Context) -> Rows:
        """Run one statement. Raises: SqlRefused."""
        order = self.cluster.faults.take("sql", sql)
        fault = order.fault if order is not None else None
        if order is not None and fault is Fault.ERROR:
            raise SqlRefused(order.text or "Failed to get scan range, no queryable replica found")
        if fault is Fault.RESET:
            raise ConnectionCut
        if fault is Fault.PUBLISH_TIMEOUT:
            self.cluster.transactions.hold_publish = True
        rows = self._executed(sql, context)
        if fault is Fault.DROP_ANSWER:
            raise ConnectionCut
        return rows

    def _executed(self, sql: str, context: Context) -> Rows:
        self.cluster.alters.advance()
        try:
            return self._statement(sql.strip().rstrip(";"), context)
        except AlterRefused as error:
            raise SqlRefused(str(error)) from error
        except Misnamed as error:
            raise SqlRefused(str(error), error.code) from error
        except (duckdb.Error, ParseError, TokenError) as error:
            raise SqlRefused(str(error).splitlines()[0]) from error

    def special(self, sql: str, context: Context) -> Rows | None:
        """Run a statement that only one product has; return None if it is no such statement."""
        raise NotImplementedError

    def may_administer(self, context: Context) -> None:
        """Raises: SqlRefused - the user is no administrator."""
        raise NotImplementedError

    def config(self, name: str) -> Rows:
        """ADMIN SHOW FRONTEND CONFIG."""
        raise NotImplementedError

    def shared(self, sql: str, context: Context) -> Rows | None:
        """Run a statement that both products have beside plain SQL; return None if it is no such statement."""
        if re.fullmatch("SYNC", sql, re.IGNORECASE):
            context.variables[_SYNCED] = "1"
            return [], []
        if match := re.match(r"ADMIN\s+SHOW\s+FRONTEND\s+CONFIG\s+LIKE\s+'(\w+)'", sql, re.IGNORECASE):
            return self.config(match[1])
        if match := re.fullmatch(self.node_statement, sql, re.IGNORECASE):
            self.may_administer(context)
            nodes: Rows = self.cluster.nodes(match[1].upper())
            return nodes
        if match := _ADD_PARTITION.match(sql):
            table = self.named(match[1], context)
            table.partitions.append(StoredPartition(match[2], match[3], match[4]))
            return [], []
        if match := _RENAME.fullmatch(sql):
            if self.rename_to is not bool(match[3]):
                raise SqlRefused(f"mismatched input near {match[4]}")
            return self.rename(match[1], self.unquote(match[2]), self.unquote(match[4]), context)
        if match := _SET_PROPERTY.fullmatch(sql):
            table = self.altered(self.named(match[1], context), context)
            table.properties[match[2]] = match[3]
            return [], []
        if match := _SHOW_ALTER.fullmatch(sql):
            database = self.unquote(match[1]) if match[1] else context.database or ""
            limit = int(match[4]) if match[4] else None
            return SHOWN, self.cluster.alters.rows(database, match[2] or match[3], limit)
        return None

    def altered(self, table: StoredTable, context: Context) -> StoredTable:
        """Return ``table`` if the user may alter it now. Raises: SqlRefused, AlterRefused."""
        if (context.user, table.database) in self.cluster.settings.denied_alter:
            raise SqlRefused(
                "Access denied; you need (at least one of) the (ALTER) privilege(s) for this operation", 1227
            )
        self.cluster.alters.refuse_second(table)
        return table

    def rename(self, name: str, old: str, new: str, context: Context) -> Rows:
        """Run RENAME COLUMN, which is not a job."""
        table = self.altered(self.named(name, context), context)
        self.names.check_column(new)
        check_rename(table, old, new)
        self.storage.rename_column(table, old, new)
        return [], []

    def hidden(self, table: StoredTable, context: Context) -> tuple[StoredColumn, ...]:
        """Return the hidden columns that this session has asked for."""
        return ()

    def build(self, create: exp.Create, database: str, name: str) -> StoredTable:
        """Return the table that a CREATE TABLE creates."""
        raise NotImplementedError

    def _statement(self, sql: str, context: Context) -> Rows:
        for statements in (self.shared, self.special):
            if (rows := statements(sql, context)) is not None:
                return rows
        match re.split(r"\s+", sql, maxsplit=2)[0].upper():
            case "SHOW" | "DESC" | "DESCRIBE":
                return self._show(sql, context)
        tree = self.parsed(sql)
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
                table = self.table(tree.expressions[0], context)
                self.cluster.alters.refuse_second(table)
                self.storage.truncate(table)
                return [], []
            case exp.Insert():
                return self.insert(tree, context)
            case exp.Alter():
                return self.alter(tree, context)
        sql = self.for_duckdb(tree, context)
        if self._is_behind(context):
            sql = f"SELECT * FROM ({sql}) WHERE false"  # a follower that has replayed no load yet
        names, _, rows = self.storage.query(sql)
        return names, rows

    def _is_behind(self, context: Context) -> bool:
        return self.cluster.is_behind and not context.variables.pop(_SYNCED, "")

    def parsed(self, sql: str) -> exp.Expression:
        """Parse the statement as this product does."""
        return parse_one(sql, dialect=self.dialect)

    def for_duckdb(self, tree: exp.Expression, context: Context) -> str:
        """Return the statement in DuckDB's dialect, each table with its database."""
        for hint in tree.find_all(exp.Hint):
            if not re.fullmatch(r"SET_VAR\(query_timeout = \d+\)", hint.expressions[0].sql(self.dialect)):
                raise SqlRefused(f"not supported by the emulator: {hint.sql(self.dialect)}")
            hint.pop()
        for name in translate_functions(tree):
            raise SqlRefused(f"Can not found function '{name}'")
        for table in tree.find_all(exp.Table):
            if not table.args.get("db") and table.name.lower() not in {c.alias_or_name for c in tree.find_all(exp.CTE)}:
                table.set("db", exp.to_identifier(context.database or ""))
            if table.db.lower() != "information_schema":
                if table.args.get("db"):
                    self._as_stored(table, self.table(table, context))
            elif table.name.lower() == "tables":
                with_rows = any(column.name.upper() == "TABLE_ROWS" for column in tree.find_all(exp.Column))
                alias = exp.TableAlias(this=exp.to_identifier("tables"))
                zone = context.variables.get("time_zone", self.cluster.time_zone)
                rows = exp.Var(this=self._tables(offset_of(zone), with_rows=with_rows))
                table.replace(exp.Subquery(this=rows, alias=alias))
        return tree.sql("duckdb")

    def _as_stored(self, node: exp.Table, table: StoredTable) -> None:
        """Replace the names in ``node`` with those of ``table`` in DuckDB."""
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        node.set("db", exp.to_identifier(table.stored[0], quoted=True))
        node.set("this", exp.to_identifier(table.stored[1], quoted=True))

    def _tables(self, offset: datetime.timedelta, *, with_rows: bool) -> str:
        """Return a query for information_schema.tables with the columns that the sinks use, in DuckDB's dialect.

        It is not parsed here: with a hundred tables, that took longer than all other work of the emulator.
        """
        rows = []
        for one in self.storage.tables.values():
            count = self.storage.query(f"SELECT count(*) FROM {one.view}")[2][0][0] if with_rows else 0
            names = ", ".join(exp.Literal.string(name).sql("duckdb") for name in (one.database, one.name))
            created = datetime.datetime.fromisoformat(one.created) + offset
            rows.append(f"({names}, TIMESTAMP '{created}', {count}, {100 * count})")
        values = ", ".join(rows or ["(NULL, NULL, NULL, NULL, NULL)"])
        columns = "TABLE_SCHEMA, TABLE_NAME, CREATE_TIME, TABLE_ROWS, DATA_LENGTH"
        return f"SELECT * FROM (VALUES {values}) AS t({columns})"

    def table(self, node: exp.Expression, context: Context) -> StoredTable:
        """Return the table of a node. Raises: SqlRefused - unknown."""
        database = node.args["db"].name if node.args.get("db") else context.database or ""
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        found = self.storage.find(database, node.name)
        if found is None:
            raise SqlRefused(f"Table [{node.name}] does not exist in database [{database}].", 1051)
        return found

    def _create_database(self, tree: exp.Create) -> Rows:
        self.names.check_database(tree.this.name)
        if tree.this.name in self.storage.databases and not tree.args.get("exists"):
            raise SqlRefused(f"Can't create database '{tree.this.name}'; database exists", 1007)
        self.storage.create_database(tree.this.name)
        return [], []

    def _create_table(self, tree: exp.Create, context: Context) -> Rows:
        node = tree.this.this
        database = node.args["db"].name if node.args.get("db") else context.database or ""
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        if self.storage.find(database, node.name) is not None:
            if tree.args.get("exists"):
                return [], []
            raise SqlRefused(f"Table '{node.name}' already exists", 1050)
        self.names.check_table(node.name)
        table = self.build(tree, database, node.name)
        for column in table.columns:
            self.names.check_column(column.name)
        if len({column.name.lower() for column in table.columns}) < len(table.columns):
            raise SqlRefused("Duplicate column name", 1060)
        self.storage.create(table)
        return [], []

    def _drop_table(self, tree: exp.Drop, context: Context) -> Rows:
        try:
            self.storage.drop(self.table(tree.find(exp.Table), context))
        except SqlRefused:
            if not tree.args.get("exists"):
                raise
        return [], []

    def insert(self, tree: exp.Insert, context: Context) -> Rows:
        """Run INSERT: check the rows and apply them at once."""
        schema = tree.this
        table = self.table(schema.this if isinstance(schema, exp.Schema) else schema, context)
        names = [n.name for n in schema.expressions] if isinstance(schema, exp.Schema) else [
            column.name for column in table.columns
        ]  # fmt: skip
        source = self.for_duckdb(tree.expression, context) if tree.expression.find(exp.Table) else (
            tree.expression.sql("duckdb")
        )  # fmt: skip
        given = [quoted(name) for name in names]
        status = self.load(table, f"SELECT {', '.join(f'CAST({g} AS VARCHAR) AS {g}' for g in given)} "
                                  f"FROM ({source}) AS given ({', '.join(given)})")  # fmt: skip
        context.message = f"{{'label':'insert_0', 'status':'{status.value}', 'txnId':'1'}}"
        return [], []

    def load(self, table: StoredTable, text_rows: str) -> Status:
        """Load the rows of a query, as text, into ``table``. Raises: SqlRefused - a row is rejected."""
        fields = self.storage.arrow(text_rows)
        checked = self.storage.check(table, fields, strict=True)
        if checked.bad:
            raise SqlRefused(f"Insert has filtered data in strict mode. {checked.bad[0]}")
        if checked.rows is None:
            return Status.VISIBLE
        status: Status = self.cluster.transactions.insert(table, checked.rows)
        return status

    def alter(self, tree: exp.Alter, context: Context) -> Rows:
        """Run ADD, DROP and MODIFY COLUMN."""
        table = self.altered(self.table(tree.this, context), context)
        submit, is_light = self.cluster.alters.submit, table.properties.get(self.light_property) == "true"
        for action in tree.args["actions"]:
            match action:
                case exp.ColumnDef():
                    self.names.check_column(action.name)
                    column = self.typed(column_of(action))
                    check_add(table, column)
                    submit(table, partial(self.storage.add_column, table, column), light=is_light)
                case exp.Drop():
                    name = check_drop(table, action.find(exp.Column).name).name
                    submit(table, partial(self.storage.drop_column, table, name), light=is_light)
                case exp.ModifyColumn():
                    column = self.typed(column_of(action.this))
                    check_modify(table, column)
                    light = is_light and is_longer_text(table, column)
                    submit(table, partial(self.storage.modify_column, table, column), light=light)
                case _:
                    raise SqlRefused(f"not supported by the emulator: {action.sql(Dialect)}")
        return [], []

    def typed(self, column: StoredColumn) -> StoredColumn:
        """Return the column with the type that this product stores."""
        return column

    def _show(self, sql: str, context: Context) -> Rows:
        if re.fullmatch(r"SHOW\s+DATABASES", sql, re.IGNORECASE):
            return ["Database"], [(name,) for name in sorted({*self.storage.databases, "information_schema"})]
        if found := _SHOW_TABLES.fullmatch(sql):
            database = self.unquote(found[1]) if found[1] else context.database
            names = sorted(name for owner, name in self.storage.tables if owner == database)
            return [f"Tables_in_{database}"], [(name,) for name in names]
        if (found := _SHOW_ONE.fullmatch(sql)) is None:
            raise SqlRefused(f"not supported by the emulator: {sql}")
        table = self.named(found[2], context)
        if found[1].upper().startswith("DESC") and self._is_behind(context):
            raise SqlRefused(f"Unknown table '{table.name}'")  # it has not replayed CREATE TABLE either
        match re.split(r"\s+", found[1].upper()):
            case ["SHOW", "CREATE", _]:
                return ["Table", "Create Table"], [(table.name, self.create_text(table))]
            case ["SHOW", "PARTITIONS", _]:
                return ["PartitionName", "PartitionKey", "Range"], [
                    (part.name, table.partition_column, part.range) for part in table.partitions
                ]
            case ["SHOW", "FULL", *_]:
                return ["Field", "Type", "Collation", "Null", "Key", "Default", "Extra", "Privileges", "Comment"], [
                    (c.name, shown(c.type), None, "YES" if c.nullable else "NO", "YES" if c.name in table.key else "",
                     c.default, "", "", c.comment)
                    for c in (*table.columns, *self.hidden(table, context))
                ]  # fmt: skip
        return ["Field", "Type", "Null", "Key", "Default", "Extra"], [
            (c.name, shown(c.type), "Yes" if c.nullable else "No", str(c.name in table.key).lower(), c.default, "")
            for c in (*table.columns, *self.hidden(table, context))
        ]

    def named(self, text: str, context: Context) -> StoredTable:
        """Return the table that ``text`` names in a statement. Raises: SqlRefused - unknown."""
        *database, name = identifiers(text, self.unquote)
        return self.table(exp.table_(name, db=database[0] if database else context.database, quoted=True), context)

    def create_text(self, table: StoredTable) -> str:
        """Return the text of SHOW CREATE TABLE."""
        lines = [
            f"  {backquoted(c.name)} {shown(c.type)} {'NULL' if c.nullable else 'NOT NULL'}"
            + (f' DEFAULT "{c.default}"' if c.default is not None else "")
            + (f' COMMENT "{c.comment}"' if c.comment else "")
            for c in table.columns
        ]
        keys = ", ".join(backquoted(name) for name in table.key)
        properties = ",\n".join(f'"{name}" = "{value}"' for name, value in table.properties.items())
        body = ",\n".join(lines)
        comment = f"COMMENT '{table.comment}'\n" if table.comment else ""
        return (
            f"CREATE TABLE {backquoted(table.name)} (\n{body}\n) ENGINE=OLAP\n{table.model} KEY({keys})\n{comment}"
            f"{table.tail}\nPROPERTIES (\n{properties}\n);"
        )


def offset_of(zone: str) -> datetime.timedelta:
    """Return the offset of a time zone, which is written as +08:00."""
    sign, hours, minutes = zone[0], zone[1:3], zone[4:]
    return datetime.timedelta(hours=int(sign + hours), minutes=int(sign + minutes))


def properties_of(create: exp.Create) -> tuple[list[exp.Expression], dict[str, str]]:
    """Return all clauses after the columns of a CREATE TABLE, and its PROPERTIES."""
    given = create.args["properties"].expressions if create.args.get("properties") else []
    return given, {each.name: each.args["value"].name for each in given if type(each) is exp.Property}


def model_of(given: list[exp.Expression], first: str) -> tuple[str, tuple[str, ...]]:
    """Return UNIQUE or DUPLICATE and the key columns. ``first``: the first column."""
    kinds = {exp.UniqueKeyProperty: "UNIQUE", exp.DuplicateKeyProperty: "DUPLICATE"}
    for each in given:
        if type(each) in kinds:
            return kinds[type(each)], tuple(node.name for node in each.expressions)
    return "DUPLICATE", (first,)


def comment_of(given: list[exp.Expression]) -> str:
    """Return the comment of the table."""
    return next((each.this.name for each in given if isinstance(each, exp.SchemaCommentProperty)), "")


def tail_of(given: list[exp.Expression], dialect: type[Doris]) -> str:
    """Return the clauses PARTITION BY and DISTRIBUTED BY as text."""
    tail = [each.sql(dialect) for each in given if "Partition" in type(each).__name__]
    return "\n".join(tail + [each.sql(dialect) for each in given if isinstance(each, exp.DistributedByProperty)])


def partitions_of(given: list[exp.Expression]) -> dict[str, Any]:
    """Return column and ranges of PARTITION BY RANGE with one column and VALUES LESS THAN."""
    for each in given:
        if isinstance(each, exp.PartitionByRangeProperty):
            parts: list[StoredPartition] = []
            for part in each.args["create_expressions"]:
                (span,) = part.expressions
                low = parts[-1].high if parts else None
                parts.append(StoredPartition(span.this.name, low, span.expressions[0].name))
            return {"partition_column": each.args["partition_expressions"][0].name, "partitions": parts}
    return {}


def column_of(node: exp.ColumnDef) -> StoredColumn:
    """Return the column of a definition."""
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


def backquoted(name: str) -> str:
    """Return a name as SHOW CREATE TABLE prints it."""
    return "`" + name.replace("`", "``") + "`"


def shown(type_text: str) -> str:
    """Return a type as SHOW prints it."""
    return {"STRING": "text", "JSONB": "json"}.get(type_text, type_text.lower())
