"""Checks of `cdc check` for a Kafka source: brokers, topics, start, retention, one message per topic.

Every check runs, and every finding has a hint. The checks change nothing, and join no group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from cdc.checks.mysql import finding_of
from cdc.errors import CdcError
from cdc.job.kafka_wiring import KafkaParts
from cdc.model.kafka_position import PartitionOffset
from cdc.model.schema import DELETED
from cdc.sources.kafka.cluster import Cluster, Topics
from cdc.sources.kafka.formats.base import DecodedRows
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.guess import guess_format
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.reader import MessageReader
from channels.routes import Routes
from channels.sinks.base import Finding

_SHORT_MS = 24 * 3600 * 1000  # a job that is PAUSED over a night must still find its messages
_SAMPLE_S = 5.0
_TIMEOUT_S = 10.0
_SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True)
class SampleColumn:
    """A column of a target table, and the value for it in a message."""

    name: str
    source: str  # the source column or expression
    value: str | None  # of the source column; None: NULL, or not known
    is_computed: bool  # ``source`` is an expression, so its value is not known


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of a message, beside the columns of its target table."""

    topic: str
    partition: int
    offset: int
    table: str
    target: str
    deleted: bool
    columns: tuple[SampleColumn, ...]


class KafkaCheck:
    """Checks the source of a job, with one connection."""

    def __init__(self, parts: KafkaParts, routes: Routes, on_sample: Callable[[Sample], None]) -> None:
        """``on_sample`` gets the newest row of each topic and table as it arrives, beside its target columns."""
        self._parts, self._routes, self._on_sample = parts, routes, on_sample

    def findings(self, *, is_new: bool) -> Iterator[Finding]:
        """Yield what prevents or endangers reading. ``is_new``: the job has no checkpoint, so `start` applies."""
        with Cluster(self._parts.settings, _TIMEOUT_S) as cluster:
            try:
                topics = cluster.topics()
            except CdcError as error:
                yield finding_of(error)
                return
            for name in topics.missing:
                yield Finding(f"Kafka has no topic {name}.", "Correct `source.topics`, or create the topic.")
            if not topics.topics and not topics.missing:
                yield Finding(
                    "No topic matches `source.topics` yet.", "Correct the pattern, or wait for topics.", fatal=False
                )
            if is_new and not topics.missing:
                try:
                    self._parts.first_position(cluster)
                except CdcError as error:
                    yield finding_of(error)
            yield from unread_topics(self._parts, topics)
            yield from _retention(cluster, topics)
            yield from self._messages(cluster, topics)

    def _messages(self, cluster: Cluster, topics: Topics) -> Iterator[Finding]:
        """Decode the newest message of each topic."""
        parts, decoder = self._parts, self._parts.decoder()
        for block in _newest(parts, cluster, topics):
            try:
                decoded = decoder.decode(block)
            except CdcError as error:
                yield _with_guess(finding_of(error), parts, block)
                continue
            for rows in decoded.tables:
                with suppress(CdcError):
                    self._on_sample(_sample(block, rows, self._routes))
            if isinstance(decoder, DebeziumJson | DebeziumAvro):
                yield from _defaults(block, decoder.columns_with_default(block))
            # the event of a tombstone is the message before it, which is not read here
            for fault in [one for one in decoded.faults if not one.is_tombstone][:1]:
                finding = Finding(
                    f"A message of topic {block.topic} (partition {block.partition[fault.message]}, offset "
                    f"{block.offset[fault.message]}) cannot be read: {fault.reason}.",
                    "Check that `source.format` is the format of the messages.",
                    fatal=parts.bad_messages() is None,
                )
                yield _with_guess(finding, parts, block)


def unread_topics(parts: KafkaParts, topics: Topics) -> Iterator[Finding]:
    """Yield the topics whose messages the job would skip, because no channel reads them."""
    for name in sorted(topics.topics):
        if not parts.reads_topic(name):
            yield Finding(
                f"No channel reads topic {name}, so its messages are skipped.",
                f"Set `topic: {name}` in a channel, or remove the topic from `source.topics`.",
                fatal=False,
            )


