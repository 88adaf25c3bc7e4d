"""What the loads into Doris and StarRocks share: settings, attempts, and waiting for the final state of a label."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc.errors import CdcError
from cdc.model.batch import PreparedLoad
from cdc.retry import Backoff
from channels.sinks.stream_load.encoding import MEMORY_BYTES, BodyRows
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.messages import ProductMessages

STATE_TIMEOUT_S = 30.0  # how long a request without an answer may still be running in the cluster


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of all loads of a sink."""

    tries: int = 6
    pause_s: float = 0.2  # before the second attempt; doubles
    timeout_s: int = 3600  # the cluster cancels a load that is not prepared by then


def attempts(tries: int, first_s: float, longest_s: float) -> Iterator[int]:
    """Yield the numbers of ``tries`` attempts, from 0. Sleep before each but the first: ``first_s``, then doubling."""
    pauses = Backoff(first_s, longest_s)
    for number in range(tries):
        if number:
            time.sleep(next(pauses))
        yield number


def wait_for_state(state: Callable[[], str], transient: Collection[str]) -> str:
    """Return the state of a label when it is not one of ``transient``, or the last state after a time limit."""
    deadline = time.monotonic() + STATE_TIMEOUT_S
    for pause in Backoff(0.05, 1.0):
        found = state()
        if found not in transient or time.monotonic() > deadline:
            return found
        time.sleep(pause)
    raise AssertionError("unreachable")


def load_rows(
    batches: Iterable[pa.RecordBatch],
    load: Callable[[BodyRows], PreparedLoad],
    *,
    longest_field: int | None = None,
) -> PreparedLoad | None:
    """Call ``load`` with the rows of a part; return None if there are none. ``longest_field``: see ``BodyRows``."""
    rows = BodyRows(batches, limit_bytes=MEMORY_BYTES, longest_field=longest_field)
    try:
        return load(rows) if rows.row_count else None
    finally:
        rows.close()


def repeat_until_prepared(
    attempt: Callable[[int], PreparedLoad | CdcError],
    settings: LoadSettings,
    messages: ProductMessages,
    **context: object,
) -> PreparedLoad:
    """Repeat ``attempt`` until it returns a load. Raises: the last error that it returned, or any that it raises."""
    error: CdcError = messages.unavailable("no attempt was made", **context)
    for number in attempts(settings.tries, settings.pause_s, 5.0):
        try:
            result = attempt(number)
        except Unreachable as reason:
            result = messages.unavailable(reason, **context)
        if isinstance(result, PreparedLoad):
            return result
        error = result
    raise error
