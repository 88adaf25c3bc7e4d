"""Compile the kernels, or load them from their cache, before the first byte of a stream is decoded.

The first start of a version compiles for about a minute, on two cores if there are two; other processes wait for it.
``reader`` calls ``warm_up`` after it has connected, and the status shows a warning meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

from cdc.errors import ConfigError
from cdc.mysql.values import json_text, text, times
from cdc.mysql.values import numbers as numeric
from cdc.mysql.values.kernels import CACHED, nothing_compiled, refuse_untrusted_caches
from cdc.sources.binlog.decoder import columns
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder.checksum import crc32

_WAIT_S, _POLL_S = 120.0, 0.2  # a compilation needs 40 s of one core


def warm_up() -> None:
    """Run every kernel of an ordinary stream on empty input. Calls: once, from any thread; a second call is cheap."""
    with _one_compiles():
        other = _other_process() if nothing_compiled() else None
        _warm_rows()
        if other is not None:
            other.wait()  # if it failed, ``warm_rest`` compiles what is missing
        warm_rest()


def load_compiled() -> bool:
    """Load the kernels if all of them are compiled. Return whether they are."""
    with suppress(ConfigError):  # another user can change them: a job reports it
        refuse_untrusted_caches()
        if CACHED and _file(_COMPLETE).exists():
            warm_up()
            return True
    return False


@contextmanager
def _one_compiles() -> Iterator[None]:
    """Let only one process compile. Others wait, and then load what it has compiled.

    Twenty drivers of a new host that all compile need twenty times as long. A process that cannot lock, or has waited
    for ``_WAIT_S``, compiles too.
    """
    if not CACHED or _file(_COMPLETE).exists():
        yield
        return
    lock = -1
    try:
        lock = os.open(_file(_LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        _acquire(lock)
        if _file(_COMPLETE).exists():
            fcntl.flock(lock, fcntl.LOCK_UN)  # loading needs no order
    except OSError:
        pass
    try:
        yield
        with suppress(OSError):
            _file(_COMPLETE).touch()
    finally:
        if lock >= 0:
            os.close(lock)


def _acquire(lock: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline or _file(_COMPLETE).exists():
                return None
        time.sleep(_POLL_S)


def _installation() -> str:
    """Return a name for what compiled code is valid for, as Numba sees it: besides the sources, by which the folder is
    named.
    """
    parts = (str(Path(__file__).parent), numba.__version__, sys.implementation.cache_tag, get_host_cpu_name())
    return hashlib.blake2s("\n".join(map(str, parts)).encode(), digest_size=8).hexdigest()


def _file(name: str) -> Path:
    return Path(numba.config.CACHE_DIR) / name


_COMPLETE, _LOCK = f"complete-{_installation()}", "lock"  # files beside the compiled kernels


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
