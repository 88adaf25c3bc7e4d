"""Move a job to another host: for the command, the REST API and its clients."""

from __future__ import annotations

from cdc.errors import ConfigError, PrerequisiteError
from cdc.manager.host_loop import SpecCache, is_to_run, place
from cdc.state.deployments import Deployment
from cdc.state.hosts import Host
from cdc.state.sql import SqlStore


def move_job(store: SqlStore, job: Deployment, host: str | None, actor: str) -> str:
    """Assign the job to ``host``, or to the best other one, and return its name. The position of the job is kept.

    The driver on the old host loses its lease and ends; the new host starts one. Raises: ConfigError - the hosts do not
    run this job, or there is no such host that accepts jobs; PrerequisiteError - no other host can run it.
    """
    name = job.job
    if not is_to_run(job):
        raise ConfigError(
            f"The job {name} does not run on the hosts of `cdc serve`.",
            hint="Start it with `cdc start JOB.yaml` while `cdc serve` runs on a host.",
        )
    hosts = store.hosts.all()
    if host is None:
        jobs = [one for one in store.deployments.all() if is_to_run(one)]
        placement = place(jobs, hosts, SpecCache(), avoids=job.host, moved=name)[name]
        if placement.host is None:
            raise PrerequisiteError(f"The job {name} cannot be moved: {placement.reason}.", hint=placement.hint or "")
        host = placement.host
    target = next((one for one in hosts if one.name == host), None)
    if target is None:
        raise no_host(hosts, host)
    if not target.accepts_jobs:
        raise ConfigError(f"The host {host} does not accept jobs.", hint="See `cdc hosts`.", host=host)
    if job.host == host:
        raise ConfigError(f"The job {name} is on host {host} already.", hint="See `cdc hosts`.")
    there = [one for one in store.deployments.all() if is_to_run(one) and (one.host == host or one.job == name)]
    placement = place(there, [target], SpecCache(), avoids=job.host, moved=name)[name]
    if placement.host is None:
        hint = placement.hint or ""
        raise PrerequisiteError(f"The job {name} cannot be moved: {placement.reason}.", hint=hint, host=host)
    if not store.deployments.assign(name, host, job.fence, actor=actor):
        raise ConfigError(f"The job {name} was changed meanwhile.", hint="Repeat the request.")
    return host


def no_host(hosts: tuple[Host, ...], name: str) -> ConfigError:
    """Return the error for a host that does not exist."""
    known = ", ".join(host.name for host in hosts)
    return ConfigError(f"There is no host {name}.", hint=f"Known hosts: {known or 'none'}.")
