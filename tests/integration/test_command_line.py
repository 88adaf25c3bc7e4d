"""The command line and the supervisor as processes, around a driver that does everything but move rows."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import cdc.cli
import cdc.starting
from cdc.checkpoint import JobRecord, JobState
from cdc.checkpoint_sqlite import SqliteStore
from cdc.folder import JobFolder
from cdc.jobs import driver_lives, offline_status, supervisor_lives

ROOT = Path(__file__).parents[2]
JOB = """\
name: shop
source: {type: binlog, host: 127.0.0.1, username: cdc, password: secret-word, start: latest}
sink: {type: delta, path: ./warehouse}
channels: [{source: shop.orders, target: ods.orders}]
status: {port: 0}
"""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


class Desk:
    """A user with a home of its own, a job file, and the command."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.job_file = folder / "shop.yaml"
        self.job_file.write_text(JOB)
        self.records: list[JobRecord] = []

    def run(self, *words: str, code: int = 0) -> str:
        done = self.command(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        with suppress(AssertionError):
            self.record()
        return done.stdout + done.stderr

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.integration.cdc_fake_cli", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CDC_HOME": str(self.home), "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def start(self) -> JobRecord:
        self.run("start", str(self.job_file))
        return self.record()

    def record(self) -> JobRecord:
        store = SqliteStore(self.home)
        record = store.job("shop")
        store.close()
        assert record is not None
        self.records.append(record)
        return record

    def status(self) -> dict[str, object]:
        return dict(json.loads(self.run("status", "shop", "--output", "json")))

    def say(self, name: str, text: str = "") -> None:
        self.job_file.with_name(name).write_text(text)

    def log(self) -> str:
        log = JobFolder(self.home, "shop").log
        return log.read_text() if log.exists() else ""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    with suppress(AssertionError):
        desk.record()
    for record in desk.records:
        if supervisor_lives(record) and record.supervisor_pid:
            os.kill(record.supervisor_pid, signal.SIGKILL)
        if driver_lives(record) and record.driver_pid:
            os.kill(record.driver_pid, signal.SIGKILL)
    wait_for(
        lambda: not any(driver_lives(one) or supervisor_lives(one) for one in desk.records),
        "every process of the test has ended",
    )


def command_of(record: JobRecord) -> str:
    return Path(f"/proc/{record.driver_pid}/cmdline").read_text().replace("\0", " ")


def test_a_job_is_started_paused_resumed_and_stopped(desk: Desk) -> None:
    told = desk.run("start", str(desk.job_file))
    assert "shop is RUNNING." in told
    record = desk.record()
    assert record.supervisor_pid and record.driver_pid and record.supervisor_pid != record.driver_pid
    status = desk.status()
    assert (status["job"], status["state"], status["lag_seconds"]) == ("shop", "RUNNING", 0.4)

    desk.run("pause", "shop")
    assert desk.status()["state"] == "PAUSED"
    refused = desk.run("start", str(desk.job_file), code=2)
    assert "`cdc resume shop`" in refused
    desk.run("resume", "shop")
    assert desk.status()["state"] == "RUNNING"

    told = desk.run("stop", "shop")
    assert "CANCELLED" in told and "--forget" in told
    assert not driver_lives(record) and not supervisor_lives(record)
    assert desk.status()["state"] == "CANCELLED"
    assert "`cdc stop shop --forget`" in desk.run("start", str(desk.job_file), code=2)
    assert "CANCELLED" in desk.run("resume", "shop", code=2)

    desk.run("stop", "shop", "--forget")
    assert not JobFolder(desk.home, "shop").path.exists()
    assert "There is no job shop." in desk.run("status", "shop", code=2)
    assert desk.start().fence == 1


def test_a_job_runs_once(desk: Desk) -> None:
    record = desk.start()
    told = desk.run("start", str(desk.job_file), code=1)
    assert "runs already" in told and str(record.driver_pid) in told


def test_a_killed_driver_is_started_again_and_goes_on_paused_or_not(desk: Desk) -> None:
    first = desk.start()
    assert first.driver_pid
    os.kill(first.driver_pid, signal.SIGKILL)
    wait_for(lambda: desk.record().driver_pid != first.driver_pid, "another driver")
    second = desk.record()
    assert second.supervisor_pid == first.supervisor_pid
    assert second.fence == first.fence + 1
    assert "died" in desk.log() and "SIGKILL" in desk.log()


def test_a_driver_that_always_dies_is_started_with_growing_pauses(desk: Desk) -> None:
    desk.say("die", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cdc_fake_cli", "start", str(desk.job_file)],
        cwd=ROOT,
        env=desk.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: "in_s=2.0" in desk.log(), "the second pause")
        assert "in_s=1.0" in desk.log()
        desk.record()
        assert "the supervisor starts it again" in str(desk.status()["reason"]) or desk.status()["state"] == "RUNNING"
        desk.run("stop", "shop")
        assert desk.record().state.value == "CANCELLED"
        assert process.wait(timeout=120) != 0
    finally:
        process.kill()
        process.wait()


def test_sigterm_to_the_supervisor_ends_the_driver_and_leaves_the_job_pending(desk: Desk) -> None:
    record = desk.start()
    assert record.supervisor_pid
    os.kill(record.supervisor_pid, signal.SIGTERM)
    wait_for(lambda: not driver_lives(record) and not supervisor_lives(record), "both ended")
    assert desk.record().state.value == "PENDING"
    desk.start()


def test_sigterm_to_the_driver_ends_the_supervisor_too(desk: Desk) -> None:
    record = desk.start()
    assert record.driver_pid
    os.kill(record.driver_pid, signal.SIGTERM)
    wait_for(lambda: not supervisor_lives(record), "the supervisor ended")
    assert desk.status()["state"] == "PENDING"


def test_a_job_without_driver_and_supervisor_is_shown_as_died_and_starts_again(desk: Desk) -> None:
    record = desk.start()
    assert record.driver_pid and record.supervisor_pid
    os.kill(record.supervisor_pid, signal.SIGKILL)
    assert desk.status()["state"] == "RUNNING"  # the driver goes on without it
    os.kill(record.driver_pid, signal.SIGKILL)
    wait_for(lambda: not driver_lives(record), "the driver ended")
    status = desk.status()
    assert (status["state"], status["reason"]) == ("PENDING", "died")
    assert status["source"] == {"type": "binlog", "server": "127.0.0.1:3306", "destination": None}
    assert status["sink"] == {"type": "delta", "target": "./warehouse"}
    assert "died" in desk.run("list")
    desk.run("pause", "shop")
    assert desk.status()["state"] == "PAUSED"
    assert "`cdc resume shop`" in desk.run("start", str(desk.job_file), code=2)
    desk.run("resume", "shop")
    assert desk.status()["state"] == "RUNNING"


@pytest.mark.parametrize(("error", "code"), [("SourceUnavailable", 3), ("LeaseLost", 1), ("ConfigError", 2)])
def test_a_start_that_fails_says_why_and_leaves_nothing_behind(desk: Desk, error: str, code: int) -> None:
    desk.say("fail", error)
    told = desk.run("start", str(desk.job_file), code=code)
    assert told.splitlines()[-3:] == ["error: The server is away.", "where: host db", "mend:  Start it."]
    assert "no jobs" in desk.run("list")


def test_what_a_person_agreed_to_is_for_the_first_driver_alone(desk: Desk) -> None:
    record = desk.start()
    desk.run("pause", "shop")
    for pid in (record.supervisor_pid, record.driver_pid):
        assert pid
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not driver_lives(record), "the driver ended")
    desk.run("resume", "shop", "--past-ddl")
    agreed = desk.record()
    assert "--resume past_ddl" in command_of(agreed)
    assert agreed.driver_pid
    os.kill(agreed.driver_pid, signal.SIGKILL)
    wait_for(lambda: desk.record().driver_pid != agreed.driver_pid, "another driver")
    assert "--resume" not in command_of(desk.record())


