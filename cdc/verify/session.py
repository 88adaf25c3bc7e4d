"""The verification of a run: which step is next, what a step found, and when a difference is confirmed.

Steps run between two cycles of the stream, at a position up to which everything is committed. They compare chunks, then
the keys that differed (``candidates``), then, with `--repair`, they load the keys that really differ again. Progress
is saved when nothing about a part is open: after a crash, the part is compared again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdc.model.batch import Batch
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.model.table_names import table_text
from cdc.model.timing import utc_now
from cdc.model.verify import TableVerification, Verification, VerifyState
from cdc.mysql.catalog import mapped_tables
from cdc.mysql.query_stream import configure_session
from cdc.mysql.server import Server
from cdc.mysql.visibility import is_visible, refuse_other_server
from cdc.run_context import RunContext, SnapshotSettings
from cdc.sources.base import ReceiverStatus
from cdc.verify.candidates import Candidates, candidates_of
from cdc.verify.planner import CannotCompare, ComparedTable, VerifyPlanner, refuse_changed
from cdc.verify.result import left_to_show, with_differences, with_parts, with_repairs, with_step
from cdc.verify.steps import StepFactory, VerifyStep
from cdc.verify.unsaved_parts import UnsavedParts
from channels.channel import Channel
from channels.chunk_compare import KeyDifferences, PartOutcome
from channels.row_compare import EXTRA

_STEP_TABLES = 50

_log = logging.getLogger(__name__)


class VerifySession:
    """Carries out one verification after the other. Calls: the Consumer's thread."""

    def __init__(
        self,
        context: RunContext,
        settings: SnapshotSettings,
        channel: Callable[[TableSchema], Channel | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``channel``: see ``SnapshotCoordinator``."""
        self.run: Verification | None = None  # the current one, with its progress
        self._context, self._settings, self._now = context, settings, now
        self._planner = VerifyPlanner(context, channel, context.verify.hidden)
        self._steps = StepFactory(context, settings)
        self._planned_on = ""  # identity of the server for which the step was planned
        self._unsaved = UnsavedParts()

    # the current verification

    def begin(self, saved: Verification | None) -> None:
        """Begin or continue ``saved``: a request, or the verification of the last COMMITTED checkpoint."""
        self.run = saved if saved is not None and saved.ended_at is None else None
        self._unsaved = UnsavedParts()

    def note_committed(self, saved: Verification | None) -> None:
        """Drop the current verification if it has ended and the COMMITTED ``saved`` has its result."""
        if self.run is not None and saved is not None and saved.number == self.run.number and saved.ended_at:
            self.run = None

    def restore(self, saved: Verification | None) -> None:
        """Return to ``saved``: the loads of a repair were lost."""
        if self.run is not None and (saved is None or saved.number == self.run.number):
            self.run = saved or replace(self.run, began_at=None, tables={}, differences=())
            self._unsaved = UnsavedParts()

    def end(self, error: str | None = None) -> None:
        """End the current verification. ``error``: why it ends early."""
        if self.run is not None:
            self.run = replace(self.run, ended_at=utc_now(), error=error)
            _log.info(
                "verification %d: %d rows compared, %d differ%s",
                self.run.number, self.run.rows, self.run.differs, f"; it ended early: {error}" if error else "",
            )  # fmt: skip
        self._unsaved = UnsavedParts()

    def note_changes(self, batch: Batch) -> None:
        """Mark candidates that ``batch`` changes. Calls: for each Batch of the stream."""
        self._unsaved.note_changes(batch)

    @property
    def open_keys(self) -> int:
        """Return the number of keys that differ and are not confirmed."""
        return self._unsaved.open_keys

    def is_ready(self, position: Position, *, at_end: bool) -> bool:
        """Return whether a step can run when everything up to ``position`` is committed.

        ``at_end``: the receiver has returned nothing after ``position``.
        """
        if self.run is None or self.run.ended_at is not None:
            return False
        try:
            return self._unsaved.can_continue(position, self._status(at_end=at_end))
        except ValueError:
            return True  # after a failover; ``plan`` compares the parts again

    def _status(self, *, at_end: bool) -> ReceiverStatus | None:
        return self._context.receiver.status() if at_end else None

    # plan a step

    def plan(self, position: Position, sequence: int, checkpoint: int, *, at_end: bool) -> VerifyStep | None:
        """Return the work of a step at ``position``; None if nothing can be done now, or the verification has ended.

        ``at_end``: see ``is_ready``.
        Raises: SourceUnavailable, SinkUnavailable; SchemaMismatch - the stream has not reached the columns of a table.
        """
        with Server(self._settings.endpoint) as server:
            if self.run is None or not is_visible(server, position):
                return None
            self._planned_on = server.identity
            configure_session(server)
            if self.run.began_at is None and not self._begin_tables(server):
                return None
            due: list[Candidates] = []
            try:
                status = self._status(at_end=at_end)
                self._unsaved.confirm(self.run, position, status)
                due = self._unsaved.due(position, status)
            except ValueError:  # after a failover positions cannot be compared
                self._unsaved = UnsavedParts()
            if self._unsaved.pending:
                return self._recheck_step(server, due, sequence)
            if self._unsaved.confirmed and self.run.request.repair:
                planned = self._planned_all(server, [name for name, _ in self._unsaved.confirmed], sequence)
                return self._steps.repair(planned, list(self._unsaved.confirmed), checkpoint)
            self._apply()
            return self._compare_step(server, sequence)

    def _begin_tables(self, server: Server) -> bool:
        assert self.run is not None
        request, routes = self.run.request, self._context.routes
        # a table that the job leaves out is listed too, as SKIPPED: the target does not have its rows
        there = mapped_tables(server, lambda *name: routes.matches(table_text(*name)))
        tables = {name: TableVerification() for name in request.tables or (table_text(*name) for name in there)}
        self.run = replace(self.run, began_at=utc_now(), tables=tables)
        if not tables:
            self.end("the job reads no table of this source")
        return bool(tables)

    def _recheck_step(self, server: Server, due: Sequence[Candidates], sequence: int) -> VerifyStep | None:
        planned = self._planned_all(server, [one.table for one in due], sequence)
        if not planned:
            return None
        shown = left_to_show(self._running(), self._unsaved.confirmed)
        return self._steps.recheck(planned, [(one.table, one.differences) for one in due], shown)

    def _compare_step(self, server: Server, sequence: int) -> VerifyStep | None:
        planned: list[ComparedTable] = []
        for name in [name for name, one in self._running().tables.items() if not one.is_done]:
            if self._running().tables[name].state is VerifyState.SEARCHING and planned:
                continue  # this step compares chunks; a later one searches
            one = self._planned(server, name, sequence)
            if one is None:
                continue
            self._begin_again_if_changed(one)
            if self._running().tables[name].state is VerifyState.WAITING:
                planned_now = self._planner.chunks(server, one, self._running())
                self._set(name, replace(planned_now, repaired=self._running().tables[name].repaired))
            if self._running().tables[name].state is VerifyState.SEARCHING:
                return self._steps.search(one, self._running().tables[name])
            if planned and not (one.compare.read.mapping is planned[0].compare.read.mapping is None):
                continue  # a table with expressions is compared in a step of its own
            planned.append(one)
            if one.compare.read.mapping is not None or len(planned) >= _STEP_TABLES:
                break
        if planned:
            return self._steps.compare(planned, self._running().tables)
        if all(one.is_done for one in self._running().tables.values()):
            self.end()
        return None

    def _begin_again_if_changed(self, planned: ComparedTable) -> None:
        """Compare a table from its first row on if its keys have another order than when its chunks were planned.

        Some rows would be in no chunk that is left, and count as equal.
        """
        name, known = planned.name, self._running().tables[planned.name]
        if known.state is not VerifyState.COMPARING or known.order in (None, planned.order.text):
            return
        _log.warning("the key of %s orders its rows in another way now: they are compared again", name)
        self._unsaved.drop_table(name)
        shown = tuple(one for one in self._running().differences if one.table != name)
        self.run = replace(self._running(), differences=shown)
        self._set(name, TableVerification(repaired=known.repaired))

    def _planned_all(self, server: Server, names: Sequence[str], sequence: int) -> list[ComparedTable]:
        return [*filter(None, (self._planned(server, name, sequence) for name in dict.fromkeys(names)))]

    def _planned(self, server: Server, name: str, sequence: int) -> ComparedTable | None:
        """Return how a table is compared; None if it cannot be: it becomes SKIPPED."""
        try:
            return self._planner.table(server, name, self._running().request, sequence)
        except CannotCompare as error:
            self._unsaved.drop_table(name)
            self._set(name, replace(self._running().tables[name], state=VerifyState.SKIPPED, open=(), note=str(error)))
            return None

    def _set(self, name: str, table: TableVerification) -> None:
        run = self._running()
        self.run = replace(run, tables={**run.tables, name: table})

    def _running(self) -> Verification:
        if self.run is None:
            raise RuntimeError("no verification is running")
        return self.run

    # complete a step

    def complete(
        self, step: VerifyStep, result: Sequence[PartOutcome] | Sequence[KeyDifferences] | pa.Table, position: Position,
        seconds: float,
    ) -> None:  # fmt: skip
        """Record what a step found.

        Raises: SchemaMismatch - the columns of a table were changed during the step; SourceUnavailable.
        """
        high = self.check_read(step)
        if step.compare is not None:
            found = self._complete_compare(step, result)  # type: ignore[arg-type]
        elif step.recheck is not None:
            found = self._complete_recheck(step, result)  # type: ignore[arg-type]
        else:
            found = self._complete_search(step, result)
        for candidates in found:
            candidates.high, candidates.compared_at = high, self._now()
        self._unsaved.pending += found
        self.run = with_step(self._running(), position, seconds)
        if not self._unsaved.pending and not (self._unsaved.confirmed and self._running().request.repair):
            self._apply()

    def check_read(self, step: VerifyStep) -> Position:
        """Check that the rows that ``step`` has read are those that were planned. Return the newest position.

        Calls: after the read; before the loads of a repair are committed, because a row with other columns than those
        at the position of the step would be written into the wrong ones.
        Raises: SchemaMismatch - the columns of a table were changed during the step; SourceUnavailable, also after a
        failover to another server.
        """
        with Server(self._settings.endpoint) as server:
            refuse_other_server(server, self._planned_on)
            refuse_changed(server, step.planned)
            return self._settings.position(server)

    def _complete_compare(self, step: VerifyStep, parts: Sequence[PartOutcome]) -> list[Candidates]:
        found, run = [], self._running()
        for number, planned in enumerate(step.planned):
            mine = [part for part in parts if part.table == number]
            searches = planned.compare.range_columns is None and run.request.sample is None
            self._unsaved.tables[planned.name] = with_parts(run.tables[planned.name], mine, searches=searches)
            for part in mine:
                differences = _without_kept(planned, part.differences)
                if differences.count:
                    found.append(candidates_of(planned, differences))
        return found

    def _complete_recheck(self, step: VerifyStep, results: Sequence[KeyDifferences]) -> list[Candidates]:
        asked = step.recheck.keys if step.recheck is not None else ()
        rounds = self._unsaved.take([one for _, one in asked[: len(results)]])
        return [
            candidates_of(step.planned[number], result, rounds[id(one)] + 1)
            for (number, one), result in zip(asked, results, strict=False)
            if result.count
        ]

    def _complete_search(self, step: VerifyStep, keys: pa.Table) -> list[Candidates]:
        (planned,), progress = step.planned, step.progress
        assert progress is not None
        table = replace(self._running().tables[planned.name], compared_key=progress.last)
        if progress.is_done:
            table = replace(table, state=VerifyState.DONE, compared_key=None)
        self._unsaved.tables[planned.name] = table
        differences = _without_kept(planned, KeyDifferences(None, keys, np.full(keys.num_rows, EXTRA, np.int8)))
        return [candidates_of(planned, differences)] if differences.count else []

    def complete_repair(self, position: Position, seconds: float) -> None:
        """Record that the loads of a repair step are prepared. Calls: before its checkpoint is closed."""
        confirmed = list(self._unsaved.confirmed)
        self._apply()
        self.run = with_step(with_repairs(self._running(), confirmed), position, seconds)

    def _apply(self) -> None:
        """Add the parts about which nothing is open to the progress."""
        done = self._unsaved
        if done.tables:
            self.run = with_differences(self._running(), done.tables, done.confirmed, done.changing)
        self._unsaved = UnsavedParts()


def _without_kept(planned: ComparedTable, differences: KeyDifferences) -> KeyDifferences:
    """Return ``differences`` without rows that the target keeps because a change of the table was ignored."""
    if not planned.channel.mapping.column_map.kept_rows or not differences.count:
        return differences
    return differences.only(differences.kinds != EXTRA)
