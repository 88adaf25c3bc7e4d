"""Check requests to load tables again, or to verify them, before they are saved.

A request is saved in the state file at once, for any state of the job, with or without a driver. The run of the job
adds it to its snapshots. It is deleted when a COMMITTED checkpoint contains it (``cdc.snapshot.requests``).
"""

from __future__ import annotations

from cdc.errors import ConfigError
from cdc.job.wiring import Components
from cdc.model.snapshot import SnapshotRequest
from cdc.model.table_names import part_text, table_of
from cdc.model.verify import VerifyRequest
from cdc.mysql.catalog import mapped_tables
from cdc.mysql.query_stream import check_condition
from cdc.mysql.server import Server
from cdc.run_context import SnapshotSettings
from channels.mapping import is_condition
from channels.routes import Routes
from channels.sinks.base import Sink, can_list_keys
from channels.sinks.row_ranges import can_read_rows

CHECK_S = 45.0  # less than the sender of a request waits, so that it gets the error of the check
NO_TABLE = f".{part_text('')}"  # the end of the text of a name without a dot


def check_without_run(request: SnapshotRequest, components: Components) -> None:
    """Check a request of a job that does not run, and close ``components``. See ``check_request``."""
    try:
        check_request(request, components.snapshot, components.routes, components.sink)
    finally:
        components.close()


def check_request(request: SnapshotRequest, settings: SnapshotSettings | None, routes: Routes, sink: Sink) -> None:
    """Raise ConfigError if the table cannot be loaded again: the job does not read it, the source does not have it, or
    its condition is not valid.

    Raises: SourceUnavailable - the server cannot be reached.
    """
    if settings is None:
        raise ConfigError(
            "The source of this job has no tables, only a stream of changes.",
            hint="Load the table through a job with a `binlog` source.",
        )
    database, table = table_of(request.table)
    if not routes.may_map(database, table):
        raise _not_read(request.table)
    if request.where is None and not can_list_keys(sink):
        raise ConfigError(
            "This sink cannot list its keys, so it cannot find rows that the source no longer has.",
            hint=f"`cdc snapshot ... {request.table} --where '1 = 1'` loads all rows again and deletes none.",
        )
    if request.where is not None and not is_condition(request.where):
        raise ConfigError(
            f"{request.where!r} is not one condition over the columns of a row.",
            hint="Write it as after WHERE in MySQL, for example `id > 1000 AND status = 'new'`.",
        )
    with Server(settings.endpoint.within(CHECK_S)) as server:
        if not mapped_tables(server, lambda *name: name == (database, table)):
            raise ConfigError(
                f"The table {request.table} does not exist in the source, or this account cannot see it.",
                hint="Correct the name, or run GRANT SELECT on the table for the user of the job.",
            )
        if request.where is not None:
            check_condition(server, (database, table), request.where)


def check_verify(request: VerifyRequest, settings: SnapshotSettings | None, routes: Routes, sink: Sink) -> None:
    """Raise ConfigError if the job cannot be verified so."""
    if settings is None:
        raise ConfigError(
            "The source of this job has no tables, only a stream of changes, so there is nothing to compare with.",
            hint="With a `canal` source, set `source.mysql`. Verify tables of other sources through a `binlog` source.",
        )
    for table in request.tables:
        if not routes.may_map(*table_of(table)):
            raise _not_read(table)
    if not can_read_rows(sink):
        raise ConfigError("The rows of this sink cannot be read.", hint="Verify a job with another sink.")
    if request.sample is not None and not 0 < request.sample <= 1:
        raise ConfigError("The sample is not between 0 and 1.", hint="Write a share of the rows, such as 0.01.")


def _not_read(text: str) -> ConfigError:
    return ConfigError(
        f"The job reads no table {text.removesuffix(NO_TABLE)}.",
        hint="Write the table as database.table, as in `source` of its channel.",
    )
