"""Check of ``cdc check``: whether the saved job of this name may continue with the job file."""

from __future__ import annotations

from cdc.checks.mysql import finding_of
from cdc.config.models import Config
from cdc.errors import ConfigError
from cdc.job.compatibility import check_identity
from cdc.state.base import ENDED, JobRecord, forgetting
from channels.sinks.base import Finding


def saved_job_findings(record: JobRecord, config: Config) -> tuple[Finding, ...]:
    """Return why ``cdc start`` would refuse the job file: the job has ended, or it has another source, sink or key."""
    if record.state in ENDED:
        return (Finding(f"The job {record.name} {ENDED[record.state]}.", forgetting(record.name)),)
    try:
        check_identity(record, config)
    except ConfigError as error:
        return (finding_of(error),)
    return ()
