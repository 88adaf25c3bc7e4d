"""The command line and the supervisor as processes, with a driver that does everything except moving rows."""

from __future__ import annotations

import json
import os
import re
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

import cdc.cli.job_control
from cdc.job.registry import offline_status
from cdc.job.supervisor import driver_command
from cdc.state.base import JobRecord, JobState
from cdc.state.job_directory import JobDirectory
from cdc.state.processes import is_driver_alive, is_supervisor_alive
from cdc.state.sqlite import SqliteStore
from tests.support.limits import HANG_S

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


class Cli:
    """A user with a separate CDC_HOME, a job file, and the command."""

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

    def set_driver_file(self, name: str, text: str = "") -> None:
        self.job_file.with_name(name).write_text(text)

    def log(self) -> str:
        log = JobDirectory(self.home, "shop").log
        return log.read_text() if log.exists() else ""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    with suppress(AssertionError):
        cli.record()
    for record in cli.records:
        if is_supervisor_alive(record) and record.supervisor_pid:
            os.kill(record.supervisor_pid, signal.SIGKILL)
        if is_driver_alive(record) and record.driver_pid:
            os.kill(record.driver_pid, signal.SIGKILL)
    wait_for(
        lambda: not any(is_driver_alive(one) or is_supervisor_alive(one) for one in cli.records),
        "the end of every process of the test",
    )


def command_of(record: JobRecord) -> str:
    return Path(f"/proc/{record.driver_pid}/cmdline").read_text().replace("\0", " ")


def test_job_lifecycle_start_pause_resume_stop_forget(cli: Cli) -> None:
    printed = cli.run("start", str(cli.job_file))
    assert "shop is RUNNING." in printed
    record = cli.record()
    assert record.supervisor_pid and record.driver_pid and record.supervisor_pid != record.driver_pid
    status = cli.status()
    assert (status["job"], status["state"], status["lag_seconds"]) == ("shop", "RUNNING", 0.4)

    cli.run("pause", "shop")
    assert cli.status()["state"] == "PAUSED"
    refused = cli.run("start", str(cli.job_file), code=2)
    assert "`cdc resume shop`" in refused
    cli.run("resume", "shop")
    assert cli.status()["state"] == "RUNNING"

    printed = cli.run("stop", "shop")
    assert "CANCELLED" in printed and "--forget" in printed
    assert not is_driver_alive(record) and not is_supervisor_alive(record)
    assert cli.status()["state"] == "CANCELLED"
    assert "`cdc stop shop --forget`" in cli.run("start", str(cli.job_file), code=2)
    assert "CANCELLED" in cli.run("resume", "shop", code=2)

    cli.run("stop", "shop", "--forget")
    assert not JobDirectory(cli.home, "shop").path.exists()
    assert "There is no job shop." in cli.run("status", "shop", code=2)
    assert cli.start().fence == 1


def test_start_of_a_running_job_fails_with_its_pid(cli: Cli) -> None:
    record = cli.start()
    printed = cli.run("start", str(cli.job_file), code=1)
    assert "runs already" in printed and str(record.driver_pid) in printed and "another `name:`" not in printed
    copy = cli.job_file.with_name("copy.yaml")
    copy.write_text(cli.job_file.read_text())
    printed = " ".join(cli.run("start", str(copy), code=1).split())
    assert str(cli.job_file) in printed and "give it another `name:`" in printed


def test_supervisor_restarts_a_killed_driver(cli: Cli) -> None:
    first = cli.start()
    assert first.driver_pid
    os.kill(first.driver_pid, signal.SIGKILL)
    wait_for(lambda: cli.record().driver_pid != first.driver_pid, "another driver")
    second = cli.record()
    assert second.supervisor_pid == first.supervisor_pid
    assert second.fence == first.fence + 1
    assert "died" in cli.log() and "SIGKILL" in cli.log()


