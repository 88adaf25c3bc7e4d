"""Metrics of the hosts of a store and of take-overs, for ``/metrics`` of ``cdc serve``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.errors import CheckpointError
from cdc.manager.host_loop import SpecCache, is_to_run
from cdc.state.sql import SqlStore


class HostMetrics(Collector):
    """Every host answers for all of them, so an alert can name a host that is gone."""

    def __init__(self, store: SqlStore, takeovers: Callable[[], Mapping[str, int]]) -> None:
        self._store = store
        self._takeovers = takeovers
        self._specs = SpecCache()

    def describe(self) -> Iterable[Metric]:
        """Return (), because the registration must not read the store."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``. Without the store, only the take-overs are known."""
        takeovers = CounterMetricFamily(
            "cdc_job_takeovers", "Jobs that this host took over from another one.", labels=("job_name",)
        )
        for job, number in dict(self._takeovers()).items():
            takeovers.add_metric((job,), number)
        yield takeovers
        try:
            hosts, jobs = self._store.hosts.all(), self._store.deployments.all()
        except CheckpointError:
            return
        up = GaugeMetricFamily("cdc_host_up", "1 while the heartbeat of the host is not expired.", labels=("host",))
        free = GaugeMetricFamily(
            "cdc_host_memory_free_bytes", "Memory of the host that no job has reserved.", labels=("host",)
        )
        for host in hosts:
            up.add_metric((host.name,), float(host.is_alive))
            used = sum(self._specs.spec(job).memory for job in jobs if job.host == host.name and is_to_run(job))
            free.add_metric((host.name,), float(host.memory - used))
        yield from (up, free)
