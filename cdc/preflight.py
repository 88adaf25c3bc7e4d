"""The source side of ``cdc check``: what is looked at before anything runs. Every finding has its mend.

Source: MySQL manual, "Replication and Binary Logging Options"; MariaDB knowledge base, "Replication and Binary Log
System Variables".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from cdc.binlog.catalog import cascades, mapped_tables, quoted, quoted_column, system_versioned
from cdc.binlog.connection import BinlogStream, Endpoint, ReaderIdentity
from cdc.binlog.server import Server
from cdc.errors import CdcError, SourceBlocked, SourceUnavailable
from cdc.names import parse_table
from cdc.receiver.base import Selection
from cdc.receiver.feeds import binlog_files, check_readers
from cdc.receiver.logged import unlogged
from cdc.receiver.undecided import prepared_now
from cdc.status import is_loopback
from channels.sinks.base import Finding

SHORTEST_RETENTION_S = 86_400  # a job that stops on a Friday evening should be able to go on; a day is the least
CHECK_S = 120.0  # for everything that is asked of one server; a slow one needs some seconds
_CASCADES_LOGGED_FROM = (9, 6)

Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Findings of every check, in order; a check that fails is a finding itself.

    Calls: with ``check_source`` and what the sink has to say, for example
    ``partial(sink.describe, target)`` for each target.
    """
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except CdcError as error:
            found.append(finding_of(error))
    return tuple({_what(finding): finding for finding in reversed(found)}.values())[::-1]


def _what(finding: Finding) -> object:
    """Return what makes findings the same: several checks meet the same missing privilege."""
    head, _, _ = finding.problem.partition(" (server ")
    return head.rstrip(".") if head.startswith("A privilege is missing") else finding


def finding_of(error: CdcError) -> Finding:
    """An error as a finding: what and where, then the mend."""
    return Finding(f"{error.message} ({error.place})." if error.place else error.message, error.mend)


def check_source(
    endpoint: Endpoint, identity: ReaderIdentity, selection: Selection, sources: Sequence[str]
) -> tuple[Finding, ...]:
    """Everything about a server that a job would stumble over. ``sources``: as the job file has them, "crm.*" too."""
    endpoint = endpoint.within(CHECK_S)
    try:
        server = Server(endpoint)
    except CdcError as error:
        return (*_unguarded(endpoint), finding_of(error))
    with server:
        own = [partial(_unguarded, endpoint)]
        own += [partial(check, server) for check in (_rights, _settings, _advice, _undecided)]
        own += [partial(_unlogged, server, selection)]
        return run_checks([*own, partial(_identity, server, identity), *_about_tables(server, selection, sources)])


def check_read_for_us(endpoint: Endpoint, selection: Selection, sources: Sequence[str]) -> tuple[Finding, ...]:
    """The same of a server whose binlog another program reads and that we ask for its tables alone."""
    endpoint = endpoint.within(CHECK_S)
    try:
        server = Server(endpoint)
    except CdcError as error:
        return (*_unguarded(endpoint), finding_of(error))
    with server:
        own = [partial(_unguarded, endpoint), partial(_settings, server)]
        own += [partial(_unlogged_if_shown, server, selection)]
        return run_checks([*own, *_about_tables(server, selection, sources)])


def _unguarded(endpoint: Endpoint) -> Iterator[Finding]:
    """Warn of a connection over a network that nothing guards."""
    mode = endpoint.tls.mode if endpoint.tls else "off"
    if endpoint.unix_socket or is_loopback(endpoint.host.strip("[]")) or mode not in ("off", "required"):
        return
    what = "is not encrypted" if mode == "off" else "is encrypted, but the server's certificate is not verified"
    who = "Anybody on the network can read and change the rows" if mode == "off" else "Another server can pose as it"
    yield Finding(
        f"The connection to {endpoint} {what} (source.tls is {mode}). {who}.",
        "Set `source.tls` to verify_identity, or to verify_ca, with the server's `ca`.",
        fatal=False,
    )


def _about_tables(server: Server, selection: Selection, sources: Sequence[str]) -> list[Check]:
    return [
        partial(_tables, server, selection, sources),
        partial(_cascades, server, selection),
        partial(_versioned, server, selection),
    ]


