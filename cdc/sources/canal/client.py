"""A client of Canal's TCP protocol: connect, subscribe, get without ack, ack, rollback.

It can be used on its own::

    with CanalClient(["127.0.0.1:11111"], destination="shop", username="canal", password="...") as client:
        while True:
            message = client.get(fetch_size=1000, timeout_ms=500)
            if message is not None:
                for entry in message.entries():
                    ...
                client.ack(message)

Delivery is at least once. Canal does not answer a successful ack or rollback. It sends the error of a failed one
instead of the next answer, so every error ends the connection. ``get`` then reconnects, and unacked batches arrive
again with new ids. ``Message.session`` identifies the connection; an ack for an older connection is dropped.

A server keeps one cursor per destination: each of two clients on one destination would miss rows.

Source: the protocol of alibaba/canal 1.1.8.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message as ProtobufMessage

from cdc.errors import SourceUnavailable
from cdc.keepalive import keep_alive
from cdc.mysql.client import shown
from cdc.retry import Backoff
from cdc.sources.canal.protocol_pb2 import (
    Ack,
    BatchRef,
    ClientAuth,
    Entry,
    Get,
    Handshake,
    Messages,
    Packet,
    Subscription,
)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0  # of a login or a subscription: the server may have to start the destination
READ_TIMEOUT_S = 60.0  # in addition to the timeout of the get; the server may collect 16 MiB
IDLE_TIMEOUT_MS = 24 * 3600 * 1000  # the server disconnects a client with which it exchanges nothing for so long
LARGEST_ANSWER = 1 << 20  # before the first batch: a handshake, or an ack with a stack trace
LARGEST_FRAME = 1 << 30  # a batch has at most the ring and one event, and an event at most 1 GiB
BACK_OFF_S = (0.2, 10.0)  # first and longest wait between attempts
_READ_BYTES = 1 << 20
_MILLISECONDS = 2
_NOTHING_THERE = -1
_NO_BATCH = (1 << 63) - 1
_NOT_RUN = "should start first"
_RUN = ("should subscribe first", "is not the firstly", "is not exist")  # refusals of a server that has the destination
_VERSION_HINT = "Check the version of the Canal server; 1.1.8 is tested."
_RECONNECT_HINT = "The connection is opened again automatically. If the error repeats, read the Canal server's log."

Addresses = Callable[[], Sequence[str]]
_Wire = TypeVar("_Wire", bound=ProtobufMessage)


def scramble411(password: str, seed: bytes) -> str:
    """Return the token that proves ``password``, in hex. Source: MySQL manual, "Native Pluggable Authentication"."""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).digest()
    mask = hashlib.sha1(seed + twice, usedforsecurity=False).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex()


@dataclass(frozen=True, slots=True)
class Message:
    """A batch of entries that the server keeps until it is acked."""

    session: int  # number of the connection on which it arrived
    id: int  # rises by one from batch to batch; starts at 1 when the server starts
    body: bytes  # a protobuf message Messages, as received

    def entries(self) -> Iterator[Entry]:
        """Return its entries in order, parsed one by one."""
        return map(Entry.FromString, Messages.FromString(self.body).messages)


class CanalConnection:
    """One connection, from handshake to close. It cannot be used after an error.

    Raises: SourceUnavailable, from every call - the server cannot be reached, refuses, or violates the protocol.
    """

    def __init__(self, address: str, *, destination: str, client_id: int) -> None:
        self.address = address
        self._names = {"destination": destination, "client_id": str(client_id)}
        self._is_subscribed = False
        self._password = ""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise self._fault(
                f"no connection to the server: {error}", "Check address and port, and that Canal runs."
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._socket)

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

    def get(self, fetch_size: int, timeout_ms: int) -> tuple[int, bytes] | None:
        """Return id and body of the next batch, or None if the server has none within ``timeout_ms``."""
        # For the server, a timeout of 0 or a missing one waits without limit, and -1 does not wait.
        timeout = timeout_ms if timeout_ms > 0 else -1
        request = Get(**self._names, fetch_size=fetch_size, timeout=timeout, unit=_MILLISECONDS, auto_ack=False)
        self._send(Packet.GET, request)
        packet = self._read(READ_TIMEOUT_S + max(timeout_ms, 0) / 1000)
        if packet.kind == Packet.ACK:
            self._raise_ack(packet)
        if packet.kind != Packet.MESSAGES:
            raise self._fault(f"a packet of kind {packet.kind} instead of a batch", _VERSION_HINT)
        number = _batch_id(packet.body)
        if number is None:
            raise self._fault("a batch cannot be parsed", _VERSION_HINT)
        return None if number == _NOTHING_THERE else (number, packet.body)

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

    def close(self) -> None:
        """Close the socket. The server keeps unacked batches. May be repeated."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._socket.close()

    def _send(self, kind: Packet.Kind, message: ProtobufMessage) -> None:
        frame = Packet(kind=kind, body=message.SerializeToString()).SerializeToString()
        try:
            self._socket.settimeout(READ_TIMEOUT_S)
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise self._fault(f"the connection broke: {error}", _RECONNECT_HINT) from error

    def _read(self, timeout_s: float) -> Packet:
        deadline = time.monotonic() + timeout_s
        (length,) = struct.unpack(">i", self._exactly(4, deadline))
        if not 0 <= length <= (LARGEST_FRAME if self._is_subscribed else LARGEST_ANSWER):
            raise self._fault(f"a frame has {length} bytes", "Check that the port is Canal's TCP port.")
        packet = self._parsed(Packet, self._exactly(length, deadline))
        if packet.compression > 1:
            raise self._fault(
                f"compression {packet.compression} is not supported", "Disable compression on the Canal server."
            )
        return packet

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()  # grows with the bytes that arrive: a damaged length must not allocate memory
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._fault("no complete answer in time", _RECONNECT_HINT)
            try:
                self._socket.settimeout(left)
                piece = self._socket.recv(min(size - len(data), _READ_BYTES))
            except OSError as error:
                raise self._fault(f"the connection broke: {error}", _RECONNECT_HINT) from error
            if not piece:
                raise self._fault("the server closed the connection", _RECONNECT_HINT)
            data += piece
        return bytes(data)

    def _parsed(self, kind: type[_Wire], data: bytes) -> _Wire:
        try:
            return kind.FromString(data)
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


