"""A Canal receiver after a change of the source's server or of its binlog file names: rows, errors and acks."""

from __future__ import annotations

import time

import pytest

from cdc.errors import ServerMismatch, SourceActionRequired
from cdc.model.position import CanalPosition
from cdc.sources.canal.protocol_pb2 import (
    Column,
    Entry,
    EventKind,
    Header,
    Pair,
    RowChange,
    RowData,
    TransactionEdge,
)
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import Scripted
from tests.support.receiving import Collector, Mapped

CURSOR = CanalPosition("", 0)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def transaction(number, file, offset, gtid_set="", begin=TransactionEdge(thread_id=7)):  # noqa: B008
    """Yield the entries of a transaction with one row, whose key is ``number``."""
    row = RowData(
        after_columns=[Column(index=0, sql_type=4, name="id", is_key=True, value=str(number), mysql_type="int")]
    )
    change = RowChange(event_kind=EventKind.INSERT, rows=[row])
    parts = [
        (Entry.TRANSACTION_BEGIN, begin),
        (Entry.ROW_DATA, change),
        (Entry.TRANSACTION_END, TransactionEdge(transaction_id="9")),
    ]
    for place, (kind, value) in enumerate(parts):
        header = Header(
            file=file, offset=offset + 100 * place, event_length=100, execute_time_ms=1_700_000_000_000 + number,
            database="shop", table="orders", event_kind=EventKind.INSERT, gtid_set=gtid_set,
        )  # fmt: skip
        yield Entry(header=header, kind=kind, store_value=value.SerializeToString()).SerializeToString()


@pytest.fixture
def opened():
    receivers = []

    def open_(client, start=CURSOR, **options):
        receivers.append(CanalReceiver(lambda: client, Mapped("shop"), **options))
        receivers[-1].open(start, (), 0)
        return Collector(receivers[-1])

    yield open_
    for receiver in receivers:
        receiver.close()


def until_acked(client, taker, count):
    deadline = time.monotonic() + 240
    while client.acked < count:
        assert time.monotonic() < deadline, client.acked
        taker.receiver.get(0.01)


def renamed():
    return Scripted(
        [transaction(1, "old.000009", 4)], [transaction(2, "new.000001", 4)], [transaction(3, "new.000001", 500)]
    )


def test_receiver_binlog_with_another_name_raises_until_accepted(opened):
    taker = opened(renamed())
    with pytest.raises(ServerMismatch, match="another server") as caught:
        taker.collect_rows(2)
    assert "--accept-server" in caught.value.hint and taker.values() == [1]
    client = renamed()
    taker = opened(client, taker.batches[-1].last, accept_server=True).collect_rows(2)
    assert taker.values() == [2, 3]
    taker.receiver.ack(taker.batches[-1].last)
    until_acked(client, taker, 2)  # also the batch with the old name; the newest batch is kept


def test_receiver_follows_another_server_by_gtids(opened):
    sets = [f"{UUID}:1-{last}" for last in (4, 5, 6)]
    moved = (
        [transaction(1, "bin.000009", 4, sets[0])],
        [transaction(2, "bin.000009", 500, sets[1])],
        # the other server has executed both transactions too, and sends the second one again
        [transaction(2, "bin.000002", 700, sets[1]), transaction(3, "bin.000002", 1100, sets[2])],
    )
    client = Scripted(*moved)
    taker = opened(client).collect_rows(3).collect_to_end()
    assert taker.values() == [1, 2, 3]
    taker.receiver.ack(taker.batches[-1].last)
    until_acked(client, taker, 2)
    assert client.acked == 2


def test_receiver_newer_rows_before_its_position_raise(opened):
    taker = opened(Scripted([transaction(1, "bin.000009", 4)], [transaction(2, "bin.000002", 4)]))
    with pytest.raises(ServerMismatch, match="newer"):
        taker.collect_rows(2)


def test_receiver_undecided_rows_without_an_end_raise(opened):
    xa = TransactionEdge(props=[Pair(key="XA_TYPE", value="XA START"), Pair(key="XA_XID", value="X'78',X'',1")])
    begin, row, _ = transaction(2, "bin.000009", 500, begin=xa)
    batches = [transaction(1, "bin.000009", 4)], [[begin, row]], [transaction(3, "bin.000009", 900)]
    taker = opened(Scripted(*batches))
    with pytest.raises(SourceActionRequired, match="XA transaction"):
        taker.collect_rows(2)
    assert taker.values() == [1]
