"""The reading thread: messages of all partitions into the window, metadata every 30 seconds, new partitions.

A new partition is read from its first offset, and only after the old partitions of its topic are committed up to the
end that they had when it was found: the producer may have moved keys to it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdc.errors import CdcError, ErrorAction, SourceUnavailable, action_for
from cdc.model.kafka_position import KafkaPosition, Partition, PartitionOffset
from cdc.sources.kafka.bad_replay import BadReplay
from cdc.sources.kafka.batches import BatchMaker
from cdc.sources.kafka.block_parts import before
from cdc.sources.kafka.broker_contact import REFRESH_S, BrokerContact
from cdc.sources.kafka.cluster import Cluster, KafkaSettings, Topics
from cdc.sources.kafka.continuity import (
    Accepted,
    continue_at,
    first_of_new,
    refuse_lost_range,
    refuse_other_topics,
    skip_lost,
    skip_truncated,
    without,
)
from cdc.sources.kafka.new_partitions import NewPartitions
from cdc.sources.kafka.partition_health import OPEN_TRANSACTION_S, PartitionHealth
from cdc.sources.kafka.range_planner import PlanReader, PlanRequest
from cdc.sources.kafka.reader import MessageReader, ReadMessages
from cdc.sources.kafka.truncation import truncated_logs
from cdc.sources.window import Window

_READ_S = 0.1
_ASK_S = 5.0  # reading waits for the answers


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream begins and ends."""

    saved: KafkaPosition  # of the last checkpoint: the first Batch begins here
    until: KafkaPosition | None = None  # read exactly up to here
    finishes: bool = False  # the source ends at ``until``
    replays_bad: bool = False  # first load the messages again that were kept before ``saved``
    plans: PlanRequest | None = None  # executors read the messages: deliver planned ranges when they are requested
    new: NewPartitions = field(default_factory=NewPartitions)  # those that wait already


