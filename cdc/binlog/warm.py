"""Compiles the kernels, or loads them from their cache, before the first byte of a stream arrives.

A first start compiles for many seconds; a receiver does that while it connects.
"""

from __future__ import annotations

import numpy as np

from cdc.binlog import framing as fr
from cdc.binlog import json, numeric, temporal, text, walk
from cdc.binlog.checksum import crc32


def warm_up() -> None:
    """Run every kernel that an ordinary stream needs, on nothing. Calls: once, from any thread; repeating is cheap."""
    data = np.zeros(64, np.uint8)
    state, events = np.zeros(fr.STATE_SIZE, np.int64), np.zeros((1, fr.EVENT_FIELDS), np.int64)
    transactions, numbers = np.zeros((1, fr.TRANSACTION_FIELDS), np.int64), np.zeros(2, np.int64)
    nothing, known = np.zeros(0, np.int64), np.zeros((1, fr.KNOWN_FIELDS), np.int64)
    fr.scan(data, 0, True, 1, state, events, transactions, numbers, numbers, numbers, known, data, data)
    fr.end_transaction(state, transactions, 0)
    crc32(data, 0, 8)
    steps, wanted = np.zeros((1, walk.STEP_FIELDS), np.int64), np.zeros((1, walk.WANTED_FIELDS), np.int64)
    places, sizes = np.zeros((1, 16), np.int64), np.zeros((1, 16), np.int32)
    wanted[0, walk.OP] = walk.PLACES
    bits, control = np.zeros(1, np.uint8), np.zeros(walk.CONTROL_SIZE, np.int64)
    walk.decode_rows(
        data, events, nothing, steps, steps, nothing, bits, np.zeros((0, 2), np.int64), wanted, places, sizes, data, 0,
        nothing, control,
    )  # fmt: skip
    walk.group_events(events, 0, 0, 0, nothing, numbers)
    walk.number_rows(nothing, nothing, nothing, nothing)
    starts, lengths, valid = np.zeros(1, np.int64), np.zeros(1, np.int32), np.ones(1, np.bool_)
    for made in (text.utf8_array, text.binary_array, json.text_array, numeric.vector_array):
        made(data, starts, lengths)
    numeric.decimal_text_array(data, starts, lengths, 40, 0)
    temporal.time_text_array(starts, valid, 0)
    text.set_array(starts.view(np.uint64), valid, ("",))
