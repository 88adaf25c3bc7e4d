"""A client of Canal's TCP protocol: connect, subscribe, get without ack, ack, rollback.

It can be used on its own::

    with CanalClient(["127.0.0.1:11111"], destination="shop", username="canal", password="...") as client:
        while True:
            message = client.get(fetch_size=1000, timeout_ms=500)
            if message is not None:
                for entry in message.entries():
                    ...
                client.ack(message)

Delivery is at least once. After an error ``get`` reconnects, and unacked batches arrive again with new ids.
``Message.session`` identifies the connection; an ack for an older connection is dropped.

A server keeps one cursor per destination: each of two clients on one destination would miss rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from cdc.errors import SourceUnavailable
from cdc.retry import Backoff
from cdc.sources.canal.connection import CONNECT_TIMEOUT_S, IDLE_TIMEOUT_MS, NOT_RUN, CanalConnection
from cdc.sources.canal.protocol_pb2 import Entry, Messages

BACK_OFF_S = (0.2, 10.0)  # first and longest wait between attempts

Addresses = Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Message:
    """A batch of entries that the server keeps until it is acked."""

    session: int  # number of the connection on which it arrived
    id: int  # rises by one from batch to batch; starts at 1 when the server starts
    body: bytes | memoryview  # a protobuf message Messages, as received

    def entries(self) -> Iterator[Entry]:
        """Return its entries in order, parsed one by one."""
        return map(Entry.FromString, Messages.FromString(bytes(self.body)).messages)


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
        self._opening: CanalConnection | None = None  # one that is not usable yet
        self._is_closed = False
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
        self._is_closed = False
        self._connect()

    def _connect(self) -> None:
        self._disconnect()
        refusals = []
        for address in self._addresses():
            self._check_open()
            try:
                self._connection = self._connected(address)
            except SourceUnavailable as error:
                refusals.append(error)
            else:
                self.session += 1
                self._backoff.reset()
                return
        self._check_open()
        if not refusals:
            raise SourceUnavailable("Canal: ZooKeeper lists no server.", hint="Start Canal.", **self._names)
        # The error of a server that is not a standby node explains more.
        raise next((error for error in refusals if NOT_RUN not in error.message), refusals[-1])

    def probe(self) -> str:
        """Return the address of a server that runs the destination. Fetches nothing and disturbs no client.

        Raises: SourceUnavailable - no server runs it.
        """
        error = SourceUnavailable("Canal: ZooKeeper lists no server.", hint="Start Canal.", **self._names)
        for address in self._addresses():
            connection = CanalConnection(address, **self._names)  # type: ignore[arg-type]
            try:
                connection.open()
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
        connection = self._opening = CanalConnection(address, **self._names)  # type: ignore[arg-type]
        try:
            self._check_open()  # ``close`` may not have seen this connection
            connection.open()
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
        """Close the connection. Unacked batches arrive again after the next ``connect``. May be repeated.

        Calls: from any thread. A thread that waits in ``get`` or connects raises SourceUnavailable. A thread that waits
        for ZooKeeper (10 s at most) or for a name server raises it afterwards.
        """
        self._is_closed = True
        opening = self._opening
        if opening is not None:
            opening.interrupt()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _check_open(self) -> None:
        """Raise SourceUnavailable if the client was closed."""
        if self._is_closed:
            raise SourceUnavailable("Canal: the client was closed.", hint="Call connect.", **self._names)

    def _drop(self) -> None:
        self._disconnect()
        self._not_before = time.monotonic() + next(self._backoff)

    def _connected_now(self) -> CanalConnection:
        if self._connection is None:
            self.wait(max(0.0, self._not_before - time.monotonic()))
            try:
                self._check_open()
                self._connect()
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
