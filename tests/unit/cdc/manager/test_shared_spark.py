"""The supervision of a shared Spark: starts, silence, deaths and faults of the start, with processes without Spark."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import PrerequisiteError
from cdc.manager import shared_spark as module
from cdc.manager.shared_spark import ANSWER_EVERY_S, FIRST_WAIT_S, SILENT_S, SharedSpark
from cdc.process_start import start_of
from spark.connect_server import ADDRESS_FILE, ConnectServer, address_of, save_server
from spark.gateway import START_LIMIT_S

LIMIT_S = 120


class Supervised:
    """A shared Spark whose clock and answers the test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.answers = folder, 1000.0, False
        self.started: list[subprocess.Popen[bytes]] = []
        self.fault: Exception | None = None
        monkeypatch.setattr(module, "start_server", self.start)
        monkeypatch.setattr(ConnectServer, "answers", lambda *_: self.answers)
        self.shared = SharedSpark(folder, None, clock=lambda: self.now)

    def start(self, folder: Path, memory: int | None) -> tuple[ConnectServer, subprocess.Popen[bytes]]:
        if self.fault is not None:
            raise self.fault
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        self.started.append(process)
        address = f"sc://127.0.0.1:4711/;token=t{process.pid}"
        server = ConnectServer(process.pid, start_of(process.pid), 4711, address)
        save_server(folder, server)
        return server, process

    def look(self, after_s: float = 0.0) -> str | None:
        """Look once, and return the address that drivers find."""
        self.now += after_s
        self.shared._look()
        return address_of(str(self.folder))


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    found = Supervised(tmp_path / "spark" / "0123", monkeypatch)
    yield found
    for process in found.started:
        assert process.stdin is not None
        process.kill()
        process.wait(LIMIT_S)
        process.stdin.close()


def test_address_is_known_as_soon_as_the_server_answers(supervised: Supervised) -> None:
    assert supervised.look() is None and len(supervised.started) == 1
    assert supervised.look(5.0) is None
    supervised.answers = True
    assert supervised.look() == f"sc://127.0.0.1:4711/;token=t{supervised.started[0].pid}"


def test_server_that_died_is_started_again(supervised: Supervised) -> None:
    supervised.answers = True
    supervised.look()
    first = supervised.look()
    supervised.started[0].kill()
    os.waitid(os.P_PID, supervised.started[0].pid, os.WEXITED | os.WNOWAIT)
    assert supervised.look() is None and not (supervised.folder / ADDRESS_FILE).exists()
    supervised.look(2 * FIRST_WAIT_S)
    second = supervised.look()
    assert len(supervised.started) == 2 and second not in (None, first)


def test_server_that_is_silent_is_killed(supervised: Supervised) -> None:
    supervised.answers = True
    supervised.look()
    supervised.look()
    supervised.answers = False
    for _ in range(int(SILENT_S / ANSWER_EVERY_S)):
        assert supervised.look(ANSWER_EVERY_S) is not None, "a collection of garbage"
    assert supervised.look(ANSWER_EVERY_S) is None
    assert supervised.started[0].wait(LIMIT_S) < 0
    supervised.answers = True
    supervised.look(2 * FIRST_WAIT_S)
    assert supervised.look() is not None and len(supervised.started) == 2


def test_server_that_does_not_start_in_time_is_killed(supervised: Supervised) -> None:
    supervised.look()
    supervised.look(START_LIMIT_S)
    assert len(supervised.started) == 1 and supervised.started[0].poll() is None
    supervised.look(1.0)
    assert supervised.started[0].wait(LIMIT_S) < 0


def test_fault_of_the_start_is_logged_and_repeated(supervised: Supervised, caplog: pytest.LogCaptureFixture) -> None:
    supervised.fault = PrerequisiteError("Java was not found.", hint="Install it.")
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            assert supervised.look(0.1) is None
    assert caplog.text.count("Java was not found") == 1, "it waits longer each time"
    supervised.fault, supervised.answers = None, True
    supervised.look(FIRST_WAIT_S)
    assert supervised.look() is not None


def test_next_process_finds_the_server(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised.answers = True
    supervised.look()
    address = supervised.look()
    following = SharedSpark(supervised.folder, None)
    following.start()
    following.close(ends_server=False)
    assert address_of(str(supervised.folder)) == address and len(supervised.started) == 1
    again = SharedSpark(supervised.folder, None)
    again.start()
    again.close(ends_server=True)
    assert supervised.started[0].wait(LIMIT_S) < 0 and address_of(str(supervised.folder)) is None


def test_server_of_an_earlier_process_ends_with_one_that_never_used_it(supervised: Supervised) -> None:
    supervised.answers = True
    supervised.look()
    supervised.look()
    SharedSpark(supervised.folder, None).close(ends_server=False)
    assert supervised.started[0].poll() is None
    SharedSpark(supervised.folder, None).close(ends_server=True)
    assert supervised.started[0].wait(LIMIT_S) < 0 and address_of(str(supervised.folder)) is None
