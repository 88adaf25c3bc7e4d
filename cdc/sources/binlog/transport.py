"""The bytes of a binlog: from a server's replication stream (``ServerByteSource``), or from files on disk
(``FileByteSource``).

``reader`` calls ``begin`` at a position, then ``read_into`` in a loop. ``read_into`` writes bytes into the decoder's
buffer.
"""

from __future__ import annotations

import glob
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from cdc.errors import MISSING_FILES_HINT, PositionLost, SourceActionRequired, SourceUnavailable
from cdc.model.position import BinlogPosition, file_number
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import RegisteredReplica, Server
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.event_scan import NoTables
from cdc.sources.binlog.log_coverage import check_log_coverage
from cdc.sources.binlog.replication_stream import HEARTBEAT_S, SILENT_HEARTBEATS, BinlogStream, ReaderIdentity
from cdc.sources.binlog.start_position import FIRST_EVENT, ResumePoint, resume_point
from cdc.sources.binlog.table_registry import TableRegistry


class ByteSource(Protocol):
    """A source of bytes for a decoder. Calls: one thread at a time."""

    framed: bool  # the bytes are MySQL packets of a connection
    ended: bool  # the end of the last file is reached

    def begin(self, position: BinlogPosition, tables: TableRegistry) -> ResumePoint:
        """Connect, so that ``read_into`` begins at ``position``. Return the position at which the stream continues.

        Raises: SourceUnavailable, PositionLost, ServerMismatch, SourceActionRequired, SchemaMismatch.
        """

    def read_into(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """Feed the available bytes to the decoder. Return their number; 0 if none arrived within ``wait_s``.

        Raises: SourceUnavailable.
        """

    def close(self) -> None:
        """Close connections and files. May be repeated."""


class ServerByteSource:
    """The replication stream of a server."""

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

    def begin(self, position: BinlogPosition, tables: TableRegistry) -> ResumePoint:
        """See ``ByteSource``."""
        self.close()
        with Server(self._endpoint) as server:
            check_readers(server, self._identity)
            check_log_coverage(server, tables.maps)
            found = resume_point(server, position, accept_server=self._accept_server, accept_gap=self._accept_gap)
            tables.prepare(server, found.position)
            if found.gap:
                tables.note_gap(server)
            self._stream = BinlogStream(
                self._endpoint, self._identity, mariadb=server.mariadb, heartbeat_s=self._heartbeat_s
            )
            self._stream.check_server(server.identity)
        self._stream.register()
        self._stream.dump(found.position, by_gtid=found.by_gtid)
        self._accept_server = self._accept_gap = False  # the user accepted this server, not later ones
        return found

    def read_into(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """See ``ByteSource``."""
        assert self._stream is not None
        count = self._stream.receive(decoder.free_space(), wait_s)
        if count:
            decoder.feed(count)
        return count

    def close(self) -> None:
        """See ``ByteSource``."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def check_readers(server: Server, identity: ReaderIdentity) -> None:
    """Check that no other reader is registered under this job's server id. Raises: SourceActionRequired - one is.

    A server lists a dead reader until it cannot send a heartbeat to it. If the other reader is an earlier incarnation
    of this job (`--adopt` starts a new one), wait until the server has removed it.
    """
    deadline = time.monotonic() + HEARTBEAT_S * SILENT_HEARTBEATS
    while (reader := _in_the_way(server, identity)) is not None:
        if not identity.same_job(reader.host) or time.monotonic() >= deadline:
            raise SourceActionRequired(
                f"Server id {identity.server_id} is used by another reader: {reader.host or 'it has no name'}"
                f"{', uuid ' + reader.uuid if reader.uuid else ''}.",
                hint="Stop that reader (SHOW REPLICAS lists it), or set another `source.server_id`.",
                server=server.endpoint,
            )
        time.sleep(0.2)


def _in_the_way(server: Server, identity: ReaderIdentity) -> RegisteredReplica | None:
    for reader in server.readers():
        own = reader.uuid == identity.uuid if reader.uuid else reader.host == identity.name
        if reader.server_id == identity.server_id and not own:
            return reader
    return None


def binlog_files(pattern: str) -> tuple[Path, ...]:
    """Return the binlog files that ``pattern`` matches, in the order of their numbers, without index files."""
    found = [Path(name) for name in glob.glob(pattern)]  # noqa: PTH207 - the pattern may be absolute
    numbered = [path for path in found if path.suffix[1:].isdecimal() and path.is_file()]
    return tuple(sorted(numbered, key=lambda path: (path.stem, int(path.suffix[1:]))))


def missing_files(files: Sequence[Path]) -> Iterator[PositionLost]:
    """Yield an error for each gap in the numbers of ``files``, which are in order: a server leaves out no number."""
    for before, after in pairwise(files):
        known, found = file_number(before.name), file_number(after.name)
        if known and found and known[0] == found[0] and found[1] != known[1] + 1:
            yield PositionLost(
                f"Binlog files between {before.name} and {after.name} are missing.",
                hint=MISSING_FILES_HINT,
                path=before.parent,
            )


def files_start(pattern: str) -> BinlogPosition:
    """Return the Position of the first event of the first file. Raises: PositionLost - there is no file."""
    files = binlog_files(pattern)
    if not files:
        raise PositionLost(
            "No binlog file to start from was found.",
            hint="Correct `source.path`, which must match files such as `mysql-bin.000001`.",
            path=pattern,
        )
    return BinlogPosition(files[0].name, FIRST_EVENT)


class FileByteSource:
    """Binlog files on disk, in the order of their numbers."""

    framed = False

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._left: list[Path] = []
        self._offset = FIRST_EVENT
        self._file: io.FileIO | None = None
        self._path: Path | None = None
        self.ended = False

    def begin(self, position: BinlogPosition, tables: TableRegistry) -> ResumePoint:
        """See ``ByteSource``. Raises PositionLost, too, if a file is missing between two others."""
        tables.prepare_files()
        found = self.open(position)
        for error in missing_files(self._left):
            if not tables.rules.omits(error, ()):
                raise error
        return found

    def open(self, position: BinlogPosition) -> ResumePoint:
        """Read from ``position`` on. Raises: PositionLost - its file does not exist."""
        self.close()
        files = binlog_files(self._pattern)
        names = [path.name for path in files]
        if position.file not in names:
            raise PositionLost(
                f"Binlog file {position.file} does not exist.",
                hint="Restore the file, or correct `source.path`.",
                path=self._pattern,
                position=position,
            )
        self._left = list(files[names.index(position.file) :])
        self._offset = position.offset
        self.ended = False
        return ResumePoint(position, by_gtid=False)

    def read_into(self, decoder: BinlogDecoder, wait_s: float) -> int:
        """See ``ByteSource``."""
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
                count = self._file.readinto(decoder.free_space()) or 0
            if count:
                decoder.feed(count)
                return count
            self._file.close()
            self._file = None

    def close(self) -> None:
        """See ``ByteSource``."""
        if self._file is not None:
            self._file.close()
            self._file = None


def scan_files(pattern: str, start: BinlogPosition, on_statement: Callable[[Statement], None]) -> None:
    """Read the control events from ``start`` to the end of the files. Raises: PositionLost, SourceUnavailable."""
    nothing, feed = NoTables(), FileByteSource(pattern)
    decoder = BinlogDecoder(
        table_filter=nothing,
        tables=nothing,
        on_statement=on_statement,
        start=start,
        sequence=0,
        framed=False,
        omits=lambda *_: True,  # the receiver reports what is missing
    )
    feed.open(start)
    try:
        while not feed.ended:
            feed.read_into(decoder, 0)
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
            f"A binlog file cannot be read: {error.strerror}.",
            hint="Check the permissions of the file, and the disk.",
            file=path,
        ) from error
