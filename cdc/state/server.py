"""The store in a MySQL, MariaDB or PostgreSQL server, for jobs on several hosts.

A job has a lease, by the clock of the server. A connection must not keep a row lock when its process is frozen or gone,
so the server ends an idle transaction after half a lease.
Source: MySQL manual, "Server System Variables"; PostgreSQL manual, "Client Connection Defaults"; SQLAlchemy 2.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import CheckpointError
from cdc.retry import Backoff
from cdc.state.database import KEY_CHARACTERS, Result, Row, SqlWords, Transaction
from cdc.state.hosts import this_host
from cdc.state.job_lock import folder_errors
from cdc.state.server_errors import is_conflict, is_transient, store_error
from cdc.state.sql import SqlStore
from cdc.state.store_url import StoreUrl
from cdc.state.tables import FORMAT, check_format, create_tables

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

CONNECT_S, READ_S, LOCK_S = 2, 5, 3
KEEPALIVE_S, KEEPALIVES = 2, 2  # PostgreSQL: a connection without a peer ends 6 s after its last answer
BRIDGE_S = 10.0  # a failover of the database takes seconds, and a run that ends reads its open cycle again
CONFLICT_S = 5.0  # how long a transaction is repeated that another one has prevented
POOL_SIZE = 4  # run loop, commit thread, renewal thread, status

_log = logging.getLogger(__name__)

_KEY = f"VARCHAR({KEY_CHARACTERS}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_WORDS = {
    "mysql": SqlWords(
        now="UNIX_TIMESTAMP(NOW(6))",
        key=_KEY,
        text="LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        serial="BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        suffix=" ENGINE=InnoDB",
        last_serial="SELECT LAST_INSERT_ID()",
    ),
    "postgresql": SqlWords(
        now="(extract(epoch from clock_timestamp())::double precision)",
        key=f"VARCHAR({KEY_CHARACTERS})",
        text="TEXT",
        serial="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        last_serial="SELECT lastval()",
    ),
}
_EXISTING = {
    "mysql": "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name",
    "postgresql": "SELECT count(*) FROM information_schema.tables"
    " WHERE table_schema = current_schema() AND table_name = :name",
}


class ServerStore(SqlStore):
    """Implements ``CheckpointStore`` in a database server. ``folder``: ``$CDC_HOME``, for lock files of this host."""

    def __init__(self, url: StoreUrl, folder: Path, lease_s: float, *, bridge_s: float = BRIDGE_S) -> None:
        """Connect, and create the tables in an empty database. Raises: CheckpointError."""
        locks = folder / "locks"
        with folder_errors(folder):
            for private in (folder, locks):
                private.mkdir(0o700, parents=True, exist_ok=True)
            host = this_host(folder)
        super().__init__(ServerDatabase(url, lease_s, bridge_s=bridge_s), locks, host, lease_s)


class ServerDatabase:
    """Implements ``Database``. Calls: any thread; each uses a connection of the pool."""

    def __init__(self, url: StoreUrl, lease_s: float, *, bridge_s: float = BRIDGE_S) -> None:
        """Connect, and create the tables in an empty database. Raises: CheckpointError.

        ``bridge_s``: how long a failed transaction is repeated, if its error may pass.
        """
        self.words = _WORDS[url.kind]
        self._url = url
        self._bridge_s = 0.0  # a command reports a server that cannot be reached at once
        self._engine = _engine(url, lease_s)
        try:
            self._set_up()
        except BaseException:
            self._engine.dispose()
            raise
        self._bridge_s = bridge_s

    @property
    def location(self) -> str:
        """See ``Database``."""
        return self._url.shown

    def transact(self, work: Callable[[Transaction], Result], *, repeats: bool = True) -> Result:
        """See ``Database``. A transaction that failed for a reason that may pass is repeated for ``bridge_s``."""

        def attempt() -> Result:
            with self._engine.begin() as connection:
                return work(_ServerTransaction(connection, self.words))

        return self._bridged(attempt, self._bridge_s if repeats else 0.0)

    def all(self, sql: str, **values: Any) -> list[Row]:
        """See ``Database``."""

        def attempt() -> list[Row]:
            with self._engine.connect() as connection:
                if self._url.kind == "postgresql":  # PyMySQL would send four statements to set it and set it back
                    connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                return _ServerTransaction(connection, self.words).all(sql, **values)

        return self._bridged(attempt, self._bridge_s)

    def check_file(self, job: str) -> None:
        """See ``Database``. A server has no file."""

    def close(self) -> None:
        """See ``Database``."""
        self._engine.dispose()

    def _bridged(self, attempt: Callable[[], Result], bridge_s: float) -> Result:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        # SQLAlchemy does not translate an error of the statement that sets the isolation level
        driver = self._engine.dialect.loaded_dbapi.Error
        began, backoff, is_first = time.monotonic(), Backoff(0.1, 1.0), True
        while True:
            try:
                return attempt()
            except (SQLAlchemyError, OSError, driver) as raised:
                error = DBAPIError(None, None, raised) if isinstance(raised, driver) else raised
                wait_s = next(backoff)
                longest_s = max(bridge_s, CONFLICT_S) if is_conflict(error) else bridge_s
                if not is_transient(error) or time.monotonic() + wait_s > began + longest_s:
                    raise store_error(error, self.location) from None  # its text may have values of the statement
                if is_first:
                    _log.info("the state store failed; the transaction is repeated: %s", type(error).__name__)
                is_first = False
                time.sleep(wait_s)

    def _set_up(self) -> None:
        ((number,),) = self.all(_EXISTING[self._url.kind], name="cdc_meta")
        if not number:
            self._create()
        rows = self._format_rows()
        if not rows:
            raise CheckpointError(
                "The state store is being created, or its creation was interrupted.",
                hint="Repeat the command. If it fails again, drop the tables cdc_* and repeat it.",
                store=self.location,
            )
        check_format(rows[0][0], self.location)

    def _create(self) -> None:
        """Create the tables. MySQL commits each statement; the format is written last."""

        def work(transaction: Transaction) -> None:
            transaction.run("CREATE TABLE cdc_meta (id INTEGER NOT NULL PRIMARY KEY, format INTEGER NOT NULL)")
            create_tables(transaction, self.words)
            transaction.run("INSERT INTO cdc_meta VALUES (1, :format)", format=FORMAT)

        try:
            self.transact(work)
        except CheckpointError:
            ((number,),) = self.all(_EXISTING[self._url.kind], name="cdc_meta")
            if not number:
                raise  # otherwise another process creates them at this moment

    def _format_rows(self) -> list[Row]:
        """Return the row of ``cdc_meta``. Wait for it while another process creates the tables."""
        deadline = time.monotonic() + READ_S
        while not (rows := self.all("SELECT format FROM cdc_meta")) and time.monotonic() < deadline:
            time.sleep(0.1)
        return rows


class _ServerTransaction:
    def __init__(self, connection: Connection, words: SqlWords) -> None:
        self._connection = connection
        self._words = words

    def run(self, sql: str, **values: Any) -> int:
        from sqlalchemy import text

        return self._connection.execute(text(sql), values).rowcount

    def all(self, sql: str, **values: Any) -> list[Row]:
        from sqlalchemy import text

        return [tuple(row) for row in self._connection.execute(text(sql), values)]

    def insert(self, sql: str, **values: Any) -> int:
        self.run(sql, **values)
        ((number,),) = self.all(self._words.last_serial)
        return int(number)


def _engine(url: StoreUrl, lease_s: float) -> Engine:
    from sqlalchemy import URL, create_engine, event

    drivers = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
    address = URL.create(drivers[url.kind], url.user, url.password, url.host, url.port, url.database)
    try:
        engine = create_engine(
            address,
            connect_args=_mysql_arguments(url) if url.kind == "mysql" else _postgres_arguments(url),
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,  # the server closes idle connections
            pool_size=POOL_SIZE,
            pool_timeout=READ_S,
            hide_parameters=True,
        )
    except ImportError as error:
        raise CheckpointError(
            f"A library for the state store is missing: {error.name}.",
            hint='Install it: pip install "spark-binlog-load[postgresql]".',
            store=url.shown,
        ) from error
    statements = _mysql_session(lease_s) if url.kind == "mysql" else _postgres_session(lease_s)

    if url.kind == "postgresql":
        from cdc.state.postgres_connection import connect

        @event.listens_for(engine, "do_connect")
        def open_limited(_: object, __: object, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
            return connect(*words, answer_s=READ_S + 1.0, **options)  # the server itself ends a statement after READ_S

    @event.listens_for(engine, "connect")
    def set_session(connection: Any, _: object) -> None:
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()
        except BaseException:
            connection.close()  # the pool does not know it yet
            raise

    return engine


def _mysql_session(lease_s: float) -> list[str]:
    idle_s = max(1, math.ceil(lease_s / 2))
    return [
        f"SET SESSION wait_timeout = {idle_s}",
        f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}",
        f"SET SESSION lock_wait_timeout = {LOCK_S}",
        "SET SESSION time_zone = '+00:00'",
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    ]


def _postgres_session(lease_s: float) -> list[str]:
    idle_ms = max(1000, math.ceil(lease_s * 500))
    return [
        f"SET idle_in_transaction_session_timeout = {idle_ms}",
        f"SET lock_timeout = {LOCK_S * 1000}",
        f"SET statement_timeout = {READ_S * 1000}",
        "SET synchronous_commit = on",
    ]


def _mysql_arguments(url: StoreUrl) -> dict[str, Any]:
    import ssl

    arguments: dict[str, Any] = {"connect_timeout": CONNECT_S, "read_timeout": READ_S, "write_timeout": READ_S}
    arguments["charset"] = "utf8mb4"
    if url.tls_mode == "off":
        return {**arguments, "ssl_disabled": True}
    context = ssl.create_default_context(cafile=url.ca)
    context.check_hostname = url.tls_mode == "verify_identity"
    if url.tls_mode == "required":
        context.verify_mode = ssl.CERT_NONE
    return {**arguments, "ssl": context}


def _postgres_arguments(url: StoreUrl) -> dict[str, Any]:
    modes = {"off": "disable", "required": "require", "verify_ca": "verify-ca", "verify_identity": "verify-full"}
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "sslmode": modes[url.tls_mode],
        "tcp_user_timeout": READ_S * 1000,  # a peer that is gone is noticed, although PostgreSQL has no read timeout
        "keepalives_idle": CONNECT_S,  # with the default values of Linux, the probes after it last 675 s
        "keepalives_interval": KEEPALIVE_S,
        "keepalives_count": KEEPALIVES,
        "application_name": "cdc",
    }
    return {**arguments, "sslrootcert": url.ca or "system"} if url.tls_mode.startswith("verify") else arguments
