"""``cdc serve``: one host, from its file to its end."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil

from cdc.config.fields import is_loopback
from cdc.config.issues import SHOWN_CHARACTERS
from cdc.config.serve_models import ServeConfig
from cdc.errors import CheckpointError, ConfigError, LeaseLost
from cdc.manager.alerts import HostWebhook
from cdc.manager.cache_warming import start_warming
from cdc.manager.fork_server import ForkServer
from cdc.manager.host_loop import HostLoop
from cdc.manager.jobs_folder import JobsFolder
from cdc.manager.local_drivers import LocalDrivers
from cdc.manager.rest import Tokens, build_app
from cdc.manager.rest.history import Sampler
from cdc.manager.server import ManagerServer
from cdc.manager.shared_spark import SharedSpark, shared_folder
from cdc.model.host_name import is_host_name
from cdc.paths import state_folder
from cdc.state.hosts import Host
from cdc.state.opening import LEASE, open_store
from cdc.state.store_url import PASSWORD, STORE
from spark.connect_server import SPARK_CONNECT
from spark.settings import driver_memory

HOST = "CDC_HOST"
MEMORY_SHARE = 0.8  # the rest is for the system and for `cdc serve`
WORKERS_MEMORY = 512 << 20  # of a shared Spark, outside of its heap

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
    if config.spark.connect is not None:
        found[SPARK_CONNECT] = str(shared_folder()) if config.spark.is_shared else config.spark.connect
    return found


def check_listen(config: ServeConfig) -> None:
    """Refuse to be reachable from other machines without tokens and TLS. Raises: ConfigError."""
    listen = config.listen
    if is_loopback(listen.host):
        return
    if config.tokens.admin is None:
        raise ConfigError(
            f"`cdc serve` would accept requests without a token at {listen.host}.",
            hint="Set `tokens.admin`, and `tokens.viewer` for people who only read.",
        )
    if (listen.certificate is None or listen.key is None) and not listen.insecure:
        raise ConfigError(
            f"`cdc serve` would send tokens without TLS from {listen.host}.",
            hint="Set `listen.certificate` and `listen.key`, or `listen.insecure: true` behind a proxy that adds TLS.",
        )


def _check_name(name: str) -> None:
    """Refuse a name of ``$CDC_HOST`` or of the machine that the REST API cannot address. Raises: ConfigError."""
    if not is_host_name(name):
        raise ConfigError(
            f"The REST API cannot address a host with the name {name[:SHOWN_CHARACTERS]!r}.",
            hint=f"Set {HOST} or `host.name` to 1 to 190 characters A-Z, a-z, 0-9, _, . and -.",
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
    with ExitStack() as stack:
        stack.enter_context(_only_process(state_folder()))
        over = stack.enter_context(_ended_by_signals())
        store = stack.enter_context(closing(open_store()))
        _check_name(store.host.name)
        # a store holds one job at a time, and the REST API changes jobs on other threads
        forks = stack.enter_context(closing(ForkServer(start_warming)))
        drivers = LocalDrivers(stack.enter_context(closing(open_store())), forks=forks, debug=debug)
        shared = stack.enter_context(_shared_spark(config, drivers)) if config.spark.is_shared else None
        folder = JobsFolder(config.jobs_folder, store) if config.jobs_folder is not None else None
        sampler, ready = Sampler(store), list[HostLoop]()
        app = build_app(
            store,
            _tokens(config),
            sampler,
            ready=lambda: bool(ready) and ready[0].is_ready,
            takeovers=lambda: ready[0].takeovers if ready else {},
        )
        server = ManagerServer(app, config.listen)
        stack.callback(server.close)
        url = server.start()
        labels, run_id = dict(config.host.labels), secrets.token_hex(8)
        host = Host(store.host.name, run_id, config.host.address or url, _memory(config), labels)

        def prepare() -> None:
            forks.start()
            if shared is not None:
                shared.start()

        def is_starting() -> bool:
            return forks.is_starting or (shared is not None and not shared.is_ready)

        lease_s = store.hosts.lease_s
        loop = HostLoop(
            store, host, drivers, folder,
            lease_s=lease_s, rebalance_s=config.rebalance, prepare=prepare, is_starting=is_starting,
        )  # fmt: skip
        ready.append(loop)
        webhook = HostWebhook(store, config.alerts, sampler)
        webhook.start()
        stack.callback(webhook.close)
        loop.tick()
        stack.callback(over.set)
        threading.Thread(target=drivers.watch, args=(over,), name="watch", daemon=True).start()
        started(host.name, url)
        loop.run(over)
        if drain_on_exit:
            loop.drain()
        return 0


@contextmanager
def _shared_spark(config: ServeConfig, drivers: LocalDrivers) -> Iterator[SharedSpark]:
    """Yield the shared Spark, to be started. It continues with the drivers, and otherwise ends with this process."""
    shared = SharedSpark(shared_folder(), config.spark.memory)
    try:
        yield shared
    finally:
        shared.close(ends_server=not drivers.may_run)


def _tokens(config: ServeConfig) -> Tokens:
    admin, viewer = (one and one.get_secret_value() for one in (config.tokens.admin, config.tokens.viewer))
    return Tokens(admin or None, viewer or None)


def _memory(config: ServeConfig) -> int:
    if config.host.memory is not None:
        return config.host.memory
    limit = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit = min(limit, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    shared = (config.spark.memory or driver_memory()) + WORKERS_MEMORY if config.spark.is_shared else 0
    return max(0, int(limit * MEMORY_SHARE) - shared)


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
def _ended_by_signals() -> Iterator[threading.Event]:
    over = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: over.set()) for number in numbers}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