def _retention(cluster: Cluster, topics: Topics) -> Iterator[Finding]:
    for name in sorted(topics.topics):
        retention = cluster.retention(name)
        kept, deletes = retention.messages_ms, retention.tombstones_ms
        if kept is not None and kept < _SHORT_MS:
            yield Finding(
                f"Topic {name} keeps messages for {kept / 3_600_000:.1f} hours. A job that is stopped for longer loses "
                "messages.",
                "Increase `retention.ms` of the topic.",
                fatal=False,
            )
        if deletes is not None:  # nothing shows the loss later: the log still begins at the same offset
            yield Finding(
                f"Topic {name} is compacted, and keeps deletes for {deletes / 3_600_000:.1f} hours "
                f"(`delete.retention.ms` is {deletes}). A job that is stopped for longer misses deletes: the rows stay "
                "in the target, and no error shows it.",
                "Set `delete.retention.ms` of the topic above the longest stop of the job, or use "
                "`cleanup.policy=delete`.",
                fatal=False,
            )


def _with_guess(finding: Finding, parts: KafkaParts, block: MessageBlock) -> Finding:
    """Add to the hint which format the messages have, if it seems to be another one."""
    found = guess_format(block)
    if found is None or found == parts.format_name:
        return finding
    return replace(
        finding,
        hint=f"The messages look like `format: {found}`, but `source.format` is {parts.format_name}. {finding.hint}",
    )


def _sample(block: MessageBlock, rows: DecodedRows, routes: Routes) -> Sample:
    mapping = routes.mapping_for(rows.schema.database, rows.schema.table)
    assert mapping is not None  # formats decode rows of mapped tables only
    last = rows.rows.slice(rows.rows.num_rows - 1).to_pylist()[0]
    values = {name.casefold(): value for name, value in last.items() if name != DELETED}
    sources = mapping.columns or {name: name for name in last if name != DELETED}
    columns = []
    for name, source in sources.items():
        bare = source.strip("` ").casefold()
        value = values.get(bare)
        columns.append(SampleColumn(name, source, None if value is None else str(value)[:_SHOWN], bare not in values))
    message = int(rows.message[-1])
    return Sample(
        block.topic,
        int(block.partition[message]),
        int(block.offset[message]),
        rows.schema.name,
        mapping.target,
        bool(last[DELETED]),
        tuple(columns),
    )


def _defaults(block: MessageBlock, columns: tuple[str, ...] | None) -> Iterator[Finding]:
    """Warn of columns in which a NULL cannot be distinguished. ``columns`` None: the messages have no schema."""
    if columns == ():
        return
    what = "a column with a default" if columns is None else f"column {', '.join(columns[:5])}"
    yield Finding(
        f"A NULL in {what} may arrive as the default of the column, in topic {block.topic}.",
        "Set replace.null.with.default=false in the converter (Kafka Connect 3.9 and later). A message does not "
        "show whether it is set.",
        fatal=False,
    )


def _newest(parts: KafkaParts, cluster: Cluster, topics: Topics) -> list[MessageBlock]:
    """Return the newest messages of the partitions, as far as they arrive within the time limit."""
    first, ends = cluster.first_offsets(topics.partitions), cluster.ends(topics.partitions)
    filled = {one: PartitionOffset(end - 1) for one, end in ends.items() if end > first.get(one, end)}
    reader = MessageReader(parts.settings, cluster, 0)
    blocks: list[MessageBlock] = []
    waiting, deadline = {*filled}, time.monotonic() + _SAMPLE_S
    try:
        reader.assign(filled)
        while waiting and time.monotonic() < deadline:
            chunk = reader.read(0.1)
            blocks += chunk.blocks
            waiting -= chunk.ends.keys()
    finally:
        reader.close()
    return blocks