def test_supervisor_restarts_dying_driver_with_growing_delay(cli: Cli) -> None:
    cli.set_driver_file("die", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cdc_fake_cli", "start", str(cli.job_file)],
        cwd=ROOT,
        env=cli.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def waits() -> list[float]:
            return [float(text) for text in re.findall(r"in_s=([\d.]+)", cli.log())]

        wait_for(lambda: len(waits()) > 1 and waits()[-1] > waits()[0], "a longer pause")
        cli.record()
        assert "the supervisor starts it again" in str(cli.status()["reason"]) or cli.status()["state"] == "RUNNING"
        cli.run("stop", "shop")
        assert cli.record().state.value == "CANCELLED"
        assert process.wait(timeout=120) != 0
    finally:
        process.kill()
        process.wait()


def test_sigterm_to_supervisor_ends_driver_and_job_is_pending(cli: Cli) -> None:
    record = cli.start()
    assert record.supervisor_pid
    os.kill(record.supervisor_pid, signal.SIGTERM)
    wait_for(lambda: not is_driver_alive(record) and not is_supervisor_alive(record), "both ended")
    assert cli.record().state.value == "PENDING"
    cli.start()


def test_sigterm_to_driver_ends_the_supervisor(cli: Cli) -> None:
    record = cli.start()
    assert record.driver_pid
    os.kill(record.driver_pid, signal.SIGTERM)
    wait_for(lambda: not is_supervisor_alive(record), "the supervisor ended")
    assert cli.status()["state"] == "PENDING"


def test_job_without_processes_is_shown_as_died_and_restarts(cli: Cli) -> None:
    record = cli.start()
    assert record.driver_pid and record.supervisor_pid
    os.kill(record.supervisor_pid, signal.SIGKILL)
    assert cli.status()["state"] == "RUNNING"  # the driver continues without it
    os.kill(record.driver_pid, signal.SIGKILL)
    wait_for(lambda: not is_driver_alive(record), "the driver ended")
    status = cli.status()
    assert (status["state"], status["reason"]) == ("PENDING", "died")
    assert status["source"] == {"type": "binlog", "server": "127.0.0.1:3306", "destination": None}
    assert status["sink"] == {"type": "delta", "target": "./warehouse"}
    assert "died" in cli.run("list")
    cli.run("pause", "shop")
    assert cli.status()["state"] == "PAUSED"
    assert "`cdc resume shop`" in cli.run("start", str(cli.job_file), code=2)
    cli.run("resume", "shop")
    assert cli.status()["state"] == "RUNNING"


@pytest.mark.parametrize(("error", "code"), [("SourceUnavailable", 3), ("LeaseLost", 1), ("ConfigError", 2)])
def test_start_failure_prints_the_error_and_stores_no_job(cli: Cli, error: str, code: int) -> None:
    cli.set_driver_file("fail", error)
    printed = cli.run("start", str(cli.job_file), code=code)
    assert printed.splitlines()[-3:] == ["error: The server is unavailable.", "where: host db", "hint:  Start it."]
    assert "no jobs" in cli.run("list")


def test_start_interrupted_prints_what_continues(cli: Cli) -> None:
    cli.set_driver_file("hold")
    command = [sys.executable, "-m", "tests.integration.cdc_fake_cli", "start", str(cli.job_file)]
    with subprocess.Popen(command, cwd=ROOT, env=cli.environment, stderr=subprocess.PIPE, text=True) as start:
        wait_for(lambda: "shop" in cli.run("list"), "a driver that has the job")
        start.send_signal(signal.SIGINT)
        assert start.stderr is not None
        words = start.stderr.read()
    assert start.returncode == 130
    assert "shop continues to start in the background" in words
    assert "`cdc status shop`" in words and "`cdc pause shop`" in words
    (cli.job_file.parent / "hold").unlink()
    wait_for(lambda: cli.status()["state"] == "RUNNING", "the job runs")
    cli.record()


def test_resume_flags_apply_only_to_the_first_driver(cli: Cli) -> None:
    record = cli.start()
    cli.run("pause", "shop")
    for pid in (record.supervisor_pid, record.driver_pid):
        assert pid
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_driver_alive(record), "the driver ended")
    cli.run("resume", "shop", "--past-ddl")
    resumed = cli.record()
    assert "--resume past_ddl" in command_of(resumed)
    assert resumed.driver_pid
    os.kill(resumed.driver_pid, signal.SIGKILL)
    wait_for(lambda: cli.record().driver_pid != resumed.driver_pid, "another driver")
    assert "--resume" not in command_of(cli.record())


