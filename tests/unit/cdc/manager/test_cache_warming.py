"""Caches of a machine are filled only if something is missing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdc.manager.fork_server import ForkServer
from spark import class_archive


@pytest.mark.parametrize("is_complete", [True, False])
def test_caches_are_filled_if_the_fork_server_misses_something(*, is_complete: bool) -> None:
    started, ready = list[int](), threading.Event()
    ForkServer(lambda: started.append(1))._note({"ready": True, "complete": is_complete}, ready)
    assert ready.is_set() and bool(started) is not is_complete


def test_archive_is_missing_until_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "archive_path", lambda: None)
    assert not class_archive.is_archive_missing(), "there is no Java, or no folder for it"
    monkeypatch.setattr(class_archive, "archive_path", lambda: tmp_path / "classes.jsa")
    assert class_archive.is_archive_missing()
    (tmp_path / "classes.jsa").touch()
    assert not class_archive.is_archive_missing()
