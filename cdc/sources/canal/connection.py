"""One connection to a Canal server: frames, login, and the requests of its protocol.

Canal does not answer a successful ack or rollback. It sends the error of a failed one instead of the next answer, so
every error ends the connection. ``client`` opens the next one.

Source: the protocol of alibaba/canal 1.1.8.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from contextlib import suppress
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message as ProtobufMessage

from cdc.errors import SourceUnavailable
from cdc.keepalive import keep_alive
from cdc.mysql.client import shown
from cdc.sources.canal.protocol_pb2 import Ack, BatchRef, ClientAuth, Get, Handshake, Packet, Subscription

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0  # of a login or a subscription: the server may have to start the destination
READ_TIMEOUT_S = 60.0  # in addition to the timeout of the get; the server may collect 16 MiB
SLOWEST_BYTES_S = 1 << 20  # how fast a frame arrives at least: a huge row needs longer than READ_TIMEOUT_S
IDLE_TIMEOUT_MS = 24 * 3600 * 1000  # the server disconnects a client with which it exchanges nothing for so long
LARGEST_ANSWER = 1 << 20  # before the first batch: a handshake, or an ack with a stack trace
_READ_BYTES = 16 << 20
LARGEST_FRAME = 1 << 30  # a batch has at most the ring and one event, and an event at most 1 GiB
_MILLISECONDS = 2
_NOTHING_THERE = -1
_NO_BATCH = (1 << 63) - 1
NOT_RUN = "should start first"
_RUN = ("should subscribe first", "is not the firstly", "is not exist")  # refusals of a server that has the destination
_VERSION_HINT = "Check the version of the Canal server; 1.1.8 is tested."
_RECONNECT_HINT = "The connection is opened again automatically. If the error repeats, read the Canal server's log."
_OTHER_CLIENT = "Another client acks on this destination: create a separate destination for each consumer."
_EXPLANATIONS = (
    ("auth failed", "Set source.username and source.password to canal.user and canal.passwd of the server."),
    (NOT_RUN, "Set source.destination to one of canal.destinations. A standby node refuses every destination."),
    ("is not the firstly", _OTHER_CLIENT),
    ("is not exist", _OTHER_CLIENT),
    ("NumberFormatException", "Set source.client_id to a number from 1 to 32767."),
)

_Wire = TypeVar("_Wire", bound=ProtobufMessage)


def scramble411(password: str, seed: bytes) -> str:
    """Return the token that proves ``password``, in hex. Source: MySQL manual, "Native Pluggable Authentication"."""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).digest()
    mask = hashlib.sha1(seed + twice, usedforsecurity=False).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex()


def _explained(message: str) -> tuple[str, str]:
    """Return the server's message without its stack trace, and the hint."""
    hint = next((hint for pattern, hint in _EXPLANATIONS if pattern in message), "Read the Canal server's log.")
    return next(iter(message.splitlines()), "")[:300] or "no reason given", hint


def _batch_body(frame: memoryview) -> memoryview | None:
    """Return the body of a batch, in the memory of its frame; None if the frame is another or a compressed packet."""
    from cdc.sources.canal.kernels import locate_bodies  # a check of the connection needs no kernels

    at, length = np.empty((2, 1), np.int64)
    everything = np.zeros(1, np.int64), np.array([len(frame)], np.int32)
    if locate_bodies(np.frombuffer(frame, np.uint8), *everything, at, length) >= 0:
        return None
    return frame[at[0] : at[0] + length[0]]