def test_resume_error_of_the_driver_is_printed(cli: Cli) -> None:
    cli.start()
    cli.set_driver_file("ddl")
    cli.run("pause", "shop")
    printed = cli.run("resume", "shop", code=1)
    assert "A TRUNCATE follows." in printed and "hint:  Use --past-ddl." in printed
    cli.run("resume", "shop", "--past-ddl")


def test_job_file_with_another_name_is_rejected(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(cli.home))
    running = cli.start()
    cli.run("pause", "shop")
    cli.job_file.write_text(JOB.replace("name: shop", "name: other"))
    for pid in (running.supervisor_pid, running.driver_pid):
        assert pid
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_driver_alive(running), "the driver ended")
    printed = cli.run("resume", "shop", code=2)
    assert "has the name other now" in printed and "Set `name: shop` again." in printed and "start a copy" in printed
    # the driver that a supervisor starts rejects it too, and saves the reason
    command = driver_command("shop", cli.job_file, [])
    driver = cli.command(*command[command.index("start") :])
    assert driver.returncode == 2 and "has the name other now" in driver.stderr
    failure = JobDirectory(cli.home, "shop").failure()
    assert failure is not None and "has the name other now" in failure.error.message
    store = SqliteStore(cli.home)
    shown = offline_status(store, replace(cli.record(), state=JobState.RUNNING))
    store.close()
    assert "Set `name: shop` again." in str(shown.hint)
    assert "other" not in cli.run("list")


@pytest.mark.parametrize("is_live", [True, False])
def test_resume_with_invalid_job_file_reports_the_reason(cli: Cli, is_live: bool) -> None:
    running = cli.start()
    cli.run("pause", "shop")
    if not is_live:
        for pid in (running.supervisor_pid, running.driver_pid):
            assert pid
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_driver_alive(running), "the driver ended")
    cli.job_file.write_text(JOB.replace("secret-word", "${CDC_NO_SUCH}"))
    printed = cli.run("resume", "shop", code=2)
    assert "the environment variable CDC_NO_SUCH is not set" in printed
    assert cli.status()["state"] == "PAUSED"


def test_resume_with_unchanged_cause_fails_quickly(cli: Cli) -> None:
    cli.start()
    cli.set_driver_file("still")
    cli.run("pause", "shop")
    began = time.monotonic()
    assert "The job shop is PAUSED: paused by its user" in cli.run("resume", "shop", code=1)
    assert time.monotonic() - began < cdc.cli.job_control.PAUSE_S / 2


def test_pause_of_an_automatic_pause_becomes_manual(cli: Cli) -> None:
    cli.set_driver_file("away")
    cli.run("start", str(cli.job_file), code=3)
    assert (cli.status()["state"], cli.status()["resume"]) == ("PAUSED", "automatic")
    cli.run("pause", "shop")
    assert (cli.record().reason, cli.record().resume) == ("paused by its user", "manual")


