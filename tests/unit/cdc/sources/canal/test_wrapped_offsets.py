"""Binlog files of more than 4 GiB: Canal's offsets begin at 0 again, and no row is lost without an error."""

from __future__ import annotations

import pytest

from cdc.errors import ErrorAction, PositionLost, action_for
from cdc.model.position import CanalPosition
from cdc.sources.canal.fetcher import Ring
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import Log, Scripted, cut, failover, read
from tests.support.receiving import Mapped

START = CanalPosition("", 0)
GIB = 1 << 30
NEXT = "mysql-bin.000002"
SMALL = Ring(entries=8, mode="ITEMSIZE")


def receiver(client, *, ring=SMALL, gap=False):
    return CanalReceiver(lambda: client, Mapped("shop"), ring=ring, accept_gap=gap)


def source(before_wrap, *, size=8192, time_ms=1_700_000_005_000):
    """Return a server with a transaction of the ids 2 to 41, of which the first ones end before 4 GiB."""
    huge = Log(4 * GIB - before_wrap * size, size=size, time_ms=time_ms)
    first = Log(4000, time_ms=1_700_000_000_000).rows(1, 1)
    after = Log(300, file=NEXT, time_ms=1_700_000_006_000).rows(1000, 1000)
    return Scripted([first], *cut(huge.rows(2, 41), 4), [after])


@pytest.mark.parametrize("before_wrap", range(16, 26))
@pytest.mark.parametrize("ring", [SMALL, Ring()], ids=["split", "whole"])
def test_receiver_offset_wraps_stops_the_job(before_wrap, ring):
    client = source(before_wrap)
    ids, last, error = read(receiver(client, ring=ring), START, until=1000)
    assert isinstance(error, PositionLost)
    assert action_for(error) is ErrorAction.PAUSE
    assert ids == [*range(1, ids[-1] + 1)]
    assert ids[-1] < 41
    again, _, error = read(receiver(client, ring=ring), last, until=1000)  # also after a restart
    assert isinstance(error, PositionLost)
    assert again == [*range(ids[-1] + 1, ids[-1] + 1 + len(again))]


@pytest.mark.parametrize("before_wrap", range(16, 26))
def test_receiver_wrap_accepted_reads_the_next_file(before_wrap):
    client = source(before_wrap)
    ids, last, error = read(receiver(client), START, until=1000)
    assert error is not None
    more, _, error = read(receiver(client, gap=True), last, until=1000)
    assert error is None
    assert more[-1] == 1000
    rows = [*ids, *more[:-1]]
    assert rows == [*range(1, rows[-1] + 1)]  # all rows up to the gap


def test_receiver_wrap_accepted_keeps_batch_until_rows_are_committed():
    client = source(21)
    _, last, error = read(receiver(client), START, until=1000)
    assert error is not None
    acked = client.acked
    read(receiver(client, gap=True), last, until=1000, commits=False)
    assert client.acked == acked


