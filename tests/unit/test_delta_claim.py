"""The name in the claim file, where the file system keeps no locks."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import SinkForeign
from cdc.position import BinlogPosition
from channels.sinks.base import CheckpointMark
from channels.sinks.delta_claim import Claim


def mark(incarnation: str, fence: int) -> CheckpointMark:
    place = BinlogPosition("b.000001", 4)
    return CheckpointMark("shop", incarnation, fence, 0, place, place, 0)


OLDER, NEWER = mark("0badcafe", 1), mark("deadbeef", 2)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Claim, Claim]]:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    older, newer = Claim(tmp_path), Claim(tmp_path)
    older.take(OLDER)
    newer.take(NEWER)
    yield older, newer
    older.release()
    newer.release()


def test_a_run_that_begins_again_does_not_run_over_one_that_came_later(two: tuple[Claim, Claim]) -> None:
    older, newer = two
    with pytest.raises(SinkForeign, match="deadbeef"):
        older.take(OLDER)
    newer.check(NEWER)
    newer.take(NEWER)
    newer.check(NEWER)


def test_who_is_told_of_another_one_and_resumes_all_the_same_has_the_folder(two: tuple[Claim, Claim]) -> None:
    older, newer = two
    for _ in range(2):  # not the first time alone: a commit may be under way still
        with pytest.raises(SinkForeign, match="deadbeef"):
            older.check(OLDER)
    older.take(OLDER)
    older.check(OLDER)
    with pytest.raises(SinkForeign, match="0badcafe"):
        newer.check(NEWER)


def test_a_folder_that_was_tidied_is_claimed_again(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "staging")
    claim.check(OLDER)  # of a sink that claimed nothing
    claim.take(OLDER)
    (tmp_path / "staging/claim-shop.json").unlink()
    claim.check(OLDER)
    assert (tmp_path / "staging/claim-shop.json").exists()
    with pytest.raises(SinkForeign, match="0badcafe"):
        claim.check(NEWER)
    claim.release()