@pytest.mark.parametrize(("command", "state"), [("pause", "PAUSED"), ("stop", "CANCELLED")])
@pytest.mark.parametrize("is_supervised", [True, False])
def test_request_that_was_lost_with_its_driver_is_repeated(
    cli: Cli, command: str, state: str, is_supervised: bool
) -> None:
    """The driver has accepted the request, and is killed before it has carried it out."""
    driver = None
    if is_supervised:
        cli.start()
    else:
        words = ["start", str(cli.job_file), "--foreground"]
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.cdc_fake_driver", *words], cwd=ROOT, env=cli.environment
        )
        wait_for(lambda: has_record(cli) and cli.status()["state"] == "RUNNING", "RUNNING")
    cli.set_driver_file("lose")
    assert f"shop is {state}" in cli.run(command, "shop")
    assert not cli.job_file.with_name("lose").exists(), "the driver did not get the request"
    if driver is not None:
        assert driver.wait(HANG_S) == 9
    assert (cli.record().state, cli.status()["state"]) == (state, state)


def test_resume_whose_driver_dies_reports_the_state_of_the_next_one(cli: Cli) -> None:
    cli.start()
    cli.run("pause", "shop")
    cli.set_driver_file("lose")
    assert "shop is RUNNING" in cli.run("resume", "shop")
    assert not cli.job_file.with_name("lose").exists(), "the driver did not get the request"


def has_record(cli: Cli) -> bool:
    with suppress(AssertionError):
        return cli.record() is not None
    return False


def test_done_job_stays_done_and_does_not_start(cli: Cli) -> None:
    cli.set_driver_file("end")
    cli.start()
    wait_for(lambda: cli.record().state.value == "DONE", "the end of the job")
    printed = cli.run("start", str(cli.job_file), code=2)
    assert "The job shop has read its source to the end." in printed and "--adopt" in printed
    assert "shop is DONE." in cli.run("stop", "shop")
    assert cli.record().state.value == "DONE"
    assert "`cdc start JOB.yaml --adopt` continues" in cli.run("stop", "shop", "--forget")


def test_debug_prints_traceback_and_keeps_exit_code(cli: Cli) -> None:
    printed = cli.run("--debug", "status", "nope", code=2)
    assert "Traceback" in printed and "error: There is no job nope." in printed


def test_start_with_misspelt_key_suggests_the_known_one(cli: Cli) -> None:
    cli.job_file.write_text(JOB.replace("host:", "hots:"))
    printed = cli.run("start", str(cli.job_file), code=2)
    assert "shop.yaml:2 source.hots: is not a known key; did you mean `host`?" in printed
    assert "cdc check" in printed
    cli.run("check", str(cli.job_file), code=2)


def test_job_directory_and_token_are_owner_only(cli: Cli) -> None:
    cli.start()
    folder = JobDirectory(cli.home, "shop")
    assert (folder.path / "token").stat().st_mode & 0o777 == 0o600
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.log.stat().st_mode & 0o777 == 0o600
    assert "secret-word" not in cli.log()


def test_logs_command_prints_the_end_and_follows(cli: Cli) -> None:
    cli.start()
    assert len(cli.run("logs", "shop", "-n", "1").splitlines()) == 1
    assert "The driver starts." in cli.run("logs", "shop")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cdc_fake_cli", "logs", "shop", "-f", "-n", "0"],
        cwd=ROOT,
        env=cli.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        # the command prints nothing until it reads, so write lines until one arrives
        with JobDirectory(cli.home, "shop").log.open("a", buffering=1) as log:
            wait_for(
                lambda: bool(log.write("a new line\n") and select.select([following.stdout], [], [], 0.3)[0]),
                "a line in the output",
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
        ("verify", "nope"),
    ],
)
def test_commands_with_unknown_job_name_fail(cli: Cli, words: tuple[str, ...]) -> None:
    printed = cli.run(*words, code=2)
    assert "There is no job nope." in printed and "cdc start JOB.yaml" in printed


@pytest.mark.parametrize("option", [("--output", "json"), ("-o", "json"), ("--output=json",), ("-ojson",)])
def test_error_with_json_output_is_an_object_on_stdout(cli: Cli, option: tuple[str, ...]) -> None:
    done = cli.command("status", "no-such-job", *option)
    assert done.returncode == 2 and "There is no job no-such-job." in done.stderr
    body = json.loads(done.stdout)
    assert body.keys() == {"error", "where", "hint", "exit_code", "class"}
    assert (body["class"], body["error"], body["exit_code"]) == ("ConfigError", "There is no job no-such-job.", 2)
    assert cli.command("status", "no-such-job").stdout == ""