def check_files(pattern: str) -> tuple[Finding, ...]:
    """Whether there are binlog files to read."""
    if binlog_files(pattern):
        return ()
    return (
        Finding(f"No binlog file matches {pattern}.", "Correct `source.path`; files are named like mysql-bin.000001."),
    )


def _rights(server: Server) -> Iterator[Finding]:
    """Try what needs a privilege: roles and versions make the list of grants a poor witness."""
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
    """Register as a replica for a moment, under an id of its own: a reader's entry under the same id would go."""
    stream = BinlogStream(server.endpoint, ReaderIdentity.of("check", "", str(server.endpoint)), mariadb=server.mariadb)
    try:
        stream.register()
    finally:
        stream.close()


def _settings(server: Server) -> Iterator[Finding]:
    settings = server.settings
    if settings.get("log_bin", "").upper() not in ("ON", "1"):
        yield Finding("The server writes no binary log (log_bin is OFF).", server.log_bin_mend)
        return
    for name, wanted, why in (
        ("binlog_format", "ROW", "statements cannot be turned into rows"),
        ("binlog_row_image", "FULL", "deletes and key changes need the whole row before the change"),
    ):
        value = settings.get(name, "")
        if value.upper() != wanted:
            yield Finding(f"{name} is {value}, and must be {wanted}: {why}.", _set(server, name, wanted))


def _unlogged(server: Server, selection: Selection) -> Iterator[Finding]:
    yield from map(finding_of, unlogged(server, selection.maps))
    if not server.logs_replicated and server.replicates() is None:
        yield Finding(
            f"{server.replicated_setting} is OFF, and this account may not see whether the server is a replica: what a "
            "replica replicates would then not be in its binlog.",
            f"Set {server.replicated_setting}=ON if it is one, or run `GRANT REPLICA MONITOR ON *.* TO ...`.",
            fatal=False,
        )
    if any(server.log_filter()):
        yield Finding(
            "binlog_do_db or binlog_ignore_db is set. Statements are left out by the session's own database: TRUNCATE "
            "or ALTER of a mapped table is then not seen, where a session uses a database that is not logged.",
            "Remove both from the server's configuration and restart it.",
            fatal=False,
        )


def _advice(server: Server) -> Iterator[Finding]:
    settings = server.settings
    metadata = settings.get("binlog_row_metadata")
    if metadata is not None and metadata.upper() != "FULL":
        yield Finding(
            f"binlog_row_metadata is {metadata}: column names then come from information_schema as it is now, and "
            "a start in the past is refused where DDL lies between.",
            _set(server, "binlog_row_metadata", "FULL"),
            fatal=False,
        )
    if settings.get("binlog_row_value_options"):
        yield Finding(
            "binlog_row_value_options is PARTIAL_JSON: it works, but each JSON update is put together again here.",
            _set(server, "binlog_row_value_options", ""),
            fatal=False,
        )
    yield from _rds_retention(server) if server.rds else _retention(server)
    if not server.gtids:
        yield Finding(
            f"gtid_mode is {settings.get('gtid_mode')}: the job cannot go on by itself after a failover, and "
            "nothing tells a snapshot which commits are finished: it waits for a second before each turn.",
            'Switch it on, step by step: see "Enabling GTID Transactions Online" in MySQL\'s manual.',
            fatal=False,
        )


def _unlogged_if_shown(server: Server, selection: Selection) -> Iterator[Finding]:
    """The reader has an account of its own: ours needs no privilege for the binlog, and then nothing is found."""
    with suppress(SourceUnavailable):
        yield from map(finding_of, unlogged(server, selection.maps))


def _retention(server: Server) -> Iterator[Finding]:
    settings = server.settings
    days = float(settings.get("expire_logs_days") or 0)
    seconds = float(settings.get("binlog_expire_logs_seconds") or 0) or 86_400 * days
    if 0 < seconds < SHORTEST_RETENTION_S:
        in_seconds = "binlog_expire_logs_seconds" in settings  # not in MySQL 5.7, nor in MariaDB before 10.6.1
        yield Finding(
            f"Binlogs are kept for {seconds:.0f} s only; a job that stops for longer loses its position.",
            _set(server, "binlog_expire_logs_seconds", "604800")
            if in_seconds
            else _set(server, "expire_logs_days", "7"),
            fatal=False,
        )


