"""TLS of a cluster's HTTP and SQL sides, and the limits of a login."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from cdc.mysql.client import Limits
from channels.sinks.base import Finding
from channels.sinks.stream_load.hosts import is_loopback

LIMITS = Limits(login_s=20.0, answer_s=120.0, answer_bytes=256 << 20)  # SHOW PROC of transactions is the longest answer


@dataclass(frozen=True)
class ClusterTls:
    """The encryption of all connections to a cluster. Pickled for executors, which have no copy of the file."""

    mode: str = "off"  # off, required, verify_ca or verify_identity
    ca: str | None = None  # certificates as text; None: those of the machine

    @property
    def scheme(self) -> str:
        """Return http or https."""
        return "http" if self.mode == "off" else "https"

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context; None for off. Raises: ssl.SSLError - ``ca`` has no certificates."""
        if self.mode == "off":
            return None
        context = ssl.create_default_context(cadata=self.ca)
        # certificates of an internal authority often lack the extensions that strict checking requires
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.mode == "verify_identity"
        context.verify_mode = ssl.CERT_NONE if self.mode == "required" else ssl.CERT_REQUIRED
        return context

    def __reduce__(self) -> tuple[type[ClusterTls], tuple[str, str | None]]:
        return ClusterTls, (self.mode, self.ca)


NO_TLS = ClusterTls()


def unguarded_findings(product: str, hosts: Iterable[str], tls: ClusterTls) -> Iterator[Finding]:
    """Find hosts to which credentials are sent over a connection that is not secure."""
    far = sorted(host for host in hosts if not is_loopback(host))
    if not far or tls.mode not in ("off", "required"):
        return
    what = (
        "the user name and the password are sent in plain text"
        if tls.mode == "off"
        else "the certificates are not verified, so another server can receive the password"
    )
    yield Finding(
        f"The connections to {product} ({', '.join(far)}) are not secure: {what} (sink.tls is {tls.mode}).",
        "Set `sink.tls` to verify_identity, or to verify_ca, with the cluster's `ca`; the cluster must serve https "
        "and TLS for SQL.",
        fatal=False,
    )