def test_receiver_hidden_rows_before_end_stop_the_job():
    """Canal hides the rows of other tables: the END entry has a lower offset than the row before it."""
    begin, hidden = Log(GIB), Log(4 * GIB + GIB // 2)
    rows = [begin.begin(), begin.insert(id=("int", 2))]
    client = Scripted([Log(4000).rows(1, 1)], [rows], [[hidden.end()]], [Log(300, file=NEXT).rows(3, 3)])
    ids, _, error = read(receiver(client, ring=Ring()), START, until=3)
    assert ids == [1]
    assert isinstance(error, PositionLost)


@pytest.mark.parametrize("length", [2, 40])
@pytest.mark.parametrize("first", ["END", "BEGIN"])
@pytest.mark.parametrize("offset", [4000, 3 * GIB])
def test_receiver_repeated_transaction_is_read_once(first, offset, length):
    """Canal has lost its connection to MySQL inside a transaction and continues at the last END, or by GTIDs."""
    before, log = Log(4000), Log(offset + 1000)
    one, two = before.rows(1, 1), log.rows(2, 1 + length)
    repeated = [one[-1], *two] if first == "END" else two
    client = Scripted([one], *cut(two[:-1], 4), *cut(repeated, 4), [log.rows(100, 100)])
    ids, _, error = read(receiver(client), START, until=100)
    assert error is None
    assert ids == [*range(1, 2 + length), 100]


@pytest.mark.parametrize("length", [2, 40])
def test_receiver_repeated_first_transaction_is_read_once(length):
    log = Log()
    one = log.rows(1, length)
    client = Scripted(*cut(one[:-1], 4), *cut(one, 4), [log.rows(100, 100)])
    ids, _, error = read(receiver(client), START, until=100)
    assert error is None
    assert sorted({*ids}) == [*range(1, 1 + length), 100]


@pytest.mark.parametrize("file", ["mysql-bin.000000", "mysql-bin.000001"])
def test_receiver_failover_inside_a_transaction_reads_all_its_rows(file):
    """Another server, whose offsets are lower, sends the transaction again."""
    first, second = Log(8000), Log(500, file=file)
    one, two, again = failover(first, second, 9)
    client = Scripted([one], [two[:5]], [again], [second.rows(100, 100)])
    ids, _, error = read(receiver(client, ring=Ring()), START, until=100)
    assert error is None
    assert ids == [*range(1, 10), 100]


def test_receiver_repeated_batch_is_read_once():
    """Another client has requested a rollback inside a transaction."""
    log = Log()
    batches = cut(log.rows(1, 9), 3)
    client = Scripted(*batches[:2], *batches[1:], [log.rows(10, 10)])
    ids, _, error = read(receiver(client, ring=Ring()), START, until=10)
    assert error is None
    assert ids == [*range(1, 11)]


@pytest.mark.parametrize("is_last", [False, True], ids=["one batch", "two batches"])
@pytest.mark.parametrize("size", [3, 40])
def test_receiver_repeat_from_a_hidden_end_is_read_once(size, is_last):
    """Canal has hidden the first END of a transaction of other tables, and sends it after a lost connection."""
    log = Log(4000)
    one, hidden, two = log.rows(1, 1), log.rows(900, 900), log.rows(2, 21)
    repeated = [[[hidden[-1]]], *cut(two, size)] if is_last else cut([hidden[-1], *two], size)
    client = Scripted([one], *cut(two[:-3], size), *repeated, [log.rows(100, 100)])
    expected = len(client.batches) - 2
    ids, _, error = read(receiver(client), START, until=100, is_acked=lambda: client.acked >= expected)
    assert error is None
    assert ids == [*range(1, 22), 100]
    assert client.acked >= expected


def test_receiver_hidden_rows_before_end_accepted_reads_on():
    begin, hidden = Log(GIB), Log(4 * GIB + GIB // 2)
    rows = [begin.begin(), begin.insert(id=("int", 2))]
    client = Scripted([Log(4000).rows(1, 1)], [rows], [[hidden.end()]], [Log(300, file=NEXT).rows(3, 3)])
    ids, last, error = read(receiver(client, ring=Ring()), START, until=3)
    assert error is not None
    more, _, error = read(receiver(client, ring=Ring(), gap=True), last, until=3)
    assert error is None
    assert ids + more == [1, 2, 3]


@pytest.mark.parametrize("size", [3, 6])
def test_receiver_begin_after_hidden_4_gib_stops_the_job(size):
    """A transaction of other tables, which Canal hides, has more than 4 GiB. The next one is in the same file."""
    now = 1_700_000_005_000
    before, after = Log(GIB, time_ms=now), Log(4 * GIB + GIB // 2, time_ms=now)
    entries = [*before.rows(1, 1), *before.rows(2, 2), *before.rows(3, 3), *after.rows(4, 4)]
    client = Scripted(*cut(entries, size), [Log(300, file=NEXT, time_ms=now).rows(5, 5)])
    ids, last, error = read(receiver(client, ring=Ring()), START, until=5)
    assert isinstance(error, PositionLost)
    again, _, error = read(receiver(client, ring=Ring()), last, until=5)
    assert isinstance(error, PositionLost)
    assert ids + again == [1, 2, 3]
