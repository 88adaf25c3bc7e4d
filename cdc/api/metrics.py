"""The state of a job as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc.api.models import Controls, JobStatus
from cdc.state.base import JobState
from cdc.state.deployments import DesiredState


class JobCollector(Collector):
    """Metrics of a job. Each request reads the status of the job."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def describe(self) -> Iterable[Metric]:
        """Return (), because the registration must not read the status."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        yield from job_metrics(self._controls.status())


def job_metrics(status: JobStatus) -> Iterator[Metric]:
    """Yield the metrics of one job."""
    yield from _job_metrics(status)
    yield from _channel_metrics(status)
    yield from _store_metrics(status)
    yield from _verify_metrics(status)


def state_metrics(job: str, state: JobState, desired: DesiredState) -> Iterator[Metric]:
    """Yield the current and the desired state of one job."""
    current = GaugeMetricFamily("cdc_job_state", "1 for the current state of the job.", labels=("job_name", "state"))
    for one in JobState:
        current.add_metric((job, one), float(one is state))
    yield current
    wanted = GaugeMetricFamily(
        "cdc_job_desired_state", "1 for the state that the user wants.", labels=("job_name", "state")
    )
    for each in DesiredState:
        wanted.add_metric((job, each), float(each is desired))
    yield wanted


def _job_metrics(status: JobStatus) -> Iterator[Metric]:
    yield from state_metrics(status.job, status.state, status.desired_state)
    gauges: list[tuple[str, str, float | None]] = [
        ("cdc_lag_seconds", "Age of the oldest source transaction not yet visible.", status.lag_seconds),
        ("cdc_window_bytes", "Bytes of rows in memory that no Task has started to load.", status.window_bytes),
        ("cdc_window_limit_bytes", "Limit of cdc_window_bytes: memory.window.", status.window_limit_bytes),
    ]
    if status.source_connected is not None:
        text = "0 while the source does not answer and the job connects again."
        gauges.append(("cdc_source_connected", text, float(status.source_connected)))
    if (log := status.source_log) is not None:
        gauges += [
            ("cdc_source_position_bytes", "Offset of the last commit in its binlog file.", log.position_bytes),
            ("cdc_source_behind_bytes", "Bytes of binlog after the last commit.", log.behind_bytes),
            ("cdc_source_retention_seconds", "How long the server keeps its binlog files.", log.retention_seconds),
        ]
    if status.last_committed_at is not None:
        text = "Time at which the newest checkpoint was committed, since 1970."
        gauges.append(("cdc_last_commit_timestamp_seconds", text, _unix(status.last_committed_at)))
    if (last := status.schema_changes.last) is not None:
        gauges.append(("cdc_schema_change_seconds", "Duration of the steps of the newest schema change.", last.seconds))
    checkpoint = status.checkpoint
    if checkpoint is not None:
        gauges += [
            ("cdc_checkpoint_id", "Number of the newest checkpoint.", checkpoint.id),
            ("cdc_checkpoint_rows", "Source rows in the newest checkpoint.", checkpoint.rows),
            ("cdc_checkpoint_bytes", "Source bytes in the newest checkpoint.", checkpoint.bytes),
        ]
    for name, text, value in gauges:
        if value is not None:
            gauge = GaugeMetricFamily(name, text, labels=("job_name",))
            gauge.add_metric((status.job,), value)
            yield gauge
    if status.source_disconnects is not None:
        lost = CounterMetricFamily(
            "cdc_source_disconnects", "Connections to the source that were lost in this process.", labels=("job_name",)
        )
        lost.add_metric((status.job,), status.source_disconnects)
        yield lost
    lag = GaugeMetricFamily(
        "cdc_kafka_lag_messages",
        "Messages of a partition that are not committed.",
        labels=("job_name", "topic", "partition"),
    )
    for partition in status.partitions:
        lag.add_metric((status.job, partition.topic, str(partition.partition)), partition.lag_messages)
    yield lag
    if (bad := status.bad_rows) is not None:
        kept = GaugeMetricFamily(
            "cdc_kafka_bad_messages",
            "Messages that could not be decoded and are kept as files, by source table; empty: not known.",
            labels=("job_name", "source"),
        )
        known = {channel.source: channel.bad_messages for channel in status.channels}
        for source, number in {**known, "": bad.kept - sum(known.values())}.items():
            kept.add_metric((status.job, source), number)
        yield kept
        loaded = CounterMetricFamily(
            "cdc_kafka_replayed_messages", "Kept messages that `cdc replay-bad` has loaded.", labels=("job_name",)
        )
        loaded.add_metric((status.job,), bad.loaded)
        yield loaded
    split = CounterMetricFamily(
        "cdc_split_transactions", "Transactions that were divided between commit cycles.", labels=("job_name",)
    )
    split.add_metric((status.job,), status.split_transactions)
    yield split
    changes = CounterMetricFamily(
        "cdc_schema_changes",
        "Changes of columns, keys and rows by DDL that the job has followed.",
        labels=("job_name", "kind", "action"),
    )
    for one in status.schema_changes.counts:
        changes.add_metric((status.job, one.kind.value, one.action.value), one.number)
    yield changes
    if checkpoint is not None:
        seconds = GaugeMetricFamily(
            "cdc_checkpoint_seconds", "Duration of each part of the newest checkpoint.", labels=("job_name", "part")
        )
        for part, value in checkpoint.seconds.items():
            seconds.add_metric((status.job, part), value)
        yield seconds


def _store_metrics(status: JobStatus) -> Iterator[Metric]:
    store = status.store
    if store is None:
        return
    seconds = HistogramMetricFamily(
        "cdc_store_seconds", "Duration of the writes to the state store.", labels=("job_name",)
    )
    buckets = [(limit, float(count)) for limit, count in store.within.items()]
    seconds.add_metric((status.job,), [*buckets, ("+Inf", float(store.writes))], store.seconds)
    yield seconds


def _verify_metrics(status: JobStatus) -> Iterator[Metric]:
    last = status.verify.last
    running = GaugeMetricFamily("cdc_verify_running", "1 while a verification runs.", labels=("job_name",))
    running.add_metric((status.job,), float(status.verify.current is not None))
    yield running
    if last is None:
        return
    gauges = (
        ("cdc_verify_equal", "1 if the newest verification found no difference.", float(last.state == "equal")),
        ("cdc_verify_failed", "1 if the newest verification ended early.", float(last.state == "failed")),
        ("cdc_verify_seconds", "Duration of the steps of the newest verification.", last.seconds),
        ("cdc_verify_ended_seconds", "Time at which the newest verification ended, since 1970.", _unix(last.ended_at)),
    )
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(name, text, labels=("job_name",))
        gauge.add_metric((status.job,), value)
        yield gauge
    rows = GaugeMetricFamily(
        "cdc_verify_rows",
        "Rows of the newest verification: compared, missing, extra, different, changing, repaired.",
        labels=("job_name", "source", "result"),
    )
    for table in last.tables:
        counts = {
            "compared": table.rows, "missing": table.missing, "extra": table.extra, "different": table.different,
            "changing": table.changing, "repaired": table.repaired,
        }  # fmt: skip
        for result, number in counts.items():
            rows.add_metric((status.job, table.source, result), number)
    yield rows


def _unix(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _channel_metrics(status: JobStatus) -> Iterator[Metric]:
    labels = ("job_name", "source", "target")
    upserts = CounterMetricFamily("cdc_channel_upserts", "Committed inserts and updates.", labels=labels)
    deletes = CounterMetricFamily("cdc_channel_deletes", "Committed deletes.", labels=labels)
    volume = CounterMetricFamily("cdc_channel_bytes", "Committed source bytes.", labels=labels)
    buffered = GaugeMetricFamily("cdc_channel_buffered_rows", "Rows that wait for a Task.", labels=labels)
    dates = CounterMetricFamily("cdc_channel_invalid_dates", "Dates that became NULL in this run.", labels=labels)
    rows = GaugeMetricFamily("cdc_snapshot_rows", "Committed rows of the snapshot.", labels=labels)
    expected = GaugeMetricFamily("cdc_snapshot_estimated_rows", "Estimated rows of the table.", labels=labels)
    left = GaugeMetricFamily("cdc_snapshot_chunks_left", "Chunks not yet read.", labels=labels)
    consistent = GaugeMetricFamily("cdc_snapshot_consistent", "1 once the stream has caught up.", labels=labels)
    waiting = GaugeMetricFamily("cdc_snapshot_waiting", "1 until the first chunk of the table is read.", labels=labels)
    for channel in status.channels:
        values = (status.job, channel.source, channel.target)
        if channel.snapshot is not None:
            waiting.add_metric(values, float(channel.snapshot.state == "waiting"))
            rows.add_metric(values, channel.snapshot.rows)
            expected.add_metric(values, channel.snapshot.estimated_rows)
            left.add_metric(values, channel.snapshot.chunks - channel.snapshot.done)
            consistent.add_metric(values, float(channel.snapshot.consistent))
        upserts.add_metric(values, channel.upserts)
        deletes.add_metric(values, channel.deletes)
        volume.add_metric(values, channel.bytes)
        buffered.add_metric(values, channel.buffered_rows)
        dates.add_metric(values, channel.invalid_dates)
    yield from (upserts, deletes, volume, buffered, dates, rows, expected, left, waiting, consistent)