def test_a_refusal_of_the_driver_reaches_the_user(desk: Desk) -> None:
    desk.start()
    desk.say("ddl")
    desk.run("pause", "shop")
    told = desk.run("resume", "shop", code=1)
    assert "A TRUNCATE lies ahead." in told and "mend:  Use --past-ddl." in told
    desk.run("resume", "shop", "--past-ddl")


def test_a_job_file_that_has_another_jobs_name_by_now_starts_no_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_HOME", str(desk.home))
    running = desk.start()
    desk.run("pause", "shop")
    desk.job_file.write_text(JOB.replace("name: shop", "name: other"))
    for pid in (running.supervisor_pid, running.driver_pid):
        assert pid
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not driver_lives(running), "the driver ended")
    told = desk.run("resume", "shop", code=2)
    assert "has the name other now" in told and "Put `name: shop` back." in told and "start a copy" in told
    # so does the driver that a supervisor starts, and says why to whoever started that
    command = cdc.starting.driver_command("shop", desk.job_file, [])
    driver = desk.command(*command[command.index("start") :])
    assert driver.returncode == 2 and "has the name other now" in driver.stderr
    failure = JobFolder(desk.home, "shop").failure()
    assert failure is not None and "has the name other now" in failure.message
    store = SqliteStore(desk.home)
    shown = offline_status(store, replace(desk.record(), state=JobState.RUNNING))
    store.close()
    assert "Put `name: shop` back." in str(shown.mend)
    assert "other" not in desk.run("list")


