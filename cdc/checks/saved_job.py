"""Checks of ``cdc check``: whether a job of this name exists already, and may continue with the job file."""

from __future__ import annotations

from cdc.checks.mysql import finding_of
from cdc.config.models import Config
from cdc.errors import CdcError, ConfigError
from cdc.job.compatibility import check_identity
from cdc.job.wiring import build
from cdc.pipeline.recovery import unknown_position
from cdc.state.base import ENDED, JobRecord, forgetting
from channels.sinks.base import Finding, is_traced
from channels.sinks.stream_load.time_limit import TimeLimit


def saved_job_findings(record: JobRecord, config: Config) -> tuple[Finding, ...]:
    """Return why ``cdc start`` would refuse the job file: the job has ended, or it has another source, sink or key."""
    if record.state in ENDED:
        return (Finding(f"The job {record.name} {ENDED[record.state]}.", forgetting(record.name)),)
    try:
        check_identity(record, config)
    except ConfigError as error:
        return (finding_of(error),)
    return ()


def committed_job_findings(config: Config) -> tuple[Finding, ...]:
    """Return a finding if the sink has commits of a job of this name, although the state store has no such job."""
    components = build(config, limit=TimeLimit())
    try:
        sink = components.sink
        mark = sink.last_checkpoint(config.name)
        if mark is None and is_traced(sink) and sink.has_written(config.name):
            return (finding_of(unknown_position(config.name)),)
    except CdcError:
        return ()  # the check of the sink reports it
    finally:
        components.close()
    if mark is None:
        return ()
    return (
        Finding(
            f"The sink has checkpoint {mark.checkpoint} of a job {config.name} that the state store does not have.",
            "For another job, set another `name` and empty targets. To continue that job, run "
            "`cdc start JOB.yaml --adopt`.",
        ),
    )
