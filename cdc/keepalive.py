"""TCP keepalive with short times: with the defaults of Linux a dead peer is detected after two hours."""

from __future__ import annotations

import socket

IDLE_S = 30  # without a byte until the first probe; shorter than the idle limits of firewalls and load balancers
INTERVAL_S = 10
PROBES = 3  # without an answer, then the connection is closed: one minute after the last byte


def keep_alive(line: socket.socket) -> None:
    """Turn on TCP keepalive, so that the kernel detects a dead peer. Has no effect on Unix sockets."""
    if line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has no TCP_KEEPIDLE
    for name, value in (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", INTERVAL_S), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