@pytest.mark.parametrize("is_live", [True, False])
def test_a_resume_that_the_job_file_forbids_says_why(desk: Desk, is_live: bool) -> None:
    running = desk.start()
    desk.run("pause", "shop")
    if not is_live:
        for pid in (running.supervisor_pid, running.driver_pid):
            assert pid
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not driver_lives(running), "the driver ended")
    desk.job_file.write_text(JOB.replace("secret-word", "${CDC_NO_SUCH}"))
    told = desk.run("resume", "shop", code=2)
    assert "the environment variable CDC_NO_SUCH is not set" in told
    assert desk.status()["state"] == "PAUSED"


def test_a_resume_whose_cause_is_not_mended_says_so_at_once(desk: Desk) -> None:
    desk.start()
    desk.say("still")
    desk.run("pause", "shop")
    began = time.monotonic()
    assert "The job shop is PAUSED: paused by its user" in desk.run("resume", "shop", code=1)
    assert time.monotonic() - began < cdc.cli.PAUSE_S / 2


def test_a_pause_of_a_job_that_waits_for_its_server_is_done_once_it_is_its_users(desk: Desk) -> None:
    desk.say("away")
    desk.run("start", str(desk.job_file), code=3)
    assert (desk.status()["state"], desk.status()["resume"]) == ("PAUSED", "automatic")
    desk.run("pause", "shop")
    assert (desk.record().reason, desk.record().resume) == ("paused by its user", "manual")


def test_a_job_that_is_done_stays_so_and_is_not_started_again(desk: Desk) -> None:
    desk.say("end")
    desk.start()
    wait_for(lambda: desk.record().state.value == "DONE", "it has come to its end")
    told = desk.run("start", str(desk.job_file), code=2)
    assert "The job shop has read its source to the end." in told and "--adopt" in told
    assert "shop is DONE." in desk.run("stop", "shop")
    assert desk.record().state.value == "DONE"
    assert "`cdc start JOB.yaml --adopt` goes on" in desk.run("stop", "shop", "--forget")


def test_debug_shows_where_an_error_arose_and_keeps_its_exit_code(desk: Desk) -> None:
    told = desk.run("--debug", "status", "nope", code=2)
    assert "Traceback" in told and "error: There is no job nope." in told


def test_a_broken_job_file_starts_nothing(desk: Desk) -> None:
    desk.job_file.write_text(JOB.replace("host:", "hots:"))
    told = desk.run("start", str(desk.job_file), code=2)
    assert "shop.yaml:2 source.hots: is not a known key; did you mean `host`?" in told
    assert "cdc check" in told
    desk.run("check", str(desk.job_file), code=2)


