"""What the Committer saves when the table of a load was dropped around its commit."""

import threading

import pytest

from cdc.errors import PreparedLoadLost, SinkUnavailable, TargetLost
from cdc.pipeline.committer import Committer
from cdc.state.base import CheckpointState
from channels.sinks.base import LoadState
from channels.task import RunIdentity
from tests.unit.cdc.pipeline.test_targets import FakeSink, a_checkpoint, a_load, store, verify

__all__ = ["store"]  # the fixture

LOADS = (a_load(6, "orders"), a_load(6, "items"))


class DroppedTableSink(FakeSink):
    """A server that commits the loads of a dropped table. ``drops_at`` is the commit during which it is dropped."""

    def __init__(self, lost_loads=False):
        super().__init__()
        self.lost_loads, self.committed = lost_loads, []

    def identities(self, targets):
        return {name: self.states[name].identity for name in targets if name in self.states}

    def commit(self, loads, checkpoint):
        self.committed += loads
        del self.states["ods.orders"]
        if self.lost_loads:
            raise PreparedLoadLost("lost", hint="", labels=[])

    def state(self, load):
        return LoadState.COMMITTED if load in self.committed else LoadState.PREPARED


def commit(store, sink):
    store.save(a_checkpoint(6, CheckpointState.PREPARED, LOADS))
    committer = Committer(RunIdentity("shop", "0badcafe", 1), store, sink, threading.Event())
    committer.roll_forward(store.unfinished()[0])


def refuses_restored_table(store, sink):
    sink.states = FakeSink().states  # restored, with its old identity and with the newest checkpoint of its database
    with pytest.raises(TargetLost, match=r"ods\.orders lacks rows") as raised:
        verify(store, sink)
    assert "ods.items" not in str(raised.value)
    verify(store, sink, reload_missing=True)
    (prepared,) = store.unfinished()
    assert prepared.loads == LOADS[1:] and prepared.snapshots["shop.orders"].is_due


@pytest.mark.parametrize("lost_loads", [False, True])
def test_commit_during_drop_refuses_the_restored_table(store, lost_loads):
    sink = DroppedTableSink(lost_loads)
    with pytest.raises(TargetLost, match="during the commit"):
        commit(store, sink)
    refuses_restored_table(store, sink)


def test_commit_of_dropped_or_replaced_table_commits_nothing(store):
    sink = DroppedTableSink()
    found = sink.states.pop("ods.orders")
    with pytest.raises(TargetLost, match="while rows were loaded"):
        commit(store, sink)
    sink.states["ods.orders"] = sink.states["ods.items"]
    with pytest.raises(TargetLost, match="while rows were loaded"):
        commit(store, sink)
    sink.states["ods.orders"] = found
    assert not sink.committed
    assert verify(store, sink) == store.last_committed("shop"), "a restored table lacks nothing"


def test_crash_after_commit_of_dropped_table_refuses_it_when_restored(store):
    sink = DroppedTableSink()
    store.save(a_checkpoint(6, CheckpointState.PREPARED, LOADS))
    sink.commit(LOADS, None)  # the process dies here
    with pytest.raises(TargetLost, match=r"ods\.orders is missing"):
        verify(store, sink)
    refuses_restored_table(store, sink)


def test_commit_with_lost_answer_refuses_the_restored_table(store, monkeypatch):
    sink, commit_once = DroppedTableSink(), DroppedTableSink.commit

    def commit_without_answer(self, loads, checkpoint):
        commit_once(self, loads, checkpoint)
        raise SinkUnavailable("no answer", hint="")

    monkeypatch.setattr(DroppedTableSink, "commit", commit_without_answer)
    monkeypatch.setattr("cdc.retry.FIRST_DELAY_S", 0.0)
    with pytest.raises(TargetLost, match="while rows were loaded"):
        commit(store, sink)
    refuses_restored_table(store, sink)
