"""Readers of a Delta table while its columns change: each sees the whole table as before a change, or as after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from channels.sinks.base import AlterStep
from channels.sinks.delta.sink import DeltaSink
from tests.contract.test_table_alterer import COUNT, TEXT, Subject, add, after, drop, make_nullable, mark, rename, widen
from tests.contract.test_table_alterer import TABLE as FIRST

ROWS, FILES = 2_000, 4
FIVE = add("five", pa.int32(), 5, "int")
READERS: dict[str, Callable[[DeltaTable], pa.Table]] = {
    "pyarrow": lambda table: table.to_pyarrow_table(),
    "dataset": lambda table: table.to_pyarrow_dataset().to_table(),
    "datafusion": lambda table: pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()),
}
CHANGES: dict[str, list[AlterStep]] = {
    "add": [add("plain", pa.int64())],
    "add with value": [FIVE],
    "rename": [rename(TEXT, "words")],
    "widen": [widen(COUNT, pa.int64(), "bigint")],
    "drop": [drop(TEXT)],
    "make nullable": [make_nullable(COUNT)],
    "several": [FIVE, rename(TEXT, "words"), widen(COUNT, pa.int64(), "bigint"), add("more", pa.string(), "it's")],
}


class Poller(threading.Thread):
    """Reads the newest version again and again, and checks that it is one of ``expected``."""

    def __init__(self, path: Path, read: Callable[[DeltaTable], pa.Table], expected: list[Any]) -> None:
        super().__init__(daemon=True)
        self.path, self.read, self.expected = str(path), read, expected
        self.ending = threading.Event()
        self.seen: list[int] = []  # the number of the state, for each read
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.look()
            self.look()
        except BaseException as error:
            self.error = error

    def look(self) -> None:
        found = shown(self.read(DeltaTable(self.path)))
        assert found in self.expected, f"a reader saw {str(found)[:300]}"
        self.seen.append(self.expected.index(found))


def shown(rows: pa.Table) -> Any:
    """Return the number of rows, and for each column its number of values, and the lowest and highest one."""
    values = {
        name: [value for value in rows.column(name).to_pylist() if value is not None] for name in rows.schema.names
    }
    edges = {name: (len(found), min(found, default=None), max(found, default=None)) for name, found in values.items()}
    numbers = [str(field.type) for field in rows.schema if field.name == "count"]  # readers have several types of text
    return rows.num_rows, sorted(edges.items()), numbers


def state_of(table: Any, steps: list[AlterStep]) -> Any:
    """Return what ``shown`` returns after ``steps``, computed without the code under test."""
    ids = range(ROWS)
    columns: dict[str, list[Any]] = {
        "id": list(ids), "text": [f"t{number:05}" if number % 3 else None for number in ids], "count": [-n for n in ids]
    }  # fmt: skip
    for step in steps:
        values = columns.pop(step.before.name) if step.before else [step.fill and step.fill.as_py()] * ROWS
        if step.after is not None:
            columns[step.after.name] = values
    kinds = {column.name: column.arrow for column in after(table, steps).columns}
    assert columns.keys() == kinds.keys()
    return shown(pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()}))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_reader_sees_a_changed_table_whole(tmp_path: Path, change: str, reader: str) -> None:
    steps, states = CHANGES[change], [state_of(FIRST, []), state_of(FIRST, CHANGES[change])]
    sink = DeltaSink(tmp_path)
    subject = Subject(sink, lambda _: [])
    sink.acquire_ownership(mark(0), [FIRST.name])
    sink.ensure_table(FIRST)
    size = ROWS // FILES
    for number in range(FILES):
        ids = range(number * size, (number + 1) * size)
        rows = [{"id": n, "text": f"t{n:05}" if n % 3 else None, "count": -n} for n in ids]
        subject.load(FIRST, rows, number + 1)
    poller = Poller(tmp_path / "ods" / "altered", READERS[reader], states)
    poller.look()
    poller.start()
    sink.alter(FIRST, steps, mark(FILES + 1))
    poller.ending.set()
    poller.join()
    sink.close()
    if poller.error is not None:
        raise poller.error
    last = states.index(states[1])  # 0 if readers see no difference
    assert poller.seen[0] == 0 and poller.seen[-1] == last and poller.seen == sorted(poller.seen)
    old = DeltaTable(str(tmp_path / "ods" / "altered"), version=DeltaTable(str(poller.path)).version() - 1)
    assert shown(READERS[reader](old)) == states[0], "an old version has other columns or rows"