def test_json_output_of_commands_that_change_a_job(cli: Cli) -> None:
    def json_of(*words: str) -> object:
        return json.loads(cli.command(*words, "-o", "json").stdout)

    running, paused = {"job": "shop", "state": "RUNNING"}, {"job": "shop", "state": "PAUSED"}
    assert json_of("start", str(cli.job_file)) == running
    cli.record()
    assert json_of("restart", "shop") == running
    cli.record()
    assert json_of("pause", "shop") == paused and json_of("resume", "shop") == running
    lines = cli.command("logs", "shop", "-n", "3", "-o", "json").stdout.splitlines()
    assert lines and all([*json.loads(line)] == ["line"] for line in lines)
    requested = {**running, "tables": ["shop.orders"], "where": None}
    assert json_of("snapshot", "shop", "shop.orders") == requested
    assert json_of("stop", "shop") == {"job": "shop", "state": "CANCELLED", "is_forgotten": False}


def test_help_and_version_import_no_heavy_package(cli: Cli) -> None:
    assert cli.run("--version").startswith("cdc")
    script = (
        "import sys\nfrom cdc.cli import main as cli\nsys.argv = ['cdc', 'status']\n"
        "try: cli.main()\nexcept SystemExit as done: assert not done.code\n"
        "print(sorted({'pyarrow', 'numpy', 'numba', 'pyspark', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=cli.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def run_on_terminal(cli: Cli, answer: str, *words: str) -> tuple[int, str]:
    """Run a command on a terminal and answer its question. Return the exit code and what the terminal shows."""
    command = [sys.executable, "-m", "tests.integration.cdc_fake_cli", *words]
    master, slave = os.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=cli.environment, stdin=slave, stdout=slave, stderr=slave) as done:
        os.close(slave)
        shown = b""
        is_answered = False
        with suppress(OSError):  # the end of a terminal is reported as an error
            while data := os.read(master, 4096):
                shown += data
                if b"[y/N]" in shown and not is_answered:
                    os.write(master, answer.encode() + b"\n")
                    is_answered = True
        os.close(master)
    return done.returncode, shown.decode()


def test_stop_on_a_terminal_asks_for_confirmation(cli: Cli) -> None:
    cli.start()
    code, shown = run_on_terminal(cli, "n", "stop", "shop")
    assert code == 2 and "cancels shop permanently" in shown and "`cdc pause shop` pauses it and keeps" in shown
    assert cli.status()["state"] == "RUNNING"
    code, shown = run_on_terminal(cli, "y", "stop", "shop")
    assert code == 0 and "shop is CANCELLED" in shown
    code, shown = run_on_terminal(cli, "", "stop", "shop", "--forget", "--yes")
    assert code == 0 and "[y/N]" not in shown and "shop is forgotten" in shown


def test_restart_replaces_processes_and_keeps_the_state(cli: Cli) -> None:
    before = cli.start()
    assert "shop is RUNNING." in cli.run("restart", "shop")
    after = cli.record()
    assert (after.driver_pid, after.supervisor_pid) != (before.driver_pid, before.supervisor_pid)
    assert after.incarnation == before.incarnation and after.fence > before.fence
    cli.job_file.write_text("name: shop\n")
    cli.run("restart", "shop", code=2)
    assert cli.status()["state"] == "RUNNING", "an invalid job file ends no process"
    cli.job_file.write_text(JOB)
    cli.run("pause", "shop")
    assert "`cdc resume shop`" in cli.run("restart", "shop", code=2)
    cli.run("stop", "shop")
    assert "--forget" in cli.run("restart", "shop", code=2)