_OTHER_CLIENT = "Another client acks on this destination: create a separate destination for each consumer."
_EXPLANATIONS = (
    ("auth failed", "Set source.username and source.password to canal.user and canal.passwd of the server."),
    (_NOT_RUN, "Set source.destination to one of canal.destinations. A standby node refuses every destination."),
    ("is not the firstly", _OTHER_CLIENT),
    ("is not exist", _OTHER_CLIENT),
    ("NumberFormatException", "Set source.client_id to a number from 1 to 32767."),
)


def _explained(message: str) -> tuple[str, str]:
    """Return the server's message without its stack trace, and the hint."""
    hint = next((hint for pattern, hint in _EXPLANATIONS if pattern in message), "Read the Canal server's log.")
    return next(iter(message.splitlines()), "")[:300] or "no reason given", hint


def _batch_id(body: bytes) -> int | None:
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


class CanalClient:
    """Read the batches of a destination from the server that runs it, with reconnects. Calls: one thread at a time."""

    def __init__(
        self,
        servers: Sequence[str] | Addresses,
        *,
        destination: str,
        client_id: int = 1001,
        username: str = "",
        password: str = "",
        filter: str = "",
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        self.session = 0  # number of the connection; rises with each one
        self._addresses = servers if callable(servers) else lambda: servers
        self._names = {"destination": destination, "client_id": client_id}
        self._login: tuple[str, str] = (username, password)
        self._filter = filter
        self._idle_timeout_ms = idle_timeout_ms
        self._connection: CanalConnection | None = None
        self.wait: Callable[[float], object] = time.sleep  # waits between attempts to connect
        self._backoff = Backoff(*BACK_OFF_S)
        self._not_before = 0.0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str | None:
        """Return the address of the connected server, or None."""
        return self._connection.address if self._connection else None

    def connect(self) -> None:
        """Connect to the first server that runs the destination. All unacked batches arrive again.

        Raises: SourceUnavailable - no server runs it.
        """
        self.close()
        refusals = []
        for address in self._addresses():
            try:
                self._connection = self._connected(address)
            except SourceUnavailable as error:
                refusals.append(error)
            else:
                self.session += 1
                self._backoff.reset()
                return
        if not refusals:
            raise SourceUnavailable("Canal: ZooKeeper lists no server.", hint="Start Canal.", **self._names)
        # The error of a server that is not a standby node explains more.
        raise next((error for error in refusals if _NOT_RUN not in error.message), refusals[-1])

    def probe(self) -> str:
        """Return the address of a server that runs the destination. Fetches nothing and disturbs no client.

        Raises: SourceUnavailable - no server runs it.
        """
        error = SourceUnavailable("Canal: ZooKeeper lists no server.", hint="Start Canal.", **self._names)
        for address in self._addresses():
            try:
                connection = CanalConnection(address, **self._names)  # type: ignore[arg-type]
            except SourceUnavailable as refusal:
                error = refusal
                continue
            try:
                connection.login(*self._login)
                connection.ask_for_destination()
            except SourceUnavailable as refusal:
                error = refusal
            else:
                return address
            finally:
                connection.close()
        raise error

    def _connected(self, address: str) -> CanalConnection:
        connection = CanalConnection(address, **self._names)  # type: ignore[arg-type]
        try:
            connection.login(*self._login, idle_timeout_ms=self._idle_timeout_ms)
            connection.subscribe(self._filter)
            # Without a rollback, batches that were sent on an earlier connection would never arrive again.
            connection.rollback()
        except SourceUnavailable:
            connection.close()
            raise
        return connection

    def get(self, fetch_size: int = 1000, timeout_ms: int = 500) -> Message | None:
        """Return the next batch, or None if the server has none in time.

        ``fetch_size``: KiB of entries in the server's default batch mode, else a number of entries. The server waits
        up to ``timeout_ms`` for so many, then sends what it has.
        Raises: SourceUnavailable - the connection was lost. The next call connects again, with back-off.
        """
        connection = self._connected_now()
        try:
            answer = connection.get(fetch_size, timeout_ms)
        except SourceUnavailable:
            self._drop()
            raise
        return None if answer is None else Message(self.session, *answer)

    def ack(self, message: Message) -> bool:
        """Ack ``message``, the oldest unacked batch. Return False if its connection was lost: it arrives again.

        Raises: SourceUnavailable - the connection broke.
        """
        if self._connection is None or message.session != self.session:
            return False
        try:
            self._connection.ack(message.id)
        except SourceUnavailable:
            self._drop()
            raise
        return True

    def keep_alive(self) -> None:
        """Keep the connection open while nothing is fetched."""
        if self._connection is not None:
            try:
                self._connection.keep_alive()
            except SourceUnavailable:
                self._drop()

    def rollback(self) -> None:
        """Request all unacked batches again, as a new session."""
        self._connected_now().rollback()
        self.session += 1

    def unsubscribe(self) -> None:
        """Delete the subscription of the client id. With ZooKeeper, the server then deletes its cursor too."""
        self._connected_now().unsubscribe()

    def close(self) -> None:
        """Close the connection. Unacked batches arrive again on the next one. May be repeated.

        Calls: from any thread. A thread that waits in ``get`` raises SourceUnavailable.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _drop(self) -> None:
        self.close()
        self._not_before = time.monotonic() + next(self._backoff)

    def _connected_now(self) -> CanalConnection:
        if self._connection is None:
            self.wait(max(0.0, self._not_before - time.monotonic()))
            try:
                self.connect()
            except SourceUnavailable:
                self._drop()
                raise
        assert self._connection is not None
        return self._connection


def zookeeper_addresses(hosts: str, destination: str) -> Addresses:
    """Return a function that reads the servers from ZooKeeper: first the one that runs ``destination``, then standbys.

    Raises: SourceUnavailable, from the returned function - ZooKeeper cannot be reached.
    """
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    folder = f"/otter/canal/destinations/{destination}"

    def found() -> Sequence[str]:
        client = KazooClient(hosts, timeout=CONNECT_TIMEOUT_S)
        try:
            client.start(CONNECT_TIMEOUT_S)
            addresses: list[str] = []
            with suppress(NoNodeError):
                addresses.append(str(json.loads(client.get(f"{folder}/running")[0])["address"]))
            with suppress(NoNodeError):
                addresses += sorted(client.get_children(f"{folder}/cluster"))
        except (KazooException, KazooTimeoutError, ValueError, KeyError) as error:
            raise SourceUnavailable(
                f"ZooKeeper cannot be asked for Canal's servers: {error!r}.",
                hint="Check source.zookeeper, and that ZooKeeper runs.",
                zookeeper=hosts,
                destination=destination,
            ) from error
        finally:
            client.stop()
            client.close()
        return _unique(addresses)

    return found


def _unique(addresses: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(address) for address in addresses))
