"""The Spark session of a job, and its start before the modules of a driver are imported.

A JVM needs seconds to start. Imports and checks of a driver need more than one, on another core.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.config.models import Config, Spark
from cdc.errors import CheckpointError
from cdc.paths import state_folder
from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.job_directory import JobDirectory
from spark.connect_server import SPARK_CONNECT
from spark.session import SessionHolder


def remote_of(spark: Spark) -> str | None:
    """Return the Spark Connect server of a job: an address, or the folder of a shared one. None: a Spark of its own."""
    return spark.remote or (None if spark.master else os.environ.get(SPARK_CONNECT) or None)


def sessions_of(config: Config) -> SessionHolder:
    """Return the holder of the session that ``config`` describes. It is not started."""
    spark, channels = config.spark, config.channels
    conf = spark.conf
    if not any(channel.columns or channel.filter or channel.delete_when for channel in channels):
        conf = {**_NO_CODE_GENERATION, **conf}
    return SessionHolder(f"cdc {config.name}", spark.master or "local[*]", conf, remote_of(spark))


# Without expressions, Spark handles one row for each piece of a load. Generated code for it costs more than it saves.
_NO_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextmanager
def started_early(config: Config, record: JobRecord | None, *, resumes: bool) -> Iterator[SessionHolder | None]:
    """Start the session of a driver in the background. It is closed at the end, also if a job has used it.

    None for a job that does not run at once: it waits for a resume, or has ended.
    """
    is_paused = record is not None and record.state is JobState.PAUSED and record.resume is not ResumeKind.AUTOMATIC
    has_ended = record is not None and record.state in (JobState.CANCELLED, JobState.DONE)
    if has_ended or (is_paused and not resumes):
        yield None
        return
    try:
        JobDirectory(state_folder(), config.name).use_temporary()
    except CheckpointError:
        yield None  # the job reports it when it begins
        return
    sessions = sessions_of(config)
    gc.disable()  # until all modules are imported: it would search them again and again
    sessions.warm_up()
    try:
        # before the session needs them: two threads must not import modules of one package that import each other
        import spark.frames
        import spark.writers  # noqa: F401

        yield sessions
    finally:
        gc.enable()
        sessions.close()
