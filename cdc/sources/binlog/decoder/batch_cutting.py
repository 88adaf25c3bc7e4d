"""Cut Batches: decode the row events that ``framing`` listed, as whole transactions or as pieces of a large one.

If an event cannot be decoded, the transactions before it are returned first, and the error is raised at the next call.
"""

from __future__ import annotations

import numpy as np

from cdc.errors import CdcError, DecodeError, SourceRewound
from cdc.model.batch import Batch, Changes
from cdc.sources.binlog.decoder import events as ev
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder import row_events
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder.events import Malformed
from cdc.sources.binlog.decoder.stream_state import StreamState
from cdc.sources.binlog.decoder.table_plan import TableDecoding
from cdc.sources.binlog.decoder.xa import PreparedPiece

DAMAGED = (
    "Check the binlog file on the server with mysqlbinlog --verify-binlog-checksum, then run `cdc snapshot` for the "
    "job's tables."
)
_NO_DOCUMENTS = np.zeros((0, 2), np.int64)


def cut(stream: StreamState, full: bool) -> Batch | None:
    """Return a Batch of the ended transactions. If none ended and ``full``: of a piece of the open transaction."""
    state = stream.state
    if state[fr.TX_COUNT]:
        return cut_transactions(stream)
    if not full or not state[fr.EVENT_COUNT]:
        return None
    count = int(state[fr.EVENT_COUNT])
    commit_us = int(state[fr.TX_COMMIT_US])
    entries, state[fr.TX_ENTRIES] = int(state[fr.TX_ENTRIES]), 0
    changes, rows, size = decode_rows(stream, count, 0)
    if stream.xa is not None:
        stash(stream, changes, rows, size, entries)
        return None
    offset = stream.safe_position()
    return Batch(changes, offset, offset, False, entries, rows, size, commit_us, commit_us)


def cut_transactions(stream: StreamState) -> Batch:
    """Return a Batch of the ended transactions."""
    state = stream.state
    count = int(state[fr.TX_COUNT])
    first = stream.safe_position()
    changes, rows, size = decode_rows(stream, int(state[fr.DONE_EVENTS]), count)
    count = int(state[fr.TX_COUNT])  # fewer than before if a later transaction cannot be decoded
    ended = stream.transactions[:count]
    stream.gtids.add(ended)
    stream.position = stream.position_at(int(ended[-1, fr.STOP_AT]))
    entries = int(ended[:, fr.ENTRIES].sum())
    oldest, newest = int(ended[0, fr.COMMIT_US]), int(ended[-1, fr.COMMIT_US])
    state[fr.TX_COUNT] = 0
    held = bool(stream.open_xa)
    return Batch(changes, first, stream.safe_position(), not held, entries, rows, size, oldest, newest)


def decode_rows(stream: StreamState, count: int, transactions: int) -> tuple[tuple[Changes, ...], int, int]:
    """Return the rows of the first ``count`` listed events, their number and source bytes. Remove these events."""
    found: list[row_events.UnnumberedRows] = []
    event_rows = np.zeros(count, np.int64)
    fault = _decode_slots(stream, count, event_rows, found) if count else None
    if fault is not None:
        error = _row_error(stream, fault)
        before = int((stream.transactions[:transactions, fr.LAST_EVENT] <= fault.event).sum())
        if not before:
            raise error
        stream.failure = error  # the transactions before it are returned first
        stream.state[fr.TX_COUNT] = before
        count = int(stream.transactions[before - 1, fr.LAST_EVENT])
        transactions = before
        found, event_rows = [], np.zeros(count, np.int64)
        if count and _decode_slots(stream, count, event_rows, found) is not None:
            raise error
    total = int(event_rows.sum())
    dropped = _dropped(stream, event_rows, transactions) if stream.skip_rows else 0
    base = 0 if stream.xa is not None else stream.sequence
    first_of_event = np.cumsum(event_rows) - event_rows + (base + 1 - dropped)
    if stream.xa is not None:
        first_of_event += stream.xa.rows
    else:
        stream.sequence += total - dropped
    changes = [decoded.numbered(event_rows, first_of_event) for decoded in found if decoded.rows]
    if dropped:
        changes = [kept for change in changes if (kept := _after(change, base)) is not None]
    listed = stream.events[:count]
    size = int((listed[:, fr.END] - listed[:, fr.BITMAPS_AT]).sum())
    _drop_events(stream, count)
    return tuple(changes), total - dropped, size


def _decode_slots(
    stream: StreamState, count: int, event_rows: np.ndarray, found: list[row_events.UnnumberedRows]
) -> row_events.DecodeFault | None:
    slots = stream.registry.slots
    order = np.empty(count, np.int64)
    bounds = np.empty(len(slots) + 1, np.int64)
    layout.group_events(stream.events, 0, count, len(slots), order, bounds)
    used = np.flatnonzero(np.diff(bounds))
    faults = []
    for slot_number in used.tolist():
        mine = order[bounds[slot_number] : bounds[slot_number + 1]]
        decoded = _decode_slot(stream, slots[slot_number], mine, event_rows)
        if not isinstance(decoded, row_events.DecodeFault):
            found.append(decoded)
        elif _is_left_out(stream, decoded):
            event_rows[mine] = 0
        else:
            faults.append(decoded)
    found.sort(key=lambda decoded: int(decoded.order[0]))
    return min(faults, key=lambda fault: fault.event, default=None)


