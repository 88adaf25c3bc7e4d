"""XA statements and events: keep the rows of an XA transaction until XA COMMIT, drop them at XA ROLLBACK."""

from __future__ import annotations

import struct

from cdc.model.batch import Batch
from cdc.model.xid import xid_of
from cdc.sources.binlog.decoder import batch_cutting
from cdc.sources.binlog.decoder import events as ev
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder.events import Malformed
from cdc.sources.binlog.decoder.stream_state import StreamState
from cdc.sources.binlog.decoder.xa import OpenXa, renumbered


def xa_query(stream: StreamState, verb: str, sql: str) -> Batch | None:
    """Handle the statement XA ``verb``."""
    state = stream.state
    if state[fr.TX_COUNT]:
        return batch_cutting.cut_transactions(stream)
    if verb in ("START", "BEGIN"):
        state[fr.PHASE] = fr.RUNNING
        stream.xa = OpenXa(stream.position_at(int(state[fr.TX_START])), int(state[fr.TX_COMMIT_US]))
        stream.step()
    elif verb == "END":
        stream.step()
    elif verb in ("COMMIT", "ROLLBACK"):
        if state[fr.PHASE] == fr.IDLE:
            raise Malformed(f"XA {verb} is outside of a transaction")
        xid = xid_of(sql) or ""
        if verb == "COMMIT" and xid not in stream.prepared:
            stream.callbacks.on_unknown_xa(xid, stream.position_at(int(state[fr.TX_START])))
        prepared = stream.prepared.pop(xid, None)
        commit_us = int(state[fr.TX_COMMIT_US])
        stream.step()
        stream.end_transaction()
        if prepared is not None and verb == "COMMIT":
            _release(stream, prepared, commit_us)
    else:
        stream.step()
    return None


def xa_gtid(stream: StreamState, event: bytes) -> Batch | None:
    """Begin a transaction that will be prepared. MariaDB has no XA START event, but a flag in the GTID event."""
    started_us = struct.unpack_from("<I", event)[0] * 1_000_000
    stream.xa = OpenXa(stream.position_at(stream.event_start()), started_us)
    stream.state[fr.XA_ANNOUNCED] = 1
    return None


def xa_prepare(stream: StreamState, event: bytes) -> Batch | None:
    """Keep the rows until the transaction is decided, or release them if it commits in one phase."""
    state = stream.state
    one_phase, xid = ev.parse_xa_prepare(event[ev.HEADER_BYTES :])
    open_xa = stream.xa
    if open_xa is None:
        raise Malformed("XA PREPARE has no XA START before it")
    count, entries = int(state[fr.EVENT_COUNT]), int(state[fr.TX_ENTRIES])
    if count:
        changes, rows, size_of_rows = batch_cutting.decode_rows(stream, count, 0)
        batch_cutting.stash(stream, changes, rows, size_of_rows, entries)
    stream.xa = None
    commit_us = int(state[fr.TX_COMMIT_US])
    stream.step()
    stream.end_transaction()
    if one_phase:
        _release(stream, open_xa, commit_us)
    else:
        open_xa.xid = xid
        stream.prepared[xid] = open_xa
    return None


def _release(stream: StreamState, prepared: OpenXa, commit_us: int) -> None:
    """Make Batches of a committed XA transaction. The listed XA COMMIT ends it."""
    offset = stream.safe_position()
    for piece in prepared.pieces:
        changes = tuple(renumbered(change, stream.sequence) for change in piece.changes)
        stream.ready.append(
            Batch(changes, offset, offset, False, piece.entries, piece.rows, piece.bytes, commit_us, commit_us)
        )
    stream.sequence += prepared.rows
