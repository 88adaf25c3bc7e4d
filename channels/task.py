"""Tasks: the buffered rows of a channel, loaded into its sink once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from cdc.errors import CdcError
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED, SEQUENCE, TableSchema
from channels.sinks.base import TargetTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from channels.mapping import Mapping as TableMapping

_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The part that all labels of one run of a job share."""

    job: str
    incarnation: str
    fence: int


@dataclass(frozen=True, slots=True)
class Task:
    """Rows of one source table with one TableSchema, to load into one target."""

    name: LoadName  # of its first part
    target: TargetTable
    mapping: TableMapping
    schema: TableSchema
    rows: tuple[pa.RecordBatch, ...] = field(repr=False)  # as in Changes, in source order
    row_count: int
    byte_count: int  # of the Arrow buffers
    upserts: int
    deletes: int
    last_sequence: int

    @property
    def copies(self) -> dict[str, str] | None:
        """Return target column -> source column; None if there are computed columns or a filter."""
        return self.mapping.copied(self.schema)

    def release_rows(self) -> None:
        """Forget the rows, of which there is a copy elsewhere: threads hold the Task until it is loaded."""
        object.__setattr__(self, "rows", ())

    def copied_rows(self) -> Sequence[pa.RecordBatch]:
        """Return the rows with the column names of the target. ``copies`` must not be None."""
        assert self.copies is not None
        names = {**self.copies, DELETED: DELETED, SEQUENCE: SEQUENCE}
        if self.rows and list(names) == [*names.values()] == self.rows[0].schema.names:
            return self.rows  # as they are: 200 columns take a millisecond
        return [
            pa.RecordBatch.from_arrays([batch.column(source) for source in names.values()], list(names))
            for batch in self.rows
        ]


class ReadRequest(Protocol[_Result_co]):
    """Ranges of a source that executors read and write into the sink. See ``channels.partition_read``."""

    @property
    def channels(self) -> Sequence[str]:
        """Return the channels of the rows."""

    @property
    def work(self) -> str:
        """Return the name of the work for messages, such as "snapshot step"."""

    @property
    def usual_s(self) -> float:
        """Return the seconds after which every reader has reached its own limits, if nothing hangs."""

    def run(self, spark_session: SparkSession, core_count: int) -> _Result_co:
        """Read and write with at most ``core_count`` readers. Blocks until everything is written.

        Raises: the error of a reader or a writer. Nothing of the read is used in this case.
        """


class TaskRunner(Protocol):
    """Prepares Tasks at the sink, in the background."""

    def warm_up(self) -> None:
        """Start Spark in the background, so that the first Task does not wait for it."""

    @property
    def is_warming(self) -> bool:
        """True while Spark starts. Delay work that is not urgent."""

    def warning(self) -> CdcError | None:
        """Return why Tasks wait although nothing has failed: Spark starts, or a Task makes no progress. None: no wait.

        Calls: any thread; returns at once.
        """

    def submit(self, tasks: Sequence[Task]) -> list[Future[tuple[PreparedLoad, ...]]]:
        """Start ``tasks`` and return a future for each at once. Small ones may share one Spark job."""

    def submit_reading(self, reading: ReadRequest[_Result]) -> Future[_Result]:
        """Start to read and prepare ranges of a source, and return at once."""

    def cancel(self, timeout_s: float) -> None:
        """Cancel all running work, and wait up to ``timeout_s`` until it has ended.

        A following abort then finds all loads. Later results are ignored, and their labels stay unused.
        """

    def close(self) -> None:
        """Cancel, and release threads and sessions. A repeated call does nothing."""
