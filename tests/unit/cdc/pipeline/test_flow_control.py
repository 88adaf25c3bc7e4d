"""Flow control: when cycles close, how long they stay open, how large Tasks become."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.model.batch import Batch
from cdc.model.position import BinlogPosition
from cdc.pipeline.commit_cycle import OpenCycle
from cdc.pipeline.flow_control import OVERFILL_FACTOR, CommitLimits, FlowControl
from cdc.sources.base import ReceiverStatus
from cdc.state.base import CloseReason

LIMITS = CommitLimits(interval_s=5.0, min_rows=10, min_bytes=1000, max_bytes=10_000, max_rows=100, task_bytes=1)


def position(offset):
    return BinlogPosition("bin.000001", offset)


def a_cycle(rows=1, size=10, ends=True, began=0.0):
    cycle = OpenCycle(position(4))
    cycle.begin_batch(began)
    cycle.end_batch(Batch((), position(4), position(100) if ends else position(4), ends, 1, rows, size, 7, 8))
    return cycle


def a_flow(now=1.0, limits=LIMITS):
    times = [now]
    flow = FlowControl(lambda: times[0])
    flow.begin_run(limits)
    flow.times = times
    return flow


@pytest.mark.parametrize(
    ("cycle", "asked", "reason"),
    [
        (a_cycle(), {}, None),
        (a_cycle(), {"now": 5.0}, "interval"),
        (a_cycle(rows=0), {"now": 5.0}, "interval"),
        (a_cycle(rows=100), {}, "max_rows"),
        (a_cycle(size=10_000), {}, "max_bytes"),
        (a_cycle(), {"window_full": True}, "window"),
        (a_cycle(rows=9), {"idle": True}, None),
        (a_cycle(rows=10), {"idle": True}, "idle"),
        (a_cycle(size=1000), {"idle": True}, "idle"),
        (a_cycle(rows=10), {"idle": False}, None),
        (a_cycle(rows=0, size=1000), {"idle": True}, None),
        (a_cycle(rows=1000, ends=False), {"now": 50.0, "window_full": True, "idle": True}, None),
        (OpenCycle(position(4)), {"now": 1e9, "window_full": True, "idle": True}, None),
    ],
)
def test_close_reason_is_returned_only_between_transactions(cycle, asked, reason):
    asked = {"now": 1.0, "idle": False, "window_full": False, **asked}
    found = a_flow(asked.pop("now")).close_reason(cycle, **asked)
    assert found is (CloseReason(reason) if reason else None)


def test_first_cycle_of_a_run_that_continues_a_job_closes_early():
    flow = a_flow(0.5)

    def reason():
        return flow.close_reason(a_cycle(), idle=False, window_full=False)

    assert reason() is None
    flow.note_waiting_rows()
    assert reason() is CloseReason.INTERVAL
    flow.note_commit(merge_s=0.1)
    assert reason() is None
    flow.note_waiting_rows()
    flow.note_overload()
    assert reason() is None, "an overloaded sink gets no small commits"
    flow.begin_run(replace(LIMITS, interval_s=0.2))
    flow.note_waiting_rows()
    assert flow.poll_s(a_cycle(began=0.4), committing=False) == pytest.approx(0.1)


@pytest.mark.parametrize("full", [CloseReason.MAX_BYTES, CloseReason.MAX_ROWS, CloseReason.WINDOW])
def test_small_cycle_after_a_full_one_closes_when_the_source_is_idle(full):
    flow = a_flow(1.0)

    def reason(*, idle=True, rows=9):
        return flow.close_reason(a_cycle(rows=rows), idle=idle, window_full=False)

    assert reason() is None
    flow.note_close(full)
    assert reason() is CloseReason.IDLE
    assert reason(idle=False) is None and reason(rows=0) is None
    flow.note_close(CloseReason.IDLE)
    assert reason() is None
    flow.note_close(full)
    flow.note_overload()
    assert reason() is None, "an overloaded sink gets no small commits"
    flow = a_flow(1.0)
    flow.note_close(full)
    flow.begin_run(LIMITS)
    assert reason() is None


def test_is_full_at_a_multiple_of_max_bytes():
    flow = a_flow()
    assert not flow.is_full(a_cycle(size=10_000))
    assert flow.is_full(a_cycle(size=OVERFILL_FACTOR * 10_000))
    assert flow.is_full(a_cycle(rows=100))
    assert not flow.is_full(a_cycle(rows=100, ends=False))


def test_may_close_waits_after_commit_longer_than_interval():
    flow = a_flow(100.0)
    flow.note_commit(merge_s=3.0)
    assert flow.may_close
    flow.note_commit(merge_s=12.0)
    assert not flow.may_close
    flow.times[0] = 107.0
    assert flow.may_close
    flow.note_commit(merge_s=1000.0)
    flow.begin_run(LIMITS)
    assert flow.may_close


def test_poll_s_ends_when_the_cycle_should_close():
    flow = a_flow(4.95)
    assert flow.poll_s(OpenCycle(position(4)), committing=False) == 0.1
    assert flow.poll_s(a_cycle(), committing=False) == pytest.approx(0.05)
    assert flow.poll_s(a_cycle(), committing=True) == 0.02
    flow.times[0] = 50.0
    assert flow.poll_s(a_cycle(), committing=False) == 0.02


def test_task_bytes_increase_with_loads_up_to_half_a_window():
    mib = 1 << 20
    flow = a_flow(limits=CommitLimits(task_bytes=32 * mib))
    assert [flow.task_bytes(loads) // mib for loads in (0, 23, 24, 48, 72, 500)] == [32, 32, 64, 128, 128, 128]
    assert a_flow(limits=CommitLimits(task_bytes=mib)).task_bytes(500) == 8 * mib
    assert a_flow(limits=CommitLimits(task_bytes=256 * mib)).task_bytes(500) == 256 * mib
    assert sum(map(flow.task_bytes, range(150))) >= 15 << 30, "a transaction of 15 GiB in 150 loads"


def test_limits_double_while_the_sink_is_overloaded():
    flow = a_flow(0.0)
    assert flow.limits is LIMITS
    for _ in range(2):
        flow.note_overload()
    found = flow.limits
    assert (found.interval_s, found.min_rows, found.max_bytes, found.task_bytes) == (20.0, 40, 40_000, 4)
    assert found.max_rows == LIMITS.max_rows
    for _ in range(9):
        flow.note_overload()
    assert flow.factor == 16
    flow.times[0] = 250.0
    assert flow.factor == 4
    flow.begin_run(LIMITS)
    assert flow.factor == 4, "a new run does not end the overload"
    flow.times[0] = 1e6
    assert flow.limits is LIMITS


class Dispatcher:
    def __init__(self, buffered, started):
        self.channels = {str(size): SimpleNamespace(buffered_bytes=size) for size in buffered}
        self.cycle = SimpleNamespace(loading=[SimpleNamespace(is_released=one) for one in started])
        self.asked = []

    def start_tasks(self, at_least):
        self.asked.append(at_least)
        self.cycle.loading.append(SimpleNamespace(is_released=False))


@pytest.mark.parametrize(
    ("full", "needs_ack", "started", "waits_for_ack", "asked"),
    [
        (False, False, [True], False, []),
        (False, True, [True], True, []),  # the close starts the Tasks
        (True, True, [True], True, []),
        (True, False, [True, False], False, []),  # a Task frees bytes when it starts
        (True, False, [True], False, [25]),  # large channels start Tasks
    ],
)
def test_relieve_window_starts_tasks_or_requests_close(full, needs_ack, started, waits_for_ack, asked):
    dispatcher = Dispatcher([100, 3], started)
    status = ReceiverStatus(is_at_end=False, is_window_full=full, needs_ack=needs_ack)
    assert a_flow().relieve_window(dispatcher, status) is waits_for_ack
    assert dispatcher.asked == asked
