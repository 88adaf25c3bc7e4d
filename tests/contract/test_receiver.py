"""The Receiver contract, run on every implementation."""

from __future__ import annotations

import pytest

from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED
from cdc.sources.binlog.receiver import BinlogReceiver
from tests.support.canal_sources import CURSOR, canal_receiver, drain
from tests.support.receiving import Collector, Mapped, Shop, position, receiver_of

KINDS = [
    "mysql",
    "mariadb",
    "files",
    pytest.param("canal", marks=pytest.mark.canal),
    pytest.param("canal_mariadb", marks=pytest.mark.canal),
]


class Source(Shop):
    """A server to write to, and receivers that read it over the network, from its files or through Canal."""

    def __init__(self, server, database, files, canal):
        super().__init__(server, database)
        self.files, self.canal = files, canal

    def here(self):
        if self.canal:
            drain(self.canal)
            return CURSOR
        there = position(self.server)
        return BinlogPosition(there.file, there.offset) if self.files else there

    def receiver(self, **options):
        if self.canal:
            return canal_receiver(self.canal.address, Mapped(self.database), **options)
        if self.files:
            self.server.execute("FLUSH BINARY LOGS")
            return BinlogReceiver.of_files(f"{self.server.data}/mysql-bin.*", Mapped(self.database), **options)
        return receiver_of(self.server, Mapped(self.database), **options)


@pytest.fixture(params=KINDS)
def source(request):
    kind = "mariadb" if request.param.endswith("mariadb") else "mysql"
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("mariadb_database" if kind == "mariadb" else "database")
    server.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)")
    canal = request.getfixturevalue(request.param) if request.param.startswith("canal") else None
    return Source(server, database, files=request.param == "files", canal=canal)


@pytest.fixture
def opened(source):
    receivers = []

    def open_(start, schemas=(), sequence=0, **options):
        receiver = source.receiver(**options)
        receivers.append(receiver)
        receiver.open(start, schemas, sequence)
        return receiver

    yield open_
    for receiver in receivers:
        receiver.close()


def test_receiver_rows_are_in_order_with_rising_sequences(source, opened):
    start = source.here()
    source.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, 'n{i}')" for i in range(20)))
    source.write("UPDATE {db}.orders SET note = 'new' WHERE id = 3", "DELETE FROM {db}.orders WHERE id = 4")
    collected = Collector(opened(start, sequence=100)).collect_rows(22)
    assert collected.values() == [*range(20), 3, 4]
    assert collected.sequences == list(range(101, 123))
    assert [row[DELETED] for row in collected.rows] == [False] * 21 + [True]
    assert collected.rows[-1]["note"] == "n4"  # a delete carries the whole before image


def test_receiver_batches_have_no_gap_between_them(source, opened):
    start = source.here()
    source.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(10)))
    collected = Collector(opened(start)).collect_rows(10)
    assert collected.batches[0].first.reached(start)
    for before, after in zip(collected.batches, collected.batches[1:], strict=False):
        assert before.ends_transaction
        assert (after.first, after.last.reached(after.first)) == (before.last, True)
    timed = [batch for batch in collected.batches if batch.rows]
    assert all(1.5e15 < batch.oldest_commit_us <= batch.newest_commit_us for batch in timed)


def test_receiver_get_returns_none_without_new_rows(source, opened):
    receiver = opened(source.here())
    Collector(receiver).collect_to_end()
    assert receiver.get(0.05) is None
    assert receiver.status().is_at_end


def test_receiver_changed_key_is_a_delete_and_an_upsert(source, opened):
    start = source.here()
    source.write("INSERT INTO {db}.orders VALUES (1, 'a')", "UPDATE {db}.orders SET id = 2, note = 'b'")
    collected = Collector(opened(start)).collect_rows(3)
    assert [(row["id"], row["note"], row[DELETED]) for row in collected.rows[1:]] == [(1, "a", True), (2, "b", False)]


