"""Load kept messages after their cause was corrected, without a step back of any row.

A row of a kept message may have changed since. Therefore the topic is read again from where the message was, and the
rows with the keys of kept messages are loaded in order of arrival, all in one cycle. The position counts replays: the
cycle that commits the rows also commits that they were loaded, so a replay that was interrupted is repeated as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cdc.errors import DecodeError, ErrorAction, PositionLost, SourceActionRequired, SourceUnavailable, action_for
from cdc.model.batch import Batch
from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.model.kept_messages import KeptMessages, ReplayProgress, by_table
from cdc.sources.kafka.bad_messages import BadFile, BadMessages, bytes_of, partition_of
from cdc.sources.kafka.batches import BatchMaker, chosen_rows
from cdc.sources.kafka.block_parts import before, next_offsets, without_repeats
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.formats.base import Decoded, DecodedRows, message_position
from cdc.sources.kafka.key_partitions import hashes_of
from cdc.sources.kafka.messages import PADDING, MessageBlock
from cdc.sources.kafka.reader import MessageReader

_READ_S = 0.1
_TIMEOUT_S = 30.0  # without a message
_log = logging.getLogger(__name__)

Keys = dict[str, NDArray[np.uint64] | None]  # by table: hashes of keys; None: all rows, because the key is computed


@dataclass(frozen=True, slots=True)
class _Topic:
    """The kept messages of a topic, decoded again."""

    name: str
    files: tuple[BadFile, ...]
    block: MessageBlock
    decoded: Decoded

    @property
    def readable(self) -> set[int]:
        """The numbers of the messages that can be loaded now."""
        return {*range(len(self.block.offset))} - {fault.message for fault in self.decoded.faults}


class BadReplay:
    """One replay. Calls: the reading thread, before it reads the first message."""

    def __init__(
        self,
        settings: KafkaSettings,
        cluster: Cluster,
        maker: BatchMaker,
        bad: BadMessages,
        *,
        window_bytes: int,
        accepts_gap: bool,
        stopping: threading.Event,
    ) -> None:
        """``accepts_gap``: also load messages after which others were deleted. ``stopping``: ends the replay."""
        self._settings, self._cluster, self._maker, self._bad = settings, cluster, maker, bad
        self._window_bytes, self._accepts_gap, self._stopping = window_bytes, accepts_gap, stopping
        self.progress = ReplayProgress()  # replaced as a whole, so any thread may read it

    def batches(self) -> Iterator[Batch]:
        """Yield the rows as parts of one transaction, which ends with a position after the replay.

        Raises: ConfigError - a file is missing; PositionLost - messages after a kept one were deleted;
        SourceActionRequired - the columns have changed since, or a key changes; DecodeError; SourceUnavailable.
        """
        kept, left = self._maker.kept, list[BadFile]()
        files = self._bad.load(kept)
        for name, group in groupby(sorted(files, key=_topic_of), _topic_of):
            chosen = tuple(group)
            block = _block(name, [message for file in chosen for message in file.messages])
            topic = _Topic(name, chosen, block, self._maker.decode(block))
            left += _still_bad(topic)
            yield from self._rows(topic)
        if self._stopping.is_set():
            return
        after = _after(kept, left)
        _log.warning("%d kept messages are loaded, %d still cannot be read", after.loaded - kept.loaded, after.count)
        written = replace(after, tables=())
        for file in left:
            self._bad.write(written, file)
            written = replace(written, tables=(("", written.count + len(file.messages)),))
        yield self._maker.replayed(after)

    def _rows(self, topic: _Topic) -> Iterator[Batch]:
        """Yield the rows of the readable messages of a topic, and the later rows with their keys."""
        readable = topic.readable
        if not readable:
            return
        keys = self._keys(topic.block, topic.decoded.tables)
        starts, ends = self._starts(topic, readable), self._ends(topic.name)
        first = self._cluster.first_offsets(ends)
        is_same = all(file.topic_id == self._maker.id_of(topic.name) for file in topic.files)
        lost = [one for one, start in starts.items() if one in ends and start < min(first.get(one, start), ends[one])]
        if (lost or not is_same or first.keys() < ends.keys()) and not self._accepts_gap:
            raise PositionLost(
                f"Topic {topic.name} no longer has all messages after a kept one, so rows may have changed since.",
                hint="`cdc replay-bad NAME --accept-gap` loads the kept messages all the same. Rows of theirs that "
                "changed in deleted messages then get old values.",
                topic=topic.name,
            )
        gone = [n for n in sorted(readable) if not is_same or _is_before(topic.block, n, first)]
        tables = (chosen_rows(rows, np.isin(rows.message, gone)) for rows in topic.decoded.tables)
        yield from self._part([rows for rows in tables if len(rows.message)], topic.block)
        spans = {one: (max(first[one], starts.get(one, 0) if is_same else 0), ends[one]) for one in first}
        known = {partition_of(message, topic.name) for file in topic.files for message in file.messages}
        read = {one: PartitionOffset(start) for one, (start, _) in spans.items()}
        for block in self._read(spans):
            decoded = without_repeats(self._maker.decode(block), block, read)
            read |= next_offsets(block, {})
            self._check_faults(block, decoded, known)
            found = [_of_keys(self._maker, rows, keys) for rows in decoded.tables if rows.schema.name in keys]
            yield from self._part([rows for rows in found if len(rows.message)], block)

    def _part(self, tables: Sequence[DecodedRows], block: MessageBlock) -> Iterator[Batch]:
        for rows in tables:
            if difference := self._maker.layouts.differs(rows.schema):
                raise SourceActionRequired(
                    f"The columns of {rows.schema.name} have changed since a message was kept: {difference}.",
                    hint="Load the rows of the kept messages in another way.",
                    at=message_position(block, int(rows.message[0])),
                )
        if tables:
            decoded = Decoded(tuple(tables), (), (), np.full(len(block.offset), -1, np.int64))
            yield self._maker.part(decoded, len(block.offset))

    def _keys(self, block: MessageBlock, tables: Iterable[DecodedRows]) -> Keys:
        keys: Keys = {}
        for rows in tables:
            if (stop := self._maker.key_change_stop(block, rows)) is not None:
                raise stop.error
            name, found = rows.schema.name, _hashes(self._maker, rows)
            before_ = keys.get(name, np.zeros(0, np.uint64))
            keys[name] = None if found is None or before_ is None else np.union1d(before_, found)
        return keys

    def _starts(self, topic: _Topic, readable: set[int]) -> dict[Partition, int]:
        """Return where the partitions were when the first readable message arrived; without those that joined later."""
        starts: dict[Partition, int] = {}
        number, is_first = 0, True
        for file in topic.files:
            mine = {*range(number, number + len(file.messages))}
            number += len(file.messages)
            if mine.isdisjoint(readable):
                continue
            offsets = {(topic.name, partition): offset for partition, offset in file.offsets.items()}
            known = offsets if is_first else {one: offset for one, offset in offsets.items() if one in starts}
            starts = {one: min(offset, starts.get(one, offset)) for one, offset in known.items()}
            is_first = False
        return starts

    def _ends(self, topic: str) -> dict[Partition, int]:
        return {one: offset.next for one, offset in self._maker.offsets.items() if one[0] == topic}

    def _check_faults(self, block: MessageBlock, decoded: Decoded, known: set[tuple[Partition, int]]) -> None:
        """Raise if a message cannot be read that was readable before: it may have a row of a kept message."""
        for fault in decoded.faults:
            one = (block.topic, int(block.partition[fault.message])), int(block.offset[fault.message])
            if one not in known and not self._accepts_gap:
                raise DecodeError(
                    f"A message after a kept one cannot be read, and it may have a newer row: {fault.reason}.",
                    hint="Correct the job file. `cdc replay-bad NAME --accept-gap` skips such messages.",
                    at=message_position(block, fault.message),
                )

    def _read(self, spans: Mapping[Partition, tuple[int, int]]) -> Iterator[MessageBlock]:
        """Yield the messages of partitions from an offset to before another one."""
        ends = {one: end for one, (start, end) in spans.items() if start < end}
        to_read = sum(end - spans[one][0] for one, end in ends.items())
        self.progress = replace(self.progress, total=self.progress.total + to_read)
        waiting, seen = {*ends}, time.monotonic()
        reader = MessageReader(self._settings, self._cluster, self._window_bytes)
        try:
            reader.assign({one: PartitionOffset(spans[one][0]) for one in ends})
            while waiting and not self._stopping.is_set():
                chunk = reader.read(_READ_S)
                if chunk.error is not None and action_for(chunk.error) is not ErrorAction.RETRY:
                    raise chunk.error
                if chunk.blocks or chunk.ends:
                    seen = time.monotonic()
                elif chunk.lost or time.monotonic() > seen + _TIMEOUT_S:
                    raise SourceUnavailable(
                        "The messages after a kept one cannot be read.", hint="It is repeated automatically."
                    )
                done = {one for one, end in chunk.ends.items() if end >= ends.get(one, end)}
                for block in chunk.blocks:
                    part, ended = before(block, ends)
                    done |= ended.keys()
                    if len(part.offset):
                        self.progress = replace(self.progress, read=self.progress.read + len(part.offset))
                        yield part
                reader.remove(done & waiting)
                waiting -= done
        finally:
            reader.close()


def _topic_of(file: BadFile) -> str:
    return file.topic


def _is_before(block: MessageBlock, number: int, first: Mapping[Partition, int]) -> bool:
    """Return whether the topic no longer has a message."""
    one = (block.topic, int(block.partition[number]))
    return one not in first or int(block.offset[number]) < first[one]


def _hashes(maker: BatchMaker, rows: DecodedRows) -> NDArray[np.uint64] | None:
    if not maker.copies_key(rows.schema):
        return None
    return hashes_of([column for _, column in maker.key_columns(rows)])


def _of_keys(maker: BatchMaker, rows: DecodedRows, keys: Keys) -> DecodedRows:
    found, wanted = _hashes(maker, rows), keys[rows.schema.name]
    return rows if found is None or wanted is None else chosen_rows(rows, np.isin(found, wanted))


def _still_bad(topic: _Topic) -> Iterator[BadFile]:
    """Yield the files with the messages that still cannot be read, with the reasons of now."""
    faults, number = {fault.message: fault for fault in topic.decoded.faults}, 0
    for file in topic.files:
        found = []
        for message in file.messages:
            if (fault := faults.get(number)) is not None:
                found.append({**message, "table": fault.table, "reason": fault.reason})
            number += 1
        if found:
            yield replace(file, messages=tuple(found))


def _after(kept: KeptMessages, left: Iterable[BadFile]) -> KeptMessages:
    """Return what is known after a replay. Loaded messages no longer count in the window."""
    tables = Counter(str(message["table"]) for file in left for message in file.messages)
    count = tables.total()
    read, bad = (sum(part[n] for part in kept.window) for n in (0, 1))
    window = ((read, min(bad, count)),) if read else ()
    return KeptMessages(kept.replays + 1, kept.loaded + kept.count - count, by_table(tables), window)


def _block(topic: str, messages: Sequence[Mapping[str, object]]) -> MessageBlock:
    keys, values = ([bytes_of(message, name) for message in messages] for name in ("key", "value"))
    texts = [text or b"" for text in (*values, *keys)]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    count = len(messages)

    def numbers(name: str, kind: type[np.int32] | type[np.int64]) -> NDArray[np.int32 | np.int64]:
        return np.array([message[name] for message in messages], kind)

    def sizes(found: Sequence[bytes | None]) -> NDArray[np.int64]:
        return np.array([-1 if text is None else len(text) for text in found], np.int64)

    return MessageBlock(
        topic,
        np.frombuffer(b"".join((*texts, bytes(PADDING))), np.uint8),
        starts[:count],
        sizes(values),
        starts[count:],
        sizes(keys),
        numbers("partition", np.int32).astype(np.int32),
        numbers("offset", np.int64).astype(np.int64),
        numbers("timestamp_ms", np.int64).astype(np.int64),
    )
