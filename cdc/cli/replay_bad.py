"""The command ``cdc replay-bad``, which loads kept messages of a Kafka source after their cause was corrected."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from cdc.cli.job_control import refuse_ended, resume_without_driver
from cdc.cli.options import name_argument, output_option
from cdc.cli.start import not_running
from cdc.cli.terminal import POLL_S, console, print_result
from cdc.errors import CdcError, ConfigError

if TYPE_CHECKING:
    from cdc.api.models import BadRowsStatus
    from cdc.config.models import Config
    from cdc.state.sql import SqlStore

NO_DRIVER_S = 120.0  # a supervisor starts a driver that died again, within seconds


@click.command("replay-bad")
@name_argument
@click.option(
    "--accept-gap", is_flag=True, help="Also load messages after which others were deleted, or cannot be read."
)
@output_option
@click.pass_context
def replay_bad(context: click.Context, name: str, accept_gap: bool, output: str) -> None:
    """Load the kept messages of a Kafka job again, after a correction. The job reads its file again and continues."""
    from cdc.api.models import Resume
    from cdc.config.models import load_config
    from cdc.job.compatibility import check_identity
    from cdc.job.registry import driver_of, get_job, job_file_of, open_store, status_of

    with open_store() as store:
        record = get_job(store, name)
        refuse_ended(record.name, record.state)
        config = load_config(job_file_of(store, record))
        check_identity(record, config)
        before = _kept(config, status_of(store, record).bad_rows)
        after = before
        if before.kept:
            driver, request = driver_of(store, record), Resume(accept_gap=accept_gap, replay_bad=True)
            if (status := driver.status()) is not None:
                driver.request(replace(request, pause=status.pause))
                after = _await(store, name, before.replays, status.resumes)
            else:
                resume_without_driver(store, record, request, debug=context.obj)
                after = _await(store, name, before.replays, -1)
    loaded = after.loaded - before.loaded
    if output == "json":
        click.echo(json.dumps({"job": name, "loaded": loaded, "kept": after.kept}))
    else:
        print_result(f"{name}: {loaded:,} messages are loaded, {after.kept:,} are kept.")


def _kept(config: Config, found: BadRowsStatus | None) -> BadRowsStatus:
    """Return the kept messages. Raises: ConfigError - the job keeps none."""
    from cdc.api.models import BadRowsStatus
    from cdc.config.kafka_models import KafkaSourceConfig

    if not isinstance(config.source, KafkaSourceConfig) or config.source.bad_rows is None:
        raise ConfigError(
            f"The job {config.name} keeps no messages that cannot be read.",
            hint="Only a Kafka source with `source.bad_rows` does so.",
        )
    return found or BadRowsStatus()


def _await(store: SqlStore, name: str, replays: int, resumes: int) -> BadRowsStatus:
    """Return what is kept after the replay. ``resumes``: of the driver before it.

    Raises: CdcError - the job is PAUSED, or has no driver.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from cdc.job.registry import driver_of, get_job

    deadline = time.monotonic() + NO_DRIVER_S
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        line = bar.add_task(f"Loading kept messages of {name}", total=None)
        while time.monotonic() < deadline:
            status = driver_of(store, get_job(store, name)).status()
            if status is not None:
                deadline = time.monotonic() + NO_DRIVER_S
                if status.bad_rows is not None and status.bad_rows.replays > replays:
                    return status.bad_rows
                if status.bad_rows is not None and status.bad_rows.replay_messages:
                    bar.update(line, completed=status.bad_rows.replay_read, total=status.bad_rows.replay_messages)
                if (
                    status.state in ("PAUSED", "CANCELLED")
                    and status.resume != "automatic"
                    and status.resumes > resumes
                ):
                    raise not_running(status)
            time.sleep(POLL_S)
    raise CdcError(
        f"The job {name} has not loaded its kept messages, and no driver answers.", hint=f"See `cdc logs {name}`."
    )
