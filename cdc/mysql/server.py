"""Queries about the source server: its identity, settings, binlog position, GTIDs, binlog files and replicas.

Source: MySQL manual, "SQL Statements for Controlling Replication"; MariaDB knowledge base, "SHOW BINLOG STATUS".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc.errors import SourceUnavailable
from cdc.model.gtid import AnyGtidSet, GtidSet, MariadbGtidSet
from cdc.model.position import BinlogPosition
from cdc.mysql.connection import Connection, Endpoint, connect, query, translated

_SETTINGS = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "gtid_mode",
    "server_uuid",
    "server_id",
    "lower_case_table_names",
    "version",
    "innodb_native_foreign_keys",
    "binlog_transaction_compression",
    "log_bin_compress",
    "gtid_purged",
    "log_replica_updates",
    "log_slave_updates",
    "binlog_storage_engine",
    "basedir",
    "show_gipk_in_create_table_and_information_schema",
)
_SETTING_COLUMNS = {"Variable_name", "Value"}
_NO_PRIVILEGE = 1227  # ER_SPECIFIC_ACCESS_DENIED_ERROR


@dataclass(frozen=True, slots=True)
class RegisteredReplica:
    """A replica or program that reads this server's binlog."""

    server_id: int
    host: str  # as reported by the reader
    uuid: str  # "" on MariaDB


