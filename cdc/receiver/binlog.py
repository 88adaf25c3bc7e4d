"""BinlogReceiver: reads a binlog ahead on a thread of its own and hands out Batches.

The thread connects, decodes and fills the window; when the line is cut it connects again and goes on exactly behind
what it has put into the window. The Consumer's thread only takes from the window.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from cdc.batch import Batch
from cdc.binlog.connection import Endpoint, ReaderIdentity, translated
from cdc.binlog.decoder import BinlogDecoder
from cdc.binlog.events import ServerError, Statement
from cdc.binlog.kernels import nothing_compiled
from cdc.binlog.server import Server
from cdc.binlog.warm import warm_up
from cdc.errors import (
    CdcError,
    DecodeError,
    SchemaChanged,
    SchemaMismatch,
    SourceBlocked,
    SourceRewound,
    SourceUnavailable,
)
from cdc.position import BinlogPosition, Position
from cdc.receiver.base import Selection
from cdc.receiver.feeds import Feed, FilesFeed, ServerFeed, scan_files
from cdc.receiver.file_tables import Descriptions, FileTables
from cdc.receiver.start import scan
from cdc.receiver.tables import KnownTables, Resumption
from cdc.receiver.undecided import refuse_unknown
from cdc.receiver.window import Window
from cdc.schema import SEQUENCE, TableSchema

log = logging.getLogger(__name__)

WINDOW_BYTES = 256 << 20
PATIENCE_S = 30.0  # a source away for longer is told to the Consumer, which shows it; trying goes on
XA_LIMIT_S = 600.0
HELD_S = 30.0  # that XA transactions hold back what others have changed is told from then on
_WAIT_S = 0.25  # how long a stop may go unseen while nothing comes
_DRAINED_S = 0.05  # nothing came for that long: everything that the server has was read
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
# a server that is written to sends each transaction by itself, and a Batch costs the same for one row as for thousands:
# behind a small fill the thread takes a breath, so that at most a third of its time goes into such Batches
_SMALL_FILL = 64 << 10
_BREATH_S, _LONGEST_BREATH_S = 0.02, 0.1


class BinlogReceiver:
    """The Receiver of binlogs. See ``cdc.receiver.base.Receiver`` for the contract."""

    acks_make_room = False

    def __init__(
        self,
        feed: Feed,
        selection: Selection,
        *,
        endpoint: Endpoint | None = None,
        identity: ReaderIdentity | None = None,
        window_bytes: int = WINDOW_BYTES,
        resumption: Resumption = Resumption(),  # noqa: B008 - a frozen value
        patience_s: float = PATIENCE_S,
        xa_limit_s: float = XA_LIMIT_S,
        accept_gap: bool = False,
        files: FileTables | None = None,
    ) -> None:
        """``endpoint``: the server to ask about tables; None for files, whose rows must tell all themselves."""
        self._feed = feed
        self._selection = selection
        self._endpoint = endpoint
        self._window_bytes = window_bytes
        self._patience_s = patience_s
        self._xa_limit_s = xa_limit_s
        self._xa_seen: dict[BinlogPosition, float] = {}  # since when an undecided one is known here
        self._held_since: float | None = None  # since when there has always been an undecided one
        ask = (lambda: Server(endpoint)) if endpoint is not None else None

        def scan_control_events(
            server: Server, start: BinlogPosition, end: BinlogPosition, look: Callable[[Statement], None]
        ) -> BinlogPosition:
            assert identity is not None
            return scan(server, start, end, identity, look)

        self._ask = ask
        self._accept_gap = accept_gap
        self._tables = KnownTables(selection, ask, scan_control_events if identity else None, resumption, files)
        self._window = Window(window_bytes)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._is_warm = threading.Event()
        self._compiles = False
        self._sequence = 0
        self._safe = BinlogPosition("", 0)  # the last place between transactions that the window has got
        self._piece_rows = 0  # rows behind it, of one transaction
        self._scattered = False  # rows behind it cannot be counted off: an XA transaction is open, or some are left out
        self._handed: Position = self._safe
        self._drained = False
        self._finished = False
        self._away: tuple[float, SourceUnavailable] | None = None  # since when, and why
        self._decoder: BinlogDecoder | None = None  # of the newest connection
        self._dates_before: Counter[str] = Counter()  # impossible ones that earlier connections brought, by table

    @classmethod
    def of_server(
        cls,
        endpoint: Endpoint,
        identity: ReaderIdentity,
        selection: Selection,
        *,
        accept_server: bool = False,
        accept_gap: bool = False,
        window_bytes: int = WINDOW_BYTES,
        resumption: Resumption = Resumption(),  # noqa: B008
        **tuning: float,
    ) -> BinlogReceiver:
        """A receiver of a server's stream. ``tuning``: heartbeat_s, patience_s, xa_limit_s."""
        heartbeat = {"heartbeat_s": tuning.pop("heartbeat_s")} if "heartbeat_s" in tuning else {}
        feed = ServerFeed(endpoint, identity, accept_server=accept_server, accept_gap=accept_gap, **heartbeat)
        return cls(
            feed,
            selection,
            endpoint=endpoint,
            identity=identity,
            window_bytes=window_bytes,
            resumption=resumption,
            accept_gap=accept_gap,
            files=None,
            **tuning,
        )

    @classmethod
    def of_files(
        cls,
        pattern: str,
        selection: Selection,
        *,
        descriptions: Descriptions | None = None,
        accept_gap: bool = False,
        window_bytes: int = WINDOW_BYTES,
        resumption: Resumption = Resumption(),  # noqa: B008
    ) -> BinlogReceiver:
        """Return a receiver of binlog files on disk, in order of their numbers; it ends after the last one.

        ``descriptions``: of tables whose rows do not tell their columns.
        """
        return cls(
            FilesFeed(pattern),
            selection,
            window_bytes=window_bytes,
            resumption=resumption,
            accept_gap=accept_gap,
            files=FileTables(partial(scan_files, pattern), descriptions),
        )

    # --- the Consumer's side ---

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """See ``Receiver``."""
        assert isinstance(start, BinlogPosition)
        self.close()
        self._tables.begin(start, schemas)
        self._sequence = sequence
        self._begin(start)

    def _begin(self, start: BinlogPosition) -> None:
        self._window = Window(self._window_bytes)
        self._stopping = threading.Event()
        self._safe = self._handed = start
        self._piece_rows, self._scattered = 0, False
        self._held_since = None
        self._drained = self._finished = False
        self._away = None
        decoder = self._connect()
        arguments = (decoder, self._window, self._stopping)
        self._is_warm = threading.Event()
        self._thread = threading.Thread(target=self._begin_to_read, args=arguments, name="binlog-reader", daemon=True)
        self._thread.start()

    def _begin_to_read(self, decoder: BinlogDecoder, window: Window, stopping: threading.Event) -> None:
        """Nobody waits for a thread that compiles: until it is warm, it touches nothing that others use."""
        is_warm, self._compiles = self._is_warm, nothing_compiled()
        try:
            warm_up()
        except Exception as error:  # noqa: BLE001 - the Consumer must hear of it, or the job would stand still
            window.stop(error)
            return
        is_warm.set()
        if stopping.is_set():
            return
        self._compiles = False
        self._read(decoder)

    def get(self, timeout_s: float) -> Batch | None:
        """See ``Receiver``."""
        batch = self._window.get(timeout_s)
        if batch is not None:
            self._handed = batch.last
            return batch
        away = self._away
        if away is not None and time.monotonic() - away[0] > self._patience_s:
            raise away[1]
        return None

    def ack(self, position: Position) -> None:
        """See ``Receiver``."""
        self._window.ack(position)

    def rollback(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, BinlogPosition)
        self.close()
        self._tables.rewind(position)
        self._begin(position)

    def schema(self, database: str, table: str) -> TableSchema:
        """See ``Receiver``."""
        found = self._tables.current(database, table) or self._tables.look_up(database, table)
        if found is None:
            raise SchemaMismatch(
                f"There is no table {database}.{table}.",
                mend="Correct `source` of the channel, or create the table.",
                table=f"{database}.{table}",
            )
        return found

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        self._tables.note_loaded(tables)

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._tables.at(self._handed)

    def window_full(self) -> bool:
        """See ``Receiver``."""
        return self._window.is_full()

    def taken(self, position: Position, byte_count: int) -> None:
        """See ``Receiver``. ``byte_count`` as Arrow counts them (``RecordBatch.nbytes``)."""
        self._window.taken(byte_count)

    def window_bytes(self) -> int:
        """See ``Receiver``."""
        return self._window.bytes_held()

    def impossible_dates(self) -> Mapping[str, int]:
        """See ``Receiver``."""
        found, decoder = self._dates_before.copy(), self._decoder
        if decoder is not None:
            _add_dates(found, decoder)
        return found

    def at_end(self) -> bool:
        """See ``Receiver``."""
        return (self._drained or self._finished) and self._window.is_empty()

    def trouble(self) -> CdcError | None:
        """See ``Receiver``."""
        if self._compiles:
            return SourceUnavailable(
                "The decoder is being compiled for this machine, which happens once.",
                mend="Wait for about a minute; rows come by themselves then.",
            )
        held_since = self._held_since
        held_s = time.monotonic() - held_since if held_since is not None else 0.0
        if held_s <= HELD_S:
            return None
        return SourceBlocked(
            f"For {held_s:.0f} s there has always been an undecided XA transaction with rows of mapped tables. Nothing "
            "is committed meanwhile.",
            mend="XA RECOVER lists them. Where they are many and overlap, let them be decided sooner.",
            position=self._safe,
        )

    def finished(self) -> bool:
        """See ``Receiver``."""
        return self._finished and self._window.is_empty()

    def close(self) -> None:
        """See ``Receiver``."""
        self._stopping.set()
        self._window.close()
        if self._thread is not None:
            if self._is_warm.is_set():
                self._thread.join()
            self._thread = None
        self._feed.close()

    # --- the reading thread ---

    def _connect(self) -> BinlogDecoder:
        found = self._feed.begin(self._safe, self._tables)
        if self._piece_rows and (found.by_gtid or found.position.server != self._safe.server):
            raise SourceRewound(
                "Another server goes on in the middle of a transaction, and may have its rows in another order.",
                mend="The transaction is read again from its beginning.",
                position=self._safe,
            )
        is_elsewhere = found.gap or found.position.gtid_set != self._safe.gtid_set
        is_same_file = found.position.file == self._safe.file and not self._piece_rows
        if is_elsewhere or (is_same_file and found.position.created != self._safe.created):
            # a person has agreed to go on from elsewhere: that is where a line that is cut goes on, and what is saved;
            # a position of an older version gets the time when its file was created
            gaps = self._tables.take_gaps()
            self._window.put(Batch((), self._safe, found.position, True, 0, 0, 0, None, None, gaps))
            self._safe = found.position
        decoder = BinlogDecoder(
            selection=self._selection,
            tables=self._tables,
            on_statement=self._tables.on_statement,
            start=found.position,
            sequence=self._sequence,
            framed=self._feed.framed,
            skip_rows=self._piece_rows,
            on_unknown_xa=partial(self._look_at_unknown_xa, found.position),
            leaves_out=self._tables.leaves_out,
            gtids_known=found.gtids_known,
        )
        self._tables.place = lambda: decoder.position
        self._tables.inside_xa = lambda: decoder.inside_xa
        self._tables.is_ahead = lambda: decoder.is_ahead
        before, self._decoder = self._decoder, decoder
        if before is not None:
            _add_dates(self._dates_before, before)
        return decoder

    def _look_at_unknown_xa(self, began: BinlogPosition, xid: str, place: BinlogPosition) -> None:
        if self._accept_gap:
            log.warning("going on without the rows of XA transaction %s, prepared before %s", xid, began)
            return
        refuse_unknown(xid, began, place, self._ask, self._selection.maps)

    def _read(self, decoder: BinlogDecoder | None) -> None:
        """The thread's whole life: read, and after a fault that may pass connect again."""
        pause_s = _FIRST_PAUSE_S
        damaged_at: tuple[BinlogPosition, int] | None = None
        while not self._stopping.is_set():
            try:
                if decoder is None:
                    decoder = self._connect()
                self._pump(decoder)
                return
            except (SourceUnavailable, ServerError, DecodeError) as fault:
                error = self._judged(fault)
                here = (self._safe, self._piece_rows)
                if isinstance(error, DecodeError) and self._feed.framed and damaged_at != here:
                    # bits that the network turned come right when read again; damage on the server's disk stays
                    damaged_at = here
                    log.warning("reading again from %s: %s", self._safe, error)
                elif isinstance(error, SourceUnavailable):
                    pause_s = _FIRST_PAUSE_S if self._away is None else min(2 * pause_s, _LONGEST_PAUSE_S)
                    self._away = (self._away[0] if self._away else time.monotonic(), error)
                    log.warning("connecting again in %.1f s: %s", pause_s, error)
                else:
                    self._window.stop(error)
                    return
                if self._scattered:
                    self._window.stop(self._rewound())
                    return
            except CdcError as error:
                self._tell_position(error)
                self._window.stop(error)
                return
            except Exception as error:  # noqa: BLE001 - the Consumer must hear of it, or the job would stand still
                self._window.stop(error)
                return
            decoder, self._drained = None, False
            self._stopping.wait(pause_s)

    def _judged(self, fault: SourceUnavailable | ServerError | DecodeError) -> CdcError:
        if isinstance(fault, ServerError):
            return translated(fault, self._endpoint or Endpoint(""), self._safe)
        return fault

    def _rewound(self) -> SourceRewound:
        return SourceRewound(
            "The line was cut inside of a transaction whose rows must be read again.",
            mend="Reading goes on from the last checkpoint.",
            position=self._safe,
        )

    def _pump(self, decoder: BinlogDecoder) -> None:
        while not self._stopping.is_set():
            count = self._feed.fill(decoder, _WAIT_S if self._drained else _DRAINED_S)
            began = time.monotonic()
            if count:
                self._drained = False
                if self._away is not None:
                    log.info("connected again, reading on from %s", self._safe)
                    self._away = None
            while (batch := decoder.next()) is not None:
                if not self._deliver(batch, xa_open=bool(decoder.open_xa)):
                    return
            self._check_xa(decoder)
            if self._feed.ended:
                decoder.begin_file(self._safe.file)  # refuses an end inside an event or a transaction
                for xa in decoder.open_xa:
                    raise SourceBlocked(
                        f"The files end before XA transaction {xa.xid or '(not yet prepared)'} is decided, which holds "
                        "rows of mapped tables.",
                        mend="Put the next file beside them, up to its XA COMMIT or XA ROLLBACK, then `cdc resume`.",
                        xid=xa.xid,
                        position=xa.since,
                    )
                self._finished = True
                return
            if count == 0:
                self._drained = decoder.seen_events > 0
            elif count < _SMALL_FILL:
                spent_s = time.monotonic() - began
                self._stopping.wait(min(max(_BREATH_S, 2 * spent_s), _LONGEST_BREATH_S))

    def _deliver(self, batch: Batch, *, xa_open: bool) -> bool:
        """Put a Batch into the window; False when stopped meanwhile."""
        changes = tuple(
            replace(each, schema=self._tables.described(each.schema, batch.first)) for each in batch.changes
        )
        if changes:
            self._sequence = max(each.rows.column(SEQUENCE)[-1].as_py() for each in changes)
        gaps = self._tables.take_gaps()
        if not self._window.put(replace(batch, changes=changes, gaps=gaps)):
            return False
        assert isinstance(batch.last, BinlogPosition)
        if batch.ends_transaction:
            self._safe, self._piece_rows, self._scattered = batch.last, 0, False
            self._held_since = None
        elif xa_open or self._scattered or gaps:
            self._scattered = True  # also while the rows of a decided one go out, which lie before its XA COMMIT
        else:
            self._safe = batch.last
            self._piece_rows += batch.rows
        return True

    def _check_xa(self, decoder: BinlogDecoder) -> None:
        now = time.monotonic()
        if not decoder.open_xa:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        self._xa_seen = {xa.since: self._xa_seen.get(xa.since, now) for xa in decoder.open_xa}
        for xa in decoder.open_xa:
            # of an old log only the time that it takes us to read it counts: its decision may be the next event
            age_s = min(time.time() - xa.started_us / 1e6, now - self._xa_seen[xa.since])
            if age_s <= self._xa_limit_s and xa.bytes <= self._window_bytes:
                continue
            raise SourceBlocked(
                f"XA transaction {xa.xid or '(not yet prepared)'} holds rows of mapped tables, open for {age_s:.0f} s; "
                f"they take {xa.bytes >> 20} MiB.",
                mend="Decide it with XA COMMIT or XA ROLLBACK (XA RECOVER lists it)"
                + (", or raise memory.window." if xa.bytes > self._window_bytes else "."),
                xid=xa.xid,
                position=xa.since,
            )

    def _tell_position(self, error: CdcError) -> None:
        """Let the Consumer commit up to just before the statement that stopped us, so that a resume begins there."""
        place = error.where.get("position")
        if not isinstance(error, SchemaChanged) or self._scattered or not isinstance(place, BinlogPosition):
            return
        if place != self._safe:
            self._window.put(Batch((), self._safe, place, True, 0, 0, 0, None, None))
            self._safe = place


def _add_dates(counts: Counter[str], decoder: BinlogDecoder) -> None:
    for (table, _), count in decoder.impossible_dates.items():
        counts[table] += count