def test_the_token_is_for_its_owner_alone(desk: Desk) -> None:
    desk.start()
    folder = JobFolder(desk.home, "shop")
    assert (folder.path / "token").stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.log.stat().st_mode & 0o777 == 0o600
    assert "secret-word" not in desk.log()


def test_logs_show_the_end_and_follow(desk: Desk) -> None:
    desk.start()
    assert len(desk.run("logs", "shop", "-n", "1").splitlines()) == 1
    assert "The driver starts." in desk.run("logs", "shop")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cdc_fake_cli", "logs", "shop", "-f", "-n", "0"],
        cwd=ROOT,
        env=desk.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        # it says nothing until it reads, so lines are written until one arrives
        with JobFolder(desk.home, "shop").log.open("a", buffering=1) as log:
            wait_for(
                lambda: bool(log.write("a new line\n") and select.select([following.stdout], [], [], 0.3)[0]),
                "a line that was written arrives",
            )
        assert following.stdout.readline() == "a new line\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=120) == 130


@pytest.mark.parametrize(
    "words",
    [
        ("status", "nope"),
        ("pause", "nope"),
        ("resume", "nope"),
        ("stop", "nope"),
        ("logs", "nope"),
        ("snapshot", "nope", "a.b"),
    ],
)
def test_an_unknown_job_is_told_with_those_that_are_known(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.run(*words, code=2)
    assert "There is no job nope." in told and "cdc start JOB.yaml" in told


def test_help_and_version_are_quick_and_import_nothing_heavy(desk: Desk) -> None:
    assert desk.run("--version").startswith("cdc")
    script = (
        "import sys\nfrom cdc import cli\nsys.argv = ['cdc', 'status']\n"
        "try: cli.main()\nexcept SystemExit as done: assert not done.code\n"
        "print(sorted({'pyarrow', 'numpy', 'numba', 'pyspark', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=desk.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def on_terminal(desk: Desk, answer: str, *words: str) -> tuple[int, str]:
    """Run a command on a terminal and answer its question; the exit code and what the terminal showed."""
    command = [sys.executable, "-m", "tests.integration.cdc_fake_cli", *words]
    ours, theirs = os.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=desk.environment, stdin=theirs, stdout=theirs, stderr=theirs) as done:
        os.close(theirs)
        shown = b""
        is_answered = False
        with suppress(OSError):  # its end is an error of a terminal
            while data := os.read(ours, 4096):
                shown += data
                if b"[y/N]" in shown and not is_answered:
                    os.write(ours, answer.encode() + b"\n")
                    is_answered = True
        os.close(ours)
    return done.returncode, shown.decode()


def test_stop_asks_on_a_terminal_before_it_acts(desk: Desk) -> None:
    desk.start()
    code, shown = on_terminal(desk, "n", "stop", "shop")
    assert code == 2 and "cancels shop for good" in shown and "`cdc pause shop` halts it and keeps it" in shown
    assert desk.status()["state"] == "RUNNING"
    code, shown = on_terminal(desk, "y", "stop", "shop")
    assert code == 0 and "shop is CANCELLED" in shown
    code, shown = on_terminal(desk, "", "stop", "shop", "--forget", "--yes")
    assert code == 0 and "[y/N]" not in shown and "shop is forgotten" in shown


def test_restart_takes_another_process_and_keeps_the_state(desk: Desk) -> None:
    before = desk.start()
    assert "shop is RUNNING." in desk.run("restart", "shop")
    after = desk.record()
    assert (after.driver_pid, after.supervisor_pid) != (before.driver_pid, before.supervisor_pid)
    assert after.incarnation == before.incarnation and after.fence > before.fence
    desk.job_file.write_text("name: shop\n")
    desk.run("restart", "shop", code=2)
    assert desk.status()["state"] == "RUNNING", "a broken file ends no process"
    desk.job_file.write_text(JOB)
    desk.run("pause", "shop")
    assert "`cdc resume shop`" in desk.run("restart", "shop", code=2)
    desk.run("stop", "shop")
    assert "--forget" in desk.run("restart", "shop", code=2)
