"""Where a binlog's bytes come from: a server's stream, or files on disk."""

from __future__ import annotations

import glob
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cdc.binlog.connection import HEARTBEAT_S, SILENT_HEARTBEATS, BinlogStream, Endpoint, ReaderIdentity
from cdc.binlog.decoder import BinlogDecoder
from cdc.binlog.events import Statement
from cdc.binlog.server import Reader, Server
from cdc.errors import PositionLost, SourceBlocked, SourceUnavailable
from cdc.position import BinlogPosition
from cdc.receiver.logged import refuse_unlogged
from cdc.receiver.start import FIRST_EVENT, Continuation, NoTables, continuation
from cdc.receiver.tables import KnownTables


class Feed(Protocol):
    """Feeds a decoder. Calls: one thread at a time."""

    framed: bool  # bytes come in the packets of a connection
    ended: bool  # there is no more, and never will be

    def begin(self, position: BinlogPosition, tables: KnownTables) -> Continuation:
        """Connect, so that bytes from ``position`` on come next; says how it is gone on from.

        Raises: SourceUnavailable, PositionLost, WrongServer, SourceBlocked, SchemaMismatch.
        """

    def fill(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """Feed what is there; the number of bytes, 0 when none came in time. Raises: SourceUnavailable."""

    def close(self) -> None:
        """Let connections and files go. Harmless when repeated."""


class ServerFeed:
    """A server's binlog dump."""

    framed = True
    ended = False

    def __init__(
        self,
        endpoint: Endpoint,
        identity: ReaderIdentity,
        *,
        accept_server: bool = False,
        accept_gap: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._accept_server = accept_server
        self._accept_gap = accept_gap
        self._heartbeat_s = heartbeat_s
        self._stream: BinlogStream | None = None

    def begin(self, position: BinlogPosition, tables: KnownTables) -> Continuation:
        """See ``Feed``."""
        self.close()
        with Server(self._endpoint) as server:
            check_readers(server, self._identity)
            refuse_unlogged(server, tables.maps)
            found = continuation(server, position, accept_server=self._accept_server, accept_gap=self._accept_gap)
            tables.prepare(server, found.position)
            if found.gap:
                tables.note_gap(server)
            self._stream = BinlogStream(
                self._endpoint, self._identity, mariadb=server.mariadb, heartbeat_s=self._heartbeat_s
            )
            self._stream.check_server(server.identity)
        self._stream.register()
        self._stream.dump(found.position, by_gtid=found.by_gtid)
        self._accept_server = self._accept_gap = False  # said of the server at hand, not of any that comes later
        return found

    def fill(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """See ``Feed``."""
        assert self._stream is not None
        count = self._stream.receive(decoder.room(), wait_s)
        if count:
            decoder.feed(count)
        return count

    def close(self) -> None:
        """See ``Feed``."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def check_readers(server: Server, identity: ReaderIdentity) -> None:
    """Nobody else reads under our server id. Raises: SourceBlocked - another reader is registered under it.

    A server lists a reader that died until a heartbeat cannot be sent to it. If the one in the way is the same job of
    another incarnation (`--adopt` makes a new one), it gets the time for that.
    """
    deadline = time.monotonic() + HEARTBEAT_S * SILENT_HEARTBEATS
    while (reader := _in_the_way(server, identity)) is not None:
        if not identity.same_job(reader.host) or time.monotonic() >= deadline:
            raise SourceBlocked(
                f"Server id {identity.server_id} is taken by another reader: {reader.host or 'a nameless one'}"
                f"{', uuid ' + reader.uuid if reader.uuid else ''}.",
                mend="Stop that reader (SHOW REPLICAS lists it), or set another `source.server_id`.",
                server=server.endpoint,
            )
        time.sleep(0.2)


def _in_the_way(server: Server, identity: ReaderIdentity) -> Reader | None:
    for reader in server.readers():
        ours = reader.uuid == identity.uuid if reader.uuid else reader.host == identity.name
        if reader.server_id == identity.server_id and not ours:
            return reader
    return None


def binlog_files(pattern: str) -> tuple[Path, ...]:
    """Binlog files that ``pattern`` matches, in the order of their numbers. Index files are left out."""
    found = [Path(name) for name in glob.glob(pattern)]  # noqa: PTH207 - the pattern may be absolute
    numbered = [path for path in found if path.suffix[1:].isdecimal() and path.is_file()]
    return tuple(sorted(numbered, key=lambda path: (path.stem, int(path.suffix[1:]))))


def files_start(pattern: str, start: object = "earliest") -> BinlogPosition:
    """The Position where reading files begins: ``earliest`` or {file, offset}. Raises: PositionLost - there is none."""
    files = binlog_files(pattern)
    if isinstance(start, dict) and "file" in start:
        wanted = Path(str(start["file"])).name
        files = tuple(path for path in files if path.name == wanted)
    if not files:
        raise PositionLost(
            "No binlog file is there.",
            mend="Correct `source.path`: it names files as `mysql-bin.000001`.",
            path=pattern,
        )
    offset = int(str(start.get("offset", FIRST_EVENT))) if isinstance(start, dict) else FIRST_EVENT
    return BinlogPosition(files[0].name, offset)


class FilesFeed:
    """Binlog files on disk, in order."""

    framed = False

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._left: list[Path] = []
        self._offset = FIRST_EVENT
        self._file: io.FileIO | None = None
        self._path: Path | None = None
        self.ended = False

    def begin(self, position: BinlogPosition, tables: KnownTables) -> Continuation:
        """See ``Feed``."""
        tables.prepare_files()
        return self.open(position)

    def open(self, position: BinlogPosition) -> Continuation:
        """Read from ``position`` on. Raises: PositionLost - its file is not there."""
        self.close()
        files = binlog_files(self._pattern)
        names = [path.name for path in files]
        if position.file not in names:
            raise PositionLost(
                f"Binlog file {position.file} is not there.",
                mend="Put it back, or correct `source.path`.",
                path=self._pattern,
                position=position,
            )
        self._left = list(files[names.index(position.file) :])
        self._offset = position.offset
        self.ended = False
        return Continuation(position, by_gtid=False)

    def fill(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """See ``Feed``."""
        while True:
            if self._file is None:
                if not self._left:
                    self.ended = True
                    return 0
                self._path = self._left.pop(0)
                with _readable(self._path):
                    self._file = self._path.open("rb", buffering=0)
                decoder.begin_file(self._path.name, self._offset)
                self._offset = FIRST_EVENT
            assert self._path is not None
            with _readable(self._path):
                count = self._file.readinto(decoder.room()) or 0
            if count:
                decoder.feed(count)
                return count
            self._file.close()
            self._file = None

    def close(self) -> None:
        """See ``Feed``."""
        if self._file is not None:
            self._file.close()
            self._file = None


def scan_files(pattern: str, start: BinlogPosition, on_statement: Callable[[Statement], None]) -> None:
    """Read the control events from ``start`` to the end of the files. Raises: PositionLost, SourceUnavailable."""
    nothing, feed = NoTables(), FilesFeed(pattern)
    decoder = BinlogDecoder(
        selection=nothing, tables=nothing, on_statement=on_statement, start=start, sequence=0, framed=False
    )
    feed.open(start)
    try:
        while not feed.ended:
            feed.fill(decoder, 0)
            while decoder.next() is not None:
                pass
    finally:
        feed.close()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceUnavailable(
            f"A binlog file cannot be read: {error.strerror}.", mend="Check its rights and the disk.", file=path
        ) from error
