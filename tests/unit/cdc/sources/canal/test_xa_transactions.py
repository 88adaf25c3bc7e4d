"""XA transactions that are larger than the ring of the server, or whose entries arrive in several batches."""

from __future__ import annotations

import pytest

from cdc.errors import SourceActionRequired
from cdc.model.position import CanalPosition, position_from_json
from cdc.sources.canal.fetcher import Ring
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import Log, Scripted, cut, read
from tests.support.receiving import Mapped

START = CanalPosition("", 0)
XID = "X'78',X'',1"


def receiver(client, *, gap=False):
    return CanalReceiver(lambda: client, Mapped("shop"), ring=Ring(entries=8, mode="ITEMSIZE"), accept_gap=gap)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_receiver_split_xa_transaction_accepted_omits_all_its_rows(size):
    log = Log()
    client = Scripted([log.rows(1, 1)], *cut(log.rows(2, 41, XID), size), [log.rows(50, 50)])
    ids, last, error = read(receiver(client), START, until=50)
    assert ids == [1]
    assert isinstance(error, SourceActionRequired)
    assert read(receiver(client, gap=True), last, until=50)[::2] == ([50], None)


def test_receiver_split_xa_transaction_lost_end_omits_all_its_rows():
    log = Log()
    client = Scripted([log.rows(1, 1)], *cut([*log.rows(2, 41, XID)[:-1], *log.rows(50, 50)], 4))
    _, last, error = read(receiver(client), START, until=50)
    assert isinstance(error, SourceActionRequired)
    assert read(receiver(client, gap=True), last, until=50)[::2] == ([50], None)


@pytest.mark.parametrize("parts", [3, 5, 7])
def test_receiver_restart_inside_accepted_xa_transaction_omits_its_rows(parts):
    log = Log()
    first, xa = log.rows(1, 1), cut(log.rows(2, 41, XID), 4)
    client = Scripted([first], *xa[:parts])
    last = read(receiver(client), START, until=50)[1]
    last = read(receiver(client, gap=True), last, until=50, timeout_s=2.0)[1]
    assert last.xid == XID
    client.batches += [one for batch in [*xa[parts:], [log.rows(50, 50)]] for one in batch]
    last = position_from_json(last.to_json())
    assert read(receiver(client), last, until=50)[::2] == ([50], None)


def test_receiver_same_xid_again_is_not_accepted():
    log = Log()
    client = Scripted([log.rows(1, 1)], *cut(log.rows(2, 41, XID), 4), [log.rows(50, 50)], [log.rows(60, 61, XID)])
    last = read(receiver(client), START, until=61)[1]
    ids, last, error = read(receiver(client, gap=True), last, until=61)
    assert ids == [50]
    assert isinstance(error, SourceActionRequired)
    assert not last.xid


def test_receiver_xa_transaction_of_other_tables_does_not_stop_the_next_one():
    log = Log()
    log.database = "other"
    xa = log.rows(2, 4, XID)
    log.database = "shop"
    client = Scripted([xa[:3]], [[*xa[3:], *log.rows(50, 50)]])
    assert read(receiver(client), START, until=50)[::2] == ([50], None)
