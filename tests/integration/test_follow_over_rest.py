"""``cdc logs --follow`` over the REST API of a real server, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cdc.api.log_page import LogPage
from cdc.cli import logs as module
from cdc.cli.logs import show_log
from cdc.client import Jobs
from cdc.errors import CdcError, PrerequisiteError
from cdc.job.remote_calls import read_log
from cdc.manager.rest import Tokens
from cdc.state.base import JobState
from cdc.state.hosts import HostIdentity
from cdc.state.job_directory import JobDirectory
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import LIMIT_S, ROOT, add_job, served, wait_for

HOST = HostIdentity("a1", "4711")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[SqlStore]:
    store = SqliteStore(home)
    add_job(store, "shop", JobState.CANCELLED)
    write(home, "first", "second")
    yield store
    store.close()


def write(home: Path, *lines: str) -> None:
    with JobDirectory(home, "shop").open_log() as log:
        log.write("".join(f"{line}\n" for line in lines).encode())


class Follower:
    """A process of ``cdc logs shop --follow``, with the address of a host only."""

    def __init__(self, url: str, folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
        environment |= {"CDC_URL": url, "CDC_HOME": str(folder / "elsewhere"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "cdc.cli.main", "logs", "shop", "--follow", "--lines", "1"]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def errors(self) -> str:
        return self._err.read_text().strip()  # Ctrl-C ends a line of the terminal

    def await_line(self, line: str) -> None:
        def is_printed() -> bool:
            assert self._process.poll() is None or line in self.lines, self.errors
            return line in self.lines

        wait_for(is_printed, line)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def code(self) -> int:
        return self._process.wait(LIMIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    made: list[Follower] = []
    yield made
    for one in made:
        one.kill()


def test_follow_prints_new_lines_until_ctrl_c(
    store: SqlStore, home: Path, tmp_path: Path, followers: list[Follower]
) -> None:
    with served(store, Tokens()) as url:
        followers.append(one := Follower(url, tmp_path))
        one.await_line("second")
        write(home, "third", "fourth")
        one.await_line("fourth")
        one.interrupt()
        assert (one.code(), one.lines, one.errors) == (130, ["second", "third", "fourth"], "")


def test_follow_continues_when_the_host_is_there_again(
    store: SqlStore, home: Path, tmp_path: Path, followers: list[Follower]
) -> None:
    with served(store, Tokens()) as url:
        followers.append(one := Follower(url, tmp_path))
        one.await_line("second")
    wait_for(lambda: one.errors, "the message")
    write(home, "third")
    with served(store, Tokens(), port=urlsplit(url).port or 0):
        one.await_line("third")
        one.interrupt()
        assert (one.code(), one.lines) == (130, ["second", "third"])
    assert one.errors == "The REST API does not answer: connection refused. The command retries for 60 s."


def test_follow_of_a_moved_job_reads_each_log_at_its_own_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followers: list[Follower]
) -> None:
    homes = {name: tmp_path / name for name in ("a1", "b2")}
    stores: dict[str, SqlStore] = {}
    monkeypatch.delenv("CDC_STORE", raising=False)
    for name, folder in homes.items():
        monkeypatch.setenv("CDC_HOST", name)
        stores[name] = SqliteStore(folder)
        add_job(stores[name], "shop", JobState.CANCELLED)
    write(homes["a1"], "first", "second")
    write(homes["b2"], *(f"line {number} of b2" for number in range(9)))
    port = 0
    # one address that another host answers: the API of any host returns the log of the host that runs the job
    for name, last in (("a1", "second"), ("b2", "line 8 of b2"), ("a1", "third")):
        monkeypatch.setenv("CDC_HOME", str(homes[name]))
        with served(stores[name], Tokens(), port=port) as url:
            port = urlsplit(url).port or 0
            if not followers:
                followers.append(Follower(url, tmp_path))
            followers[0].await_line(last)
        write(homes["a1"], "third") if name == "b2" else None
    followers[0].interrupt()
    assert followers[0].code() == 130
    assert followers[0].lines == ["second", *(f"line {number} of b2" for number in range(9)), "third"]
    moves = [line for line in followers[0].errors.splitlines() if line.startswith("The log is of host")]
    assert moves == [
        "The log is of host b2 now, from its start. The last lines of host a1 can be missing.",
        "The log is of host a1 again, after its last shown line. The last lines of host b2 can be missing.",
    ]
    for store in stores.values():
        store.close()


def test_follow_that_sees_two_moves_reads_the_newest_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.0)
    logs = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0", "c1", "c2"]}
    running = iter("abcc")  # the host that runs the job at each call

    def read(*, lines: int = 0, offset: int | None = None) -> LogPage:
        host = next(running, None)
        if host is None:
            raise PrerequisiteError("The driver does not reply.", hint="See `cdc status shop`.")
        found = logs[host]
        return LogPage(found[-lines:] if offset is None else found[offset:], len(found), host, f"id of {host}")

    show_log(read, 1, follow=True, is_over=lambda: True)
    assert capsys.readouterr().out.split() == ["a1", "c0", "c1", "c2"]


def test_follow_ends_when_the_job_is_forgotten(store: SqlStore, tmp_path: Path, followers: list[Follower]) -> None:
    with served(store, Tokens()) as url, Jobs(url) as jobs:
        followers.append(one := Follower(url, tmp_path))
        one.await_line("second")
        jobs.forget("shop")
        assert (one.code(), one.lines, one.errors) == (0, ["second"], "")


def test_follow_of_a_host_that_stays_away_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    monkeypatch.setattr(module, "REFRESH_S", 0.0)

    def read(*, lines: int = 0, offset: int | None = None) -> LogPage:
        if offset is not None:
            raise PrerequisiteError("The driver on host b does not reply.", hint="See `cdc status shop`.")
        return LogPage([str(lines)], 7, "b", "1")

    with pytest.raises(PrerequisiteError, match="The driver on host b does not reply"):
        show_log(read, 9000, follow=True, is_over=lambda: False)
    show_log(read, 9000, follow=True, is_over=lambda: True)  # its driver has ended with the job


def test_follow_reports_an_error_that_is_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.0)

    def read(*, lines: int = 0, offset: int | None = None) -> LogPage:
        if offset is not None:
            raise CdcError("The job shop has no log file on its host.", hint="Read the log of its service.")
        return LogPage([], 7, "b", "1")

    began = time.monotonic()
    with pytest.raises(CdcError, match="has no log file"):
        show_log(read, 1, follow=True, is_over=lambda: False)
    assert time.monotonic() - began < module.AWAY_S / 2


def test_more_lines_than_one_answer_has_are_cut(
    store: SqlStore, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, *map(str, range(6000)))
    with served(store, Tokens()) as url, Jobs(url) as jobs:
        show_log(lambda **options: jobs.log_page("shop", **options), 9000, follow=False, is_over=lambda: False)
    assert capsys.readouterr().out.splitlines() == [str(number) for number in range(1000, 6000)]


def test_line_that_is_written_while_the_log_is_read_is_not_repeated(
    store: SqlStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdc import logging_setup

    real, folder = logging_setup.last_lines, JobDirectory(home, "shop")

    def last_lines(*arguments: object) -> list[str]:
        write(home, "third")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(logging_setup, "last_lines", last_lines)
    first = read_log(folder, {"lines": 5}, HOST)
    after = read_log(folder, {"offset": first["offset"]}, HOST)
    assert first["lines"] + after["lines"] == ["first", "second", "third"]
