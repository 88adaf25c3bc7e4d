"""Commit cycle: when it may close, what it counts, and the loads of a closed one."""

from concurrent.futures import Future

import pytest

from cdc.model.batch import Batch, LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.pipeline.commit_cycle import Cancelled, ClosedCycle, OpenCycle, PendingLoad, release_window
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, CloseReason


def position(offset):
    return BinlogPosition("bin.000001", offset)


def a_cycle(rows=1, size=10, ends=True, began=0.0):
    cycle = OpenCycle(position(4))
    cycle.begin_batch(began)
    cycle.end_batch(Batch((), position(4), position(100) if ends else position(4), ends, 1, rows, size, 7, 8))
    return cycle


def test_cycle_with_part_of_a_batch_may_not_close():
    cycle = a_cycle()
    cycle.begin_batch(1.0)
    assert not cycle.may_close
    assert cycle.last == position(100)


def a_loading(source="shop.orders", upserts=2, deletes=1, loads=(), failed=None):
    future = Future()
    if failed:
        future.set_exception(failed)
    else:
        future.set_result(tuple(loads))
    return PendingLoad(source, upserts, deletes, 30, 77, future)


def a_load(channel, task, part=0):
    return PreparedLoad(LoadName("shop", "0badcafe", 1, 3, channel, task, part), channel, 1, 1)


OPENED = Checkpoint(3, 1, CheckpointState.OPEN, position(4), None)
BEFORE = Checkpoint(
    2,
    1,
    CheckpointState.COMMITTED,
    position(0),
    position(4),
    sequence=50,
    counts={"shop.orders": ChannelCounts(5, 5, 5, "then"), "shop.items": ChannelCounts(1, 1, 1, "then")},
)


def test_close_adds_counts_of_previous_checkpoint():
    cycle = a_cycle(rows=6)
    cycle.loading += [a_loading(), a_loading()]
    closed = cycle.close(OPENED, BEFORE, CloseReason.INTERVAL, 1.5).checkpoint
    assert closed.counts["shop.orders"] == ChannelCounts(9, 7, 65, None)
    assert closed.counts["shop.items"] == ChannelCounts(1, 1, 1, "then")
    assert (closed.last, closed.rows, closed.sequence, closed.closed_by) == (position(100), 6, 77, CloseReason.INTERVAL)
    assert closed.seconds == {"buffer": 1.5}


def test_loads_are_ordered_by_channel_task_and_part():
    b1, b0, a1 = a_load("ods.b", 1), a_load("ods.b", 0, 1), a_load("ods.a", 1)
    b00 = a_load("ods.b", 0, 0)
    closed = ClosedCycle(OPENED, [a_loading(loads=(b1,)), a_loading(loads=(b0, b00)), a_loading(loads=(a1,))], None)
    assert closed.loads() == (a1, b00, b0, b1)


def test_loads_failed_task_raises_before_others_are_done():
    closed = ClosedCycle(OPENED, [PendingLoad("a", 0, 0, 0, 0, Future()), a_loading(failed=OSError("disk"))], None)
    with pytest.raises(OSError, match="disk"):
        closed.loads()


def test_loads_cancelled_while_task_hangs_raises():
    closed = ClosedCycle(OPENED, [PendingLoad("a", 0, 0, 0, 0, Future())], None)
    closed.cancel()
    with pytest.raises(Cancelled):
        closed.loads()


def test_window_bytes_are_released_once_when_task_starts():
    waiting, running = PendingLoad("a", 0, 0, 10, 0, Future()), PendingLoad("a", 0, 0, 20, 0, Future())
    running.future.set_running_or_notify_cancel()
    assert release_window([waiting, running]) == 20
    assert release_window([waiting, running]) == 0
    waiting.future.set_result(())
    assert release_window([waiting, running]) == 10
