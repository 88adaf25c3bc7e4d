"""Fixtures for more than one test folder: real servers, started once, and a fresh database per test."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.demo.local_servers import Kind, LocalServer, obtain
from cdc.errors import PrerequisiteError
from tests.recovery.matrix import SUMMARY
from tests.support.drawing import keep_drawn
from tests.support.seeds import again, seed_of

if TYPE_CHECKING:
    from tests.emulators.canal import CanalServer
    from tests.emulators.kafka import KafkaBroker
    from tests.support.object_stores import S3Server
    from tests.support.store_servers import PostgresServer


def pytest_configure() -> None:
    """Set the seed in the first process; all workers inherit it, also for the sample of the fault matrix."""
    seed_of()
    # A shell sets SIGINT to ignored for a command in the background (`make test &`), and child processes inherit that:
    # Ctrl-C would not end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for all cases of tests that draw some."""
    parser.addoption("--all-cases", action="store_true", help="run all cases of tests that run a drawn part of them")


@pytest.hookimpl(trylast=True)  # after -m, so that the cases that it leaves are drawn from
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the drawn cases of tests that draw some."""
    keep_drawn(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the summary of a worker that has ended, for the process that prints."""
    found = getattr(node, "workeroutput", {}).get("summary")
    if found is not None:
        node.config.stash[SUMMARY] = found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the summary of the matrix, and after failures the seed."""
    summary = config.stash.get(SUMMARY, None)
    if summary is not None:
        terminalreporter.section("fault matrix")
        terminalreporter.write_line(summary)
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(again())


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test has failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """After a failed test, only print what it has left open, from the end of its fixtures on."""
    try:
        yield
    finally:
        if item.stash.get(_FAILED, False):
            sys.unraisablehook = sys.__unraisablehook__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Free what a failed test has left open: its files would fail a later test as an unraisable exception."""
    hook = sys.unraisablehook
    try:
        return (yield)
    finally:
        if item.stash.get(_FAILED, False):
            for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                if hasattr(sys, name):
                    delattr(sys, name)
            gc.collect()
        sys.unraisablehook = hook


def _server(kind: Kind, folder: Path, options: tuple[str, ...]) -> Iterator[LocalServer]:
    try:
        binaries = obtain(kind)
    except PrerequisiteError as error:
        unavailable(str(error))
    with LocalServer.start(binaries, folder, options=options) as server:
        yield server


def unavailable(why: str) -> None:
    """Skip the test with the reason. With CDC_TEST_REQUIRE_ALL=1 a skip is a failure."""
    if os.environ.get("CDC_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"required, but not available: {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real MySQL with full row metadata, shared by the session; GTIDs are on, and some of them are tagged."""
    yield from _server("mysql", tmp_path_factory.mktemp("mysql"), ("--binlog-row-metadata=FULL",))


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real MariaDB with full row metadata, shared by the session."""
    yield from _server("mariadb", tmp_path_factory.mktemp("mariadb"), ("--binlog-row-metadata=FULL",))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, shared by the session."""
    from tests.support.store_servers import postgres_server

    try:
        with postgres_server() as server:
            yield server
    except PrerequisiteError as error:
        unavailable(str(error))


@pytest.fixture(scope="module")
def canal(mysql: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    """A real Canal server that reads ``mysql``: a durable cursor, the default ring, eight hours ahead of UTC.

    One for each module: it starts at the end of the binlog, because columns that it cannot read, from other tests,
    would stop it forever.
    """
    yield from _canal(mysql, tmp_path_factory.mktemp("canal"))


@pytest.fixture(scope="module")
def canal_mariadb(mariadb: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    """The same Canal server for ``mariadb``."""
    yield from _canal(mariadb, tmp_path_factory.mktemp("canal-mariadb"))


def _canal(source: LocalServer, folder: Path) -> Iterator[CanalServer]:
    from tests.support.canal_sources import canal_server

    with canal_server(folder, source, time_zone="GMT+08:00") as server:
        yield server


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder with the jars of a real Kafka."""
    from tests.emulators.kafka import obtain_kafka

    try:
        return obtain_kafka()
    except PrerequisiteError as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka broker, shared by the session. Each test has topics of its own."""
    from tests.emulators.kafka import KafkaBroker

    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for a topic, which no other test uses."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", request.node.name)[:80]


@pytest.fixture
def database(mysql: LocalServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh, empty database on ``mysql``, dropped afterwards."""
    yield from _database(mysql, request.node.name)


@pytest.fixture
def mariadb_database(mariadb: LocalServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh, empty database on ``mariadb``, dropped afterwards."""
    yield from _database(mariadb, request.node.name)


def _database(server: LocalServer, test: str) -> Iterator[str]:
    name = re.sub(r"\W+", "_", test)[:60]
    server.execute(f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`")
    yield name
    server.execute(f"DROP DATABASE `{name}`")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server in memory, shared by the session; each test makes its own bucket."""
    from tests.support.object_stores import S3Server

    with closing(S3Server()) as server:
        yield server
