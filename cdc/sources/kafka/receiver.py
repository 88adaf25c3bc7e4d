"""The receiver of Kafka topics.

::

    brokers --messages--> reader --MessageBlock--> batches: format, layouts, key_partitions --Batch--> Window --> get
                stream: the thread that reads, and finds new partitions; continuity: is everything still there?
                range_planner: with `read: executors` the thread reads ends of partitions instead of messages

Partitions are assigned explicitly: the job is in no consumer group, so nothing rebalances. The job's position decides
where reading continues; offsets are only reported to a group, for monitors of lag.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cdc.errors import CdcError, SourceUnavailable
from cdc.model.batch import Batch
from cdc.model.kafka_position import KafkaPosition
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.sources.base import PartitionLag, RangeTables, ReadRange, ReceiverStatus
from cdc.sources.kafka.bad_messages import BadMessages
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.broker_contact import REFRESH_S
from cdc.sources.kafka.cluster import KafkaSettings
from cdc.sources.kafka.continuity import Accepted
from cdc.sources.kafka.formats.base import Format
from cdc.sources.kafka.formats.debezium_rows import DebeziumRows
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.kafka.new_partitions import NewPartitions
from cdc.sources.kafka.partition_health import OPEN_TRANSACTION_S
from cdc.sources.kafka.range_planner import ExecutorReads, RangePlans
from cdc.sources.kafka.stream import KafkaStream, StreamStart
from cdc.sources.partition_reader import PartitionReader
from cdc.sources.schema_history import SchemaHistory
from cdc.sources.window import Window

WINDOW_BYTES = 256 << 20
TIMEOUT_S = 30.0  # if the brokers do not answer for longer, get raises SourceUnavailable; reading continues
_HINT = "The columns of a table are known after its first message. Correct `source` of the channel if no message comes."


class KafkaReceiver:
    """The Receiver of Kafka topics, also a ``RangeReceiver`` and a ``RangePlanner``. See ``cdc.sources.base``."""

    def __init__(
        self,
        settings: KafkaSettings,
        decoder: Format,
        table_filter: TableFilter,
        *,
        rules: OrderRules = OrderRules(),  # noqa: B008 - a frozen value
        accepted: Accepted = Accepted(),  # noqa: B008
        bad: BadMessages | None = None,
        replays_bad: bool = False,
        format_name: str = "",
        is_described: Callable[[str, str], bool] = lambda database, table: False,
        acknowledged: Mapping[Position, bool] | None = None,
        stop_at: Callable[[], KafkaPosition] | None = None,
        executors: ExecutorReads | None = None,
        window_bytes: int = WINDOW_BYTES,
        timeout_s: float = TIMEOUT_S,
        refresh_s: float = REFRESH_S,
        transaction_s: float = OPEN_TRANSACTION_S,
    ) -> None:
        """``bad``: keeps messages that cannot be decoded. ``replays_bad``: first load the kept ones again.

        ``format_name``: in the job file. ``is_described``: see ``Layouts``. ``acknowledged``: DDL messages that a user
        accepted. ``stop_at``: returns the position at which to finish. ``executors``: they read the messages; None: the
        driver.
        """
        self._settings, self._decoder, self._bad = settings, decoder, bad
        self._accepted = self._accepted_later = accepted  # before and after the first commit
        self._history = SchemaHistory(table_filter, None)
        if isinstance(decoder, DebeziumRows):
            decoder.key_deletes.known = self._history.known_schemas
        layouts = Layouts(self._history, table_filter, acknowledged or {}, is_described)
        self._maker = BatchMaker(decoder, table_filter, layouts, rules, bad, format_name)
        self._replays_bad = replays_bad
        self._replays = self._wanted = 0  # that precede everything after the start: of the stream, of the run
        self._stop_at = stop_at
        self._stop: KafkaPosition | None = None  # the result of ``stop_at``
        self._plans: RangePlans | None = None
        if executors is not None:
            self._plans = RangePlans(settings, executors, rules, self._maker, decoder.invalid_dates)
        self._new = NewPartitions()
        self._range_end: KafkaPosition | None = None  # of a planned range that the driver reads
        self._window_bytes, self._timeout_s, self._refresh_s = window_bytes, timeout_s, refresh_s
        self._transaction_s = transaction_s
        self._start = self._handed = self._acked = KafkaPosition("", ())
        self._stream: KafkaStream | None = None

    def open(self, start: Position, schemas: tuple[TableSchema, ...], sequence: int) -> None:
        """See ``Receiver``."""
        assert isinstance(start, KafkaPosition)
        self.close()
        self._start = self._acked = start
        self._maker.sequence = sequence
        self._new.clear()
        if self._stop_at is not None and self._stop is None:
            self._stop = self._stop_at()
        self._replays = self._wanted = start.kept.replays + (self._replays_bad and start.kept.count > 0)
        self._connect(start, schemas)

    def rollback(self, position: Position) -> None:
        """See ``Receiver``."""
        assert isinstance(position, KafkaPosition)
        self.close()
        self._new.clear()
        self._connect(position, self._history.at(position))

    def limit(self, last: Position | None) -> None:
        """See ``RangeReceiver``."""
        assert last is None or isinstance(last, KafkaPosition)
        self.close()
        self._replays = self._wanted if last is None else last.kept.replays  # a range has those that it had
        self._connect(self._handed, self._history.at(self._handed), last)

    def _connect(
        self, start: KafkaPosition, schemas: tuple[TableSchema, ...], last: KafkaPosition | None = None
    ) -> None:
        """Begin at ``start``. The driver reads up to ``last``; None: this is not the range of a replay or a plan."""
        self._history.begin(schemas)
        self._handed, self._range_end = start, None
        until = self._stop if last is None else last
        plans = self._plans.request if self._plans is not None and last is None else None
        finishes = until is not None and until is self._stop
        if self._bad is not None:
            self._bad.open(start)
        self._stream = KafkaStream(
            self._settings,
            StreamStart(
                start,
                until,
                finishes=finishes,
                replays_bad=self._replays > start.kept.replays,
                plans=plans,
                new=self._new if until is None or finishes else NewPartitions(),
            ),
            self._maker,
            Window(self._window_bytes),
            accepted=self._accepted,
            window_bytes=self._window_bytes,
            refresh_s=self._refresh_s,
            transaction_s=self._transaction_s,
        )
        self._stream.committed = self._acked
        self._stream.start()
        self._accepted_later = self._stream.accepted_later

    def get(self, timeout_s: float) -> Batch | None:
        """See ``Receiver``."""
        if self._range_end is not None and self._handed.reached(self._range_end):
            self.limit(None)
        stream = self._opened
        batch = stream.window.get(timeout_s)
        if batch is not None:
            assert isinstance(batch.last, KafkaPosition)
            self._handed = batch.last
            if self._plans is not None and not batch.is_planned:
                self._plans.note_size(batch.bytes, batch.entries)
            return batch
        away = stream.contact.away
        if away is not None and time.monotonic() - away[0] > self._timeout_s:
            raise away[1]
        return None

    # --- ranges that executors read ---

    @property
    def plans(self) -> bool:
        """See ``RangePlanner``."""
        return self._plans is not None

    def plan(self, max_bytes: int, max_rows: int) -> None:
        """See ``RangePlanner``."""
        if self._plans is not None and self._range_end is None and self._opened.window.is_empty():
            self._plans.plan(max_bytes, max_rows)

    def readers(self, planned: Batch, tables: RangeTables, sequence: int, count: int) -> Sequence[PartitionReader]:
        """See ``RangePlanner``."""
        assert self._plans is not None
        return self._plans.readers(planned, tables, sequence, count)

    def complete(self, planned: Batch, positions: Sequence[Any]) -> ReadRange | None:
        """See ``RangePlanner``."""
        assert self._plans is not None
        return self._plans.complete(planned, positions)

    def deliver(self, planned: Batch) -> None:
        """See ``RangePlanner``. Raises: see ``open``."""
        assert isinstance(planned.first, KafkaPosition) and isinstance(planned.last, KafkaPosition)
        self.close()
        assert self._plans is not None
        # with the messages of the ranges before, and with leader epochs, by which a truncated log is found
        offsets = self._plans.with_epochs(planned.first.offsets)
        first = KafkaPosition.of(planned.first.cluster, planned.first.ids, offsets, kept=self._maker.kept)
        self._replays = first.kept.replays
        self._connect(first, self._history.at(first), planned.last)
        self._range_end = planned.last

    def release(self, byte_count: int) -> None:
        """See ``Receiver``."""
        self._opened.window.release(byte_count)

    def ack(self, position: Position) -> None:
        """See ``Receiver``. The stream reports the offsets to the group."""
        assert isinstance(position, KafkaPosition)
        self._acked = position
        if position != self._start:  # what the user accepted is before this position
            self._accepted = self._accepted_later
        if self._stream is not None:  # the last commit of a run may end after ``close``
            self._stream.window.ack(position)
            self._stream.committed = position
        if self._bad is not None:
            self._bad.forget_replayed(position.kept)

    def schema(self, database: str, table: str) -> TableSchema:
        """See ``Receiver``."""
        return self._history.require(database, table, hint=_HINT)

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``. Does nothing: this source has no snapshots."""

    def schemas(self) -> tuple[TableSchema, ...]:
        """See ``Receiver``."""
        return self._history.at(self._handed)

    def status(self) -> ReceiverStatus:
        """See ``Receiver``."""
        stream = self._stream
        if stream is None:
            return ReceiverStatus(is_at_end=False)
        # Read the stream's state first, then the window's: the stream fills the window before it reports the end.
        is_drained, is_finished = stream.is_drained, stream.is_finished
        is_empty, replay = stream.window.is_empty(), stream.replay
        return ReceiverStatus(
            is_at_end=is_drained and is_empty,
            is_finished=is_finished and is_empty,
            is_window_full=stream.window.is_full(),
            window_bytes=stream.window.bytes_held(),
            warning=self._warning(stream),
            is_connected=stream.contact.away is None and not stream.health.failed,
            held_s=stream.health.held_s(stream.offsets),
            invalid_dates=self._invalid_dates(),
            partitions=_lag(stream),
            replay=replay.progress if replay is not None else None,
        )

    def _warning(self, stream: KafkaStream) -> CdcError | None:
        away, failure = stream.contact.away, stream.report_failure
        if away is not None:
            return away[1]
        if (found := stream.health.warning(stream.offsets, stream.partition_count)) is not None:
            return found
        if not failure:
            return None
        return SourceUnavailable(
            f"The offsets cannot be reported to the group {self._settings.group}: {failure.rstrip('.')}.",
            hint="Allow the user to Read the group, or remove `source.group_id`. Rows are not affected.",
        )

    def _invalid_dates(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (table, _), count in self._decoder.invalid_dates.copy().items():
            found[table] += count
        return found

    @property
    def _opened(self) -> KafkaStream:
        assert self._stream is not None
        return self._stream

    def close(self) -> None:
        """See ``Receiver``."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.stop()


def _lag(stream: KafkaStream) -> tuple[PartitionLag, ...]:
    committed, ends, now_ms = stream.committed.offsets, stream.ends.copy(), time.time() * 1000
    found = []
    for (topic, number), offset in committed.items():
        # the end with open transactions: their messages wait too
        end = max(offset.next, ends.get((topic, number), 0), stream.health.written.get((topic, number), 0))
        known = None if offset.time_ms < 0 else max(0.0, (now_ms - offset.time_ms) / 1000)
        found.append(PartitionLag(topic, number, offset.next, end, 0.0 if end == offset.next else known))
    return tuple(found)
