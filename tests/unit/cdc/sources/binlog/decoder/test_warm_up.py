"""The first start of a version: one process compiles the kernels, and others wait for it."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.sources.binlog.decoder import warm_up


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiled kernels; it is empty."""
    monkeypatch.setattr(warm_up, "CACHED", True)
    monkeypatch.setattr(warm_up, "_file", lambda name: tmp_path / name)
    monkeypatch.setattr(warm_up, "_COMPLETE", "complete")
    monkeypatch.setattr(warm_up, "_POLL_S", 0.01)
    return tmp_path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock, as a process that compiles does."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_others_wait_for_the_process_that_compiles(folder: Path) -> None:
    done = []

    def other() -> None:
        with warm_up._one_compiles():
            done.append("other")

    thread = threading.Thread(target=other)
    with warm_up._one_compiles():
        thread.start()
        thread.join(0.3)
        done.append("first")
    thread.join()
    assert done == ["first", "other"]
    assert (folder / "complete").exists()


def test_process_does_not_wait_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_WAIT_S", 0.1)
    with locked(folder), warm_up._one_compiles():
        pass
    assert (folder / "complete").exists()


def test_compilation_that_failed_is_repeated(folder: Path) -> None:
    with pytest.raises(ValueError), warm_up._one_compiles():
        raise ValueError
    assert not (folder / "complete").exists()
    with warm_up._one_compiles():
        pass
    assert (folder / "complete").exists()


def test_compiled_kernels_are_loaded_without_waiting(folder: Path) -> None:
    (folder / "complete").touch()
    with locked(folder), warm_up._one_compiles():
        pass


def test_folder_that_cannot_be_written_does_not_stop_a_start(folder: Path) -> None:
    (folder / "lock").mkdir()
    with warm_up._one_compiles():
        pass


def test_kernels_are_loaded_in_advance_only_if_all_are_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(warm_up, "warm_up", lambda: loaded.append(1))
    warm_up.load_compiled()
    assert not loaded
    (folder / "complete").touch()
    warm_up.load_compiled()
    assert loaded
