"""The fork server: supervisors and drivers that are forks look and end like commands."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.job import fork
from cdc.manager import fork_server
from cdc.manager.fork_server import ARGUMENT_BYTES, ENDED_UNKNOWN, ForkedSupervisor, ForkServer
from tests.support.receiving import until

PROGRAM = "tests.integration.forked_program"
Start = Callable[..., ForkedSupervisor]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setattr(fork_server, "MODULES", (PROGRAM,))
    with closing(ForkServer()) as found:
        found.start()
        until(lambda: found.is_ready, 60, "a fork server")
        yield found


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Start:
    def run(*words: str) -> ForkedSupervisor:
        (tmp_path / "log").touch()
        return server.launch(command(*words), tmp_path / "log")

    return run


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", PROGRAM, *words]


def said(folder: Path, number: int = 0) -> dict[str, Any]:
    until(lambda: (folder / "log").read_text().count("\n") > number, 60, "a line")
    return dict(json.loads((folder / "log").read_text().splitlines()[number]))


def code_of(process: ForkedSupervisor) -> int:
    until(lambda: process.poll() is not None, 60, "the end of a fork")
    assert process.returncode is not None
    return process.returncode


def test_fork_looks_like_a_command_of_its_own(start: Start, tmp_path: Path) -> None:
    process = start("exit", "3", "a b", "ü")
    found = said(tmp_path)
    assert code_of(process) == 3
    assert [word for word in found["words"] if word.strip()] == command("exit", "3", "a b", "ü")
    assert found["arguments"] == ["exit", "3", "a b", "ü"]
    assert found["pid"] == found["session"] == process.pid
    assert found["blocked"] == [] and found["files"] == [str(tmp_path / "log")]
    assert found["is_imported"]


def test_command_that_is_too_long_to_be_shown_is_no_fork(start: Start, tmp_path: Path) -> None:
    long = "x" * 2 * ARGUMENT_BYTES
    assert code_of(start("exit", "4", long)) == 4
    found = said(tmp_path)
    assert found["words"] == command("exit", "4", long) and not found["is_imported"]


def test_fork_of_a_fork_is_its_child(start: Start, tmp_path: Path) -> None:
    process = start("start", "exit", "5")
    assert code_of(process) == 5
    child = said(tmp_path, 1)
    assert child["parent"] == process.pid == child["session"] != child["pid"]
    assert child["added"] == "yes" and child["is_imported"]
    assert [word for word in child["words"] if word.strip()] == command("exit", "5")


def test_failure_of_a_fork_is_not_handled_by_the_code_that_started_it(start: Start, tmp_path: Path) -> None:
    """That code expects OSError, and would continue in the fork."""
    assert code_of(start("start", "raise")) == 1
    assert (tmp_path / "log").read_text().count("OSError: it fails") == 1


def test_signal_ends_a_fork(start: Start, tmp_path: Path) -> None:
    process = start("wait")
    os.kill(said(tmp_path)["pid"], signal.SIGTERM)
    assert code_of(process) == -signal.SIGTERM


def test_process_learns_which_signal_has_ended_its_fork(start: Start, tmp_path: Path) -> None:
    process = start("start", "wait")
    os.kill(said(tmp_path, 1)["pid"], signal.SIGTERM)
    assert code_of(process) == 256 - signal.SIGTERM, "the program exits with the code of its child"


def test_signal_directly_after_a_fork_is_not_lost(start: Start) -> None:
    for _ in range(20):
        process = start("wait")
        process.terminate()
        assert code_of(process) == -signal.SIGTERM


def test_forks_continue_without_the_fork_server(server: ForkServer, start: Start, tmp_path: Path) -> None:
    process = start("wait")
    said(tmp_path)
    server.close()
    assert process.poll() is None and psutil.pid_exists(process.pid)
    process.terminate()
    assert code_of(process) == ENDED_UNKNOWN


def test_fork_server_that_has_died_is_started_again(server: ForkServer, start: Start, tmp_path: Path) -> None:
    assert server._process is not None
    process = start("wait")
    server._process.kill()
    until(lambda: not server.is_alive, 60, "a dead fork server")
    with pytest.raises(OSError):
        start("wait")
    server.revive()
    assert not server.is_alive, "at most once a minute"
    server._began -= fork_server.REVIVE_S
    server.revive()
    until(lambda: server.is_ready, 60, "a fork server")
    assert code_of(start("exit", "0")) == 0
    assert process.poll() is None
    process.terminate()
    assert code_of(process) == ENDED_UNKNOWN


def test_changed_code_is_run_by_a_new_process(start: Start, tmp_path: Path) -> None:
    assert code_of(start("upgrade", "exit", "6")) == 6
    child = said(tmp_path, 1)
    assert child["words"] == command("exit", "6") and not child["is_imported"] and child["added"] == "yes"


def test_supervisor_runs_the_new_code_after_an_upgrade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fork_server, "MODULES", (PROGRAM, "tests.integration.upgraded_code"))
    with closing(ForkServer()) as found:
        found.start()
        until(lambda: found.is_ready, 60, "a fork server")
        (tmp_path / "log").touch()
        process = found.launch(command("exit", "6"), tmp_path / "log")
        assert code_of(process) == 6
    program = said(tmp_path)
    assert program["words"] == command("exit", "6") and not program["is_imported"]
    assert program["pid"] == program["session"] == process.pid and program["blocked"] == []


def test_only_commands_of_the_imported_code_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fork.may_fork(command("exit", "0")), "nothing is imported for forks"
    monkeypatch.setattr(fork, "_imported", fork.installed_version())
    assert fork.may_fork(command("exit", "0"))
    assert not fork.may_fork(["/usr/bin/python3", "-m", PROGRAM]) and not fork.may_fork([sys.executable, PROGRAM])
    monkeypatch.setattr(fork, "_imported", "of the code before")
    assert not fork.may_fork(command("exit", "0"))

    def replaced() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(fork, "installed_version", replaced)
    assert not fork.may_fork(command("exit", "0")), "an upgrade replaces files"


def test_fork_server_runs_without_an_optional_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fork_server, "MODULES", ("package_that_is_not_installed", PROGRAM))
    with closing(ForkServer()) as found:
        found.start()
        until(lambda: found.is_ready, 60, "a fork server")
        (tmp_path / "log").touch()
        assert code_of(found.launch(command("exit", "0"), tmp_path / "log")) == 0


def test_fork_server_that_hangs_is_killed(server: ForkServer, start: Start, tmp_path: Path) -> None:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    with pytest.raises(OSError, match=r"has ended|does not answer"):
        start("exit", "0")
    until(lambda: not server.is_alive, 60, "a dead fork server")


def test_fork_server_ends_while_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "MODULES", ("tests.integration.slow_import",))
    found = ForkServer()
    found.start()
    assert found.is_starting
    found.close()
    assert not found.is_alive
