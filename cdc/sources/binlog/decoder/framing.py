"""The kernel ``scan``: find packets, events and transactions in a buffer, many at a time.

``scan`` handles what a busy stream consists of: packet headers, checksums, GTIDs, BEGIN, known table maps, row events,
commits. It lists the row events of mapped tables and the transactions that ended. For any other event it returns a code
(``CHECK``, ``UNKNOWN_MAP``, ...) to Python. Python therefore works per buffer and per distinct table, never per event.

Source: MySQL manual, "Binary Log Event"; MySQL source, libs/mysql/binlog/event; MariaDB source, sql/log_event.h.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, load_u16, load_u32, load_u64, part, same_bytes
from cdc.sources.binlog.decoder.checksum import event_crc
from cdc.sources.binlog.decoder.event_fields import (
    ORIGIN_BYTES,
    content_hash,
    query_word,
    read_gtid,
    read_pint,
    read_tagged_gtid,
)

# ``state``: one int64 array that Python and the kernel share
(
    AT,  # buffer offset of the next packet or event
    FILE_AT,  # its offset in the binlog file
    PHASE,  # IDLE, OPENED or RUNNING
    TX_START,  # file offset of the open transaction
    TX_COMMIT_US,  # its commit time
    TX_ORIGIN,  # row of its GTID's source in ``origins``; -1: no GTID
    TX_GNO,  # number of its GTID
    TX_ENTRIES,  # its events so far
    TX_ROW_EVENTS,  # its row events of mapped tables, including those already decoded as a piece
    TX_STANDALONE,  # MariaDB: one event group follows, without commit
    EVENT_COUNT,  # rows of ``events`` in use
    DONE_EVENTS,  # rows of ``events`` that belong to ended transactions
    TX_COUNT,  # rows of ``transactions`` in use
    MAP_COUNT,  # table ids known in the open statement
    EVENT_AT,  # offset of the header of the event that Python must handle
    EVENT_SIZE,  # its size with header and checksum
    EVENT_NEXT,  # offset after it, packet header included
    NEED,  # bytes from AT on that the next step needs
    PENDING_BYTES,  # bytes of the listed row events
    INNER_END,  # inside a transaction payload: file offset after the payload's event; else 0
    SKIP_UNTIL,  # file offset before which events are dropped (a start inside a file on disk)
    CHECKSUM,  # 1: events end with a CRC32; 0: they do not; -1: no format description yet
    MAP_HASH,  # hash of the unknown table map
    ORIGIN_COUNT,  # rows of ``origins`` in use
    SEEN_EVENTS,  # events of any type since the start
    XA_ANNOUNCED,  # 1: Python knows that the GTID at AT begins an XA transaction (MariaDB)
    FILE_NEXT,  # file offset after the event that Python must handle; FILE_AT if it is not in the file
) = range(27)
STATE_SIZE = 32

IDLE, OPENED, RUNNING = 0, 1, 2  # between transactions; after a GTID; inside a transaction

# columns of ``events``, which has one row per row event of a mapped table
SLOT, KIND, COLUMNS, BITMAPS_AT, END, EVENT_FILE_AT = range(6)
EVENT_FIELDS = 6
# columns of ``transactions``, which has one row per ended transaction
START, STOP_AT, COMMIT_US, ORIGIN, GNO, ENTRIES, LAST_EVENT = range(7)
TRANSACTION_FIELDS = 7
# columns of ``known``, which has one row per known table map
HASH, OFFSET, LENGTH, KNOWN_SLOT = range(4)
KNOWN_FIELDS = 4
SKIPPED = -1  # slot of tables that no channel maps
OMITTED = -3  # slot of tables for which the TableSource returned None

_MARIADB_ORIGIN = 255

NEED_MORE, FULL, CHECK, UNKNOWN_MAP, UNKNOWN_ORIGIN, SPLIT, ERROR_PACKET, END_PACKET = range(8)
BAD_PACKET, BAD_SIZE, BAD_CHECKSUM, BAD_BODY, BAD_NESTING, BAD_TABLE_ID, TOO_MANY_MAPS, NO_FORMAT = range(10, 18)
FAULTS = {
    BAD_PACKET: "the packet is not an event",
    BAD_SIZE: "the size of the event does not match its packet",
    BAD_CHECKSUM: "the checksum of the event is wrong",
    BAD_BODY: "the event ends before its last field",
    BAD_NESTING: "a transaction begins inside another transaction",
    BAD_TABLE_ID: "a row event has a table id without a table map",
    TOO_MANY_MAPS: "a statement has more than 4096 table maps",
    NO_FORMAT: "an event precedes the format description",
}

MAX_EVENT_BYTES = (1 << 30) + (1 << 20)
_HEADER = 19
_FULL_PACKET = 0xFFFFFF
_DUMMY_IDS = (0xFFFFFFFFFFFF, 0xFFFFFF)


@inlined
def _find_map(data: np.ndarray, start: int, end: int, hashed: int, index: np.ndarray, known: np.ndarray,
              arena: np.ndarray) -> int:  # fmt: skip
    """Return the row of ``known`` with the same content, or -1."""
    mask = index.shape[0] - 1
    bucket = hashed & mask
    while index[bucket] != 0:
        row = index[bucket] - 1
        if known[row, HASH] == hashed and known[row, LENGTH] == end - start:  # noqa: SIM102 (one test is cheap)
            if same_bytes(data, start, arena, known[row, OFFSET], end - start):
                return row
        bucket = (bucket + 1) & mask
    return -1


@inlined
def _find_origin(origins: np.ndarray, count: int, needed: np.ndarray, hint: int) -> int:
    if 0 <= hint < count and same_bytes(origins, hint * ORIGIN_BYTES, needed, 0, ORIGIN_BYTES):
        return hint
    for row in range(count):
        if same_bytes(origins, row * ORIGIN_BYTES, needed, 0, ORIGIN_BYTES):
            return row
    return -1


@inlined
def _end_transaction(state: np.ndarray, transactions: np.ndarray, file_next: int) -> None:
    row = state[TX_COUNT]
    transactions[row, START] = state[TX_START]
    transactions[row, STOP_AT] = state[INNER_END] if state[INNER_END] else file_next
    transactions[row, COMMIT_US] = state[TX_COMMIT_US]
    transactions[row, ORIGIN] = state[TX_ORIGIN]
    transactions[row, GNO] = state[TX_GNO]
    transactions[row, ENTRIES] = state[TX_ENTRIES]
    transactions[row, LAST_EVENT] = state[EVENT_COUNT]
    state[TX_COUNT] = row + 1
    state[DONE_EVENTS] = state[EVENT_COUNT]
    state[PHASE] = IDLE
    state[MAP_COUNT] = 0
    state[TX_ENTRIES] = 0
    state[TX_ROW_EVENTS] = 0
    state[TX_STANDALONE] = 0


@kernel
def end_transaction(state: np.ndarray, transactions: np.ndarray, file_next: int) -> None:
    """End the open transaction at ``file_next``. For Python, which handles the rarer ends of transactions."""
    _end_transaction(state, transactions, file_next)


@inlined
def _begin_transaction(state: np.ndarray, phase: int, commit_us: int, origin: int, gno: int) -> None:
    state[PHASE] = phase
    # After events that the server did not send, FILE_AT is before this event.
    state[TX_START] = max(state[FILE_AT], state[FILE_NEXT] - state[EVENT_SIZE])
    state[TX_COMMIT_US] = commit_us
    state[TX_ORIGIN] = origin
    state[TX_GNO] = gno
    state[TX_ENTRIES] = 0
    state[TX_ROW_EVENTS] = 0
    state[TX_STANDALONE] = 0
    state[MAP_COUNT] = 0


@inlined
def _list_rows(data: np.ndarray, kind: int, body: int, end: int, state: np.ndarray, events: np.ndarray,
               map_ids: np.ndarray, map_slots: np.ndarray) -> int:  # fmt: skip
    """List a row event. Return 0 or a fault code."""
    if end - body < 8:
        return BAD_BODY
    table_id = np.int64(load_u64(data, body) & np.uint64(0xFFFFFFFFFFFF))
    ends_statement = load_u16(data, body + 6) & np.uint64(1)
    slot = -2
    for i in range(state[MAP_COUNT] - 1, -1, -1):
        if map_ids[i] == table_id:
            slot = np.int64(map_slots[i])
            break
    if slot == -2 and table_id != _DUMMY_IDS[0] and table_id != _DUMMY_IDS[1]:
        return BAD_TABLE_ID
    if slot >= 0:
        at = body + 8
        if kind >= 30:
            if end - at < 2:
                return BAD_BODY
            extra = np.int64(load_u16(data, at))
            if extra < 2 or at + extra > end:
                return BAD_BODY
            at += extra
        columns, at = read_pint(data, at, end)
        if at < 0 or columns > 4096:
            return BAD_BODY
        row = state[EVENT_COUNT]
        events[row, SLOT] = slot
        events[row, KIND] = kind
        events[row, COLUMNS] = columns
        events[row, BITMAPS_AT] = at
        events[row, END] = end
        events[row, EVENT_FILE_AT] = state[FILE_AT]
        state[EVENT_COUNT] = row + 1
        state[TX_ROW_EVENTS] += 1
        state[PENDING_BYTES] += end - body
    if ends_statement:
        state[MAP_COUNT] = 0
    return 0


@kernel
def list_rows(data: np.ndarray, kind: int, body: int, end: int, state: np.ndarray, events: np.ndarray,
              map_ids: np.ndarray, map_slots: np.ndarray) -> int:  # fmt: skip
    """Do the same as ``_list_rows``. For Python, which unpacks compressed row events."""
    return _list_rows(data, kind, body, end, state, events, map_ids, map_slots)


@part
def _scan(data: np.ndarray, end: int, framed: bool, batch_bytes: int, state: np.ndarray, events: np.ndarray,
         transactions: np.ndarray, map_ids: np.ndarray, map_slots: np.ndarray, index: np.ndarray, known: np.ndarray,
         arena: np.ndarray, origins: np.ndarray, needed: np.ndarray, number: np.ndarray) -> int:  # fmt: skip
    """Do the same as ``scan``; ``needed`` and ``number`` are scratch memory."""
    event_limit = events.shape[0]
    transaction_limit = transactions.shape[0]
    while True:
        if (
            state[PENDING_BYTES] >= batch_bytes
            or state[EVENT_COUNT] >= event_limit
            or state[TX_COUNT] >= transaction_limit
        ):
            return FULL
        at = state[AT]
        head = at
        if framed:
            if end - at < 5:
                state[NEED] = 5
                return NEED_MORE
            length = np.int64(load_u32(data, at) & np.uint64(0xFFFFFF))
            if length == _FULL_PACKET:
                return SPLIT
            if end - at < 4 + length:
                state[NEED] = 4 + length
                return NEED_MORE
            state[EVENT_AT] = at + 4
            state[EVENT_SIZE] = length
            state[EVENT_NEXT] = at + 4 + length
            first = data[at + 4] if length > 0 else np.uint8(1)
            if first == 0xFF:
                return ERROR_PACKET
            if first == 0xFE and length < 9:
                return END_PACKET
            if first != 0:
                return BAD_PACKET
            head = at + 5
            if length < _HEADER + 1 or np.int64(load_u32(data, head + 9)) != length - 1:
                return BAD_SIZE
            size = length - 1
            after = head + size
        else:
            if end - at < _HEADER:
                state[NEED] = _HEADER
                return NEED_MORE
            size = np.int64(load_u32(data, at + 9))
            state[EVENT_AT] = at
            state[EVENT_SIZE] = size
            if size < _HEADER or size > MAX_EVENT_BYTES:
                return BAD_SIZE
            if end - at < size:
                state[NEED] = size
                return NEED_MORE
            after = at + size
        kind = np.int64(data[head + 4])
        flags = load_u16(data, head + 17)
        state[EVENT_AT] = head
        state[EVENT_SIZE] = size
        state[EVENT_NEXT] = after
        file_next = state[FILE_AT]
        if not flags & np.uint64(0x20) and kind != 27 and kind != 41 and not state[INNER_END]:
            file_next += size
            event_end = np.int64(load_u32(data, head + 13))
            if event_end != 0 and (file_next & 0xFFFFFFFF) != event_end:
                # The server did not send some events: use its offset, of which the event has only the low 32 bits.
                file_next = (state[FILE_AT] & ~np.int64(0xFFFFFFFF)) | event_end
                if file_next < state[FILE_AT]:
                    file_next += np.int64(1) << 32
        state[FILE_NEXT] = file_next
        if kind == 15:
            return CHECK
        if state[CHECKSUM] < 0:
            return CHECK if kind == 4 else NO_FORMAT
        if state[FILE_AT] < state[SKIP_UNTIL]:
            state[FILE_AT] += size
            state[AT] = after
            continue
        last = head + size
        if state[CHECKSUM] and not state[INNER_END]:
            last -= 4
            if last - head < _HEADER:
                return BAD_SIZE
            if event_crc(data, head, last) != load_u32(data, last):
                return BAD_CHECKSUM
        body = head + _HEADER
        ends = False
        if kind == 19:
            if last - body < 8:
                return BAD_BODY
            hashed = content_hash(data, body + 6, last)
            row = _find_map(data, body + 6, last, hashed, index, known, arena)
            if row < 0:
                state[MAP_HASH] = hashed
                return UNKNOWN_MAP
            count = state[MAP_COUNT]
            if count >= map_ids.shape[0]:
                return TOO_MANY_MAPS
            map_ids[count] = np.int64(load_u64(data, body) & np.uint64(0xFFFFFFFFFFFF))
            map_slots[count] = known[row, KNOWN_SLOT]
            state[MAP_COUNT] = count + 1
        elif 23 <= kind <= 25 or 30 <= kind <= 32 or kind == 39:
            fault = _list_rows(data, kind, body, last, state, events, map_ids, map_slots)
            if fault:
                return fault
            ends = state[TX_STANDALONE] != 0 and state[MAP_COUNT] == 0
        elif kind == 16:
            ends = True
        elif kind == 2:
            word = query_word(data, body, last)
            if word < 0:
                return BAD_BODY
            if word == 1:
                if state[PHASE] == RUNNING and state[TX_ENTRIES] > 1:
                    return BAD_NESTING
                if state[PHASE] == IDLE:
                    _begin_transaction(state, RUNNING, np.int64(load_u32(data, head)) * 1000000, -1, 0)
                state[PHASE] = RUNNING
            elif word == 2 or (word == 3 and state[TX_ROW_EVENTS] == 0):
                ends = True
            elif word != 4:
                return CHECK
        elif kind == 33 or kind == 34 or kind == 42 or kind == 162:
            if state[PHASE] == RUNNING:
                return BAD_NESTING
            if state[PHASE] == OPENED:
                _end_transaction(state, transactions, state[FILE_AT])  # a GTID without events after it
                continue
            if kind == 162 and last - body >= 13 and data[body + 12] & 0x40 and not state[XA_ANNOUNCED]:
                return CHECK
            state[XA_ANNOUNCED] = 0
            origin = np.int64(-1)
            phase = OPENED
            if kind == 162:
                if last - body < 13:
                    return BAD_BODY
                for i in range(ORIGIN_BYTES):
                    needed[i] = 0
                for i in range(4):
                    needed[i] = data[body + 8 + i]
                    needed[4 + i] = data[head + 5 + i]
                needed[16] = _MARIADB_ORIGIN
                number[0] = np.int64(load_u64(data, body))
                number[1] = -1
                if not data[body + 12] & 1:
                    phase = RUNNING
            elif kind == 42:
                if not read_tagged_gtid(data, body, last, needed, number):
                    return BAD_BODY
            elif not read_gtid(data, body, last, needed, number):
                return BAD_BODY
            if kind != 34:
                origin = _find_origin(origins, state[ORIGIN_COUNT], needed, state[TX_ORIGIN])
                if origin < 0:
                    row = state[ORIGIN_COUNT] * ORIGIN_BYTES
                    if row + ORIGIN_BYTES > origins.shape[0]:
                        return UNKNOWN_ORIGIN
                    for i in range(ORIGIN_BYTES):
                        origins[row + i] = needed[i]
                    origin = state[ORIGIN_COUNT]
                    state[ORIGIN_COUNT] += 1
            if number[1] <= 0:
                number[1] = np.int64(load_u32(data, head)) * 1000000
            _begin_transaction(state, phase, number[1], origin, number[0])
            state[TX_STANDALONE] = 1 if kind == 162 and phase == OPENED else 0
        elif kind == 3:
            state[MAP_COUNT] = 0
        elif not (kind == 5 or kind == 9 or kind == 11 or kind == 13 or kind == 14 or kind == 17 or kind == 28
                  or kind == 29 or kind == 36 or kind == 37 or kind == 160 or kind == 161):  # fmt: skip
            return CHECK
        state[TX_ENTRIES] += 1
        state[SEEN_EVENTS] += 1
        state[AT] = after
        state[FILE_AT] = file_next
        if ends:
            _end_transaction(state, transactions, file_next)


@kernel
def scan(data: np.ndarray, end: int, framed: bool, batch_bytes: int, state: np.ndarray, events: np.ndarray,
         transactions: np.ndarray, map_ids: np.ndarray, map_slots: np.ndarray, index: np.ndarray, known: np.ndarray,
         arena: np.ndarray, origins: np.ndarray) -> int:  # fmt: skip
    """Scan ``data[state[AT]:end]`` until Python is needed. Return the reason: one of the codes above."""
    needed = np.zeros(ORIGIN_BYTES, np.uint8)
    number = np.zeros(2, np.int64)
    return _scan(data, end, framed, batch_bytes, state, events, transactions, map_ids, map_slots, index, known, arena,
                 origins, needed, number)  # fmt: skip
