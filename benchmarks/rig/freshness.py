"""How long it takes until a change is visible in a Delta table, by the newest value of its column ``changed_at``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

_LAST_VERSION_S = 0.5  # the last version is seen within this time

Seen = list[tuple[float, float]]  # time at which a version was visible, the newest change in it


@contextmanager
def watched(path: Path) -> Iterator[Seen]:
    """Note each new version of a Delta table."""
    seen: Seen = []
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(path, seen, stop), daemon=True)
    watcher.start()
    yield seen
    time.sleep(_LAST_VERSION_S)
    stop.set()
    watcher.join()


def _watch(path: Path, seen: Seen, stop: threading.Event) -> None:
    table = DeltaTable(str(path))
    while not stop.wait(0.02):
        version = table.version()
        table.update_incremental()
        if table.version() != version:
            now = time.time()
            actions = table.get_add_actions(flatten=True)
            newest = max(filter(None, pa.table(actions).column("max.changed_at").to_pylist()))
            seen.append((now, newest.timestamp()))


def lags(changes: Sequence[float], seen: Seen, tolerance_s: float = 0.005) -> list[float]:
    """Return the time from each change until it was visible, in rising order.

    ``tolerance_s``: how much older than its time of ``changes`` a change in the table may be.
    """
    return sorted(next(at for at, newest in seen if newest >= one - tolerance_s) - one for one in changes)
