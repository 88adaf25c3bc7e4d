"""The metrics of ``cdc serve``: drivers of this host, jobs and hosts of the store, take-overs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.api.metrics import job_metrics, state_metrics
from cdc.manager.host_loop import SpecCache, is_paused_by_user, is_to_run
from cdc.manager.rest.history import Sampler, StoreView
from cdc.state.base import JobState
from cdc.state.deployments import Deployment, DesiredState


class HostMetrics(Collector):
    """Metrics of this host, each name once. Nothing waits for the store: its rows are those of the newest sample.

    Every host answers for all hosts and for all jobs that are to run, so an alert can name a host that is gone and a
    job that no host runs.
    """

    def __init__(self, sampler: Sampler, takeovers: Callable[[], Mapping[str, int]]) -> None:
        self._sampler = sampler
        self._takeovers = takeovers
        self._specs = SpecCache()

    def describe(self) -> Iterable[Metric]:
        """Return (), because the registration must not read the jobs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        found: dict[str, Metric] = {}
        for metric in self._all():
            if (first := found.setdefault(metric.name, metric)) is not metric:
                first.samples.extend(metric.samples)
        yield from found.values()

    def _all(self) -> Iterator[Metric]:
        statuses, view = self._sampler.statuses(), self._sampler.view
        for status in statuses:
            yield from job_metrics(status)
        jobs = [job for job in view.jobs if is_to_run(job)] if view is not None else []
        yield from self._jobs(jobs, {status.job for status in statuses})
        if view is None:
            return
        up = GaugeMetricFamily("cdc_store_up", "1 while this host can read the state store.")
        up.add_metric((), float(view.is_up))
        yield up
        if view.is_up:
            yield from self._hosts(view, jobs)

    def _jobs(self, jobs: Iterable[Deployment], answering: Collection[str]) -> Iterator[Metric]:
        takeovers = CounterMetricFamily(
            "cdc_job_takeovers", "Jobs that this host took over from another one.", labels=("job_name",)
        )
        # from 0 on: Prometheus does not count the first value of a series as an increase
        for name, number in {**{job.job: 0 for job in jobs}, **self._takeovers()}.items():
            takeovers.add_metric((name,), number)
        yield takeovers
        for job in jobs:
            if job.job not in answering:
                yield from state_metrics(job.job, self._state(job), _desired(job))

    def _state(self, job: Deployment) -> JobState:
        """Return the state of a job whose driver does not answer here: RUNNING only if another host holds its lease."""
        is_current = job.record.state is JobState.PAUSED or (job.is_held and not self._sampler.is_here(job))
        return job.record.state if is_current else JobState.PENDING

    def _hosts(self, view: StoreView, jobs: Iterable[Deployment]) -> Iterator[Metric]:
        up = GaugeMetricFamily("cdc_host_up", "1 while the heartbeat of the host is not expired.", labels=("host",))
        free = GaugeMetricFamily(
            "cdc_host_memory_free_bytes", "Memory of the host that no job has reserved.", labels=("host",)
        )
        for host in view.hosts:
            up.add_metric((host.name,), float(host.is_alive))
            used = sum(self._specs.spec(job).memory for job in jobs if job.host == host.name)
            free.add_metric((host.name,), float(host.memory - used))
        yield from (up, free)


def _desired(job: Deployment) -> DesiredState:
    is_paused = job.desired is DesiredState.PAUSED or is_paused_by_user(job)
    return DesiredState.PAUSED if is_paused else DesiredState.RUNNING
