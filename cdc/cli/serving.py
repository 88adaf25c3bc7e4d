"""Commands for several hosts: serve, hosts, move."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.cli.options import debug_option, name_argument, output_option
from cdc.cli.terminal import console, print_result, print_state
from cdc.errors import ConfigError, LeaseLost, PrerequisiteError

if TYPE_CHECKING:
    from cdc.api.models import JobStatus
    from cdc.manager.waiting import Before
    from cdc.state.base import JobRecord
    from cdc.state.hosts import Host
    from cdc.state.sql import SqlStore

MOVE_S = 120.0  # the driver on the old host finishes its commit, and a new one starts


@click.command()
@click.argument("file", metavar="[SERVE.yaml]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--drain-on-exit",
    is_flag=True,
    help="End the jobs of this host when this process ends, so that other hosts take them over: for containers.",
)
@debug_option
@click.pass_context
def serve(context: click.Context, file: Path | None, drain_on_exit: bool, debug: bool) -> None:
    """Run a host: it runs the jobs of the state store, takes over those of dead hosts, and serves API and web page."""
    from cdc.config.serve_models import load_serve_config
    from cdc.logging_setup import hide, set_up_logs
    from cdc.manager.serve import run_host

    debug = debug or context.obj
    config = load_serve_config(file)
    set_up_logs("serve", secrets=config.secrets(), debug=debug)
    hide(config.secrets())
    terminal = console(stderr=True)

    def started(name: str, url: str) -> None:
        terminal.print(f"[green]Host {name} is ready.[/] See {url} or `cdc hosts`.", soft_wrap=True)

    sys.exit(run_host(config, drain_on_exit=drain_on_exit, debug=debug, started=started))


@click.command()
@click.option("--drain", metavar="NAME", help="End the jobs of a host, so that other hosts take them over.")
@click.option("--undrain", metavar="NAME", help="Let a host accept jobs again.")
@click.option("--forget", metavar="NAME", help="Delete a host that is gone for good.")
@output_option
def hosts(drain: str | None, undrain: str | None, forget: str | None, output: str) -> None:
    """Show the hosts of the state store with their jobs, or drain one."""
    from cdc.job.registry import open_store
    from cdc.manager.host_loop import is_to_run
    from cdc.manager.moving import no_host

    with open_store() as store:
        for name, drained in ((drain, True), (undrain, False)):
            if name is not None and not store.hosts.set_drained(name, drained=drained):
                raise no_host(store.hosts.all(), name)
        if forget is not None and not store.hosts.forget(forget):
            if forget not in {host.name for host in store.hosts.all()}:
                raise no_host(store.hosts.all(), forget)
            raise ConfigError(
                f"The host {forget} is alive.",
                hint="End its `cdc serve`, and repeat this when `cdc hosts` shows it as DEAD.",
            )
        found, jobs = store.hosts.all(), tuple(job for job in store.deployments.all() if is_to_run(job))
    names = {host.name: [job.job for job in jobs if job.host == host.name] for host in found}
    show_hosts(found, names, output)


def show_hosts(hosts: Sequence[Host], jobs: Mapping[str, Sequence[str]], output: str) -> None:
    """Print hosts. ``jobs``: the names of the jobs of each host."""
    from cdc.cli.views import hosts_view

    if output == "json":
        click.echo(json.dumps([_host_json(host, jobs[host.name]) for host in hosts], indent=2))
    elif hosts:
        console().print(hosts_view(hosts, jobs))
    else:
        print_result("There are no hosts. Start one with `cdc serve`.")


@click.command()
@name_argument
@click.argument("host", metavar="[HOST]", required=False)
@output_option
def move(name: str, host: str | None, output: str) -> None:
    """Move a job to another host. Its position is kept."""
    from cdc.job.registry import get_job, open_store
    from cdc.manager.moving import move_job
    from cdc.manager.waiting import before_start, wait_until_running

    with open_store() as store:
        get_job(store, name)
        job = store.deployments.get(name)
        assert job is not None
        before = before_start(store, name)
        host = move_job(store, job, host, f"cdc move {name}")
        with console(stderr=True).status(f"Moving {name} to {host}"):
            status = wait_until_running(store, name, before, MOVE_S)
    state = status.state if status is not None else "starting"
    print_state(
        f"{name} is {state} on host {host}.", output, name, state if status is not None else "PENDING", host=host
    )


def _host_json(host: Host, jobs: Sequence[str]) -> dict[str, object]:
    body = asdict(host)
    body["labels"] = dict(host.labels)
    return {**body, "alive": host.is_alive, "jobs": list(jobs)}


def has_hosts(store: SqlStore) -> bool:
    """Return whether a ``cdc serve`` of this store is alive."""
    return any(host.is_alive for host in store.hosts.all())


def start_on_hosts(store: SqlStore, job_file: Path, *, adopt: bool) -> JobStatus:
    """Give a job to the hosts of ``cdc serve``. Return its status when it runs.

    ``adopt``: its next start continues from the newest commit in the sink. Raises: CdcError - the reason why it does
    not run.
    """
    import getpass

    from cdc.files import read_text_file
    from cdc.manager.jobs_folder import declare
    from cdc.manager.local_drivers import ADOPT
    from cdc.manager.spec import read_spec
    from cdc.manager.waiting import before_start, wait_until_adopted

    text = read_text_file(job_file, "The job file", "Give the path of a readable YAML file.")
    spec = read_spec(text, job_file.name)
    before, old = before_start(store, spec.name), store.deployments.get(spec.name)
    is_running = old is not None and old.is_held
    request = None
    if adopt and not is_running:  # before the host sees the job, so that its first start adopts
        request = store.events.request(spec.name, ADOPT, {}, actor=getpass.getuser())
    generation = declare(store, spec, actor=getpass.getuser())
    if old is not None and is_running and (adopt or old.generation == generation):
        raise LeaseLost(f"The job {spec.name} runs already.", hint=f"See `cdc status {spec.name}`.", host=old.holder)
    if request is not None:
        before = wait_until_adopted(store, spec.name, before, request)
    return await_start(store, spec.name, before)


def resume_on_hosts(store: SqlStore, record: JobRecord) -> JobStatus:
    """Resume a job that no host has run yet. Return its status when it runs.

    Raises: CdcError - the reason why it does not.
    """
    from cdc.job.registry import end_offline_pause
    from cdc.manager.waiting import before_start
    from cdc.state.deployments import DesiredState

    before = before_start(store, record.name)
    store.deployments.declare(record.name, desired=DesiredState.RUNNING, actor=f"cdc resume {record.name}")
    end_offline_pause(store, record)
    return await_start(store, record.name, before)


def is_on_hosts(store: SqlStore, name: str) -> bool:
    """Return whether the hosts of ``cdc serve`` run the job."""
    job = store.deployments.get(name)
    return job is not None and job.spec is not None and has_hosts(store)


def await_start(store: SqlStore, name: str, before: Before) -> JobStatus:
    """Return the status of a new run of the job when it is RUNNING on its host.

    Raises: CdcError - the reason why it is not.
    """
    from cdc.cli.start import START_S, not_running
    from cdc.manager.waiting import wait_until_running

    terminal = console(stderr=True)
    with terminal.status(f"Starting {name}"):
        status = wait_until_running(store, name, before, START_S)
    found = store.deployments.get(name)
    host = found.host if found is not None else None
    if status is None:
        raise PrerequisiteError(
            f"The job {name} is not RUNNING after {START_S:.0f} s; it continues to start.",
            hint=f"See `cdc status {name}`.",
            host=host,
        )
    if status.state not in {"RUNNING", "DONE"}:
        raise not_running(status)
    terminal.print(f"[green]{name} is {status.state} on host {host}.[/] See `cdc status {name}`.", highlight=False)
    return status
