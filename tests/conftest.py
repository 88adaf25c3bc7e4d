"""Fixtures that more than one folder of tests needs: real servers, started once, and a fresh database per test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.errors import SurroundingsError
from cdc.local_servers import Kind, LocalServer, obtain
from tests.recovery.matrix import SUMMARY
from tests.seeds import again, seed_of

if TYPE_CHECKING:
    from tests.servers.canal import CanalServer


def pytest_configure() -> None:
    """All workers draw alike, the sample of the fault matrix too: they take over what the first process says here."""
    seed_of()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker has ended; its summary goes to the process that prints."""
    found = getattr(node, "workeroutput", {}).get("summary")
    if found is not None:
        node.config.stash[SUMMARY] = found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The matrix has its summary at the end of everything, and failures say how to have their draws again."""
    summary = config.stash.get(SUMMARY, None)
    if summary is not None:
        terminalreporter.section("fault matrix")
        terminalreporter.write_line(summary)
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(again())


def _server(kind: Kind, folder: Path, options: tuple[str, ...]) -> Iterator[LocalServer]:
    try:
        binaries = obtain(kind)
    except SurroundingsError as error:
        unavailable(str(error))
    with LocalServer.start(binaries, folder, options=options) as server:
        yield server


def unavailable(why: str) -> None:
    """Skip, saying why; with CDC_TEST_REQUIRE_ALL=1 a skip is a failure."""
    if os.environ.get("CDC_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"required, but not available: {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real MySQL with full row metadata, shared by the session; GTIDs on, some of them tagged."""
    yield from _server("mysql", tmp_path_factory.mktemp("mysql"), ("--binlog-row-metadata=FULL",))


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real MariaDB with full row metadata, shared by the session."""
    yield from _server("mariadb", tmp_path_factory.mktemp("mariadb"), ("--binlog-row-metadata=FULL",))


@pytest.fixture(scope="module")
def canal(mysql: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    """A real Canal server that reads ``mysql``: a durable cursor, the default ring, eight hours ahead of UTC.

    One for each module: it begins at the end of the binlog, and columns that it cannot read, which other tests write,
    would stop it for ever.
    """
    yield from _canal(mysql, tmp_path_factory.mktemp("canal"))


@pytest.fixture(scope="module")
def canal_mariadb(mariadb: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    """The same that reads ``mariadb``."""
    yield from _canal(mariadb, tmp_path_factory.mktemp("canal-mariadb"))


def _canal(source: LocalServer, folder: Path) -> Iterator[CanalServer]:
    from tests.canal_sources import canal_server

    with canal_server(folder, source, time_zone="GMT+08:00") as server:
        yield server


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
