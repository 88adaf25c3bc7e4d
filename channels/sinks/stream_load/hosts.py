"""The hosts that may receive the credentials of a cluster's account.

An attacker on the network can change the host of a redirect. The credentials are therefore sent only to the hosts of
the job file (``sink.fe``, ``sink.be``) and to those that the cluster lists over its SQL connection. Only these may be
named by a redirect. The Doris sink also sends loads to the BEs of ``/api/backends``: its account may lack the privilege
for SHOW BACKENDS, and an FE of the job file sends this list. A name and an address of the same machine are different
hosts here, because a look-up would trust the name server.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

LISTED_KEPT_S = 10.0  # an older list may lack a new node

Listing = Callable[[], Iterable[str]]


def canonical(host: str, default_port: int) -> str:
    """Return ``host`` or ``host:port`` in canonical form, with its port. Raises: ValueError - not an address."""
    url = urlsplit("//" + host)
    name, port = url.hostname, url.port or default_port
    if not name or url.username is not None or url.path or url.query or url.fragment:
        raise ValueError(f"{host!r} is not a host")
    try:
        name = ipaddress.ip_address(name).compressed
    except ValueError:
        name = name.removesuffix(".")
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def with_port(host: str, port: object) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True if ``host:port`` is on this machine."""
    name = urlsplit("//" + host).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class ClusterHosts:
    """The hosts of one cluster that may receive its credentials. Thread-safe."""

    def __init__(self, configured: Iterable[str], default_port: int, listed: Iterable[str] = ()) -> None:
        """``configured``: hosts of the job file. ``listed``: hosts that the cluster has listed already."""
        self._port = default_port
        self._configured = self._canonical(configured)
        self._listed = self._canonical(listed)
        self._listing: Listing | None = None
        self._asked_at = float("-inf")
        self._lock = threading.Lock()

    @property
    def listed(self) -> tuple[str, ...]:
        """The hosts that the cluster has listed."""
        return tuple(sorted(self._listed))

    def use(self, listing: Listing) -> None:
        """Set the function that lists the hosts. Executors have no SQL connection and therefore none."""
        self._listing = listing

    def refresh(self, *, older_than_s: float = LISTED_KEPT_S) -> None:
        """List the hosts again if the list is older. Without an answer the old list stays."""
        with self._lock:
            if self._listing is None or time.monotonic() - self._asked_at < older_than_s:
                return
            self._listed = self._canonical(self._listing()) or self._listed
            self._asked_at = time.monotonic()

    def is_known(self, host: str) -> bool:
        """Return True if ``host`` may receive the credentials. A host that is not in the list is asked for again."""
        try:
            found = canonical(host, self._port)
        except ValueError:
            return False
        if found not in self._configured and found not in self._listed:
            self.refresh(older_than_s=0)
        return found in self._configured or found in self._listed

    def _canonical(self, hosts: Iterable[str]) -> frozenset[str]:
        found = set()
        for host in hosts:
            try:
                found.add(canonical(host, self._port))
            except ValueError:
                continue  # a node that has not reported its address yet
        return frozenset(found)
