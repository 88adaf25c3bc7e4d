"""Run several scenarios in parallel, each route with its own emulators; Canal serves one scenario at a time."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tests.recovery.matrix.dimensions import Cell
from tests.recovery.matrix.scenario import Outcome, run
from tests.recovery.matrix.sources import Servers


class Lanes:
    """A context manager. ``outcomes`` has a future for each scenario."""

    def __init__(self, cells: Sequence[Cell], seed: int, servers: Servers, folder: Path, lanes: int | None = None):
        self.outcomes: dict[Cell, Future[Outcome]] = {cell: Future() for cell in cells}
        self._waiting = list(enumerate(cells))
        self._given = (seed, servers, folder)
        self._free = threading.Condition()
        self._canal_is_free, self._stopping = True, False
        count = lanes or min(4, os.cpu_count() or 2)
        self._threads = [threading.Thread(target=self._lane, name=f"lane-{n}", daemon=True) for n in range(count)]

    def __enter__(self) -> Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._free:
            self._stopping = True
            self._free.notify_all()
        for thread in self._threads:
            thread.join()

    def _lane(self) -> None:
        seed, servers, folder = self._given
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            while (found := self._next()) is not None:
                number, cell = found
                try:
                    self.outcomes[cell].set_result(process.submit(run, cell, seed, servers, folder, number).result())
                except Exception:
                    broken = Outcome(cell, seed, 0, 0.0, f"its route broke: {traceback.format_exc()}")
                    self.outcomes[cell].set_result(broken)
                self._done(cell)

    def _next(self) -> tuple[int, Cell] | None:
        """Return the next scenario that can run. Those with Canal first: they run one at a time and take longest."""
        with self._free:
            while self._waiting and not self._stopping:
                canal = [each for each in self._waiting if each[1].receiver == "canal"]
                others = [each for each in self._waiting if each[1].receiver != "canal"]
                found = canal[:1] if canal and self._canal_is_free else others[:1]
                if found:
                    self._waiting.remove(found[0])
                    self._canal_is_free &= found[0][1].receiver != "canal"
                    return found[0]
                self._free.wait()
            return None

    def _done(self, cell: Cell) -> None:
        with self._free:
            self._canal_is_free |= cell.receiver == "canal"
            self._free.notify_all()
