"""How many Tasks run at once."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.batch import LoadName
from channels.spark_runner import SparkTaskRunner


@pytest.mark.parametrize(("cores", "running"), [(1, 2), (None, 4)])
def test_one_task_more_than_cores_runs(cores: int | None, running: int) -> None:
    """The rows of the others would be in memory twice while they wait for a core."""
    sessions = SimpleNamespace(local_cores=cores, known=lambda: None, close=lambda: None)
    runner = SparkTaskRunner(cast("Any", sessions), cast("Any", SimpleNamespace(tasks_in_order=False)), parallel=4)
    free = threading.Event()

    def written(tasks: list[Any], *_: object) -> list[None]:
        free.wait(60)
        return [None] * len(tasks)

    cast("Any", runner)._written = written
    target = SimpleNamespace(name="ods.t")
    names = [LoadName("shop", "0badcafe", 1, 1, "ods.t", number, 0, 0) for number in range(6)]
    tasks = [SimpleNamespace(name=name, target=target, copies={}, byte_count=2 << 20) for name in names]
    futures = runner.submit(cast("Any", tasks))
    deadline = time.monotonic() + 60
    while sum(future.running() for future in futures) < running and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # one more would have started
    assert sum(future.running() for future in futures) == running
    free.set()
    assert [future.result(60) for future in futures] == [()] * 6
    runner.close()
