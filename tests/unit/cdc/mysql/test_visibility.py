"""What queries must see before a step reads rows: also at a server that was a replica until a failover."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import SourceUnavailable
from cdc.model.gtid import AnyGtidSet, MariadbGtidSet
from cdc.model.position import BinlogPosition
from cdc.mysql import visibility
from cdc.mysql.server import Server
from cdc.mysql.visibility import is_visible, refuse_other_server, schemas_after

READ = BinlogPosition("bin.000007", 900, "mariadb-1", "0-1-100")  # by the stream, from the server 1


class Replica:
    """A MariaDB server that has applied some transactions of the server 1."""

    mariadb = True

    def __init__(self, number: int, applied: int) -> None:
        self.identity, self.applied, self.asked = f"mariadb-{number}", applied, 0

    def has_done(self, gtid_set: AnyGtidSet) -> bool:
        assert isinstance(gtid_set, MariadbGtidSet)
        self.asked += 1
        self.applied += 1
        return all(self.applied >= last for _, last in gtid_set.domains.values())

    def position(self) -> BinlogPosition:
        return BinlogPosition("bin.000001", 500, self.identity)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        if "SHOW STATUS" not in sql:
            return []
        values = {"Binlog_snapshot_file": "bin.000001", "Binlog_snapshot_position": "500"}
        return [{"Variable_name": name, "Value": value} for name, value in values.items()]


def server_of(replica: Replica) -> Server:
    return cast(Server, replica)


def test_mariadb_replica_that_lacks_transactions_of_the_stream_is_waited_for() -> None:
    late, soon = Replica(2, applied=-(10**9)), Replica(2, applied=97)
    assert not is_visible(server_of(late), READ, 0.05), "its rows are older than the position"
    assert is_visible(server_of(soon), READ, 5.0) and soon.applied == 100


def test_mariadb_server_of_the_stream_is_not_asked_for_gtids() -> None:
    same = Replica(1, applied=0)
    assert is_visible(server_of(same), READ, 5.0) and is_visible(server_of(same), BinlogPosition("bin.000007", 4), 5.0)
    assert same.asked == 0


def test_rows_of_another_server_than_planned_are_refused() -> None:
    server = cast(Server, SimpleNamespace(identity="one", endpoint="db.example:3306"))
    refuse_other_server(server, "one")
    with pytest.raises(SourceUnavailable, match=r"db\.example:3306, expected two, found one"):
        refuse_other_server(server, "two")


def test_description_is_read_again_when_the_statement_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cast(Server, SimpleNamespace(endpoint="db.example:3306"))
    answers: list[Any] = [{"t": "before"}, {"t": "after"}]
    monkeypatch.setattr(visibility, "table_schemas", lambda *_: answers.pop(0))
    monkeypatch.setattr(visibility, "is_visible", lambda *_: True)
    assert schemas_after(server, [("d", "t")], READ) == {"t": "after"}
    answers[:] = [{"t": "certain"}]
    assert schemas_after(server, [("d", "t")], READ, lambda found: True) == {"t": "certain"}
    answers[:] = [{"t": "before"}]
    monkeypatch.setattr(visibility, "is_visible", lambda *_: False)
    with pytest.raises(SourceUnavailable, match="before a statement"):
        schemas_after(server, [("d", "t")], READ)


class Clock:
    """A clock that only sleeps and queries advance."""

    def __init__(self, began: float = 0.0) -> None:
        self.now = began

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SemiSync:
    """A MySQL server without GTIDs. ``sample`` returns the waiting groups of commits and the ended ones."""

    mariadb = gtids = False

    def __init__(self, clock: Clock, name: str, sample: Callable[[], tuple[int, int] | None]) -> None:
        self.clock, self.name, self.sample = clock, name, sample

    def ask(self, sql: str) -> list[dict[str, Any]]:
        assert "Rpl_semi_sync_" in sql
        self.clock.sleep(0.0005)
        found = self.sample()
        if found is None:
            return []  # no plugin
        waiting, ended = found
        values = {"wait_sessions": waiting, "yes_tx": ended - 1, "no_tx": 1, "status": "ON"}
        return [{"Variable_name": f"Rpl_semi_sync_{self.name}_{one}", "Value": str(values[one])} for one in values]


@pytest.mark.parametrize(
    ("samples", "seconds"),  # None: not within 5 s
    [
        ([], 1.1),
        ([(0, 5)], 1.1),
        ([(0, 5), (1, 300), (0, 600)], 1.2),
        ([(1, 5), (1, 5), (0, 6)], 1.4),
        ([(1, 5)], None),
        ([(1, 5), (0, 6), (1, 6)], None),  # the next group of commits has not begun to wait at once
        ([(0, 5), (1, 5)], None),
        ([(0, 5), (1, 5), (1, 6)], None),
        ([(1, 5), (0, 6), (1, 6), (0, 7)], 1.5),
        ([(2, 5), (1, 6), (2, 8)], None),  # another one has waited before and can still wait
        ([(2, 5), (1, 6), (2, 9)], 1.3),
    ],
)
@pytest.mark.parametrize("name", ["master", "source"])
def test_commit_that_waits_for_a_replica_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, name: str, samples: list[tuple[int, int]], seconds: float | None
) -> None:
    """With AFTER_SYNC the stream has a transaction for seconds before queries see it. The last sample stays."""
    clock, left = Clock(), [*samples]
    monkeypatch.setattr(visibility, "time", clock)
    server = SemiSync(clock, name, lambda: (left.pop(0) if len(left) > 1 else left[0]) if left else None)
    assert is_visible(cast(Server, server), READ) is (seconds is not None)
    assert seconds is None or clock.now <= seconds + 0.1


@pytest.mark.parametrize("gap_s", [0.0005, 0.01, 0.5])
def test_commit_of_the_next_group_is_waited_for(monkeypatch: pytest.MonkeyPatch, gap_s: float) -> None:
    """The stream has the commit of the second group while the first one waits, and queries see it after 4 s."""
    for phase in range(200):
        clock = Clock(0.2 + phase * 0.01)

        def sample(clock: Clock = clock) -> tuple[int, int]:
            return (1, 5) if clock.now < 2 else (0, 6) if clock.now < 2 + gap_s else (1, 6) if clock.now < 4 else (0, 7)

        monkeypatch.setattr(visibility, "time", clock)
        assert not is_visible(cast(Server, SemiSync(clock, "source", sample)), READ) or clock.now >= 4