def test_receiver_large_transaction_has_pieces_at_its_start(source, opened):
    start = source.here()
    inserts = [
        "INSERT INTO orders VALUES " + ",".join(f"({row}, REPEAT('x', 900))" for row in range(first, first + 1000))
        for first in range(0, 12_000, 1000)
    ]
    source.write_together(*inserts)
    source.write("INSERT INTO {db}.orders VALUES (99999, 'behind')")
    collected = Collector(opened(start)).collect_rows(12_001)
    assert collected.values() == [*range(12_000), 99_999]
    if source.canal:  # its ring limits the rows that wait for the end of a transaction
        (large,) = [batch for batch in collected.batches if batch.rows >= 12_000]
        assert large.ends_transaction and not large.last.entry
        return
    pieces = [batch for batch in collected.batches if not batch.ends_transaction]
    assert len(pieces) >= 2
    assert {batch.last for batch in pieces} == {pieces[0].last}
    end = next(batch for batch in collected.batches if batch.rows and batch.ends_transaction)
    assert end.last != pieces[0].last and end.last.reached(pieces[0].last)


def test_receiver_transaction_over_tables_is_one_batch(source, opened):
    source.write("CREATE TABLE {db}.items (id INT PRIMARY KEY, n INT)")
    start = source.here()
    source.write_together(
        "INSERT INTO orders VALUES (1, '')", "INSERT INTO items VALUES (1, 5), (2, 6)", "UPDATE items SET n = 7"
    )
    collected = Collector(opened(start)).collect_rows(5)
    (batch,) = [batch for batch in collected.batches if batch.rows]
    assert batch.ends_transaction and batch.rows == 5
    assert collected.values("id", "items") == [1, 2, 1, 2]


def test_receiver_rollback_delivers_again_from_its_position(source, opened):
    start = source.here()
    source.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(3)))
    receiver = opened(start)
    first = Collector(receiver).collect_rows(3)
    acked = next(batch.last for batch in first.batches if batch.rows)
    receiver.ack(acked)
    unacked_rows = sum(batch.rows for batch in first.batches if not acked.reached(batch.last))
    receiver.rollback(acked)
    again = Collector(receiver).collect_rows(unacked_rows).collect_to_end()
    assert again.values() == [0, 1, 2][3 - unacked_rows :]
    assert not again.sequences or min(again.sequences) > max(first.sequences)


def test_receiver_restart_continues_with_the_saved_schemas(source, opened):
    start = source.here()
    source.write("INSERT INTO {db}.orders VALUES (1, '')")
    receiver = opened(start)
    first = Collector(receiver).collect_rows(1)
    schemas, last = receiver.schemas(), first.batches[-1].last
    receiver.close()
    assert [(schema.table, schema.key) for schema in schemas] == [("orders", ("id",))]
    source.write("INSERT INTO {db}.orders VALUES (2, '')")
    second = Collector(opened(last, schemas, 1)).collect_rows(1)
    assert (second.values(), second.sequences) == ([2], [2])
    (changes,) = next(batch.changes for batch in second.batches if batch.rows)
    assert changes.schema.same_shape(schemas[0])


def _is_full(receiver):
    status = receiver.status()
    return status.is_window_full or status.needs_ack


def test_receiver_reading_ahead_stops_at_the_window(source, opened):
    start = source.here()
    for first in range(0, 20_000, 1000):
        rows = ",".join(f"({row}, REPEAT('y', 900))" for row in range(first, first + 1000))
        source.write(f"INSERT INTO {{db}}.orders VALUES {rows}")
    receiver = opened(start, window_bytes=2 << 20)
    held = []
    while not _is_full(receiver):
        batch = receiver.get(1.0)
        held += [batch] if batch is not None and batch.rows else []
    byte_count = sum(changes.rows.nbytes for batch in held for changes in batch.changes)
    # one Batch may exceed the bound; Canal's entries, of which half is enough, are larger than their rows
    assert (1 << 19 if source.canal else 2 << 20) <= byte_count < 12 << 20
    assert receiver.get(0.3) is None
    receiver.release(byte_count)
    if source.canal:  # released rows are still in the ring of the server
        receiver.ack(held[-1].last)
    assert not _is_full(receiver)
    rest = Collector(receiver, acks=bool(source.canal)).collect_rows(20_000 - sum(batch.rows for batch in held))
    assert rest.values()[-1] == 19_999


def test_receiver_close_can_be_repeated(source, opened):
    receiver = opened(source.here())
    receiver.close()
    receiver.close()
    assert receiver.get(0.01) is None


def test_receiver_files_end_and_servers_do_not(source, opened):
    start = source.here()
    source.write("INSERT INTO {db}.orders VALUES (1, '')")
    receiver = opened(start)
    Collector(receiver).collect_rows(1).collect_to_end()
    assert receiver.status().is_finished is source.files
