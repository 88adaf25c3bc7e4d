"""Transactions that Canal sends again after it has lost MySQL: every row is read once, in order, and nothing hangs."""

from __future__ import annotations

import random
import time

import pytest

from cdc.errors import ServerMismatch
from cdc.model.position import CanalPosition, position_from_json
from cdc.sources.canal.fetcher import Ring
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import UUID, Log, Scripted, cut, failover, read
from tests.support.receiving import DEADLINE_S, Mapped

START = CanalPosition("", 0)
GTID_EVENT_BYTES = 65  # of the event before each BEGIN, which Canal does not send
SMALL = Ring(entries=16, mode="ITEMSIZE")


def receiver(client, ring=SMALL):
    return CanalReceiver(lambda: client, Mapped("shop"), ring=ring)


class Source:
    """A binlog of transactions with rising ids."""

    def __init__(self, *, has_gtids):
        self.log, self.has_gtids, self.count, self.last_id = Log(), has_gtids, 0, 0

    def transaction(self, rows):
        """Return the entries of the next transaction."""
        self.count += 1
        self.log.offset += GTID_EVENT_BYTES
        self.log.gtid_set = f"{UUID}:1-{self.count}" if self.has_gtids else ""
        first, self.last_id = self.last_id + 1, self.last_id + rows
        return self.log.rows(first, self.last_id)


def repeated(at, size, *, has_gtids):
    """Return server batches of ``size`` entries, in which a transaction is cut after ``at`` entries and repeated."""
    source = Source(has_gtids=has_gtids)
    one, two, three = source.transaction(1), source.transaction(40), source.transaction(1)
    return [[one], *cut([*two[:at], *([] if has_gtids else one[-1:]), *two], size), [three]]


@pytest.mark.parametrize("has_gtids", [False, True], ids=["offsets", "gtids"])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("at", range(19, 24))
def test_receiver_batch_with_both_copies_does_not_hang(at, size, has_gtids):
    client = Scripted(*repeated(at, size, has_gtids=has_gtids))
    ids, _, error = read(receiver(client), START, until=42)
    assert error is None
    assert ids == [*range(1, 43)]


@pytest.mark.parametrize("has_gtids", [False, True], ids=["offsets", "gtids"])
@pytest.mark.parametrize("size", [4, 6])
def test_receiver_restart_after_each_batch_of_both_copies_continues(size, has_gtids):
    """Canal loses MySQL inside a transaction that fits into the ring; the job restarts before the END arrives."""
    batches = repeated(20, size, has_gtids=has_gtids)
    for count in range(2, len(batches)):
        client = Scripted(*batches)
        rest, client.batches = client.batches[count:], client.batches[:count]
        committed = read_available(client, Ring())
        client.batches += rest
        ids, _, error = read(receiver(client, Ring()), committed[1], until=42)
        assert error is None, count
        assert committed[0] + ids == [*range(1, 43)], count


@pytest.mark.parametrize("has_gtids", [False, True], ids=["offsets", "gtids"])
def test_receiver_restart_after_both_copies_in_a_batch_continues(has_gtids):
    """The session begins inside the first copy of a committed transaction, so its first BEGIN is not known."""
    source = Source(has_gtids=has_gtids)
    zero, one, two, three = (source.transaction(rows) for rows in (1, 1, 20, 1))
    client = Scripted([zero], [one], [two[:8]], [two[8:15], two])
    committed, last = read_available(client, Ring())
    client.batches.append(three)
    ids, _, error = read(receiver(client, Ring()), last, until=23)
    assert error is None
    assert committed + ids == [*range(1, 24)]


@pytest.mark.parametrize("has_gtids", [False, True], ids=["offsets", "gtids"])
@pytest.mark.parametrize("at", [18, 20])
def test_receiver_restart_before_the_acks_of_both_copies_continues(at, has_gtids):
    """All rows are committed, but the process ends before Canal has the acks."""
    source = Source(has_gtids=has_gtids)
    zero, one, two, three = (source.transaction(rows) for rows in (1, 1, 40, 1))
    client = Scripted([zero], [one], *cut([*two[:at], *two], 6))
    committed, last = read_available(client, Ring())
    client.acked = 4  # the next session begins inside the first copy
    client.batches.append(three)
    ids, _, error = read(receiver(client, Ring()), last, until=43)
    assert error is None
    assert committed + ids == [*range(1, 44)]


def read_available(client, ring):
    """Read and commit until nothing more arrives. Return the ids and the last position."""
    reader, ids, last = receiver(client, ring), [], START
    reader.open(START, (), 0)
    empty = 0
    while empty < 3:
        batch = reader.get(0.05)
        empty = 0 if batch is not None or client.sent < len(client.batches) else empty + 1
        if batch is not None:
            ids += ids_of(batch)
            last = batch.last
            reader.ack(last)
    reader.close()
    return ids, last


