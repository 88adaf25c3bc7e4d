"""A client of Canal's TCP protocol: connect, subscribe, get without ack, ack, rollback.

It can be used on its own::

    with CanalClient(["127.0.0.1:11111"], destination="shop", username="canal", password="...") as client:
        while True:
            message = client.get(fetch_size=1000, timeout_ms=500)
            if message is not None:
                for entry in message.entries():
                    ...
                client.ack(message)

Delivery is at least once. Canal answers neither an ack nor a rollback that went well, and sends the error of one that
did not where the next answer is awaited; so every error ends the connection. ``get`` then connects again, and what was
not acked comes again, under new ids: ``Message.session`` tells the connections apart, and an ack that comes too late
for its connection is dropped.

A server keeps one cursor per destination: two clients on one destination take each other's rows.

Source: the protocol of alibaba/canal 1.1.8.
"""

from __future__ import annotations

import hashlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message as ProtobufMessage

from cdc.canal.protocol_pb2 import Ack, BatchRef, ClientAuth, Entry, Get, Handshake, Messages, Packet, Subscription
from cdc.errors import SourceUnavailable
from cdc.mysql_client import shown

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0  # to a login or a subscription, for which a server may have to start the destination
READ_TIMEOUT_S = 60.0  # beyond what the server was told to wait; it may be collecting 16 MiB
IDLE_TIMEOUT_MS = 24 * 3600 * 1000  # the server cuts a client that it has not read from or written to for so long
LARGEST_ANSWER = 1 << 20  # before the first batch: a greeting, and acks with a stack trace at most
LARGEST_FRAME = 1 << 30  # a batch holds at most the ring and one event, and an event at most 1 GiB
BACK_OFF_S = (0.2, 10.0)  # first and longest wait between attempts
_READ_BYTES = 1 << 20
_MILLISECONDS = 2
_NOTHING_THERE = -1
_NO_BATCH = (1 << 63) - 1
_NOT_RUN = "should start first"
_RUN = ("should subscribe first", "is not the firstly", "is not exist")  # what one says of such a batch that has it

Addresses = Callable[[], Sequence[str]]
_Wire = TypeVar("_Wire", bound=ProtobufMessage)


def scramble411(password: str, seed: bytes) -> str:
    """The token that proves ``password``, in hex. Source: MySQL manual, "Native Pluggable Authentication"."""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    twice = hashlib.sha1(once, usedforsecurity=False).digest()
    mask = hashlib.sha1(seed + twice, usedforsecurity=False).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex()


@dataclass(frozen=True, slots=True)
class Message:
    """A batch of entries that the server holds for us until it is acked."""

    session: int  # number of the connection it came over
    id: int  # rises by one from batch to batch; starts at 1 again when the server does
    body: bytes  # a Messages message as it came

    def entries(self) -> Iterator[Entry]:
        """Its entries, in order, parsed one by one."""
        return map(Entry.FromString, Messages.FromString(self.body).messages)


