"""The SQL port of the FEs of Doris and StarRocks. Both speak MySQL's protocol and share most statements."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.constants import CR

from cdc.errors import SinkUnavailable, TargetMismatch
from cdc.mysql.client import UNSAFE_LOGIN, GuardedConnection, Limits, shown
from channels.sinks.stream_load.hosts import with_port
from channels.sinks.stream_load.http import IDLE_S, ClusterAddress
from channels.sinks.stream_load.login import LIMITS
from channels.sinks.stream_load.messages import ProductMessages, SqlError
from channels.sinks.stream_load.statements import quoted_table

_SLOW_S = 10.0  # a frontend that failed after this time is not asked again for the same statement
_AUTH_CODES = (1044, 1045, 1227)
# a follower replays what the leader commits; the statement waits for that, so it needs the connection of the query
_SYNC = "SYNC"
_SHOW_HIDDEN = "SET show_hidden_columns = {}"
# StarRocks and newer versions of Doris return CREATE_TIME, the identity of a table, in the time zone of the session;
# older ones always in this one
_SET_TIME_ZONE = "SET time_zone = '+08:00'"


_Cursor: Any = pymysql.cursors.Cursor  # the stubs lack the methods that are used here


class _TextCursor(_Cursor):  # type: ignore[misc]
    """A cursor that converts no values."""

    def _query(self, q: Any) -> Any:
        connection = self._get_db()
        decoders, connection.decoders = connection.decoders, {}
        try:
            return super()._query(q)
        finally:
            connection.decoders = decoders


class _MessageCursor(_Cursor):  # type: ignore[misc]
    """A cursor that returns the message of the OK packet instead of rows."""

    def fetchall(self) -> list[str]:
        return [(self._result.message or b"").decode(errors="replace")]


class FrontendSql:
    """One connection to the SQL port of the FEs. It is opened again when it is lost. Calls: the driver, any thread."""

    def __init__(self, address: ClusterAddress, messages: ProductMessages) -> None:
        self._address, self.messages = address, messages
        limit = address.limit
        self.limits = replace(LIMITS, login_s=limit.answer_s, answer_s=limit.answer_s) if limit else LIMITS
        self._connection: pymysql.Connection[Any] | None = None
        self._asked_at = 0.0
        self._lock = threading.Lock()

    # ---- statements

    def ask(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Return the rows, by column. Raises: SinkUnavailable - also if the statement is refused; TargetMismatch."""
        try:
            return self.rows(statement, values)
        except SqlError as error:
            raise self.messages.refused(error) from error

    def ask_synced(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Return the rows as ``ask``. They include all commits and statements that have ended, of any FE.

        Raises: see ``ask``.
        """
        try:
            found: list[dict[str, Any]] = self._run(statement, values, pymysql.cursors.DictCursor, (_SYNC,))
        except SqlError as error:
            raise self.messages.refused(error) from error
        return found

    def one(self, statement: str) -> dict[str, Any]:
        """Return the first row. Raises: see ``ask``; SinkUnavailable - there is no row."""
        for row in self.ask(statement):
            return row
        raise self.messages.unavailable(f"there is no answer to {statement}", fe=", ".join(self._address.fe))

    def execute(self, statement: str, table: str, values: tuple[Any, ...] | None = None) -> str:
        """Run a statement that changes ``table`` and return the server's message.

        Raises: the error that a refusal means.
        """
        try:
            return str(self._run(statement, values, _MessageCursor)[0])
        except SqlError as error:
            self.raise_refused(error, table)
            if statement.startswith("CREATE"):
                raise TargetMismatch(
                    f"{self.messages.name} does not create the table: {error}.",
                    hint="Fix sink.tables or the channel's tables, or create the table yourself: `cdc ddl` prints the "
                    "statement. If it has more replicas than running backends, set sink.tables.replication.",
                    table=table,
                ) from error
            raise self.messages.refused(error, table=table) from error

    def raise_refused(self, error: SqlError, table: str) -> None:
        """Raise the error that a refusal means. Return if a retry can succeed."""
        self.messages.raise_refused(str(error), self._address.username, {"table": table})

    def rows(self, statement: str, values: tuple[Any, ...] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a statement, by column. Raises: SinkUnavailable, TargetMismatch; SqlError - refused."""
        found: list[dict[str, Any]] = self._run(statement, values, pymysql.cursors.DictCursor)
        return found

    def texts(self, statement: str, values: tuple[Any, ...] | None = None) -> list[tuple[str | None, ...]]:
        """Return the rows of a query, each value as the server's text. They include all commits that have ended.

        Raises: see ``rows``.
        """
        found: list[tuple[str | None, ...]] = self._run(statement, values, _TextCursor, (_SYNC,))
        return found

    def run_once(self, statement: str) -> None:
        """Run a statement, and do not send it again after an FE may have received it.

        Raises: see ``rows``; SinkUnavailable also if the answer was lost: the FE may execute the statement later.
        """
        self._run(statement, None, pymysql.cursors.DictCursor, is_repeatable=False)

    def _run(
        self,
        statement: str,
        values: tuple[Any, ...] | None,
        kind: type[pymysql.cursors.Cursor],
        before: tuple[str, ...] = (),
        *,
        is_repeatable: bool = True,
    ) -> Any:
        """Run ``statement`` after those of ``before``, all over the same connection: they change its session.

        A frontend that refuses one of ``before``, for example a follower that cannot reach the leader, is not asked.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= IDLE_S:
                self._drop()
            last: object = None
            slow: set[str] = set()
            for host in (*self._address.fe, *self._address.fe):  # a FE may have closed an idle connection
                if host in slow:
                    continue  # a server that did not answer in time is not asked twice
                started, is_sent, connection = time.monotonic(), False, None
                try:
                    if self._address.limit:
                        self._address.limit.seconds(self.limits.answer_s)
                    connection = self._connected(host)
                    with connection.cursor(kind) as cursor:
                        for one in before:
                            cursor.execute(one)
                        is_sent = True
                        cursor.execute(statement, values)
                        self._asked_at = time.monotonic()
                        return list(cursor.fetchall())
                except (pymysql.MySQLError, OSError) as error:
                    self._raise_final(error, statement if is_sent else None)
                    self._drop()
                    last = shown(str(error.args[-1] if error.args else error), self._address.password)
                    if is_sent and not is_repeatable:
                        break
                    if time.monotonic() - started >= _SLOW_S:
                        slow.add(host)
            raise self.messages.unavailable(last, fe=", ".join(self._address.fe), sql_port=self._address.sql_port)

    def _raise_final(self, error: Exception, statement: str | None) -> None:
        """Raise the errors that another connection cannot fix: a refused statement, a refused or unsafe login.

        ``statement``: None if it was not sent. A frontend that has too many connections, is not ready yet or cannot
        reach the leader refuses the login or SYNC by an error, and the next frontend may accept it.
        """
        # errors that PyMySQL itself raises, for a broken packet or connection, have no number
        code = error.args[0] if error.args else ""
        text = shown(str(error.args[-1] if error.args else error), self._address.password)
        final: Exception | None = None
        # StarRocks has its own numbers for a missing privilege
        if code in _AUTH_CODES or "access denied" in text.lower():
            final = self.messages.denied(text, self._address.username)
        elif code == UNSAFE_LOGIN:
            final = self.messages.unsafe(text)
        elif (
            isinstance(getattr(error, "original_exception", error), ssl.SSLError) or code == CR.CR_SSL_CONNECTION_ERROR
        ):
            final = self.messages.no_tls(text, fe=", ".join(self._address.fe), sql_port=self._address.sql_port)
        if final is not None:
            self._drop()
            raise final from error
        is_refusal = isinstance(error, pymysql.MySQLError) and isinstance(code, int) and not 2000 <= code < 3000
        if statement is not None and is_refusal and not isinstance(error, pymysql.err.InterfaceError):
            raise SqlError(text, statement) from error

    def _connected(self, host: str) -> pymysql.Connection[Any]:
        if self._connection is None:
            self._connection = log_in(host.rpartition(":")[0].strip("[]"), self._address, self.limits)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        with self._lock:
            self._drop()

    # ---- catalog

    def nodes(self) -> list[str]:
        """Return host:port of the HTTP side of all nodes that this account may list; nothing if no FE answers."""
        found = []
        for statement in ("SHOW FRONTENDS", "SHOW BACKENDS", "SHOW COMPUTE NODES"):
            try:
                rows = self.rows(statement)
            except (SqlError, TargetMismatch):
                continue  # the account lacks the privilege, or the product has no such nodes
            except SinkUnavailable:
                break
            found += [with_port(str(row.get("Host") or row.get("IP")), row.get("HttpPort")) for row in rows]
        return found

    def databases(self) -> set[str]:
        """Return the names of all databases."""
        return {str(next(iter(row.values()))) for row in self.ask_synced("SHOW DATABASES")}

    def columns(self, table: str, *, with_hidden: bool = False) -> list[dict[str, Any]]:
        """Return the rows of DESC, as all statements that have ended left the table, on any FE.

        ``with_hidden``: with hidden columns. Raises: see ``rows``.
        """
        before = (_SYNC, *((_SHOW_HIDDEN.format("true"),) if with_hidden else ()))
        try:
            found: list[dict[str, Any]] = self._run(
                f"DESC {quoted_table(table)}", None, pymysql.cursors.DictCursor, before
            )
        finally:
            if with_hidden:
                self.rows(_SHOW_HIDDEN.format("false"))
        return found

    def has_table(self, name: str) -> bool:
        """Return True if the table ``database.table`` exists."""
        database, _, table = name.partition(".")
        return bool(
            self.ask_synced(
                "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (database, table),
            )
        )

    def creation_times(self, names: Iterable[str]) -> dict[str, str]:
        """Return the creation time of each of the tables ``names`` that exists.

        Source: ``information_schema.tables`` of Doris and StarRocks, which an account sees with SELECT on the table.
        """
        requested = set(names)
        found = {}
        for database in sorted({name.partition(".")[0] for name in requested}):
            rows = self.ask_synced(
                "SELECT TABLE_NAME, CREATE_TIME FROM information_schema.tables WHERE TABLE_SCHEMA = %s", (database,)
            )
            for table, created in (tuple(row.values()) for row in rows):
                found[f"{database}.{table}"] = str(created)
        return {name: created for name, created in found.items() if name in requested}

    def databases_with(self, table: str) -> list[str]:
        """Return the databases that have a table of this name."""
        found = self.ask_synced("SELECT TABLE_SCHEMA FROM information_schema.tables WHERE TABLE_NAME = %s", (table,))
        return sorted({str(next(iter(row.values()))) for row in found})


def log_in(host: str, address: ClusterAddress, limits: Limits) -> pymysql.Connection[Any]:
    """Connect to the SQL port of the frontend ``host``. Raises: pymysql.err.MySQLError, OSError."""
    tls = address.tls.context
    settings: dict[str, Any] = {"ssl": tls} if tls else {"ssl_disabled": True}
    found: pymysql.Connection[Any] = GuardedConnection(
        limits=limits,
        until=address.limit.until if address.limit else None,
        host=host,
        port=address.sql_port,
        user=address.username,
        password=address.password.encode(),  # text would be sent as latin1
        autocommit=True,
        init_command=_SET_TIME_ZONE,
        charset="utf8mb4",
        connect_timeout=max(1, round(address.connect_timeout_s)),
        read_timeout=round(limits.answer_s) or 1,
        write_timeout=round(limits.answer_s) or 1,
        program_name="spark-binlog-load",
        **settings,
    )
    return found
