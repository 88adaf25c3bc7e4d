"""Errors of every command with ``--output json``: one JSON object on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cdc.cli.main
from cdc.cli.inspection import list_jobs
from cdc.cli.main import app

KEYS = {"error", "where", "hint", "exit_code", "class"}
UNKNOWN = {
    "start": ["/no/such.yaml"],
    "check": ["/no/such.yaml"],
    "ddl": ["nope"],
    "serve": ["/no/such.yaml"],
    "hosts": ["--drain", "nope"],
    "snapshot": ["nope", "a.b"],
}
NO_JOB = {"list", "demo"}  # they have no argument


def _with_unknown_job() -> Iterator[tuple[str, list[str]]]:
    for name in sorted(app.commands.keys() - NO_JOB):
        yield name, UNKNOWN.get(name, ["nope"])


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    for name in ("CDC_STORE", "CDC_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cdc.cli.main, "restrict_umask", lambda: None)  # for this process only


def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    monkeypatch.setattr("sys.argv", ["cdc", *words])
    with pytest.raises(SystemExit) as ended:
        cdc.cli.main.main()
    printed = capsys.readouterr()
    body = json.loads(printed.out)
    assert body.keys() == KEYS and body["exit_code"] == ended.value.code and body["error"] and body["hint"], body
    assert printed.err
    return dict(body)


@pytest.mark.parametrize("option", [["-o", "json"], ["--output=json"]], ids=" ".join)
@pytest.mark.parametrize("name", sorted(app.commands))
def test_usage_error_is_a_json_object(
    name: str, option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = error_of(monkeypatch, capsys, name, "--no-such-option", *option)
    assert (found["class"], found["exit_code"]) == ("UsageError", 2)
    assert found["hint"] == f"Run `cdc {name} --help`."


@pytest.mark.parametrize(
    "words",
    [
        ["status", "-o", "json", "--limit", "3"], ["changes", "-o", "json"], ["logs", "a", "-n", "-1", "-ojson"],
        ["verify", "nope", "--sample", "200%", "-o", "json"], ["logs", "-fo", "json"], ["no-such-command", "-o", "json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_value_is_a_json_object(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(monkeypatch, capsys, *words)["class"] == "UsageError"


@pytest.mark.parametrize(("name", "words"), [*_with_unknown_job()])
def test_unknown_job_is_a_json_object(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has_option = any("--output" in one.opts for one in app.commands[name].params)
    found = error_of(monkeypatch, capsys, name, *words, "-o", "json")
    expected = ("ConfigError", "UsageError")[not has_option]
    assert (found["class"], found["exit_code"]) == (expected, 2)


def test_every_command_on_a_job_has_the_output_option() -> None:
    without = {name for name, one in app.commands.items() if not any("--output" in each.opts for each in one.params)}
    assert without == {"serve", "demo"}


def test_unexpected_exception_is_a_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr(list_jobs, "callback", fail)
    found = error_of(monkeypatch, capsys, "list", "-o", "json")
    assert (found["class"], found["exit_code"]) == ("RuntimeError", 1)
