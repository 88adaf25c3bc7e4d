"""The steps of a verification: compare chunks, compare keys again, search keys that only the target has, repair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.model.verify import TableVerification
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.orphan_rows import PAGE_KEYS, OrphanSearch, find_orphan_rows
from cdc.verify.planner import ComparedTable
from cdc.verify.repair import repair_tasks
from channels.chunk_compare import CompareRequest, KeyDifferences, RecheckRequest, RecheckTable
from channels.partition_read import ReadBudget
from channels.sinks.base import can_list_keys
from channels.task import Task

_STEP_ROWS = 1 << 40  # the time limits a step
_CHUNKS_A_READER = 16  # more than a reader compares in one step


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """The work of one step: one of the fields after ``planned`` is set."""

    planned: tuple[ComparedTable, ...]
    compare: CompareRequest | None = None
    recheck: RecheckRequest | None = None
    search: Callable[[], pa.Table] | None = None  # returns keys that only the target has
    progress: OrphanSearch | None = None  # of ``search``
    repair: Callable[[], list[Task]] | None = None  # raises ReadCancelled after ``cancel``
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def kind(self) -> str:
        """Return what it does, for the log."""
        return "compare" if self.compare else "recheck" if self.recheck else "search" if self.search else "repair"

    def cancel(self) -> None:
        """End the work soon. Calls: any thread."""
        self.cancelled.set()
        if self.progress is not None:
            self.progress.is_cancelled = True


class StepFactory:
    """Creates steps of tables that are planned for the position of the step."""

    def __init__(self, context: RunContext, settings: SnapshotSettings) -> None:
        self._context, self._settings = context, settings

    def compare(self, planned: Sequence[ComparedTable], tables: Mapping[str, TableVerification]) -> VerifyStep:
        """Return the step that compares open chunks of ``planned``."""
        settings = self._settings
        chunks = [(number, chunk) for number, one in enumerate(planned) for chunk in tables[one.name].open]
        request = CompareRequest(
            settings.endpoint,
            tuple(one.compare for one in planned),
            tuple(chunks[: settings.readers * _CHUNKS_A_READER]),
            settings.readers,
            ReadBudget(settings.step_s, _STEP_ROWS, _STEP_ROWS, settings.rows_per_s, settings.bytes_per_s),
        )
        return VerifyStep(tuple(planned), compare=request, cancelled=request.cancelled)

    def recheck(
        self, planned: Sequence[ComparedTable], work: Sequence[tuple[str, KeyDifferences]], shown: int
    ) -> VerifyStep:
        """Return the step that compares the keys of ``work`` again.

        ``shown``: most differences to return with values.
        """
        cancelled = threading.Event()
        numbers = {one.name: number for number, one in enumerate(planned)}
        request = RecheckRequest(
            self._settings.endpoint,
            tuple(RecheckTable(one.name, one.compare, self._orphans(one, cancelled.is_set)) for one in planned),
            tuple((numbers[name], differences) for name, differences in work if name in numbers),
            shown,
            self._settings.step_s,
            cancelled,
        )
        return VerifyStep(tuple(planned), recheck=request, cancelled=cancelled)

    def search(self, planned: ComparedTable, table: TableVerification) -> VerifyStep:
        """Return the step that searches keys that only the target has, after the last compared one."""
        sink, target, search = self._context.sink, planned.channel.target, OrphanSearch(table.compared_key)
        orphans = self._orphans(planned, lambda: search.is_cancelled)

        def run() -> pa.Table:
            assert can_list_keys(sink)
            return search.run(lambda after: sink.keys(target, after, PAGE_KEYS), orphans, self._settings.step_s)

        return VerifyStep((planned,), search=run, progress=search)

    def repair(
        self, planned: Sequence[ComparedTable], confirmed: Sequence[tuple[str, KeyDifferences]], checkpoint: int
    ) -> VerifyStep:
        """Return the step that loads the rows of ``confirmed`` again, as ``checkpoint``."""
        run, endpoint, cancelled = self._context.run, self._settings.endpoint, threading.Event()

        def tasks() -> list[Task]:
            found = []
            for one in planned:
                differences = [some for name, some in confirmed if name == one.name]
                orphans = self._orphans(one, cancelled.is_set)
                found += repair_tasks(run, endpoint, one, differences, orphans, checkpoint, cancelled.is_set)
            return found

        return VerifyStep(tuple(planned), repair=tasks, cancelled=cancelled)

    def _orphans(self, planned: ComparedTable, is_over: Callable[[], bool]) -> Callable[[pa.Table], pa.Table]:
        endpoint, columns = self._settings.endpoint, planned.compare.key_columns
        return lambda keys: find_orphan_rows(endpoint, planned.order, columns, keys, is_over)
