"""Faults around a job: its process is stopped at a seam, and something happens to the target or the state meanwhile.

Each ends in agreement, or in the pause that names what has happened; then the documented remedy brings agreement.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.model.faults import Fault
from tests.recovery.matrix.sources import TABLES

if TYPE_CHECKING:
    from tests.recovery.matrix.dimensions import Cell
    from tests.recovery.matrix.process import Ended, JobProcess
    from tests.recovery.matrix.sources import Given
    from tests.recovery.matrix.targets import Target

KINDS = (
    "expired",  # stopped for so long that the sink has given up what is prepared
    "taken_over",  # stopped for so long that another process has the job
    "removed",  # a table of the target is removed
    "older",  # an older copy takes the place of a table, where the sink has one database for all: of the database
    "rolled_back",  # SQLite's backup brings an older copy into the state file
    "replaced",  # an older copy takes the place of the state file
)
FAULT_POINTS = ("get", "prepare", "save PREPARED", "commit", "single commit", "save COMMITTED", "ack")
_COPIED = ("older", "rolled_back", "replaced")  # which need a copy of an earlier moment
_WRITES_FOLLOW = ("prepare", "save PREPARED", "commit", "single commit", "save COMMITTED")  # into the state file
TABLE = "orders"
_LONGEST_TURN_S = 0.2  # a slow machine needs more than the first short turns

_Result = TypeVar("_Result")


def is_exact(kind: str) -> bool:
    """Whether no row is read twice, and no process goes on that was replaced."""
    return kind == "expired"


def run(cell: Cell, number: int, folder: Path, given: Given, target: Target) -> bool:
    """Run the job until it ends for good. ``number``: the call at the seam at which it is stopped.

    Return False if the job has reported a loss that nothing can bring back: its source cannot be read again.
    """
    return _Run(cell, number, folder, given, target).run()


class _Run:
    def __init__(self, cell: Cell, number: int, folder: Path, given: Given, target: Target) -> None:
        self._cell, self._folder, self._given, self._target = cell, folder, given, target
        last = number if cell.kind in ("expired", "taken_over") else max(3, number)  # something is committed by then
        calls = (last - 2, last) if cell.kind in _COPIED else (last,)
        self._faults = tuple(Fault(cell.fault_point, "stop", call) for call in calls)
        self._store = folder / "home" / "state.db"
        self._is_lost = False

    def run(self) -> bool:
        work: dict[str, Callable[[JobProcess], None]] = {
            "expired": self._expired,
            "taken_over": self._taken_over,
            "removed": self._removed,
            "older": self._older,
            "rolled_back": self._rolled_back,
            "replaced": self._replaced,
        }
        with self._begun(self._faults) as process:
            assert process.wait_until_stopped(), "the fault never struck"
            work[self._cell.kind](process)
        return not self._is_lost

    # the process was stopped for long

    def _expired(self, process: JobProcess) -> None:
        refused = self._unlocked(process, self._ended)
        assert refused.error == "LeaseLost", f"a second process beside one that is stopped ended with {refused}"
        self._unlocked(process, self._target.expire)
        process.go_on()
        ended = _of(process)
        assert not ended.error, f"it ended with {ended}"

    def _taken_over(self, process: JobProcess) -> None:
        (self._folder / "home" / "locks" / "shop.lock").unlink()  # as a lease that has ended
        second = self._unlocked(process, lambda: self._ended(is_exact=False))
        assert second.error in ("", "SinkOwnershipError"), f"the second process ended with {second}"
        process.go_on()
        first = _of(process)
        assert first.error in ("", "LeaseLost", "SinkOwnershipError", "LoadRejected"), (
            f"the first process ended with {first}"
        )
        assert second.error or first.error or self._cell.fault_point in ("get", "ack"), (
            "both processes wrote to the end"
        )
        self._finishes()

    # the target

    def _removed(self, process: JobProcess) -> None:
        bring_back = self._unlocked(process, lambda: self._target.remove(TABLE))
        is_known = self._committed(process) >= 0
        process.go_on()
        if not process.waits_for_sink():
            _of(process)
        process.kill()
        self._is_found_and_remedied(is_known, bring_back)

    def _older(self, process: JobProcess) -> None:
        put = self._unlocked(process, lambda: self._target.copy(TABLE))
        newest = self._unlocked(process, self._newest)  # the copy cannot have more
        process.go_on()
        assert process.wait_until_stopped(), "the second fault never struck"
        is_known = self._committed(process) > newest
        process.kill()
        bring_back = put()
        self._is_found_and_remedied(is_known, bring_back)

    def _is_found_and_remedied(self, is_known: bool, bring_back: Callable[[], None]) -> None:
        found = self._ended(is_exact=False)
        if found.error:
            # the copy of a cluster is one of the whole database, so every table may be older
            is_database = self._cell.kind == "older" and not self._target.tells_keys
            names = TABLES if is_database else (TABLE,)
            assert found.error == "TargetLost", f"it ended with {found}"
            assert any(f"ods.{name}" in found.text for name in names), f"it ended with {found}"
            can_reload = self._target.tells_keys or self._cell.kind == "removed"
            if can_reload and self._cell.receiver not in ("binlog_files", "kafka"):  # which have no tables
                found = self._ended(reloading=True, is_exact=False)
                assert not found.error, f"with --reload-missing it ended with {found}"
            else:
                bring_back()
                again = self._ended(is_exact=False)
                # a checkpoint was committed while the table was away: the cluster reports success for a dropped table
                lacks_rows = f"ods.{TABLE} lacks rows" in again.text
                if self._cell.kind == "removed" and again.error == "TargetLost" and lacks_rows:
                    self._is_lost = True
                    return
                assert not again.error, f"brought back, it ended with {again}"
        else:
            assert not is_known, "the job does not report that the target lacks what it has committed"
        self._finishes()

    # the state

    def _rolled_back(self, process: JobProcess) -> None:
        def restore(copy: Path) -> None:
            with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(self._store, timeout=0)) as live:
                source.backup(live)

        self._state_is_older(process, restore)

    def _replaced(self, process: JobProcess) -> None:
        def restore(copy: Path) -> None:
            for suffix in ("-wal", "-shm"):
                self._store.with_name(self._store.name + suffix).unlink(missing_ok=True)
            os.replace(copy, self._store)

        self._state_is_older(process, restore)

    def _state_is_older(self, process: JobProcess, restore: Callable[[Path], None]) -> None:
        copy = self._folder / "copy.db"

        def take() -> None:
            with closing(sqlite3.connect(self._store)) as live, closing(sqlite3.connect(copy)) as taken:
                live.backup(taken)

        self._unlocked(process, take)
        process.go_on()
        assert process.wait_until_stopped(), "the second fault never struck"
        is_same = self._unlocked(process, lambda: _dump(copy) == _dump(self._store))  # both calls in one cycle
        self._unlocked(process, lambda: restore(copy))
        process.go_on()
        ended = _of(process)
        may_finish = self._cell.fault_point not in _WRITES_FOLLOW or is_same
        assert ended.error == "LeaseLost" or (may_finish and not ended.error), f"the live process ended with {ended}"
        assert not ended.error or re.search("state (file|store) was", ended.text), ended
        again = self._ended(is_exact=False)
        if again.error:
            assert again.error == "SinkOwnershipError" and "--adopt" in again.text, f"it ended with {again}"
            again = self._ended(adopting=True, is_exact=False)
            assert not again.error, f"with --adopt it ended with {again}"
        self._finishes()

    # how processes are started, and what they have left

    def _begun(self, faults: tuple[Fault, ...] = (), **options: bool) -> JobProcess:
        from tests.recovery.matrix.process import JobProcess, Start

        return JobProcess(self._folder, self._given, self._target, Start(faults, **options))

    def _ended(self, **options: bool) -> Ended:
        with self._begun(**options) as process:
            return _of(process)

    def _finishes(self) -> None:
        ended = self._ended(is_exact=False)
        assert not ended.error, f"in the end it ended with {ended}"

    def _committed(self, process: JobProcess) -> int:
        """The newest checkpoint that had rows for the table, as the state file has it; -1 if there is none."""

        def read() -> int:
            bodies = [body for state, body in self._checkpoints() if state == "COMMITTED"]
            found = bodies[-1]["targets"].get(f"ods.{TABLE}") if bodies else None
            return -1 if found is None else int(found["checkpoint"])

        return self._unlocked(process, read)

    def _newest(self) -> int:
        """The highest checkpoint that the sink may have."""
        return max((int(body["id"]) for state, body in self._checkpoints() if state != "OPEN"), default=-1)

    def _checkpoints(self) -> list[tuple[str, dict[str, Any]]]:
        with closing(sqlite3.connect(self._store)) as connection:
            found = connection.execute("SELECT state, body FROM cdc_checkpoints ORDER BY id").fetchall()
        return [(state, json.loads(body)) for state, body in found]

    def _unlocked(self, process: JobProcess, work: Callable[[], _Result]) -> _Result:
        """The result of ``work``, at a moment when no stopped thread holds the lock of a file."""
        from tests.recovery.matrix.process import POLL_S, TIMEOUT_S

        deadline, turn_s = time.monotonic() + TIMEOUT_S, POLL_S
        while any(map(_is_locked, (self._store, self._folder / "sink.db"))):
            assert time.monotonic() < deadline, f"a file stays locked after {TIMEOUT_S} s"
            process.let_a_little_on(turn_s)
            turn_s = min(1.2 * turn_s, _LONGEST_TURN_S)
        return work()


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return True
    return False


def _of(process: JobProcess) -> Ended:
    code, ended = process.wait()
    assert ended is not None, f"a process ended with {code}"
    return ended