def _decode_slot(
    stream: StreamState, slot: TableDecoding, mine: np.ndarray, event_rows: np.ndarray
) -> row_events.UnnumberedRows | row_events.DecodeFault:
    documents = _NO_DOCUMENTS
    unpacked = stream.buffer.inner_used
    try:
        if (stream.events[mine, fr.KIND] == ev.PARTIAL_UPDATE).any():
            made = row_events.json_documents(slot, stream.buffer.data, stream.events, mine)
            if isinstance(made, row_events.DecodeFault):
                return made
            plain, documents = made
            documents = documents + np.array([stream.buffer.put_inner(plain), 0])
        return row_events.decode(slot, stream.buffer.data, stream.events, mine, event_rows, documents, stream.scratch)
    except DecodeError as error:
        row = int(error.context.get("row", 0))  # type: ignore[call-overload]
        after = np.cumsum(event_rows[mine])
        event = int(mine[min(int(np.searchsorted(after, row, "right")), len(mine) - 1)])
        return row_events.DecodeFault(
            DecodeError, error.message, error.hint, event, str(error.context.get("column", ""))
        )
    except Malformed as error:
        return row_events.DecodeFault(DecodeError, error.sentence, DAMAGED, int(mine[0]))
    finally:
        # The rows are copies. Documents that stay after a payload's bytes would be scanned as events.
        stream.buffer.inner_used = unpacked


def _is_left_out(stream: StreamState, fault: row_events.DecodeFault) -> bool:
    error = _row_error(stream, fault)
    if not stream.callbacks.omits(error, [str(error.context["table"])]):
        fault.hint = error.hint  # ``omits`` may have changed it
        return False
    if stream.skip_rows:  # the count of rows to skip includes rows that are omitted now
        raise SourceRewound(
            "Rows of a transaction are omitted, and some of its rows were delivered before the connection was lost.",
            hint="No action is needed: the transaction is read again from its beginning.",
            position=stream.position,
        )
    return True


def _dropped(stream: StreamState, event_rows: np.ndarray, transactions: int) -> int:
    """Return the number of rows to drop, because they were delivered before a reconnect."""
    last = int(stream.transactions[0, fr.LAST_EVENT]) if transactions else len(event_rows)
    there = int(event_rows[:last].sum())
    dropped = min(stream.skip_rows, there)
    stream.skip_rows -= dropped
    if transactions and stream.skip_rows:
        raise SourceRewound(
            f"The transaction has {stream.skip_rows} fewer rows than were read before the reconnect.",
            hint="No action is needed: the transaction is read again from its beginning.",
            position=stream.position,
        )
    return dropped


def _drop_events(stream: StreamState, count: int) -> None:
    state = stream.state
    left = int(state[fr.EVENT_COUNT]) - count
    if left:
        stream.events[:left] = stream.events[count : count + left].copy()
    state[fr.EVENT_COUNT] = left
    state[fr.DONE_EVENTS] = max(int(state[fr.DONE_EVENTS]) - count, 0)
    listed = stream.events[:left]
    state[fr.PENDING_BYTES] = int((listed[:, fr.END] - listed[:, fr.BITMAPS_AT]).sum())
    if not left and not any(source.payload for source in stream.sources):
        stream.buffer.drop_inner()


def _row_error(stream: StreamState, fault: row_events.DecodeFault) -> CdcError:
    event = stream.events[fault.event]
    where: dict[str, object] = {
        "file": stream.file,
        "offset": int(event[fr.EVENT_FILE_AT]),
        "event": ev.name_of(int(event[fr.KIND])),
        "table": stream.registry.slots[int(event[fr.SLOT])].schema.name,
    }
    if fault.column:
        where["column"] = fault.column
    return fault.error(fault.message, hint=fault.hint, **where)


def stash(stream: StreamState, changes: tuple[Changes, ...], rows: int, size: int, entries: int) -> None:
    """Keep rows of the open XA transaction until it is decided."""
    assert stream.xa is not None
    stream.xa.pieces.append(PreparedPiece(changes, rows, size, entries))
    stream.xa.rows += rows
    stream.xa.bytes += sum(change.rows.get_total_buffer_size() for change in changes)


def _after(changes: Changes, sequence: int) -> Changes | None:
    """Return the rows with a sequence larger than ``sequence``, or None."""
    numbers = changes.rows.column(changes.rows.num_columns - 1).to_numpy()
    first = int(np.searchsorted(numbers, sequence, "right"))
    return Changes(changes.schema, changes.rows.slice(first)) if first < len(numbers) else None


def moved_batch(stream: StreamState) -> Batch | None:
    """Return a Batch without rows at a new Position: a file ended, or the server skipped a range of events."""
    # A Position without the creation time of its file would be valid in any file of that name.
    if not stream.moved or stream.created is None or stream.state[fr.PHASE] != fr.IDLE:
        return None
    if stream.state[fr.FILE_AT] < stream.state[fr.SKIP_UNTIL]:
        return None  # the events before the start are dropped, and their position would be before the start
    stream.moved = False
    first = stream.safe_position()
    stream.position = stream.position_at(int(stream.state[fr.FILE_AT]))
    last = stream.safe_position()
    return Batch((), first, last, not stream.open_xa, 0, 0, 0, None, None) if last != first else None
