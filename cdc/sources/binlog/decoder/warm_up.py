"""Compile the kernels, or load them from their cache, before the first byte of a stream is decoded.

The first start of a version compiles for about a minute, on two cores if there are two. ``reader`` calls ``warm_up``
after it has connected, and the status shows a warning meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from cdc.mysql.values import json_text, text, times
from cdc.mysql.values import numbers as numeric
from cdc.mysql.values.kernels import nothing_compiled
from cdc.sources.binlog.decoder import columns
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder.checksum import crc32


def warm_up() -> None:
    """Run every kernel of an ordinary stream on empty input. Calls: once, from any thread; a second call is cheap."""
    other = _other_process() if nothing_compiled() else None
    _warm_rows()
    if other is not None:
        other.wait()  # if it failed, ``warm_rest`` compiles what is missing
    warm_rest()


def _other_process() -> subprocess.Popen[bytes]:
    """Start a process that compiles the other half into the same cache: Numba uses one core per process."""
    command = [sys.executable, "-c", f"import {__name__} as warm; warm.warm_rest()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=silent, stdout=silent, stderr=silent)


def _warm_rows() -> None:
    data, block = np.zeros(64, np.uint8), np.zeros(4096, np.uint8)
    events, nothing, numbers = np.zeros((1, fr.EVENT_FIELDS), np.int64), np.zeros(0, np.int64), np.zeros(2, np.int64)
    steps, needed = np.zeros((1, layout.STEP_FIELDS), np.int64), np.zeros((1, layout.NEEDED_FIELDS), np.int64)
    bits, control = np.zeros(1, np.uint8), np.zeros(layout.CONTROL_SIZE, np.int64)
    layout.lay_out(needed, 0, 0, control)
    columns.decode_rows(
        data, events, nothing, steps, nothing, nothing, nothing, bits, np.zeros((0, 2), np.int64), needed, nothing,
        nothing, nothing, 0, block, block, 0, nothing, control,
    )  # fmt: skip
    layout.describe(needed, 0, 0, block, 0, 0, 0, 0, control)
    layout.group_events(events, 0, 0, 0, nothing, numbers)
    layout.number_rows(nothing, nothing, nothing, block, 0)


def warm_rest() -> None:
    """Run the kernels of framing, and those of values that Python converts to arrays."""
    data = np.zeros(64, np.uint8)
    state, events = np.zeros(fr.STATE_SIZE, np.int64), np.zeros((1, fr.EVENT_FIELDS), np.int64)
    transactions, numbers = np.zeros((1, fr.TRANSACTION_FIELDS), np.int64), np.zeros(2, np.int64)
    known = np.zeros((1, fr.KNOWN_FIELDS), np.int64)
    fr.scan(data, 0, True, 1, state, events, transactions, numbers, numbers, numbers, known, data, data)
    fr.end_transaction(state, transactions, 0)
    crc32(data, 0, 8)
    starts, lengths, valid = np.zeros(1, np.int64), np.zeros(1, np.int32), np.ones(1, np.bool_)
    for made in (text.utf8_array, text.binary_array, json_text.text_array, numeric.vector_array):
        made(data, starts, lengths)
    numeric.decimal_text_array(data, starts, lengths, 40, 0)
    times.time_text_array(starts, valid, 0)
    text.set_array(starts.view(np.uint64), valid, ("",))
