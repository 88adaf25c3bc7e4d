"""The command ``cdc snapshot``, which loads tables again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc.cli.job_control import is_paused_by_hand, refuse_ended
from cdc.cli.options import name_argument, output_option
from cdc.cli.terminal import print_state
from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.state.base import JobRecord
    from cdc.state.sql import SqlStore


@click.command()
@name_argument
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.option("--where", metavar="SQL", help="Condition of the rows to load, for one table.")
@output_option
def snapshot(name: str, tables: tuple[str, ...], where: str | None, output: str) -> None:
    """Load tables of a job again, or some rows of one table. A job that does not run loads them later."""
    from cdc.api.models import LoadTable
    from cdc.job.registry import driver_of, get_job, open_store

    with open_store() as store:
        record = get_job(store, name)
        refuse_ended(record.name, record.state)
        if where is not None and len(tables) > 1:
            raise ConfigError(
                "--where is a condition for the rows of one table.",
                hint=f"Run `cdc snapshot {name} TABLE --where SQL` for each table.",
            )
        driver = driver_of(store, record)
        before = driver.status()
        for table in tables:
            if before is not None:
                driver.request(LoadTable(table, where))
            else:
                _save_request(store, record, table, where)
    what = f"{', '.join(tables)}: {'the requested rows' if where else 'all rows'}"
    if before is not None and before.state == "RUNNING":
        text = f"{what} will be loaded again. See `cdc status {name}`."
        print_state(text, output, name, before.state, tables=tables, where=where)
        return
    begin = f"cdc resume {name}" if is_paused_by_hand(before or record) else f"cdc start {record.job_file}"
    when = f"when the job runs: `{begin}`" if before is None or before.resume == "manual" else "as soon as the job runs"
    text = f"{what} will be loaded again {when}. The request is saved; see `cdc status {name}`."
    print_state(text, output, name, (before or record).state, tables=tables, where=where)


def _save_request(store: SqlStore, record: JobRecord, table: str, where: str | None) -> None:
    """Save a request for a job without a driver. A run that starts at the same time reads it. Raises: CdcError."""
    from cdc.config.models import load_config
    from cdc.job.registry import job_file_of
    from cdc.job.snapshot_requests import check_without_run
    from cdc.job.wiring import build
    from cdc.model.snapshot import SnapshotRequest
    from cdc.model.table_names import table_of, table_text

    request = SnapshotRequest(table_text(*table_of(table)), where)
    check_without_run(request, build(load_config(job_file_of(store, record))))
    store.add_request(record.name, request, record.incarnation)
