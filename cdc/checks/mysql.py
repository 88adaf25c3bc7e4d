"""Checks of ``cdc check`` for a MySQL server. Every finding has a hint.

Source: MySQL manual, "Replication and Binary Logging Options"; MariaDB knowledge base, "Replication and Binary Log
System Variables".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from cdc.config.fields import is_loopback
from cdc.errors import CdcError, SourceActionRequired, SourceUnavailable
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import parse_table
from cdc.mysql.catalog import cascades, mapped_tables, quoted, quoted_column, system_versioned
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server
from cdc.sources.binlog.log_coverage import uncovered_tables
from cdc.sources.binlog.replication_stream import BinlogStream, ReaderIdentity
from cdc.sources.binlog.transport import binlog_files, check_readers, missing_files
from cdc.sources.prepared_xa import prepared_now
from channels.sinks.base import Finding

SHORTEST_RETENTION_S = 86_400  # a stopped job must be able to continue after a day at least
CHECK_S = 120.0  # for all checks of one server; a slow one needs some seconds
_CASCADES_IN_BINLOG_FROM = (9, 6)

Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Return the findings of all checks, in order. An error of a check becomes a finding."""
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except CdcError as error:
            found.append(finding_of(error))
    return tuple({_what(finding): finding for finding in reversed(found)}.values())[::-1]


def _what(finding: Finding) -> object:
    """Return the identity of a finding: several checks report the same missing privilege."""
    head, _, _ = finding.problem.partition(" (server ")
    return head.rstrip(".") if head.startswith("A privilege is missing") else finding


def finding_of(error: CdcError) -> Finding:
    """Return an error as a finding: message and location, then the hint."""
    return Finding(f"{error.message} ({error.location})." if error.location else error.message, error.hint)


def check_source(
    endpoint: Endpoint, identity: ReaderIdentity, table_filter: TableFilter, sources: Sequence[str]
) -> tuple[Finding, ...]:
    """Return everything about a server that would stop a job. ``sources``: names in the job file, such as "crm.*"."""
    endpoint = endpoint.within(CHECK_S)
    try:
        server = Server(endpoint)
    except CdcError as error:
        return (*_unguarded(endpoint), finding_of(error))
    with server:
        own = [partial(_unguarded, endpoint)]
        own += [partial(check, server) for check in (_rights, _settings, _advice, _undecided)]
        own += [partial(_log_coverage, server, table_filter)]
        return run_checks([*own, partial(_identity, server, identity), *_about_tables(server, table_filter, sources)])