class CanalConnection:
    """One connection, from handshake to close. Whatever goes wrong, it is of no more use.

    Raises: SourceUnavailable from every call - the server cannot be reached, refuses, or breaks the protocol.
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
            raise self._fault(f"no connection: {error}", "Check address and port, and that Canal runs.") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def login(self, username: str, password: str, *, idle_timeout_ms: int = IDLE_TIMEOUT_MS) -> None:
        """Read the handshake and authenticate; without a password no token is sent."""
        self._password = password
        packet = self._read(CONNECT_TIMEOUT_S)
        if packet.kind != Packet.HANDSHAKE:
            raise self._fault("the server did not greet as Canal does", "Check that the port is Canal's TCP port.")
        seed = self._parsed(Handshake, packet.body).seeds
        token = scramble411(password, seed) if password else ""
        timeouts = {"net_read_timeout": idle_timeout_ms, "net_write_timeout": idle_timeout_ms}
        self._send(
            Packet.CLIENT_AUTHENTICATION, ClientAuth(username=username, password=token.encode("ascii"), **timeouts)
        )
        self._await_ack()

    def subscribe(self, filter: str = "") -> None:
        """Name destination and client id; a ``filter`` that is not empty replaces the destination's, for everyone."""
        self._send(Packet.SUBSCRIPTION, Subscription(**self._names, filter=filter))
        self._await_ack()
        self._is_subscribed = True

    def unsubscribe(self) -> None:
        """Give up the client id's place. With ZooKeeper the server forgets its cursor with it."""
        self._send(Packet.UNSUBSCRIPTION, Subscription(**self._names))
        self._await_ack()

    def get(self, fetch_size: int, timeout_ms: int) -> tuple[int, bytes] | None:
        """Id and body of the next batch, or None when nothing came within ``timeout_ms``."""
        # a timeout of 0, or none at all, waits without end, and -1 is the server's word for "at once"
        timeout = timeout_ms if timeout_ms > 0 else -1
        request = Get(**self._names, fetch_size=fetch_size, timeout=timeout, unit=_MILLISECONDS, auto_ack=False)
        self._send(Packet.GET, request)
        packet = self._read(READ_TIMEOUT_S + max(timeout_ms, 0) / 1000)
        if packet.kind == Packet.ACK:
            self._raise_ack(packet)
        if packet.kind != Packet.MESSAGES:
            raise self._fault(f"a packet of kind {packet.kind} where a batch was due", "Check the server's version.")
        number = _batch_id(packet.body)
        if number is None:
            raise self._fault("a batch that cannot be read", "Check the server's version.")
        return None if number == _NOTHING_THERE else (number, packet.body)

    def ack(self, batch_id: int) -> None:
        """Confirm the oldest batch not yet confirmed. A refusal shows at the next answer."""
        self._send(Packet.CLIENT_ACK, BatchRef(**self._names, batch_id=batch_id))

    def rollback(self) -> None:
        """Have everything not yet acked sent again. A refusal shows at the next answer."""
        self._send(Packet.CLIENT_ROLLBACK, BatchRef(**self._names, batch_id=0))

    def ask_for_destination(self) -> None:
        """Ask whether the server runs the destination.

        An ack of a batch that never was is refused by one that does, too, and changes nothing. Subscribing would tell
        as well, but has the server forget the filter that another client has stored.
        """
        self.ack(_NO_BATCH)
        packet = self._read(ANSWER_TIMEOUT_S)
        if packet.kind != Packet.ACK:
            raise self._fault(f"a packet of kind {packet.kind} where an ack was due", "Check the server's version.")
        said = self._parsed(Ack, packet.body).error_message
        if not any(refusal in said for refusal in _RUN):
            self._raise_ack(packet)

    def keep_alive(self) -> None:
        """Let the server read something; its other idle timer only a ``get`` sets back."""
        self._send(Packet.CLIENT_ACK, BatchRef(**self._names, batch_id=-1))

    def close(self) -> None:
        """Close the socket. What was not acked stays with the server. Harmless when repeated."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._socket.close()

    def _send(self, kind: Packet.Kind, message: ProtobufMessage) -> None:
        frame = Packet(kind=kind, body=message.SerializeToString()).SerializeToString()
        try:
            self._socket.settimeout(READ_TIMEOUT_S)
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise self._fault(f"the connection broke: {error}", "It is made again by itself.") from error

    def _read(self, timeout_s: float) -> Packet:
        deadline = time.monotonic() + timeout_s
        (length,) = struct.unpack(">i", self._exactly(4, deadline))
        if not 0 <= length <= (LARGEST_FRAME if self._is_subscribed else LARGEST_ANSWER):
            raise self._fault(f"a frame of {length} bytes", "Check that the port is Canal's TCP port.")
        packet = self._parsed(Packet, self._exactly(length, deadline))
        if packet.compression > 1:
            raise self._fault(f"compression {packet.compression}", "Switch compression off at the server.")
        return packet

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()  # grows with what arrives: a length alone must not allocate
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._fault("no complete answer in time", "It is made again by itself.")
            try:
                self._socket.settimeout(left)
                piece = self._socket.recv(min(size - len(data), _READ_BYTES))
            except OSError as error:
                raise self._fault(f"the connection broke: {error}", "It is made again by itself.") from error
            if not piece:
                raise self._fault("the server closed the connection", "It is made again by itself.")
            data += piece
        return bytes(data)

    def _parsed(self, kind: type[_Wire], data: bytes) -> _Wire:
        try:
            return kind.FromString(data)
        except (ProtobufError, ValueError) as error:
            raise self._fault(f"a {kind.__name__} that cannot be read", "Check the server's version.") from error

    def _await_ack(self) -> None:
        packet = self._read(ANSWER_TIMEOUT_S)
        if packet.kind != Packet.ACK:
            raise self._fault(f"a packet of kind {packet.kind} where an ack was due", "Check the server's version.")
        self._raise_ack(packet)

    def _raise_ack(self, packet: Packet) -> None:
        ack = self._parsed(Ack, packet.body)
        if ack.error_code:
            said, mend = _explained(ack.error_message)
            said = shown(said, self._password)
            raise self._fault(f"the server refuses (code {ack.error_code}): {said}", mend)

    def _fault(self, what: str, mend: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"Canal: {what}.", mend=mend, server=self.address, destination=self._names["destination"]
        )


_EXPLANATIONS = (
    ("auth failed", "Check source.username and source.password against canal.user and canal.passwd of the server."),
    (_NOT_RUN, "Check source.destination against canal.destinations; a standby node refuses too."),
    ("is not the firstly", "Another client acks on this destination: give each consumer a destination of its own."),
    ("is not exist", "Another client acks on this destination: give each consumer a destination of its own."),
    ("NumberFormatException", "source.client_id must be from 1 to 32767."),
)


def _explained(message: str) -> tuple[str, str]:
    """What the server says, without its stack trace, and the mend."""
    mend = next((mend for pattern, mend in _EXPLANATIONS if pattern in message), "See the server's log.")
    return next(iter(message.splitlines()), "")[:300] or "no reason given", mend


def _batch_id(body: bytes) -> int | None:
    """The id in front of a batch, without parsing the batch; None where it is not there."""
    if not body:
        return 0
    if body[0] != 0x08:
        return None
    value = 0
    for place, byte in enumerate(body[1:11]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value - (1 << 64) if value >> 63 else value
    return None


class CanalClient:
    """A destination's batches, over whichever server of several has it, with reconnects.

    Calls: one thread at a time.
    """

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
        self.wait: Callable[[float], object] = time.sleep  # how the back-off between attempts is spent
        self._wait_s = 0.0
        self._not_before = 0.0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str | None:
        """The server that serves us now."""
        return self._connection.address if self._connection else None

    def connect(self) -> None:
        """Connect to the first server that has the destination; everything not acked comes again.

        Raises: SourceUnavailable - none has; the message is that of the last one tried.
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
                self._wait_s = 0.0
                return
        if not refusals:
            raise SourceUnavailable("Canal: ZooKeeper names no server.", mend="Start Canal.", **self._names)
        # a standby node's refusal says less than why the others cannot be used
        raise next((error for error in refusals if _NOT_RUN not in error.message), refusals[-1])

    def probe(self) -> str:
        """The address of a server that would serve us; nothing is fetched, and no client is disturbed.

        Raises: SourceUnavailable - there is none.
        """
        error = SourceUnavailable("Canal: ZooKeeper names no server.", mend="Start Canal.", **self._names)
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
            # batches that an earlier connection took would never come again without it
            connection.rollback()
        except SourceUnavailable:
            connection.close()
            raise
        return connection

    def get(self, fetch_size: int = 1000, timeout_ms: int = 500) -> Message | None:
        """The next batch, or None when nothing came in time.

        ``fetch_size``: KiB of entries under the server's default batch mode, else a number of entries. The server
        waits the whole of ``timeout_ms`` for so many, then sends what it has.
        Raises: SourceUnavailable - the connection is gone. The next call makes a new one, with back-off.
        """
        connection = self._connected_now()
        try:
            answer = connection.get(fetch_size, timeout_ms)
        except SourceUnavailable:
            self._drop()
            raise
        return None if answer is None else Message(self.session, *answer)

    def ack(self, message: Message) -> bool:
        """Confirm ``message``, the oldest one not confirmed. False: its connection is gone, it comes again.

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
        """Show the server that we are there, while nothing is fetched."""
        if self._connection is not None:
            try:
                self._connection.keep_alive()
            except SourceUnavailable:
                self._drop()

    def rollback(self) -> None:
        """Have everything not yet acked sent again, as a new session."""
        self._connected_now().rollback()
        self.session += 1

    def unsubscribe(self) -> None:
        """Give up the client id's place at the server. With ZooKeeper the cursor is lost with it."""
        self._connected_now().unsubscribe()

    def close(self) -> None:
        """Close the connection. What was not acked comes again at the next one. Harmless when repeated.

        Calls: from any thread; one that waits in ``get`` raises SourceUnavailable.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _drop(self) -> None:
        self.close()
        first, longest = BACK_OFF_S
        self._wait_s = min(longest, max(first, self._wait_s * 2)) * random.uniform(0.8, 1.2)  # noqa: S311
        self._not_before = time.monotonic() + self._wait_s

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
    """Servers as ZooKeeper knows them: the one that runs ``destination`` first, then those that could.

    Raises: SourceUnavailable from the call that is given back - ZooKeeper cannot be reached.
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
                mend="Check source.zookeeper.",
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