def _rds_retention(server: Server) -> Iterator[Finding]:
    """Amazon deletes binlogs by a setting of its own, whatever the server's variables say.

    Source: Amazon RDS User Guide and Aurora User Guide, "mysql.rds_set_configuration".
    """
    mend = "Run `CALL mysql.rds_set_configuration('binlog retention hours', 168)` as the instance's master user."
    try:
        rows = server.ask("SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
    except SourceUnavailable:
        yield Finding(
            "This account may not see how long Amazon keeps binlogs: mysql.rds_configuration is not shown to it.",
            f"`CALL mysql.rds_show_configuration` tells it. {mend}",
            fatal=False,
        )
        return
    hours = float(rows[0]["value"] or 0) if rows else 0.0
    if hours * 3600 < SHORTEST_RETENTION_S:
        kept = f"for {hours:.0f} h only" if hours else "no longer than Amazon itself needs them"
        yield Finding(
            f"Binlogs are kept {kept} ('binlog retention hours'); a job that stops for longer loses its position.",
            mend,
            fatal=False,
        )


def _set(server: Server, name: str, value: str) -> str:
    text = value if value.isdecimal() else f"'{value}'"
    again = "sessions that are open keep the old value until they connect again."
    if server.rds:
        return f"Set {name} = {text} in the instance's parameter group (Aurora: the cluster's); {again}"
    scope = "GLOBAL" if server.mariadb or server.version_numbers < (8,) else "PERSIST"
    also = " and put it into the server's configuration" if scope == "GLOBAL" else ""
    return f"Run `SET {scope} {name} = {text}`{also}; {again}"


def _identity(server: Server, identity: ReaderIdentity) -> Iterator[Finding]:
    check_readers(server, identity)
    if str(identity.server_id) == server.settings.get("server_id"):
        yield Finding(f"Server id {identity.server_id} is the source server's own.", "Set another `source.server_id`.")


def _tables(server: Server, selection: Selection, sources: Sequence[str]) -> Iterator[Finding]:
    names = mapped_tables(server, selection.maps)
    for source in sources:
        name = parse_table(source)
        if name.is_pattern:
            if not any(name.middle(*one) for one in names):
                yield Finding(
                    f"{source} matches no table that this account can see; tables that are created later join.",
                    f"Correct the pattern, or run `GRANT SELECT ON {quoted_column(name.database)}.* TO ...`, if there "
                    "should be tables by now.",
                    fatal=False,
                )
        elif (name.database, name.table) not in names:
            yield Finding(
                f"Table {source} is not there, or this account cannot see it.",
                "Correct `source` of the channel, or run `GRANT SELECT ON "
                f"{quoted((name.database, name.table))} TO ...`.",
            )


def _cascades(server: Server, selection: Selection) -> Iterator[Finding]:
    native = server.settings.get("innodb_native_foreign_keys", "OFF").upper() in ("ON", "1")
    if not server.mariadb and server.version_numbers >= _CASCADES_LOGGED_FROM and not native:
        return
    try:
        keys = cascades(server, selection.maps)
    except SourceBlocked as error:
        yield Finding(error.message, error.mend, fatal=False)
        return
    for key in keys:
        logging_server = (
            "start the server with innodb_native_foreign_keys=OFF, so that it logs them"
            if native
            else "use MySQL 9.6 or later, which logs them"
        )
        yield Finding(
            f"Foreign key {key.constraint} of {key.child} has {key.action}: rows that the server changes through it "
            f"are not in its binlog, so the target of {key.child} would keep them as they were.",
            f"Change rows of {key.child} by statements of their own before those of {key.parent} (ON DELETE RESTRICT), "
            f"leave {key.child} out, or {logging_server}. Where keys and rows of {key.parent} never change, nothing "
            "is to be done.",
            fatal=False,
        )


def _undecided(server: Server) -> Iterator[Finding]:
    for xid in prepared_now(server):
        yield Finding(
            f"XA transaction {xid} is prepared and not decided: a job that starts now does not see its rows, and "
            "pauses at its XA COMMIT if it changed mapped tables.",
            "Decide it first, with XA COMMIT or XA ROLLBACK.",
            fatal=False,
        )


def _versioned(server: Server, selection: Selection) -> Iterator[Finding]:
    if server.mariadb:
        for table in system_versioned(server, selection.maps):
            yield Finding(
                f"{table} is system-versioned: its deletes are logged as updates of row_end.",
                "Leave the table out, or run `ALTER TABLE ... DROP SYSTEM VERSIONING`.",
            )
