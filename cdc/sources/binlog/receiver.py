"""The receiver of MySQL and MariaDB binlogs, from a replication stream or from files on disk.

::

    transport --bytes--> decoder --Batch--> reader (thread) --> Window --> BinlogReceiver.get --> Consumer
                            |
                            +-- table_registry: schemas of rows; ddl_handler: statements; xa_watch: open XA transactions

``BinlogReceiver`` implements the contract on the Consumer's thread. ``reader`` does the reading on its own thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from cdc.errors import CdcError, SchemaMismatch, SourceUnavailable
from cdc.model.batch import Batch
from cdc.model.position import BinlogPosition, Position
from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import table_text
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server
from cdc.sources.base import LogProgress, ReceiverStatus
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.ddl_handler import DdlHandler
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.event_scan import scan
from cdc.sources.binlog.file_tables import Descriptions, FileTables
from cdc.sources.binlog.log_end import LogEnd
from cdc.sources.binlog.omission_rules import OmissionRules
from cdc.sources.binlog.reader import BinlogReader, ReaderSource
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.binlog.transport import ByteSource, FileByteSource, ServerByteSource, scan_files
from cdc.sources.binlog.xa_watch import XaWatch
from cdc.sources.schema_history import ResumeOptions, SchemaHistory
from cdc.sources.window import Window

WINDOW_BYTES = 256 << 20
TIMEOUT_S = 30.0  # if the source is unreachable for longer, get raises SourceUnavailable; reconnecting continues
XA_LIMIT_S = 600.0  # an XA transaction may stay undecided for so long, see ``xa_watch``


class BinlogReceiver:
    """The Receiver of binlogs. See ``cdc.sources.base.Receiver`` for the contract."""

    def __init__(
        self,
        feed: ByteSource,
        table_filter: TableFilter,
        *,
        endpoint: Endpoint | None = None,
        identity: ReaderIdentity | None = None,
        window_bytes: int = WINDOW_BYTES,
        resume_options: ResumeOptions = ResumeOptions(),  # noqa: B008 - a frozen value
        timeout_s: float = TIMEOUT_S,
        xa_limit_s: float = XA_LIMIT_S,
        accept_gap: bool = False,
        files: FileTables | None = None,
    ) -> None:
        """``endpoint``: the server to query about tables; None for files."""
        connect = (lambda: Server(endpoint)) if endpoint is not None else None

        def scan_control_events(
            server: Server, start: BinlogPosition, end: BinlogPosition, handle: Callable[[Statement], None]
        ) -> BinlogPosition:
            assert identity is not None
            return scan(server, start, end, identity, handle)

        self._history = SchemaHistory(table_filter, connect)
        search = ColumnChangeSearch(self._history, scan_control_events if identity else None)
        rules = OmissionRules(is_accepted=resume_options.past_gap, has_server=connect is not None)
        self._tables = TableRegistry(table_filter, self._history, search, rules, files)
        self._ddl = DdlHandler(table_filter, self._tables, resume_options)
        self._xa = XaWatch(xa_limit_s, window_bytes)
        self._source = ReaderSource(feed, table_filter, self._tables, self._ddl, self._xa, endpoint, accept_gap)
        self._window_bytes = window_bytes
        self._timeout_s = timeout_s
        self._log_end = LogEnd(connect) if connect is not None else None
        self._dates: Counter[str] = Counter()  # of earlier readers
        self._disconnects = 0  # of earlier readers
        self._handed: Position = BinlogPosition("", 0)
        self._reader = BinlogReader(self._source, BinlogPosition("", 0), 0, Window(window_bytes))

    @classmethod
    def of_server(
        cls,
        endpoint: Endpoint,
        identity: ReaderIdentity,
        table_filter: TableFilter,
        *,
        accept_server: bool = False,
        accept_gap: bool = False,
        window_bytes: int = WINDOW_BYTES,
        resume_options: ResumeOptions = ResumeOptions(),  # noqa: B008
        **tuning: float,
    ) -> BinlogReceiver:
        """Return a receiver of a server's stream. ``tuning``: heartbeat_s, timeout_s, xa_limit_s."""
        heartbeat = {"heartbeat_s": tuning.pop("heartbeat_s")} if "heartbeat_s" in tuning else {}
        feed = ServerByteSource(endpoint, identity, accept_server=accept_server, accept_gap=accept_gap, **heartbeat)
        return cls(
            feed,
            table_filter,
            endpoint=endpoint,
            identity=identity,
            window_bytes=window_bytes,
            resume_options=resume_options,
            accept_gap=accept_gap,
            files=None,
            **tuning,
        )

    @classmethod
    def of_files(
        cls,
        pattern: str,
        table_filter: TableFilter,
        *,
        descriptions: Descriptions | None = None,
        accept_gap: bool = False,
        window_bytes: int = WINDOW_BYTES,
        resume_options: ResumeOptions = ResumeOptions(),  # noqa: B008
    ) -> BinlogReceiver:
        """Return a receiver of binlog files on disk. It reads them in the order of their numbers, and then ends.

        ``descriptions``: the columns of tables whose rows do not name them.
        """
        return cls(
            FileByteSource(pattern),
            table_filter,
            window_bytes=window_bytes,
            resume_options=resume_options,
            accept_gap=accept_gap,
            files=FileTables(partial(scan_files, pattern), descriptions),
        )

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """See ``Receiver``."""
        assert isinstance(start, BinlogPosition)
        self.close()
        self._history.begin_run()
        self._begin(start, schemas, sequence)

    def rollback(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, BinlogPosition)
        self.close()
        self._begin(position, self._history.at(position), self._reader.sequence)

    def _begin(self, start: BinlogPosition, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        start = replace(start, by_gtid=False)  # of an earlier stream; a reconnect keeps it
        self._tables.begin(schemas)
        self._dates += self._reader.invalid_dates()
        self._disconnects += self._reader.disconnects
        self._handed = start
        self._reader = BinlogReader(self._source, start, sequence, Window(self._window_bytes))
        self._reader.start()
        if self._log_end is not None:
            self._log_end.start(start)

    def get(self, timeout_s: float) -> Batch | None:
        """See ``Receiver``."""
        batch = self._reader.window.get(timeout_s)
        if batch is not None:
            self._handed = batch.last
            return batch
        away = self._reader.away
        if away is not None and time.monotonic() - away[0] > self._timeout_s:
            raise away[1]
        return None

    def release(self, byte_count: int) -> None:
        """See ``Receiver``."""
        self._reader.window.release(byte_count)

    def ack(self, position: Position) -> None:
        """See ``Receiver``."""
        self._reader.window.ack(position)
        if self._log_end is not None and isinstance(position, BinlogPosition):
            self._log_end.ack(position)

    def schema(self, database: str, table: str) -> TableSchema:
        """See ``Receiver``."""
        found = self._history.require(database, table, hint="Correct `source` of the channel, or create the table.")
        if self._tables.is_unsure((database, table)):
            raise SchemaMismatch(
                "The columns that the table has at the position of the stream are not known yet.",
                hint="No action is needed: the job creates the target at the first row, or when the stream has reached "
                "the end of the binlog.",
                table=table_text(database, table),
            )
        return found

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        self._history.note_loaded(tables)

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._history.at(self._handed)

    def status(self) -> ReceiverStatus:
        """See ``Receiver``."""
        reader = self._reader
        # Read the reader's state first, then the window's: the reader fills the window before it reports the end.
        is_drained, is_finished, read_to = reader.is_drained, reader.is_finished, reader.read_to
        is_empty = reader.window.is_empty()
        return ReceiverStatus(
            is_at_end=(is_drained or is_finished) and is_empty,
            read_to=read_to,
            is_finished=is_finished and is_empty,
            is_window_full=reader.window.is_full(),
            window_bytes=reader.window.bytes_held(),
            warning=self._warning(),
            is_connected=reader.away is None,
            disconnects=self._disconnects + reader.disconnects,
            log=self._log_progress(),
            invalid_dates=self._dates + reader.invalid_dates(),
            created=self._history.created,
            removed=self._history.removed,
        )

    def _log_progress(self) -> LogProgress | None:
        end = self._log_end
        return LogProgress(end.offset, end.behind_bytes, end.retention_s) if end is not None else None

    def _warning(self) -> CdcError | None:
        if self._reader.is_compiling:
            return SourceUnavailable(
                "The decoder is being compiled for this machine. This happens once per version.",
                hint="Wait for about a minute. Rows then arrive automatically.",
            )
        return self._xa.warning(self._reader.safe)

    def close(self) -> None:
        """See ``Receiver``."""
        if self._log_end is not None:
            self._log_end.stop()
        self._reader.stop()
        self._source.feed.close()
