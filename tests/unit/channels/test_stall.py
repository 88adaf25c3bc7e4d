"""Tasks without progress are reported, cancelled, and killed if they cannot be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cdc.errors import ErrorAction, SinkUnavailable, action_for
from channels.spark_runner import SparkTaskRunner
from channels.stall import TaskStallWatch


class Jobs:
    def __init__(self) -> None:
        self.found: dict[str, tuple[object, bool] | None] = {}
        self.cancelled: list[str] = []
        self.on_cancel: Callable[[], object] = lambda: None
        self.on_kill: Callable[[], object] = lambda: None
        self.kills = 0

    def progress(self, group: str) -> tuple[object, bool] | None:
        return self.found.get(group)

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)
        self.on_cancel()

    def kill(self) -> None:
        self.kills += 1
        self.on_kill()


class Setting:
    def __init__(self, grace_s: float = 60.0) -> None:
        self.time = 0.0
        self.jobs = Jobs()
        # the threads of the watch never poll: the test calls read and check
        self.watch = TaskStallWatch(self.jobs, 900, now=lambda: self.time, poll_s=3600, grace_s=grace_s)

    def at(self, time: float) -> None:
        self.time = time
        self.watch.read()

    def read_soon(self) -> None:
        self.watch._poll_s = 1


@pytest.fixture
def setting() -> Setting:
    found = Setting()
    return found


def test_task_without_progress_is_shown_then_cancelled(setting: Setting) -> None:
    with setting.watch.watching(["ods.orders"]) as watched:
        setting.read_soon()
        setting.jobs.on_cancel = watched.ended.set
        setting.jobs.found[watched.group] = ("one of two", True)
        setting.at(50)
        setting.at(100)
        assert setting.watch.warning() is None
        setting.at(120)
        warning = setting.watch.warning()
        assert warning is not None and "no progress for 70 s" in str(warning) and "ods.orders" in str(warning)
        setting.at(949)
        setting.watch.check()
        assert watched.error is None
        setting.at(951)
        setting.watch.check()
    assert setting.jobs.cancelled == [watched.group] and setting.jobs.kills == 0
    assert watched.error is not None and action_for(watched.error) is ErrorAction.RETRY
    assert setting.watch.warning() is None
    setting.watch.close()


def test_task_that_cannot_be_cancelled_is_killed() -> None:
    setting = Setting(grace_s=0.01)
    with setting.watch.watching(["ods.orders"]):
        setting.time = 901
        hangs = threading.Event()
        setting.jobs.on_cancel = lambda: hangs.wait(60)  # a JVM that hangs
        setting.watch.check()
        assert setting.jobs.kills == 1
        hangs.set()
    setting.watch.close()


def test_task_that_waits_for_cores_is_not_cancelled(setting: Setting) -> None:
    with setting.watch.watching(["ods.waits"]) as waits:
        setting.read_soon()
        setting.jobs.found[waits.group] = ("nothing yet", False)
        setting.at(840)
        with setting.watch.watching(["ods.other"]):
            setting.at(850)
        setting.at(1700)  # the other one ended at 850
        setting.watch.check()
        assert waits.error is None
        setting.jobs.on_cancel = waits.ended.set
        setting.at(1751)
        setting.watch.check()
        assert waits.error is not None
    setting.watch.close()


def test_limit_grows_with_the_slowest_task(setting: Setting) -> None:
    assert setting.watch.limit_s == 900
    with setting.watch.watching(["ods.large"]):
        setting.time = 200
    assert setting.watch.limit_s == 2000
    setting.watch.close()


def test_snapshot_step_is_cancelled_after_usual_time_and_limit(setting: Setting) -> None:
    with setting.watch.watching(["ods.large"], "snapshot step", usual_s=600) as watched:
        setting.jobs.on_cancel = watched.ended.set
        setting.time = 640
        assert setting.watch.warning() is None, "its readers may read for ten minutes"
        setting.time = 700
        assert "A snapshot step has made no progress for 100 s" in str(setting.watch.warning())
        setting.time = 1499
        setting.watch.check()
        assert watched.error is None
        setting.time = 1501
        setting.watch.check()
    assert setting.jobs.cancelled == [watched.group]
    assert watched.error is not None and action_for(watched.error) is ErrorAction.RETRY
    assert setting.watch.limit_s == 900, "the duration of a snapshot step does not change the limit of Tasks"
    setting.watch.close()


class Sessions:
    is_remote = False
    local_cores = 1
    core_count = staticmethod(lambda: 1)
    get = known = staticmethod(lambda: Sessions)
    close = staticmethod(lambda: None)
    lives = staticmethod(lambda _: False)


def test_submit_reading_hanging_raises_error_of_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()

    def run(*_: object) -> None:
        hangs.wait(60)
        raise RuntimeError("Job cancelled")

    reading = SimpleNamespace(channels=("ods.large",), work="snapshot step", usual_s=5.0, run=run)
    runner = SparkTaskRunner(Sessions, SimpleNamespace())  # type: ignore[arg-type]
    jobs, time = Jobs(), [0.0]
    jobs.on_cancel = hangs.set
    runner._groups = SimpleNamespace(begin=lambda *_: None)  # type: ignore[assignment]
    runner._stalls = TaskStallWatch(jobs, 900, now=lambda: time[0], poll_s=0.01)
    future = runner.submit_reading(reading)  # type: ignore[arg-type]
    while not runner._stalls._watched():
        threading.Event().wait(0.01)
    time[0] = 906.0
    with pytest.raises(SinkUnavailable, match="snapshot step made no progress for 901 s"):
        future.result(60)
    runner.close()
