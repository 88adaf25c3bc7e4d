"""The claim of a run in an object store: lost answers, runs that ended without releasing it, newer runs."""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from cdc.errors import SinkOwnershipError, SinkUnavailable
from cdc.model.position import BinlogPosition
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta import object_path
from channels.sinks.delta.object_ownership import ObjectOwnership
from channels.sinks.delta.object_path import ObjectPath, ObjectStore


def mark(incarnation: str, fence: int) -> SinkCheckpoint:
    place = BinlogPosition("b.000001", 4)
    return SinkCheckpoint("shop", incarnation, fence, 0, place, place, 0)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    memory = MemoryStore()
    monkeypatch.setattr(object_path, "_client", lambda store: memory)
    return ObjectPath(ObjectStore("memory://bucket"), "lake/_cdc_staging")


def ownership(folder: ObjectPath) -> ObjectOwnership:
    return ObjectOwnership(folder, lambda job: None)


def test_claim_whose_answer_was_lost_is_the_own_one(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, put, get, is_cut = ownership(folder), obstore.put, obstore.get, [False]

    def cut_put(*given: Any, **more: Any) -> Any:
        result = put(*given, **more)
        if is_cut[0]:
            raise GenericError("timeout")
        return result

    def cut_get(*given: Any, **more: Any) -> Any:
        if is_cut[0]:
            raise GenericError("timeout")
        return get(*given, **more)

    monkeypatch.setattr(obstore, "put", cut_put)
    monkeypatch.setattr(obstore, "get", cut_get)
    monkeypatch.setattr(object_path, "_PUT_DELAY_S", 0.001)
    with pytest.raises(SinkUnavailable):
        owner.acquire(mark("0badcafe", 3), lambda: is_cut.__setitem__(0, True))
    is_cut[0] = False
    owner.acquire(mark("0badcafe", 3))
    owner.check(mark("0badcafe", 3))
    with pytest.raises(SinkOwnershipError):
        ownership(folder).acquire(mark("0badcafe", 3))


def test_claim_of_a_killed_run_does_not_block_another_incarnation(folder: ObjectPath) -> None:
    killed = ownership(folder)
    killed.acquire(mark("0badcafe", 7))
    new = ownership(folder)
    new.acquire(mark("deadbeef", 1))
    new.check(mark("deadbeef", 1))
    with pytest.raises(SinkOwnershipError):
        killed.check(mark("0badcafe", 7))


def test_claim_of_a_newer_run_is_refused(folder: ObjectPath) -> None:
    old, new = ownership(folder), ownership(folder)
    old.acquire(mark("0badcafe", 1))
    new.acquire(mark("0badcafe", 2))
    for step in (lambda: old.check(mark("0badcafe", 1)), lambda: old.acquire(mark("0badcafe", 1)), old.check_all):
        with pytest.raises(SinkOwnershipError):
            step()
    new.release()
    old.acquire(mark("0badcafe", 1))