def ids_of(batch):
    return [each for changes in batch.changes for each in changes.rows.column("id").to_pylist()]


def random_batches(chance):
    """Return random server batches of a random stream with repeated transactions, and its last id."""
    source = Source(has_gtids=chance.random() < 0.4)
    stream, ends = [], []
    for _ in range(chance.randrange(4, 9)):
        entries = source.transaction(chance.choice([1, 2, 3, 12, 30]))
        if len(entries) > 3 and chance.random() < 0.7:
            for _ in range(chance.randrange(1, 3)):
                stream += entries[: chance.randrange(1, len(entries))]
                if ends and chance.random() < 0.5 and not source.has_gtids:
                    stream.append(ends[-1])
        stream += entries
        ends.append(entries[-1])
    stream += source.transaction(1)
    batches = []
    while stream:
        size = chance.randrange(1, 9)
        batches.append([stream[:size]])
        stream = stream[size:]
    return batches, source.last_id


@pytest.mark.parametrize("seed", range(12))
def test_receiver_random_repeats_cuts_and_restarts_keep_all_rows(seed, monkeypatch):
    monkeypatch.setattr("cdc.sources.canal.fetcher._STARVED_S", 0.1)
    check_random_run(seed)


def check_random_run(seed):
    chance = random.Random(seed)
    batches, last_id = random_batches(chance)
    client = Scripted(*batches)
    rest, client.batches = client.batches, []
    ring = chance.choice([Ring(), Ring(entries=24, mode="ITEMSIZE")])
    committed, ids, deadline = START, [], time.monotonic() + DEADLINE_S
    while last_id not in ids:
        reader, handed = receiver(client, ring), []
        reader.open(committed, (), 0)
        for _ in range(chance.choice([10, 30, 100])):
            arrives, is_cut, commits = chance.random() < 0.5, chance.random() < 0.03, chance.random() < 0.5
            if rest and arrives:
                client.batches.append(rest.pop(0))
            if is_cut:
                client.connect()  # the connection is cut, and all unacked batches arrive again
            batch = reader.get(0.02)
            if batch is not None:
                handed.append(batch)
            if handed and (batch is None or commits or reader.status().needs_ack):
                ids += [each for one in handed for each in ids_of(one)]
                committed = handed[-1].last
                handed.clear()
                reader.ack(committed)
        reader.close()
        assert time.monotonic() < deadline, f"hangs after {ids[-1:]} at {committed}"
    assert ids == [*range(1, last_id + 1)]


@pytest.mark.parametrize("file", ["mysql-bin.000000", "mysql-bin.000001"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_receiver_failover_batch_with_both_copies_does_not_hang(size, file):
    """Another server, whose offsets are lower, sends a transaction that is larger than the ring again."""
    first, second = Log(8000), Log(500, file=file)
    one, two, again = failover(first, second, 41)
    client = Scripted([one], *cut([*two[:9], *again], size), [second.rows(42, 42)])
    ids, _, error = read(receiver(client), START, until=42)
    assert error is None
    assert ids == [*range(1, 43)]


@pytest.mark.parametrize("file", ["mysql-bin.000000", "mysql-bin.000001"])
@pytest.mark.parametrize("offset", [500, 7000, 8000, 8100, 9000])
@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "restart"])
def test_receiver_failover_inside_a_committed_part_stops_the_job(file, offset, restarts):
    """The position is inside a transaction, which another server sends again at other offsets."""
    first, second = Log(8000), Log(offset, file=file)
    one, two, again = failover(first, second, 41)
    client = Scripted([one], *cut([*two[:25], *again], 3), [second.rows(42, 42)])
    ids, last = [], START
    if restarts:
        rest, client.batches = client.batches[8:], client.batches[:8]
        ids, last = read_available(client, SMALL)
        assert last.entry
        last = position_from_json(last.to_json())
        client.batches += rest
    more, last, error = read(receiver(client), last, until=42)
    assert isinstance(error, ServerMismatch)
    ids += more
    again, _, error = read(receiver(client), last, until=42)
    assert isinstance(error, ServerMismatch)
    assert ids + again == [*range(1, 26)]


def test_position_of_an_earlier_version_has_no_begin():
    saved = CanalPosition("mysql-bin.000001", 4, entry=2).to_json()
    del saved["begin"]
    assert position_from_json(saved) == CanalPosition("mysql-bin.000001", 4, entry=2)
