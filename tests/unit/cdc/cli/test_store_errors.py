"""Commands whose state store cannot be used: a message with hint, and the exit code of a missing prerequisite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import cdc.cli.main
from cdc.cli.main import app
from cdc.errors import PrerequisiteError

JOB = """\
name: shop
source: {type: binlog, host: 127.0.0.1, port: 1, username: cdc, password: secret-word, start: latest}
sink: {type: delta, path: ./warehouse}
channels: [{source: shop.orders, target: ods.orders}]
"""
NO_STORE = {"demo", "check"}  # demo has a store of its own; check reports the store among its findings
WORDS = {
    "start": [["{file}"], ["{file}", "--foreground"]],
    "status": [[], ["shop"]],
    "list": [[]],
    "snapshot": [["shop", "shop.orders"]],
    "verify": [["shop"], ["shop", "--history"]],
    "stop": [["shop", "--yes"], ["shop", "--yes", "--forget"]],
    "ddl": [["shop"], ["shop", "--pending"], ["{file}", "--statement", "ALTER TABLE shop.orders ADD x INT"]],
    "serve": [[]],
    "hosts": [[], ["--drain", "a1"], ["--undrain", "a1"], ["--forget", "a1"]],
}


def _command_lines() -> Iterator[list[str]]:
    for name, command in sorted(app.commands.items()):
        if name in NO_STORE:
            continue
        options = {option for one in command.params for option in one.opts}
        for words in WORDS.get(name, [["shop"]]):
            yield [name, *words]
            if "--output" in options:
                yield [name, *words, "--output", "json"]


@pytest.fixture(params=["server", "file", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the address of a store that cannot be used."""
    home = tmp_path / "home"
    monkeypatch.delenv("CDC_STORE", raising=False)
    if request.param == "server":
        pytest.importorskip("psycopg")
        monkeypatch.setenv("CDC_STORE", "postgresql://cdc@127.0.0.1:1/cdc_state")  # no process listens on this port
    elif request.param == "file":
        (home / "state.db").mkdir(parents=True)  # also root cannot open it
    else:
        home.write_text("not a folder")
    monkeypatch.setenv("CDC_HOME", str(home))
    monkeypatch.setattr(cdc.cli.main, "restrict_umask", lambda: None)  # for this process only
    return str(request.param)


@pytest.mark.parametrize("words", [*_command_lines()], ids=" ".join)
def test_command_without_its_state_store_exits_with_3(
    store: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(JOB)
    monkeypatch.setattr("sys.argv", ["cdc", *(word.format(file=file) for word in words)])
    with pytest.raises(SystemExit) as ended:
        cdc.cli.main.main()
    printed = capsys.readouterr()
    assert ended.value.code == PrerequisiteError.exit_code, (store, printed)
    assert "state" in printed.err and "Traceback" not in printed.err
    if "json" in words:
        body = json.loads(printed.out)
        assert (body["exit_code"], body["class"]) == (3, "CheckpointError") and body["hint"], body
