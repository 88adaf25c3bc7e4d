"""The name in the ownership file, on a file system without locks."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import SinkOwnershipError
from cdc.model.position import BinlogPosition
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.ownership import FolderOwnership


def mark(incarnation: str, fence: int) -> SinkCheckpoint:
    place = BinlogPosition("b.000001", 4)
    return SinkCheckpoint("shop", incarnation, fence, 0, place, place, 0)


def no_commits(job: str) -> SinkCheckpoint | None:
    return None


OLDER, NEWER = mark("0badcafe", 1), mark("deadbeef", 2)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FolderOwnership, FolderOwnership]]:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    older, newer = FolderOwnership(tmp_path, no_commits), FolderOwnership(tmp_path, no_commits)
    older.acquire(OLDER)
    newer.acquire(NEWER)
    yield older, newer
    older.release()
    newer.release()


def test_take_repeated_by_older_run_raises(two: tuple[FolderOwnership, FolderOwnership]) -> None:
    older, newer = two
    with pytest.raises(SinkOwnershipError, match="deadbeef"):
        older.acquire(OLDER)
    newer.check(NEWER)
    newer.acquire(NEWER)
    newer.check(NEWER)


def test_take_after_failed_check_gets_ownership(two: tuple[FolderOwnership, FolderOwnership]) -> None:
    older, newer = two
    for _ in range(2):  # every check raises, because a commit may still run
        with pytest.raises(SinkOwnershipError, match="deadbeef"):
            older.check(OLDER)
    older.acquire(OLDER)
    older.check(OLDER)
    with pytest.raises(SinkOwnershipError, match="0badcafe"):
        newer.check(NEWER)


def test_check_deleted_file_takes_ownership_again(tmp_path: Path) -> None:
    acquire_ownership = FolderOwnership(tmp_path / "staging", no_commits)
    acquire_ownership.check(OLDER)  # without ownership, it checks nothing
    acquire_ownership.acquire(OLDER)
    (tmp_path / "staging/claim-shop.json").unlink()
    acquire_ownership.check(OLDER)
    assert (tmp_path / "staging/claim-shop.json").exists()
    with pytest.raises(SinkOwnershipError, match="0badcafe"):
        acquire_ownership.check(NEWER)
    acquire_ownership.release()


def test_acquire_older_run_than_newest_commit_raises(tmp_path: Path) -> None:
    newest: list[SinkCheckpoint] = []
    older = FolderOwnership(tmp_path / "staging", lambda _: newest[-1] if newest else None)
    newest.append(NEWER)  # a process that adopted the sink has committed and ended
    with pytest.raises(SinkOwnershipError) as caught:
        older.acquire(OLDER)
    assert caught.value.context["incarnation"] == "deadbeef"
    assert not list((tmp_path / "staging").glob("*.json")) or not (tmp_path / "staging" / "claim-shop.json").read_text()
    newest.clear()
    older.acquire(OLDER)  # the refused run holds no lock
    older.check(OLDER)
    older.release()


def test_acquire_greater_fence_of_the_incarnation_needs_no_lock(tmp_path: Path) -> None:
    older, newer, path = FolderOwnership(tmp_path, no_commits), FolderOwnership(tmp_path, no_commits), tmp_path
    older.acquire(mark("0badcafe", 1))
    newer.acquire(mark("0badcafe", 2))  # the older process is frozen, and holds its lock
    newer.check(mark("0badcafe", 2))
    for call in (older.check, older.acquire):
        with pytest.raises(SinkOwnershipError) as caught:
            call(mark("0badcafe", 1))
        assert caught.value.context["fence"] == 2
    newer.check(mark("0badcafe", 2))
    with pytest.raises(SinkOwnershipError):
        FolderOwnership(tmp_path, no_commits).acquire(mark("deadbeef", 3))  # another incarnation waits for the lock
    older.release()
    newer.release()
    assert [file.name for file in path.iterdir()] == ["claim-shop.json"]


def test_acquire_greater_fence_with_newer_commit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    older = FolderOwnership(tmp_path, no_commits)
    older.acquire(mark("0badcafe", 1))
    with pytest.raises(SinkOwnershipError):
        FolderOwnership(tmp_path, lambda _: mark("0badcafe", 9)).acquire(mark("0badcafe", 2))
    older.check(mark("0badcafe", 1))
    older.release()
    assert [file.name for file in tmp_path.iterdir()] == ["claim-shop.json"]


def test_acquire_by_a_slower_run_keeps_the_name_of_a_newer_one(tmp_path: Path) -> None:
    """Both runs take the folder from a frozen process, and the newer one is faster."""
    frozen, slow, newer = (FolderOwnership(tmp_path, no_commits) for _ in range(3))
    frozen.acquire(mark("0badcafe", 1))
    with pytest.raises(SinkOwnershipError) as caught:
        slow.acquire(mark("0badcafe", 5), lambda: newer.acquire(mark("0badcafe", 6)))
    assert caught.value.context["fence"] == 6
    newer.check(mark("0badcafe", 6))
    for one in (frozen, slow, newer):
        one.release()
    assert [file.name for file in tmp_path.iterdir()] == ["claim-shop.json"]
