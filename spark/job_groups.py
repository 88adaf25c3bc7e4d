"""Progress and cancellation of groups of Spark jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.session import SessionHolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobGroups:
    """Spark jobs by group. Over Spark Connect they can only be cancelled, because it reports no progress."""

    def __init__(self, sessions: SessionHolder) -> None:
        self._sessions = sessions

    def begin(self, spark_session: SparkSession, group: str) -> None:
        """Assign the jobs that this thread starts to ``group``."""
        if self._sessions.is_remote:
            spark_session.clearTags()
            spark_session.addTag(group)
        else:
            spark_session.sparkContext.setJobGroup(group, "Tasks")

    def progress(self, group: str) -> tuple[object, bool] | None:
        """Return the counts of ended and running tasks per stage, and whether a task runs; None: not known."""
        known = self._sessions.known()
        if known is None or self._sessions.is_remote:
            return None
        tracker, stages = known.sparkContext.statusTracker(), []
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages += [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
        counts = [(one.stageId, one.numCompletedTasks, one.numFailedTasks, one.numActiveTasks) for one in stages if one]
        return (counts, any(active for *_, active in counts)) if counts else None

    def cancel(self, group: str) -> None:
        """Cancel the jobs of ``group``."""
        known = self._sessions.known()
        if known is None:
            return
        if self._sessions.is_remote:
            known.interruptTag(group)
        else:
            known.sparkContext.cancelJobGroup(group)

    def kill(self) -> None:
        """See ``SessionHolder.kill``."""
        self._sessions.kill()
