"""``cdc serve``: one host, from its file to its end."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cdc.config.fields import is_loopback
from cdc.config.serve_models import ServeConfig
from cdc.errors import CheckpointError, ConfigError, LeaseLost
from cdc.manager.host_loop import HostLoop
from cdc.manager.host_metrics import HostMetrics
from cdc.manager.jobs_folder import JobsFolder
from cdc.manager.local_drivers import LocalDrivers
from cdc.manager.rest import Tokens, build_app
from cdc.manager.server import ManagerServer
from cdc.paths import state_folder
from cdc.state.hosts import Host
from cdc.state.opening import LEASE, open_store
from cdc.state.store_url import PASSWORD, STORE

HOST = "CDC_HOST"
MEMORY_SHARE = 0.8  # the rest is for the system and for `cdc serve`

_log = logging.getLogger(__name__)


def environment_of(config: ServeConfig) -> dict[str, str]:
    """Return the environment variables that this process and its drivers need."""
    found = {LEASE: f"{config.lease:g}"} if "lease" in config.model_fields_set else {}  # else as it is set already
    if config.store is not None:
        found[STORE] = config.store
    if config.store_password is not None:
        found[PASSWORD] = config.store_password.get_secret_value()
    if config.host.name is not None:
        found[HOST] = config.host.name
    return found


def check_listen(config: ServeConfig) -> None:
    """Refuse to be reachable from other machines without tokens and TLS. Raises: ConfigError."""
    listen = config.listen
    if is_loopback(listen.host):
        return
    if config.tokens.admin is None:
        raise ConfigError(
            f"`cdc serve` would accept requests of everybody at {listen.host}.",
            hint="Set `tokens.admin`, and `tokens.viewer` for people who only read.",
        )
    if (listen.certificate is None or listen.key is None) and not listen.insecure:
        raise ConfigError(
            f"`cdc serve` would send tokens without TLS from {listen.host}.",
            hint="Set `listen.certificate` and `listen.key`, or `listen.insecure: true` behind a proxy that adds TLS.",
        )


def run_host(
    config: ServeConfig,
    *,
    drain_on_exit: bool = False,
    debug: bool = False,
    started: Callable[[str, str], None] = lambda name, url: None,
) -> int:
    """Run this host until SIGTERM or SIGINT, and return the exit code. The drivers continue, except with a drain.

    ``drain_on_exit``: end the drivers at the end of this process, as a container does in any case. ``started`` is
    called with the name of the host and the address of the web page.
    Raises: ConfigError, PrerequisiteError, CheckpointError; LeaseLost - another process has the name of this host.
    """
    check_listen(config)
    os.environ.update(environment_of(config))
    over = threading.Event()
    with _only_process(state_folder()), _ended_by_signals(over):
        store = open_store()
        server = watching = None
        try:
            drivers = LocalDrivers(store, debug=debug)
            folder = JobsFolder(config.jobs_folder, store) if config.jobs_folder is not None else None
            host = Host(
                store.host.name, secrets.token_hex(8), config.host.address, _memory(config), dict(config.host.labels)
            )
            ready: list[HostLoop] = []
            metrics = HostMetrics(store, lambda: ready[0].takeovers if ready else {})
            app = build_app(
                store, _tokens(config), ready=lambda: bool(ready) and ready[0].is_ready, collectors=[metrics]
            )
            server = ManagerServer(app, config.listen)
            url = server.start()
            host = Host(host.name, host.run_id, host.address or url, host.memory, host.labels)
            loop = HostLoop(store, host, drivers, folder, lease_s=store.hosts.lease_s)
            ready.append(loop)
            loop.tick()
            watching = threading.Thread(target=drivers.watch, args=(over,), name="watch", daemon=True)
            watching.start()
            started(host.name, url)
            loop.run(over)
            if drain_on_exit:
                loop.drain()
            return 0
        finally:
            over.set()
            for part in (server, store):
                if part is not None:
                    part.close()


def _tokens(config: ServeConfig) -> Tokens:
    admin, viewer = (one and one.get_secret_value() for one in (config.tokens.admin, config.tokens.viewer))
    return Tokens(admin or None, viewer or None)


def _memory(config: ServeConfig) -> int:
    if config.host.memory is not None:
        return config.host.memory
    limit = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit = min(limit, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return int(limit * MEMORY_SHARE)


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Hold the lock of this ``$CDC_HOME``. Raises: LeaseLost - another ``cdc serve`` has it."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        file = (folder / "host.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"The folder of this host cannot be written: {error.strerror}.", hint="Correct CDC_HOME.", path=folder
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LeaseLost(
                "Another `cdc serve` runs with this CDC_HOME.",
                hint="End it first, or set CDC_HOME to another folder and CDC_HOST to another name.",
                path=folder,
            ) from None
        yield


@contextmanager
def _ended_by_signals(over: threading.Event) -> Iterator[None]:
    def end(number: int, _: object) -> None:
        over.set()

    before: Mapping[int, object] = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
