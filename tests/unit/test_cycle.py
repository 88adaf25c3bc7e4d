"""When a commit cycle closes, what it counts, and what a closed one gives."""

from concurrent.futures import Future

import pytest

from cdc.batch import Batch, LoadName, PreparedLoad
from cdc.checkpoint import ChannelCounts, Checkpoint, CheckpointState
from cdc.cycle import STRETCH, Closed, Cycle, GivenUp, Loading, take_off_window
from cdc.parts import Limits, Widening, grown
from cdc.position import BinlogPosition

LIMITS = Limits(interval_s=5.0, min_rows=10, min_bytes=1000, max_bytes=10_000, max_rows=100, task_bytes=1)


def place(offset):
    return BinlogPosition("bin.000001", offset)


def a_cycle(rows=1, size=10, ends=True, began=0.0):
    cycle = Cycle(place(4))
    cycle.enter(began)
    cycle.take(Batch((), place(4), place(100) if ends else place(4), ends, 1, rows, size, 7, 8))
    return cycle


def closed_by(cycle, now=1.0, idle=False, window_full=False):
    return cycle.closed_by(LIMITS, now, idle=idle, window_full=window_full)


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
    ],
)
def test_a_cycle_closes_for_a_reason_and_only_between_transactions(cycle, asked, reason):
    assert closed_by(cycle, **asked) == reason


def test_a_cycle_that_received_nothing_never_closes():
    assert closed_by(Cycle(place(4)), now=1e9, idle=True, window_full=True) is None


def test_a_cycle_that_holds_a_part_of_a_batch_counts_as_inside_a_transaction():
    cycle = a_cycle()
    cycle.enter(1.0)
    assert not cycle.may_close
    assert cycle.last == place(100)


def test_a_cycle_that_may_not_close_gathers_on_up_to_a_limit():
    assert not a_cycle(size=10_000).is_full(LIMITS)
    assert a_cycle(size=STRETCH * 10_000).is_full(LIMITS)
    assert a_cycle(rows=100).is_full(LIMITS)
    assert not a_cycle(rows=100, ends=False).is_full(LIMITS)


def a_loading(source="shop.orders", upserts=2, deletes=1, loads=(), failed=None):
    future = Future()
    if failed:
        future.set_exception(failed)
    else:
        future.set_result(tuple(loads))
    return Loading(source, upserts, deletes, 30, 77, future)


def a_load(channel, task, part=0):
    return PreparedLoad(LoadName("shop", "0badcafe", 1, 3, channel, task, part), channel, 1, 1)


OPENED = Checkpoint(3, 1, CheckpointState.OPEN, place(4), None)
BEFORE = Checkpoint(
    2,
    1,
    CheckpointState.COMMITTED,
    place(0),
    place(4),
    sequence=50,
    counts={"shop.orders": ChannelCounts(5, 5, 5, "then"), "shop.items": ChannelCounts(1, 1, 1, "then")},
)


def test_closing_adds_to_the_totals_of_the_checkpoint_before():
    cycle = a_cycle(rows=6)
    cycle.loading += [a_loading(), a_loading()]
    closed = cycle.close(OPENED, BEFORE, "interval", 1.5).checkpoint
    assert closed.counts["shop.orders"] == ChannelCounts(9, 7, 65, None)
    assert closed.counts["shop.items"] == ChannelCounts(1, 1, 1, "then")
    assert (closed.last, closed.rows, closed.sequence, closed.closed_by) == (place(100), 6, 77, "interval")
    assert closed.seconds == {"gather": 1.5}


def test_loads_come_in_order_of_channel_task_and_part():
    b1, b0, a1 = a_load("ods.b", 1), a_load("ods.b", 0, 1), a_load("ods.a", 1)
    b00 = a_load("ods.b", 0, 0)
    closed = Closed(OPENED, [a_loading(loads=(b1,)), a_loading(loads=(b0, b00)), a_loading(loads=(a1,))], None)
    assert closed.loads() == (a1, b00, b0, b1)


def test_a_failed_task_is_told_before_the_others_are_done():
    closed = Closed(OPENED, [Loading("a", 0, 0, 0, 0, Future()), a_loading(failed=OSError("disk"))], None)
    with pytest.raises(OSError, match="disk"):
        closed.loads()


def test_a_closed_cycle_can_be_given_up_while_a_task_hangs():
    closed = Closed(OPENED, [Loading("a", 0, 0, 0, 0, Future())], None)
    closed.give_up()
    with pytest.raises(GivenUp):
        closed.loads()


def test_rows_leave_the_window_once_when_their_task_starts():
    waiting, running = Loading("a", 0, 0, 10, 0, Future()), Loading("a", 0, 0, 20, 0, Future())
    running.future.set_running_or_notify_cancel()
    assert take_off_window([waiting, running]) == 20
    assert take_off_window([waiting, running]) == 0
    waiting.future.set_result(())
    assert take_off_window([waiting, running]) == 10


def test_tasks_grow_with_the_loads_of_a_checkpoint_up_to_half_a_window():
    mib = 1 << 20
    assert [grown(16 * mib, loads) // mib for loads in (0, 23, 24, 48, 72, 500)] == [16, 16, 32, 64, 128, 128]
    gathered = sum(grown(16 * mib, loads) for loads in range(200))
    assert gathered > 15 << 30  # a transaction of 15 GiB in 200 loads
    assert grown(0, 500) == 0  # at the close everything goes


def test_cycles_are_wider_while_the_sink_is_busy():
    times = [0.0]
    widening = Widening(lambda: times[0])
    assert widening.over(LIMITS) is LIMITS
    for _ in range(2):
        widening.busy()
    wide = widening.over(LIMITS)
    assert (wide.interval_s, wide.min_rows, wide.max_bytes, wide.task_bytes) == (20.0, 40, 40_000, 4)
    assert wide.max_rows == LIMITS.max_rows
    for _ in range(9):
        widening.busy()
    assert widening.factor == 16
    times[0] = 250.0
    assert widening.factor == 4
    times[0] = 1e6
    assert widening.over(LIMITS) is LIMITS
