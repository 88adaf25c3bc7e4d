"""Loads in shared memory: many Spark jobs run one plan, and each writes its own loads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from cdc.errors import LoadRejected
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED, SEQUENCE
from spark import shared_loads
from spark.remote_rows import RowServer
from spark.row_transport import RowTransport
from spark.session import SessionHolder
from spark.shared_loads import SharedLoads, SharedWriter
from spark.shared_memory import Range, SameMachine, SharedRows
from spark.writers import Outcome, PackedLoad


@dataclass(frozen=True)
class Echo:
    """A writer whose load tells which rows it got."""

    fails: bool = False

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        if self.fails:
            raise LoadRejected("The load is refused.", hint="Correct it.", label=name.task)
        ids = [value for batch in rows for value in batch.column("id").to_pylist()]
        return PreparedLoad(name, name.channel, len(ids), 1, {"ids": sorted(ids)}) if ids else None


def load_of(task: int, ids: list[int], *, fails: bool = False) -> PackedLoad:
    columns = {
        "id": pa.array(ids, pa.int32()),
        DELETED: pa.array([False] * len(ids)),
        SEQUENCE: pa.array(range(len(ids)), pa.int64()),
    }
    name = LoadName("shop", "0badcafe", 1, 1, "ods.t", task, 0, 0)
    return PackedLoad(name, ("id",), Echo(fails), [pa.RecordBatch.from_pydict(columns)], 10 * len(ids))


@pytest.fixture(params=["same machine", "server"])
def transport(request: pytest.FixtureRequest) -> Iterator[RowTransport]:
    """The transports, both to executors of this machine."""
    with closing(SameMachine() if request.param == "same machine" else RowServer("127.0.0.1", "127.0.0.1")) as found:
        yield found


def write(
    sessions: SessionHolder,
    loads: list[PackedLoad],
    partition_count: int,
    transport: RowTransport,
    writer: SharedWriter | None = None,
) -> list[Outcome]:
    with closing(SharedLoads(loads, partition_count, transport)) as shared:
        loads.clear()
        return (writer or SharedWriter()).write(sessions.get(), shared)


def ids_of(outcomes: list[Outcome]) -> list[object]:
    return [outcome.detail["ids"] if isinstance(outcome, PreparedLoad) else outcome for outcome in outcomes]


def test_write_loads_of_many_partitions_gives_outcomes_in_order(
    sessions: SessionHolder, transport: RowTransport
) -> None:
    loads = [load_of(number, list(range(number))) for number in range(5)]
    found = ids_of(write(sessions, loads, 2, transport))
    assert found == [None, [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_write_jobs_at_once_write_their_own_loads(sessions: SessionHolder, transport: RowTransport) -> None:
    writer, start = SharedWriter(), threading.Barrier(4)

    def written(number: int) -> list[object]:
        start.wait(120)
        found = []
        for turn in range(5):
            first = 100 * number + 10 * turn
            loads = [load_of(0, [first]), load_of(1, [first + 1])]
            found += ids_of(write(sessions, loads, 1 + turn % 2, transport, writer))
        return found

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(written, range(4)))
    assert found == [[[100 * number + 10 * turn + more] for turn in range(5) for more in (0, 1)] for number in range(4)]


def test_write_refused_load_leaves_the_others(sessions: SessionHolder, transport: RowTransport) -> None:
    loads = [load_of(0, [1]), load_of(1, [2], fails=True), load_of(2, [3])]
    first, refused, last = write(sessions, loads, 1, transport)
    assert isinstance(refused, LoadRejected) and ids_of([first, last]) == [[1], [3]]


def test_write_again_without_the_rows(sessions: SessionHolder, transport: RowTransport) -> None:
    """When the JVM has died, the loads are written again; their rows are only in shared memory then."""
    loads, writer = [load_of(0, [1, 2]), load_of(1, [3])], SharedWriter()
    with closing(SharedLoads(loads, 2, transport)) as shared:
        loads.clear()
        for _ in range(2):
            assert ids_of(writer.write(sessions.get(), shared)) == [[1, 2], [3]]


def test_write_with_a_new_session_makes_new_frames(transport: RowTransport) -> None:
    writer = SharedWriter()
    for number in range(2):
        holder = SessionHolder("tests", "local[1]")
        try:
            assert ids_of(write(holder, [load_of(0, [number])], 1, transport, writer)) == [[number]]
        finally:
            holder.close()


def test_late_task_does_not_write_loads_of_later_memory(
    sessions: SessionHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the job is closed before its task opens it, and other memory has its path."""

    class Replaced(SharedRows):
        later: SharedRows | None = None

        def put_bytes(self, data: bytes) -> Range:
            at = super().put_bytes(data)
            content = os.pread(self._handle, 1 << 20, 0)
            self.close()
            self.later = SharedRows()
            self.later.put_bytes(content)
            return at

        def close(self) -> None:
            super().close()
            if self.later:
                self.later.close()

    monkeypatch.setattr(shared_loads, "SharedRows", Replaced)
    with pytest.raises(PySparkException, match="StaleMemory"):
        write(sessions, [load_of(0, [1])], 1, SameMachine())


def test_late_task_does_not_write_loads_that_were_withdrawn(sessions: SessionHolder) -> None:
    with (
        closing(RowServer("127.0.0.1", "127.0.0.1")) as server,
        closing(SharedLoads([load_of(0, [1])], 1, server)) as shared,
    ):
        server.withdraw(shared._memory)
        with pytest.raises(PySparkException, match="StaleMemory"):
            SharedWriter().write(sessions.get(), shared)


@pytest.mark.parametrize("rows", [[], [7]])
def test_write_load_without_rows_is_none(sessions: SessionHolder, transport: RowTransport, rows: list[int]) -> None:
    assert ids_of(write(sessions, [load_of(0, rows)], 1, transport)) == [rows or None]
