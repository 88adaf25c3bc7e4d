"""Positions of entries: their numbers inside an event, and where the server sends entries again."""

from __future__ import annotations

from cdc.model.position import CanalPosition
from cdc.sources.canal.entries import Entries
from cdc.sources.canal.positions import EntryPositions
from cdc.sources.canal.protocol_pb2 import Entry, Header, Messages

BEGIN, ROW, END = Entry.TRANSACTION_BEGIN, Entry.ROW_DATA, Entry.TRANSACTION_END
NOWHERE = CanalPosition("", 0)


def places(*entries, at=NOWHERE):
    """Return the positions of entries given as (offset, kind) or (offset, kind, file number)."""
    built = [
        Entry(header=Header(file=f"bin.{(*rest, 1)[0]:06}", offset=offset), kind=kind)
        for offset, kind, *rest in entries
    ]
    body = Messages(batch_id=1, messages=[entry.SerializeToString() for entry in built]).SerializeToString()
    return EntryPositions(Entries(body), at)


def numbered(found):
    return [(found[entry].offset, found[entry].entry) for entry in range(len(found))]


def test_positions_number_entries_of_one_event_over_batches():
    found = places((100, BEGIN), (200, ROW), (200, ROW), (300, ROW), (400, END))
    assert numbered(found) == [(100, 1), (200, 1), (200, 2), (300, 1), (400, 1)]
    found = places((200, ROW), (200, ROW), (300, END), at=CanalPosition("bin.000001", 200, 2))
    assert numbered(found) == [(200, 3), (200, 4), (300, 1)]
    assert found.last == CanalPosition("bin.000001", 300, 1)


def test_positions_without_a_move_back_are_one_range():
    found = places(
        (100, BEGIN), (200, ROW), (300, END), (4, BEGIN, 2), (80, ROW, 2), at=CanalPosition("bin.000001", 9, 1)
    )
    assert list(found.ranges()) == [(0, 5, False)]


def test_positions_that_move_back_begin_a_range():
    found = places((100, BEGIN), (200, ROW), (100, BEGIN), (200, ROW), (300, END))
    assert list(found.ranges()) == [(0, 2, False), (2, 5, True)]
    assert numbered(found)[2:4] == [(100, 1), (200, 1)]
    found = places((100, BEGIN), (200, ROW), at=CanalPosition("bin.000001", 500, 1))
    assert list(found.ranges()) == [(0, 2, True)]
    found = places((900, BEGIN), (950, END), at=CanalPosition("bin.000002", 4, 1))
    assert list(found.ranges()) == [(0, 2, True)]


def test_positions_repeated_compressed_transaction_begins_a_range():
    found = places((100, BEGIN), (100, ROW), (100, ROW), (100, BEGIN), (100, ROW), (100, END))
    assert list(found.ranges()) == [(0, 3, False), (3, 6, True)]
    assert numbered(found) == [(100, 1), (100, 2), (100, 3), (100, 1), (100, 2), (100, 3)]
