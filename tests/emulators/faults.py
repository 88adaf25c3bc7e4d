"""Faults that a test orders from an emulator: which fault, at which operation, how often, for which label."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """The kinds of faults."""

    DROP_ANSWER = "drop_answer"  # the work is done, the connection is cut instead of an answer
    RESET = "reset"  # the connection is cut before the work: of a load in mid-body
    HTTP_500 = "http_500"  # an answer that no handler wrote; nothing was done
    SLOW = "slow"  # the work is done after `seconds`
    ERROR = "error"  # the usual refusal of this operation; nothing was done
    ERROR_DONE = "error_done"  # answered by an error though it happened
    PUBLISH_TIMEOUT = "publish_timeout"  # committed, visible later


@dataclass(slots=True)
class Order:
    """One ordered fault."""

    place: str  # load, commit, abort, state, backends, sql
    fault: Fault
    times: int  # how often it strikes
    match: str  # part of the label or statement it strikes; "" for any
    after: int  # the number of operations that it skips first
    chance: float  # that it strikes
    seconds: float
    text: str  # of the error; "" for the usual one of the operation


class Faults:
    """All ordered faults. Tests order them, servers take them."""

    def __init__(self, seed: int = 0) -> None:
        self._orders: list[Order] = []
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self.struck: list[tuple[str, Fault, str]] = []

    def order(
        self,
        place: str,
        fault: Fault | str,
        *,
        times: int = 1,
        match: str = "",
        after: int = 0,
        chance: float = 1.0,
        seconds: float = 0.2,
        text: str = "",
    ) -> None:
        """Order ``fault`` at the operation ``place``, ``times`` times."""
        with self._lock:
            self._orders.append(Order(place, Fault(fault), times, match, after, chance, seconds, text))

    def clear(self) -> None:
        """Forget every order."""
        with self._lock:
            self._orders.clear()

    def take(self, place: str, subject: str = "") -> Order | None:
        """Return the fault that strikes now, if any."""
        with self._lock:
            for order in self._orders:
                if order.place != place or order.match not in subject or self._random.random() >= order.chance:
                    continue
                if order.after:
                    order.after -= 1
                    continue
                order.times -= 1
                if not order.times:
                    self._orders.remove(order)
                self.struck.append((place, order.fault, subject))
                return order
        return None
