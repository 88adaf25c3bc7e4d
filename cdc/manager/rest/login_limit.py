"""Limits how often a client may send a token that is not valid, with bounded memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

FAILURES_MOST = 10  # at once: a person who mistypes a token, a page with an old cookie
REFILL_S = 6.0  # for one more failure
CLIENTS_MOST = 1000  # with recent failures; further clients share one limit


class LoginLimit:
    """Counts failures by the address of the client. Calls: any thread; each call is one step of the event loop.

    A client with too many failures is refused before its token is compared, also a valid one: otherwise it could
    continue to guess. Tokens of others are not affected, unless they share its address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # the time at which all failures of a client are forgotten, least recently failed first
        self._forgotten_at: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, client: str) -> int:
        """Return after how many seconds a client may send a token; 0: now."""
        debt_s = self._forgotten_at.get(self._key(client), 0.0) - self._clock()
        return max(0, math.ceil(debt_s - (FAILURES_MOST - 1) * REFILL_S))

    def add_failure(self, client: str) -> None:
        """Count a token that is not valid."""
        key, now = self._key(client), self._clock()
        self._forgotten_at[key] = max(now, self._forgotten_at.get(key, 0.0)) + REFILL_S
        self._forgotten_at.move_to_end(key)
        while self._forgotten_at and next(iter(self._forgotten_at.values())) <= now:
            self._forgotten_at.popitem(last=False)

    def _key(self, client: str) -> str:
        found = network_of(client)
        return found if found in self._forgotten_at or len(self._forgotten_at) < CLIENTS_MOST else ""


def network_of(client: str) -> str:
    """Return the address of a client; for IPv6 its network, because one client has all of its addresses."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
