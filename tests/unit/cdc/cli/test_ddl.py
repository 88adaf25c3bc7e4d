"""``cdc ddl``: a file or the name of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.cli.inspection import _file_of
from cdc.state.sqlite import SqliteStore


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a saved job ``shop``. The current folder is empty."""
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    file = tmp_path / "job.yaml"
    store = SqliteStore(tmp_path / "home")
    store.acquire("shop", str(file))
    store.close()
    return file


def test_folder_with_the_name_of_a_job_is_ignored(job: Path) -> None:
    Path("shop").mkdir()
    assert _file_of(Path("shop")) == job


def test_file_with_the_name_of_a_job_is_used(job: Path) -> None:
    Path("shop").touch()
    assert _file_of(Path("shop")) == Path("shop")
    assert _file_of(Path("/dev/stdin")) == Path("/dev/stdin")


def test_unknown_and_unreadable_names_are_paths(job: Path) -> None:
    for name in ("none.yaml", "x" * 300):
        assert _file_of(Path(name)) == Path(name)
