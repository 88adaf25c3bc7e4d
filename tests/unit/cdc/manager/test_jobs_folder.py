"""The folder of jobs: files that are written slowly, that cannot be read or saved, and two files of one job."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.config.loader import FILE_BYTES_MOST
from cdc.errors import CheckpointError
from cdc.manager import jobs_folder
from cdc.manager.jobs_folder import JobsFolder
from cdc.manager.spec import JobSpec
from cdc.state.base import JobState
from cdc.state.deployments import DesiredState
from cdc.state.events import EventKind
from cdc.state.sqlite import SqliteStore
from tests.support.manager import add_job


def seconds() -> Callable[[], float]:
    """Return a clock that advances by a second with each call."""
    return itertools.count().__next__


def read_twice(folder: JobsFolder) -> None:
    """Read a file that has not changed between two reads, which are a second apart."""
    folder.read_changes()
    folder.read_changes()


def specs(store: SqliteStore) -> dict[str, str | None]:
    return {job.job: job.spec for job in store.deployments.all()}


def test_job_file_is_declared_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "shop.yaml"
    file.parent.mkdir()
    whole = "name: shop\nhost_selector:\n  zone: eu\n  disk: fast\n"
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(file.parent, store, seconds())
        for end in (whole.index("  disk"), len(whole) - 1, len(whole)):
            file.write_text(whole[:end])
            folder.read_changes()
            assert specs(store) == {}
        folder.read_changes()
        job = store.deployments.get("shop")
        assert job is not None and (job.spec, job.generation) == (whole, 1)


def test_job_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs" / "shop.yaml"
    file.parent.mkdir()
    file.write_text("name: shop\n")
    real, whole = jobs_folder.read_text_limited, "name: shop\nhost_selector: {zone: eu}\n"

    def read_text_limited(path: Path, most: int) -> str:
        text = real(path, most)
        file.write_text(whole)
        return text

    monkeypatch.setattr(jobs_folder, "read_text_limited", read_text_limited)
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(file.parent, store, seconds())
        read_twice(folder)
        assert specs(store) == {}
        monkeypatch.setattr(jobs_folder, "read_text_limited", real)
        read_twice(folder)
        assert specs(store) == {"shop": whole}


def test_two_files_of_one_job_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "b.yaml").write_text("name: shop\n")
    with closing(SqliteStore(tmp_path)) as store:
        read_twice(JobsFolder(jobs, store, seconds()))
        (jobs / "a.yaml").write_text("name: shop\nhost_selector: {zone: eu}\n")
        folder = JobsFolder(jobs, store, seconds())  # of the next process
        read_twice(folder)
        folder.read_changes()
        job = store.deployments.get("shop")
        assert job is not None and (job.spec, job.generation) == ("name: shop\n", 1)
        assert "The job shop is in a.yaml and in b.yaml" in caplog.text and len(caplog.records) == 2
        (jobs / "b.yaml").unlink()
        folder.read_changes()
        assert "zone" in (specs(store)["shop"] or "")


def test_second_refusal_of_a_job_file_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The user removes one of two files of a job, and the job of the other one was cancelled."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name in ("a", "b"):
        (jobs / f"{name}.yaml").write_text("name: shop\n")
    with closing(SqliteStore(tmp_path)) as store:
        add_job(store, "shop", JobState.CANCELLED)
        folder = JobsFolder(jobs, store, seconds())
        read_twice(folder)
        read_twice(folder)
        assert caplog.text.count("A job file is refused: The job shop is in") == 2
        (jobs / "a.yaml").unlink()
        read_twice(folder)
        read_twice(folder)
    assert caplog.text.count("A job file is refused: The job shop is CANCELLED") == 1


def test_files_that_exchange_their_names_are_both_declared(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "a.yaml").write_text("name: crm # a\n")
    (jobs / "b.yaml").write_text("name: shop # b\n")
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(jobs, store, seconds())
        read_twice(folder)
        (jobs / "a.yaml").write_text("name: shop # a\n")
        (jobs / "b.yaml").write_text("name: crm # b\n")
        read_twice(folder)
        assert specs(store) == {"crm": "name: crm # b\n", "shop": "name: shop # a\n"}


def test_job_file_that_the_store_refuses_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name in ("bad", "shop"):
        (jobs / f"{name}.yaml").write_text(f"name: {name}\n")
    real, refused = jobs_folder.declare, ["bad"]

    def declare(store: Any, spec: JobSpec, **options: Any) -> int:
        if spec.name in refused:
            raise CheckpointError("The state store refused a statement (1406).", hint="Correct it.")
        return real(store, spec, **options)

    monkeypatch.setattr(jobs_folder, "declare", declare)
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(jobs, store, seconds())
        read_twice(folder)
        folder.read_changes()
        folder.read_changes()
        assert specs(store) == {"shop": "name: shop\n"}
        assert len(caplog.records) == 1 and "bad.yaml" in str(caplog.records[0].__dict__["file"])
        refused.clear()
        folder.read_changes()
        assert sorted(specs(store)) == ["bad", "shop"]


def test_actor_of_an_event_fits_into_its_column(tmp_path: Path) -> None:
    """A server store refuses longer names than its columns have characters; a file name may have 255."""
    with closing(SqliteStore(tmp_path)) as store:
        number = store.events.add("shop", EventKind.SPEC, "text", actor="file " + "x" * 250)
        event = store.events.get(number)
        assert event is not None and event.actor is not None and len(event.actor) == 190
        number = store.events.request("shop", "pause", {})
        long = "h" * 190 + ":4711:abcdef12"
        assert store.events.take(number, long) and store.events.take(number, long)
        assert [one.id for one in store.events.open_requests("shop", long)] == [number]
        taken = store.events.get(number)
        assert taken is not None and len(taken.taken_by or "") == 190
        assert not store.events.take(number, "h" * 190 + ":4711:abcdef13")


def test_job_file_that_cannot_be_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "shop.yaml").write_text("name: shop\n")
    real, left = jobs_folder.read_text_limited, [1]

    def read_text_limited(path: Path, most: int) -> str:
        if left:
            left.pop()
            raise OSError(5, "Input/output error")
        return real(path, most)

    monkeypatch.setattr(jobs_folder, "read_text_limited", read_text_limited)
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(tmp_path / "jobs", store, seconds())
        read_twice(folder)
        assert store.deployments.all() == ()
        folder.read_changes()
        assert [job.job for job in store.deployments.all()] == ["shop"]


def test_job_file_with_an_absurd_size_leaves_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "bad.yaml").write_text(f"name: bad\nresources: {{memory: {'9' * 400}GiB}}\n")
    (tmp_path / "jobs" / "shop.yaml").write_text("name: shop\n")
    with closing(SqliteStore(tmp_path)) as store:
        read_twice(JobsFolder(tmp_path / "jobs", store, seconds()))
        assert [job.job for job in store.deployments.all()] == ["shop"]
    assert "must not be larger than 1 EiB" in caplog.text


def test_unexpected_error_of_a_job_file_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jobs").mkdir()
    for name in ("bad", "shop"):
        (tmp_path / "jobs" / f"{name}.yaml").write_text(f"name: {name}\n")
    real = jobs_folder.read_spec

    def read_spec(text: str, origin: str) -> JobSpec:
        return real(text, origin) if origin == "shop.yaml" else JobSpec(str(1 // 0), "")

    monkeypatch.setattr(jobs_folder, "read_spec", read_spec)
    with closing(SqliteStore(tmp_path)) as store:
        folder = JobsFolder(tmp_path / "jobs", store, seconds())
        read_twice(folder)
        folder.read_changes()
        assert [job.job for job in store.deployments.all()] == ["shop"]
    assert caplog.text.count("unexpected error") == 1 and "ZeroDivisionError" in caplog.text


def test_named_pipe_in_the_folder_leaves_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jobs").mkdir()
    os.mkfifo(tmp_path / "jobs" / "bad.yaml")
    (tmp_path / "jobs" / "large.yaml").write_text("#" * (FILE_BYTES_MOST + 1))
    (tmp_path / "jobs" / "shop.yaml").write_text("name: shop\n")
    with closing(SqliteStore(tmp_path)) as store:
        read_twice(JobsFolder(tmp_path / "jobs", store, seconds()))
        assert [job.job for job in store.deployments.all()] == ["shop"]
    assert "not a regular file" in caplog.text and "larger than 1048576 bytes" in caplog.text


def test_restart_keeps_the_pause_of_a_job_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    file = tmp_path / "jobs" / "shop.yaml"
    file.write_text("name: shop\n")
    with closing(SqliteStore(tmp_path)) as store:
        read_twice(JobsFolder(tmp_path / "jobs", store, seconds()))
        store.deployments.declare("shop", desired=DesiredState.PAUSED)
        read_twice(JobsFolder(tmp_path / "jobs", store, seconds()))  # of the next process
        file.write_text("name: shop\nhost_selector: {zone: eu}\n")
        read_twice(JobsFolder(tmp_path / "jobs", store, seconds()))
        job = store.deployments.get("shop")
        assert job is not None and job.desired is DesiredState.PAUSED and "zone" in (job.spec or "")