def check_read_for_us(endpoint: Endpoint, table_filter: TableFilter, sources: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings about a server from which the job reads table definitions, and Canal the binlog."""
    endpoint = endpoint.within(CHECK_S)
    try:
        server = Server(endpoint)
    except CdcError as error:
        return (*_unguarded(endpoint), finding_of(error))
    with server:
        own = [partial(_unguarded, endpoint), partial(_settings, server)]
        own += [partial(_log_coverage_if_shown, server, table_filter)]
        return run_checks([*own, *_about_tables(server, table_filter, sources)])


def _unguarded(endpoint: Endpoint) -> Iterator[Finding]:
    """Warn about a network connection without verified TLS."""
    mode = endpoint.tls.mode if endpoint.tls else "off"
    if endpoint.unix_socket or is_loopback(endpoint.host.strip("[]")) or mode not in ("off", "required"):
        return
    what = "is not encrypted" if mode == "off" else "is encrypted, but the server's certificate is not verified"
    who = "Others on the network can read and change the rows" if mode == "off" else "Another server can impersonate it"
    yield Finding(
        f"The connection to {endpoint} {what} (source.tls is {mode}). {who}.",
        "Set `source.tls` to verify_identity, or to verify_ca, with the server's `ca`.",
        fatal=False,
    )


def _about_tables(server: Server, table_filter: TableFilter, sources: Sequence[str]) -> list[Check]:
    return [
        partial(_tables, server, table_filter, sources),
        partial(_cascades, server, table_filter),
        partial(_versioned, server, table_filter),
    ]


def check_files(pattern: str) -> tuple[Finding, ...]:
    """Return a finding if no binlog file matches ``pattern``, and for each gap in the numbers of the files."""
    if files := binlog_files(pattern):
        return tuple(map(finding_of, missing_files(files)))
    return (
        Finding(f"No binlog file matches {pattern}.", "Correct `source.path`; files are named like mysql-bin.000001."),
    )


def _rights(server: Server) -> Iterator[Finding]:
    """Try each operation that needs a privilege: with roles, SHOW GRANTS does not list all privileges."""
    account = server.ask("SELECT CURRENT_USER() AS account")[0]["account"]
    user, _, host = account.rpartition("@")
    yield from _tried(lambda: server.position(), "REPLICATION CLIENT", f"'{user}'@'{host}'")
    yield from _tried(lambda: _registered(server), "REPLICATION SLAVE", f"'{user}'@'{host}'")


def _tried(attempt: Callable[[], object], privilege: str, account: str) -> Iterator[Finding]:
    try:
        attempt()
    except CdcError as error:
        if "privilege" not in error.message:
            raise
        yield Finding(error.message, f"Run `GRANT {privilege} ON *.* TO {account}`.")


def _registered(server: Server) -> None:
    """Register as a replica with a separate server id: the server removes an existing entry with the same id."""
    stream = BinlogStream(server.endpoint, ReaderIdentity.of("check", "", str(server.endpoint)), mariadb=server.mariadb)
    try:
        stream.register()
    finally:
        stream.close()


def _settings(server: Server) -> Iterator[Finding]:
    settings = server.settings
    if settings.get("log_bin", "").upper() not in ("ON", "1"):
        yield Finding("The server writes no binary log (log_bin is OFF).", server.log_bin_hint)
        return
    for name, requested, why in (
        ("binlog_format", "ROW", "statements cannot be converted to rows"),
        ("binlog_row_image", "FULL", "deletes and key changes need the whole row before the change"),
    ):
        value = settings.get(name, "")
        if value.upper() != requested:
            yield Finding(f"{name} is {value}, but must be {requested}: {why}.", _set(server, name, requested))


def _log_coverage(server: Server, table_filter: TableFilter) -> Iterator[Finding]:
    yield from map(finding_of, uncovered_tables(server, table_filter.maps))
    if not server.logs_replicated and server.replicates() is None:
        yield Finding(
            f"{server.replicated_setting} is OFF, and this account cannot see whether the server is a replica. The "
            "binlog of such a replica does not contain the changes that it replicates.",
            f"Set {server.replicated_setting}=ON if the server is a replica, or run "
            "`GRANT REPLICA MONITOR ON *.* TO ...`.",
            fatal=False,
        )
    if any(server.log_filter()):
        yield Finding(
            "binlog_do_db or binlog_ignore_db is set. The server then filters statements by the current database of "
            "the session: the TRUNCATE or ALTER of a mapped table is missing if that database is not logged.",
            "Remove both from the server's configuration and restart it.",
            fatal=False,
        )


def _advice(server: Server) -> Iterator[Finding]:
    settings = server.settings
    metadata = settings.get("binlog_row_metadata")
    if metadata is not None and metadata.upper() != "FULL":
        yield Finding(
            f"binlog_row_metadata is {metadata}: column names are read from the current information_schema, and a "
            "start in the past is refused if DDL statements follow it.",
            _set(server, "binlog_row_metadata", "FULL"),
            fatal=False,
        )
    if settings.get("binlog_row_value_options"):
        yield Finding(
            "binlog_row_value_options is PARTIAL_JSON: the job must rebuild each JSON document that was updated.",
            _set(server, "binlog_row_value_options", ""),
            fatal=False,
        )
    yield from _rds_retention(server) if server.rds else _retention(server)
    if not server.gtids:
        yield Finding(
            f"gtid_mode is {settings.get('gtid_mode')}: the job cannot continue automatically after a failover, and a "
            "snapshot cannot see which commits are finished: it waits for a second before each step, and can write an "
            "older version of a row whose commit takes longer.",
            'Enable it step by step: see "Enabling GTID Transactions Online" in the MySQL manual.',
            fatal=False,
        )


def _log_coverage_if_shown(server: Server, table_filter: TableFilter) -> Iterator[Finding]:
    """Check the log filters if this account may see them. Canal reads the binlog, with an account of its own."""
    with suppress(SourceUnavailable):
        yield from map(finding_of, uncovered_tables(server, table_filter.maps))


def _retention(server: Server) -> Iterator[Finding]:
    settings = server.settings
    days = float(settings.get("expire_logs_days") or 0)
    seconds = float(settings.get("binlog_expire_logs_seconds") or 0) or 86_400 * days
    if 0 < seconds < SHORTEST_RETENTION_S:
        in_seconds = "binlog_expire_logs_seconds" in settings  # not in MySQL 5.7, nor in MariaDB before 10.6.1
        yield Finding(
            f"Binlogs are kept for {seconds:.0f} s only: a job that is stopped for longer loses its position.",
            _set(server, "binlog_expire_logs_seconds", "604800")
            if in_seconds
            else _set(server, "expire_logs_days", "7"),
            fatal=False,
        )


def _rds_retention(server: Server) -> Iterator[Finding]:
    """Check Amazon's own setting for the deletion of binlogs, which replaces the server variables.

    Source: Amazon RDS User Guide and Aurora User Guide, "mysql.rds_set_configuration".
    """
    hint = "Run `CALL mysql.rds_set_configuration('binlog retention hours', 168)` as the instance's master user."
    try:
        rows = server.ask("SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
    except SourceUnavailable:
        yield Finding(
            "This account cannot see how long Amazon keeps binlogs: it may not read mysql.rds_configuration.",
            f"`CALL mysql.rds_show_configuration` shows it. {hint}",
            fatal=False,
        )
        return
    hours = float(rows[0]["value"] or 0) if rows else 0.0
    if hours * 3600 < SHORTEST_RETENTION_S:
        kept = f"for {hours:.0f} h only" if hours else "no longer than Amazon itself needs them"
        yield Finding(
            f"Binlogs are kept {kept} ('binlog retention hours'): a job that is stopped for longer loses its position.",
            hint,
            fatal=False,
        )


def _set(server: Server, name: str, value: str) -> str:
    text = value if value.isdecimal() else f"'{value}'"
    again = "open sessions keep the old value until they reconnect."
    if server.rds:
        return f"Set {name} = {text} in the instance's parameter group (Aurora: the cluster's); {again}"
    scope = "GLOBAL" if server.mariadb or server.version_numbers < (8,) else "PERSIST"
    also = " and put it into the server's configuration" if scope == "GLOBAL" else ""
    return f"Run `SET {scope} {name} = {text}`{also}; {again}"


def _identity(server: Server, identity: ReaderIdentity) -> Iterator[Finding]:
    check_readers(server, identity)
    if str(identity.server_id) == server.settings.get("server_id"):
        yield Finding(
            f"Server id {identity.server_id} is the id of the source server.", "Set another `source.server_id`."
        )


def _tables(server: Server, table_filter: TableFilter, sources: Sequence[str]) -> Iterator[Finding]:
    names = mapped_tables(server, table_filter.maps)
    for source in sources:
        name = parse_table(source)
        if name.is_pattern:
            if not any(name.middle(*one) for one in names):
                yield Finding(
                    f"{source} matches no table that this account can see; tables that are created later are added.",
                    "If tables should match already, correct the pattern, or run `GRANT SELECT ON "
                    f"{quoted_column(name.database)}.* TO ...`.",
                    fatal=False,
                )
        elif (name.database, name.table) not in names:
            yield Finding(
                f"Table {source} does not exist, or this account cannot see it.",
                "Correct `source` of the channel, or run `GRANT SELECT ON "
                f"{quoted((name.database, name.table))} TO ...`.",
            )


def _cascades(server: Server, table_filter: TableFilter) -> Iterator[Finding]:
    native = server.settings.get("innodb_native_foreign_keys", "OFF").upper() in ("ON", "1")
    if not server.mariadb and server.version_numbers >= _CASCADES_IN_BINLOG_FROM and not native:
        return
    try:
        keys = cascades(server, table_filter.maps)
    except SourceActionRequired as error:
        yield Finding(error.message, error.hint, fatal=False)
        return
    for key in keys:
        logging_server = (
            "start the server with innodb_native_foreign_keys=OFF, which logs these changes"
            if native
            else "use MySQL 9.6 or later, which logs these changes"
        )
        yield Finding(
            f"Foreign key {key.constraint} of {key.child} has {key.action}: the binlog does not contain the rows that "
            f"the server changes through it, so the target of {key.child} would keep the old rows.",
            f"Change the rows of {key.child} by separate statements before those of {key.parent} (ON DELETE RESTRICT), "
            f"leave {key.child} out, or {logging_server}. If keys and rows of {key.parent} never change, no action is "
            "needed.",
            fatal=False,
        )


def _undecided(server: Server) -> Iterator[Finding]:
    for xid in prepared_now(server):
        yield Finding(
            f"XA transaction {xid} is prepared but not yet committed: a job that starts now does not see its rows, and "
            "pauses at its XA COMMIT if it changed mapped tables.",
            "End it first, with XA COMMIT or XA ROLLBACK.",
            fatal=False,
        )


def _versioned(server: Server, table_filter: TableFilter) -> Iterator[Finding]:
    if server.mariadb:
        for table in system_versioned(server, table_filter.maps):
            yield Finding(
                f"{table} is system-versioned: the server logs its deletes as updates of row_end.",
                "Leave the table out, or run `ALTER TABLE ... DROP SYSTEM VERSIONING`.",
            )