class KafkaStream:
    """Reads from a start on its own thread. Calls: ``start``, ``stop`` by one thread; the attributes from any."""

    def __init__(
        self,
        settings: KafkaSettings,
        begin: StreamStart,
        maker: BatchMaker,
        window: Window,
        *,
        accepted: Accepted,
        window_bytes: int,
        refresh_s: float = REFRESH_S,
        transaction_s: float = OPEN_TRANSACTION_S,
    ) -> None:
        self.health = PartitionHealth(transaction_s)
        self.window = window
        self.contact = BrokerContact(refresh_s)
        self.is_drained = False
        self.is_finished = False
        self.committed = begin.saved
        self.replay: BadReplay | None = None  # the running one
        self.ends: dict[Partition, int] = {}  # the newest known end of each partition
        self.accepted_later = accepted  # for what is lost after the start
        self._begin, self._maker, self._accepted = begin, maker, accepted
        self._settings, self._window_bytes = settings, window_bytes
        self._cluster = Cluster(settings, _ASK_S)
        self._reader: MessageReader | None = None
        self._until = None if begin.until is None else {one: end.next for one, end in begin.until.offsets.items()}
        self._assigned: set[Partition] = set()
        self._at_end: set[Partition] = set()
        self._new = begin.new
        self._reported = begin.saved
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Check the position, then read on a thread. Raises: see ``Receiver.open``."""
        try:
            self._connect()
        except BaseException:
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="kafka-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close window and connections. May be repeated."""
        self._stopping.set()
        self.window.close()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    @property
    def report_failure(self) -> str:
        """Why the last report of offsets to the group failed, "" if it did not."""
        reader = self._reader
        error = reader.report_error if reader is not None else None
        return error.str() if error is not None else ""

    @property
    def offsets(self) -> dict[Partition, PartitionOffset]:
        """What is read. Calls: any thread."""
        return self._maker.offsets.copy()

    @property
    def partition_count(self) -> int:
        """The number of partitions that are read."""
        return len(self._assigned)

    # --- the start ---

    def _connect(self) -> None:
        topics = self._cluster.topics()
        position = continue_at(self._cluster, topics, self._begin.saved, self._accepted)
        if self._until is None and (deleted := topics.deleted(position.ids)):
            position = without(position, deleted)
        self._maker.begin(self._begin.saved, position)
        self._reader = self._create_reader()
        self._update(topics, self._accepted)
        if self._begin.until is not None and self._until is not None and not self._begin.finishes:
            refuse_lost_range(topics, self._maker.offsets, self._begin.until)
            added = {one for one in self._until if one not in self._maker.offsets} & topics.partitions
            self._join_now(added, self._accepted)
        read = {one: offset for one, offset in self._maker.offsets.items() if one in topics.partitions}
        if self._until is not None:
            read = {one: offset for one, offset in read.items() if offset.next < self._until.get(one, 0)}
        truncated = truncated_logs(self._settings, self._cluster, read)
        moved = skip_truncated(self._cluster, truncated, self._accepted) if truncated else {}
        self._maker.offsets.update(moved)
        read |= moved
        self.accepted_later = self._accepted.later(topics, self._begin.saved)
        self._assigned = {*read}
        self._reader.assign(read)
        self.contact.begin()

    def _create_reader(self) -> MessageReader:
        plans = self._begin.plans
        if plans is None:
            return MessageReader(self._settings, self._cluster, self._window_bytes)
        return PlanReader(self._settings, self._cluster, self._window_bytes, plans, self._until)

    def _join_now(self, partitions: set[Partition], accepted: Accepted) -> None:
        known = {topic for topic, _ in partitions if self._maker.id_of(topic) is not None}
        for (topic, number), offset in first_of_new(self._cluster, partitions, known, accepted).items():
            self._maker.join(topic, self._ids[topic], number, offset)

    def _update(self, topics: Topics, accepted: Accepted) -> None:
        self._ids = topics.ids
        self._maker.partition_counts = {name: len(topic.partitions) for name, topic in topics.topics.items()}
        if self._until is None or self._begin.finishes:
            self._new.find(self._cluster, topics, self._maker.offsets, accepted, self._until)

    # --- the thread ---

    def _run(self) -> None:
        try:
            if self._begin.replays_bad:
                self._replay_bad()
            while not self._stopping.is_set():
                self._refresh()
                self._join_new()
                self._report()
                self._deliver(self._read())
        except BaseException as error:  # noqa: BLE001 - without it the Consumer would wait for ever
            self.window.stop(error)
        finally:
            self._close()

    def _replay_bad(self) -> None:
        assert self._maker.bad is not None
        self.replay = BadReplay(
            self._settings, self._cluster, self._maker, self._maker.bad,
            window_bytes=self._window_bytes, accepts_gap=self._accepted.kept_gap, stopping=self._stopping,
        )  # fmt: skip
        for batch in self.replay.batches():
            if not self.window.put(batch):
                return
        self.replay = None

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._cluster.close()

    def _read(self) -> ReadMessages:
        assert self._reader is not None
        chunk = self._reader.read(_READ_S)
        if chunk.failed:
            self.health.note(chunk.failed)
            self.contact.refresh_soon()
        if chunk.error is not None and (not chunk.failed or action_for(chunk.error) is not ErrorAction.RETRY):
            self.contact.note_error(chunk.error)
        return chunk

    def _skip_lost(self, chunk: ReadMessages) -> None:
        """Continue after messages that are lost, if the user accepts that. Raises: PositionLost.

        Call it when the messages of the same read are delivered: they are before the lost ones.
        """
        if chunk.lost:
            offsets = {one: self._maker.offsets[one] for one in chunk.lost if one in self._maker.offsets}
            self._move(skip_lost(self._cluster, offsets, self.accepted_later))
        if chunk.truncated:
            offsets = {one: self._maker.offsets[one] for one in chunk.truncated if one in self._maker.offsets}
            self._move(skip_truncated(self._cluster, offsets, self.accepted_later))

    def _move(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        assert self._reader is not None
        for partition, offset in offsets.items():
            self._maker.offsets[partition] = offset
            self._reader.add(partition, offset)

    def _deliver(self, chunk: ReadMessages) -> None:
        ended: dict[Partition, int] = {}
        for each in chunk.blocks:
            block = each
            self._at_end -= {(block.topic, int(number)) for number in set(block.partition.tolist())}
            self.is_drained = False
            if self._until is not None:
                block, done = before(block, self._until)
                ended |= done
                if not len(block.offset):
                    continue
            for batch in self._maker.read(block, chunk.epochs):
                if not self.window.put(batch):
                    return
        self._skip_lost(chunk)
        if chunk.planned and not self._put_range(chunk):
            return
        self._note_ends(chunk.ends, ended)
        moved = self._maker.empty()
        if moved is not None and not self.window.put(moved):
            return
        is_healthy = self.contact.away is None and not self.health.failed
        self.is_drained = self._assigned <= self._at_end and not self._new and is_healthy
        self.is_finished = self._begin.finishes and not self._assigned and not self._new

    def _put_range(self, chunk: ReadMessages) -> bool:
        """Put the next range into the window. Return False if the window is closed."""
        plans, offsets = self._begin.plans, self._maker.offsets
        assert plans is not None
        moved = self._maker.empty()  # new partitions and accepted gaps are no messages to read
        if moved is not None and not self.window.put(moved):
            return False
        self._at_end -= chunk.planned.keys()
        messages = sum(end - offsets[one].next for one, end in chunk.planned.items())
        for partition, end in chunk.planned.items():
            offsets[partition] = PartitionOffset(end)  # executors find the leader epoch of its last message
        self.ends |= chunk.log_ends
        self.is_drained = False
        planned = self._maker.empty()
        assert planned is not None
        is_put = self.window.put(replace(planned, is_planned=True, entries=messages))
        plans.messages = 0
        return is_put

    def _note_ends(self, ends: Mapping[Partition, int], ended: Mapping[Partition, int]) -> None:
        """Move the positions to the ends of logs, which may be after control records, and to the end of the range."""
        offsets = self._maker.offsets
        if ends:
            self.contact.away = None
        for partition, end in ends.items():
            if partition not in self._assigned:
                continue
            limit = end if self._until is None else min(end, self._until[partition])
            offsets[partition] = _moved(offsets[partition], limit)
            self._at_end.add(partition)
            self.ends[partition] = end
            if self._until is not None and end >= self._until[partition]:
                ended = {**ended, partition: self._until[partition]}
        for partition, end in ended.items():
            offsets[partition] = _moved(offsets[partition], end)
        if done := {*ended} & self._assigned:
            assert self._reader is not None
            self._reader.remove(done)
            self._assigned -= done

    # --- metadata ---

    def _refresh(self) -> None:
        """Compare the topics with the position, and find new partitions. If the brokers do not answer, note that."""
        if not self.contact.is_due(is_alarmed=self._cluster.is_alarmed):
            return
        self.contact.begin_refresh()
        try:
            topics = self._cluster.topics()
            refuse_other_topics(topics, self._maker.id_of, self._assigned)
            self.ends |= self.health.refresh(self._cluster, topics, self._assigned, self._maker.offsets)
            assert self._reader is not None
            self._reader.leave_out(self.health.failed)
            self._update(topics, self.accepted_later)
            self.contact.end_refresh(is_soon=bool(self.health.failed))
        except CdcError as error:
            self.contact.fail_refresh(error)
            self._cluster.is_alarmed = False

    def _join_new(self) -> None:
        """Read the new partitions that need not wait any more."""
        ready = self._new.ready(self.committed.offsets)
        if not ready:
            return
        try:
            for accepted in {self._new.accepted[one] for one in ready}:
                self._join_now({one for one in ready if self._new.accepted[one] == accepted}, accepted)
        except SourceUnavailable as error:
            self.contact.note_error(error)
            return
        assert self._reader is not None
        for partition in sorted(ready & self._maker.offsets.keys()):
            self._reader.add(partition, self._maker.offsets[partition])
            self._assigned.add(partition)
            self._new.remove(partition)

    def _report(self) -> None:
        committed = self.committed
        if self._settings.reports and committed is not self._reported and self._reader is not None:
            self._reported = committed
            self._reader.report(committed)


def _moved(offset: PartitionOffset, end: int) -> PartitionOffset:
    return offset if offset.next >= end else PartitionOffset(end, offset.epoch, offset.time_ms)