def _batch_id(body: memoryview) -> int | None:
    """Return the id at the beginning of a batch, without parsing the batch; None if it is missing."""
    if not body:
        return 0
    if body[0] != 0x08:
        return None
    value = 0
    for index, byte in enumerate(body[1:11]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value - (1 << 64) if value >> 63 else value
    return None


class CanalConnection:
    """One connection, from ``open`` to ``close``. It cannot be used after an error.

    Raises: SourceUnavailable, from every call - the server cannot be reached, refuses, or violates the protocol.
    """

    def __init__(self, address: str, *, destination: str, client_id: int) -> None:
        self.address = address
        self._names = {"destination": destination, "client_id": str(client_id)}
        self._is_subscribed = False
        self._password = ""
        self._socket = socket.socket()  # ``open`` replaces it
        self._is_interrupted = False

    def open(self) -> None:
        """Connect to the first IP address of the server that accepts it."""
        host, _, port = self.address.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for number, (family, kind, protocol, _, address) in enumerate(found, 1):
                self._socket.close()
                self._socket = socket.socket(family, kind, protocol)
                self._socket.settimeout(CONNECT_TIMEOUT_S)
                try:
                    self._check_interrupt()
                    self._socket.connect(address)
                    break
                except OSError:
                    if number == len(found):
                        raise
            self._check_interrupt()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self._socket)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise self._fault(
                f"no connection to the server: {error}", "Check address and port, and that Canal runs."
            ) from error

    def login(self, username: str, password: str, *, idle_timeout_ms: int = IDLE_TIMEOUT_MS) -> None:
        """Read the handshake and authenticate. Without a password no token is sent."""
        self._password = password
        packet = self._read(CONNECT_TIMEOUT_S)
        if packet.kind != Packet.HANDSHAKE:
            raise self._fault("the server did not send Canal's handshake", "Check that the port is Canal's TCP port.")
        seed = self._parsed(Handshake, packet.body).seeds
        token = scramble411(password, seed) if password else ""
        timeouts = {"net_read_timeout": idle_timeout_ms, "net_write_timeout": idle_timeout_ms}
        self._send(
            Packet.CLIENT_AUTHENTICATION, ClientAuth(username=username, password=token.encode("ascii"), **timeouts)
        )
        self._await_ack()

    def subscribe(self, filter: str = "") -> None:
        """Subscribe to the destination. A ``filter`` that is not empty replaces the destination's, for all clients."""
        self._send(Packet.SUBSCRIPTION, Subscription(**self._names, filter=filter))
        self._await_ack()
        self._is_subscribed = True

    def unsubscribe(self) -> None:
        """Delete the subscription of the client id. With ZooKeeper, the server then deletes its cursor too."""
        self._send(Packet.UNSUBSCRIPTION, Subscription(**self._names))
        self._await_ack()

    def get(self, fetch_size: int, timeout_ms: int) -> tuple[int, memoryview] | None:
        """Return id and body of the next batch, or None if the server has none within ``timeout_ms``."""
        # For the server, a timeout of 0 or a missing one waits without limit, and -1 does not wait.
        timeout = timeout_ms if timeout_ms > 0 else -1
        request = Get(**self._names, fetch_size=fetch_size, timeout=timeout, unit=_MILLISECONDS, auto_ack=False)
        self._send(Packet.GET, request)
        frame = self._frame(READ_TIMEOUT_S + max(timeout_ms, 0) / 1000)
        body = _batch_body(frame)
        if body is None:
            packet = self._packet(frame)
            if packet.kind == Packet.ACK:
                self._raise_ack(packet)
            raise self._fault(f"a packet of kind {packet.kind} instead of a batch", _VERSION_HINT)
        number = _batch_id(body)
        if number is None:
            raise self._fault("a batch cannot be parsed", _VERSION_HINT)
        return None if number == _NOTHING_THERE else (number, body)

    def ack(self, batch_id: int) -> None:
        """Ack the oldest batch that is not acked. The server reports a refusal in its next answer."""
        self._send(Packet.CLIENT_ACK, BatchRef(**self._names, batch_id=batch_id))

    def rollback(self) -> None:
        """Request all unacked batches again. The server reports a refusal in its next answer."""
        self._send(Packet.CLIENT_ROLLBACK, BatchRef(**self._names, batch_id=0))

    def ask_for_destination(self) -> None:
        """Check whether the server runs the destination, with an ack of a batch that never existed.

        Every server refuses such an ack, with an error that shows the answer, and nothing changes. A subscription would
        show it too, but would delete the filter that another client has stored.
        """
        self.ack(_NO_BATCH)
        packet = self._read(ANSWER_TIMEOUT_S)
        if packet.kind != Packet.ACK:
            raise self._fault(f"a packet of kind {packet.kind} instead of an ack", _VERSION_HINT)
        message = self._parsed(Ack, packet.body).error_message
        if not any(refusal in message for refusal in _RUN):
            self._raise_ack(packet)

    def keep_alive(self) -> None:
        """Send the server something to read. Its other idle timer is reset only by a ``get``."""
        self._send(Packet.CLIENT_ACK, BatchRef(**self._names, batch_id=-1))

    def _check_interrupt(self) -> None:
        if self._is_interrupted:
            raise OSError("it was closed")

    def interrupt(self) -> None:
        """End what another thread does on this connection, also in ``open``. That thread must call ``close``.

        A thread that is about to connect, or waits for a name server, is not interrupted: it ends with its timeout.
        """
        self._is_interrupted = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. The server keeps unacked batches. May be repeated."""
        self.interrupt()
        self._socket.close()

    def _send(self, kind: Packet.Kind, message: ProtobufMessage) -> None:
        frame = Packet(kind=kind, body=message.SerializeToString()).SerializeToString()
        try:
            self._socket.settimeout(READ_TIMEOUT_S)
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise self._fault(f"the connection broke: {error}", _RECONNECT_HINT) from error

    def _read(self, timeout_s: float) -> Packet:
        return self._packet(self._frame(timeout_s))

    def _frame(self, timeout_s: float) -> memoryview:
        deadline = time.monotonic() + timeout_s
        (length,) = struct.unpack(">i", self._exactly(4, deadline))
        if not 0 <= length <= (LARGEST_FRAME if self._is_subscribed else LARGEST_ANSWER):
            raise self._fault(f"a frame has {length} bytes", "Check that the port is Canal's TCP port.")
        return self._exactly(length, deadline + length / SLOWEST_BYTES_S, READ_TIMEOUT_S)

    def _packet(self, frame: memoryview) -> Packet:
        packet = self._parsed(Packet, frame)
        if packet.compression > 1:
            raise self._fault(
                f"compression {packet.compression} is not supported", "Disable compression on the Canal server."
            )
        return packet

    def _exactly(self, size: int, deadline: float, pause_s: float = 0.0) -> memoryview:
        """Read ``size`` bytes. ``pause_s``: the longest pause between two of them; 0: until ``deadline``."""
        # most frames need no copy; a larger one grows with the bytes that arrive, because a length may be damaged
        data = np.empty(min(size, _READ_BYTES), np.uint8).data
        filled = 0
        while filled < size:
            if filled == len(data):
                larger = np.empty(min(size, 4 * filled), np.uint8).data
                larger[:filled] = data
                data = larger
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._fault("no complete answer in time", _RECONNECT_HINT)
            try:
                self._socket.settimeout(min(left, pause_s or left))
                count = self._socket.recv_into(data[filled:])
            except OSError as error:
                raise self._fault(f"the connection broke: {error}", _RECONNECT_HINT) from error
            if not count:
                raise self._fault("the server closed the connection", _RECONNECT_HINT)
            filled += count
        return data

    def _parsed(self, kind: type[_Wire], data: bytes | memoryview) -> _Wire:
        try:
            return kind.FromString(bytes(data))
        except (ProtobufError, ValueError) as error:
            raise self._fault(f"a {kind.__name__} message cannot be parsed", _VERSION_HINT) from error

    def _await_ack(self) -> None:
        packet = self._read(ANSWER_TIMEOUT_S)
        if packet.kind != Packet.ACK:
            raise self._fault(f"a packet of kind {packet.kind} instead of an ack", _VERSION_HINT)
        self._raise_ack(packet)

    def _raise_ack(self, packet: Packet) -> None:
        ack = self._parsed(Ack, packet.body)
        if ack.error_code:
            message, hint = _explained(ack.error_message)
            message = shown(message, self._password)
            raise self._fault(f"the server refuses (code {ack.error_code}): {message}", hint)

    def _fault(self, what: str, hint: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"Canal: {what}.", hint=hint, server=self.address, destination=self._names["destination"]
        )