class Server:
    """A connection for queries. Calls: one thread. Raises: SourceUnavailable from every call."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._connection = connect(endpoint)
        try:
            self.settings: Mapping[str, str] = self._read_settings()
            self._show_hidden_keys()
        except SourceUnavailable:
            self.close()
            raise
        self.version = self.settings.get("version", "")
        self.mariadb = "server_uuid" not in self.settings  # `version` is not reliable: it can be set to any text

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection[Any]:
        """The connection, for other statements of the caller."""
        return self._connection

    def ask(self, sql: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        """Run a statement and return its rows."""
        try:
            return query(self._connection, sql, arguments)
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self.endpoint) from error

    def _read_settings(self) -> dict[str, str]:
        names = ", ".join(f"'{name}'" for name in _SETTINGS)
        rows = self.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        settings = {
            str(row["Variable_name"]).lower(): str(row["Value"] or "") for row in rows if row.keys() >= _SETTING_COLUMNS
        }
        if "version" not in settings or not settings.get("server_id", "").isdecimal():
            raise SourceUnavailable(
                "The server does not report its version and server id.",
                hint="Check that `source.host` and `source.port` are those of a MySQL or MariaDB server.",
                server=self.endpoint,
            )
        return settings

    def _show_hidden_keys(self) -> None:
        """Show generated invisible primary keys in information_schema, because the row events have them too."""
        if self.settings.get("show_gipk_in_create_table_and_information_schema", "ON").upper() != "ON":
            self.ask("SET SESSION show_gipk_in_create_table_and_information_schema = ON")

    @property
    def identity(self) -> str:
        """The identity of the server: ``server_uuid``; on MariaDB, which has none, its server id."""
        return f"mariadb-{self.settings['server_id']}" if self.mariadb else self.settings["server_uuid"]

    @property
    def rds(self) -> bool:
        """Whether it is Amazon RDS or Aurora, where neither a statement nor a file can change global settings."""
        return self.settings.get("basedir", "").startswith("/rdsdbbin/")

    @property
    def log_bin_hint(self) -> str:
        """The hint that explains how to turn the binary log on."""
        if self.rds:
            return (
                "Set the backup retention period of the RDS instance to a day or more; for Aurora set binlog_format = "
                "ROW in the cluster's parameter group. Then reboot it."
            )
        return "Set log_bin in the server's configuration and restart it."

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The version as numbers, for example (9, 7, 4)."""
        numbers = self.version.split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    @property
    def gtids(self) -> bool:
        """Whether every transaction has a GTID."""
        return self.mariadb or self.settings.get("gtid_mode", "").upper() == "ON"

    @property
    def full_metadata(self) -> bool:
        """Whether the binlog has column names and keys with the current settings."""
        return self.settings.get("binlog_row_metadata", "").upper() == "FULL"

    @property
    def replicated_setting(self) -> str:
        """The name of this server's setting for logging replicated changes."""
        return "log_replica_updates" if "log_replica_updates" in self.settings else "log_slave_updates"

    @property
    def logs_replicated(self) -> bool:
        """Whether this server's binlog has changes that it gets by replication."""
        return self.settings.get(self.replicated_setting, "").upper() in ("ON", "1")

    @property
    def folds_case(self) -> bool:
        """Whether table names are stored in lower case."""
        return self.settings.get("lower_case_table_names", "0") != "0"

    def position(self) -> BinlogPosition:
        """Return the current end of the binlog, without a GTID set.

        Raises: SourceUnavailable - the binary log is off, or a privilege is missing.
        """
        status = self._binlog_status()
        return BinlogPosition(status["File"], int(status["Position"]), self.identity)

    def log_filter(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return binlog_do_db and binlog_ignore_db as sets. Raises: SourceUnavailable - as ``position``."""
        status = self._binlog_status()
        texts = [_text(status[name]) for name in ("Binlog_Do_DB", "Binlog_Ignore_DB")]
        if self.folds_case and not self.mariadb:  # MariaDB always compares these names case-sensitively
            texts = [text.lower() for text in texts]
        only, never = (frozenset(filter(None, text.split(","))) for text in texts)
        return only, never

    def _binlog_status(self) -> dict[str, Any]:
        newer = not self.mariadb and self.version_numbers >= (8, 2)
        rows = self.ask("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")
        if not rows:
            raise SourceUnavailable(
                "The server writes no binary log.",
                hint=self.log_bin_hint,
                server=self.endpoint,
            )
        return rows[0]

    def replicates(self) -> bool | None:
        """Return whether it is configured as a replica, running or stopped; None if a privilege is missing.

        MariaDB requires a privilege that reading a binlog does not need. Without it, every account can still see
        whether replication runs.
        """
        newer = self.version_numbers >= (8, 0, 22)
        asking = "SHOW ALL SLAVES STATUS" if self.mariadb else f"SHOW {'REPLICA' if newer else 'SLAVE'} STATUS"
        try:
            return bool(query(self._connection, asking))
        except (pymysql.err.MySQLError, OSError) as error:
            if not isinstance(error, pymysql.err.MySQLError) or error.args[0] != _NO_PRIVILEGE:
                raise translated(error, self.endpoint) from error
        running = self.ask("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        return True if running and int(running[0]["Value"]) else None

    def locked_position(self) -> BinlogPosition | None:
        """Return the current end of the binlog with its exact GTID set; None if the server cannot report both."""
        if self.mariadb:
            here = self.position()
            return self._with_mariadb_gtids(here)
        if not self.gtids:
            return self.position()
        try:
            rows = query(self._connection, "SELECT LOCAL FROM performance_schema.log_status")
        except pymysql.err.MySQLError:  # MySQL 5.7, or BACKUP_ADMIN is missing
            return None
        status = json.loads(_text(rows[0]["LOCAL"]))
        return BinlogPosition(
            status["binary_log_file"], status["binary_log_position"], self.identity, _one_line(status["gtid_executed"])
        )

    def gtids_at(self, file: str, offset: int) -> str | None:
        """Return the GTID position at a binlog position (MariaDB); None if the position does not exist."""
        value = self.ask("SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (file, offset))[0]["gtids"]
        return None if value is None else _text(value)

    def _with_mariadb_gtids(self, here: BinlogPosition) -> BinlogPosition:
        return BinlogPosition(here.file, here.offset, here.server, self.gtids_at(here.file, here.offset) or "")

    def executed(self) -> str:
        """Return the GTID set of all executed transactions; on MariaDB the last GTID of each domain and server id."""
        name = "gtid_binlog_state" if self.mariadb else "gtid_executed"
        return _one_line(_text(self.ask(f"SELECT @@GLOBAL.{name} AS gtids")[0]["gtids"]))

    def has_done(self, gtid_set: AnyGtidSet) -> bool:
        """Return whether this server has executed all of ``gtid_set``.

        In a MariaDB domain the sequence numbers are compared per server id, because two servers that diverged continue
        with the same numbers.
        """
        if isinstance(gtid_set, MariadbGtidSet):
            done = [gtid.split("-") for gtid in self.executed().split(",") if gtid] if self.mariadb else []
            last = {(int(domain), int(server)): int(number) for domain, server, number in done}
            return all(
                last.get((domain, server), -1) >= number for domain, (server, number) in gtid_set.domains.items()
            )
        return not self.mariadb and GtidSet.parse(self.executed()).contains(gtid_set)

    def purged(self) -> str:
        """Return the GTID set of executed transactions that are no longer in the binlog (MySQL)."""
        return _one_line(_text(self.ask("SELECT @@GLOBAL.gtid_purged AS gtids")[0]["gtids"]))

    def files(self) -> dict[str, int]:
        """Return the binlog files in order, with their sizes."""
        return {row["Log_name"]: int(row["File_size"]) for row in self.ask("SHOW BINARY LOGS")}

    def readers(self) -> tuple[RegisteredReplica, ...]:
        """Return the registered replicas."""
        newer = not self.mariadb and self.version_numbers >= (8, 0, 22)
        try:
            rows = self.ask("SHOW REPLICAS" if newer else "SHOW SLAVE HOSTS")
        except SourceUnavailable:
            if not self.mariadb:
                raise
            return ()  # it needs REPLICATION MASTER ADMIN; MariaDB ends one of two readers with the same id anyway
        return tuple(
            RegisteredReplica(
                int(row.get("Server_Id") or row.get("Server_id") or 0),
                row.get("Host") or "",
                row.get("Replica_UUID") or row.get("Slave_UUID") or "",
            )
            for row in rows
        )

    def close(self) -> None:
        """Close the connection. May be repeated."""
        if self._connection.open:
            self._connection.close()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _one_line(gtid_set: str) -> str:
    return gtid_set.replace("\n", "").replace(" ", "")
