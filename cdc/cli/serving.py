"""Commands for several hosts: serve, hosts, move."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.cli.options import debug_option, name_argument, output_option
from cdc.cli.terminal import console, print_result
from cdc.errors import ConfigError, LeaseLost, PrerequisiteError

if TYPE_CHECKING:
    from cdc.manager.waiting import Before
    from cdc.state.deployments import Deployment
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
    secrets = (config.tokens.admin, config.tokens.viewer, config.store_password)
    words = tuple(secret.get_secret_value() for secret in secrets if secret is not None)
    set_up_logs("serve", secrets=words, debug=debug)
    hide(words)
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
    from cdc.cli.views import hosts_view
    from cdc.job.registry import open_store
    from cdc.manager.host_loop import is_to_run

    with open_store() as store:
        for name, drained in ((drain, True), (undrain, False)):
            if name is not None and not store.hosts.set_drained(name, drained=drained):
                raise _no_host(store, name)
        if forget is not None and not store.hosts.forget(forget):
            raise ConfigError(f"The host {forget} is alive or unknown.", hint="`cdc hosts` shows the hosts.")
        found, jobs = store.hosts.all(), tuple(job for job in store.deployments.all() if is_to_run(job))
    if output == "json":
        click.echo(json.dumps([host_json(host, jobs) for host in found], indent=2))
    elif found:
        console().print(hosts_view(found, jobs))
    else:
        print_result("There are no hosts. Start one with `cdc serve`.")


@click.command()
@name_argument
@click.argument("host", metavar="[HOST]", required=False)
def move(name: str, host: str | None) -> None:
    """Move a job to another host. Its position is kept."""
    from cdc.job.registry import get_job, open_store
    from cdc.manager.host_loop import SpecCache, is_to_run, place
    from cdc.manager.waiting import before_start, wait_until_running

    with open_store() as store:
        get_job(store, name)
        job = store.deployments.get(name)
        if job is None or not is_to_run(job):
            raise ConfigError(
                f"The job {name} does not run on the hosts of `cdc serve`.",
                hint="Start it with `cdc start JOB.yaml` while `cdc serve` runs on a host.",
            )
        before = before_start(store, name)
        if host is None:
            jobs = [one for one in store.deployments.all() if is_to_run(one)]
            placement = place(jobs, store.hosts.all(), SpecCache(), avoids=job.host, moved=name)[name]
            if placement.host is None:
                raise PrerequisiteError(
                    f"The job {name} cannot be moved: {placement.reason}.", hint=placement.hint or ""
                )
            host = placement.host
        target = next((one for one in store.hosts.all() if one.name == host), None)
        if target is None:
            raise _no_host(store, host)
        if not (target.is_alive and target.schedulable):
            raise ConfigError(f"The host {host} does not accept jobs.", hint="See `cdc hosts`.", host=host)
        if job.host == host:
            raise ConfigError(f"The job {name} is on host {host} already.", hint="See `cdc hosts`.")
        if not store.deployments.assign(name, host, job.fence, actor=f"cdc move {name}"):
            raise ConfigError(f"The job {name} was changed meanwhile.", hint="Repeat the command.")
        with console(stderr=True).status(f"Moving {name} to {host}"):
            status = wait_until_running(store, name, before, MOVE_S)
    state = status.state if status is not None else "starting"
    print_result(f"{name} is {state} on host {host}.")


def host_json(host: Host, jobs: tuple[Deployment, ...]) -> dict[str, object]:
    """Return a host as JSON, with the names of its jobs."""
    body = asdict(host)
    body["labels"] = dict(host.labels)
    return {**body, "alive": host.is_alive, "jobs": [job.job for job in jobs if job.host == host.name]}


def has_hosts(store: SqlStore) -> bool:
    """Return whether a ``cdc serve`` of this store is alive."""
    return any(host.is_alive for host in store.hosts.all())


def start_on_hosts(store: SqlStore, job_file: Path) -> None:
    """Give a job to the hosts of ``cdc serve``. Return when it runs. Raises: CdcError - the reason why it does not."""
    import getpass

    from cdc.manager.jobs_folder import declare
    from cdc.manager.spec import read_spec
    from cdc.manager.waiting import before_start

    try:
        text = job_file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"The job file cannot be read: {what}.", hint="Give the path of a readable YAML file.", file=job_file
        ) from error
    spec = read_spec(text, job_file.name)
    before, old = before_start(store, spec.name), store.deployments.get(spec.name)
    generation = declare(store, spec, actor=getpass.getuser())
    if old is not None and old.generation == generation and old.is_held:
        raise LeaseLost(f"The job {spec.name} runs already.", hint=f"See `cdc status {spec.name}`.", host=old.holder)
    await_start(store, spec.name, before)


def is_on_hosts(store: SqlStore, name: str) -> bool:
    """Return whether the hosts of ``cdc serve`` run the job."""
    job = store.deployments.get(name)
    return job is not None and job.spec is not None and has_hosts(store)


def await_start(store: SqlStore, name: str, before: Before) -> None:
    """Return when a new run of the job is RUNNING on its host. Raises: CdcError - the reason why it is not."""
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


def _no_host(store: SqlStore, name: str) -> ConfigError:
    known = ", ".join(host.name for host in store.hosts.all())
    return ConfigError(f"There is no host {name}.", hint=f"Known hosts: {known or 'none'}.")
