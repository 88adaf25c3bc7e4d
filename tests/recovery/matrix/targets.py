"""Where rows go: how each sink is made, which of its calls is the commit of one load, and what a reader has seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from channels.sinks.base import Sink
from channels.sinks.delta import DeltaSink
from channels.sinks.delta_files import STAGING
from channels.sinks.doris import DorisSink
from channels.sinks.starrocks import StarrocksSink
from tests.flow.sink import FileSink
from tests.recovery.matrix.sources import TABLES
from tests.servers.doris.cases import stand_in as doris_stand_in
from tests.servers.olap_cases import USER
from tests.servers.olap_storage import SIGN
from tests.servers.starrocks.cases import MODES
from tests.servers.starrocks.cases import stand_in as starrocks_stand_in

Change = tuple[str, int, int, bool]  # table, key, op, deleted


@dataclass(frozen=True)
class Seen:
    """A target at rest."""

    rows: dict[str, dict[int, int]]  # table to key to op
    shown: list[Change]  # what became visible, in that order; of Delta without deletes, whose rows are just gone
    left: list[str]  # prepared, and neither committed nor aborted
    committed_twice: Sequence[
        str
    ] = ()  # checkpoints, by the log of a Delta table; elsewhere it shows in the rows alone


@dataclass(frozen=True)
class Target:
    make: Callable[[], Sink]  # in the job's process
    one_commit: str | None  # the sink's method that commits one load, table or transaction
    look: Callable[[], Seen]
    shows_once: bool = True  # no change may become visible twice, or behind a newer one of its key


@contextmanager
def file(folder: Path) -> Iterator[Target]:
    def look() -> Seen:
        sink = FileSink(folder / "sink.db")
        rows = {_table(target): rows for target, rows in sink.rows().items()}
        shown = [(_table(target), *rest) for target, *rest in sink.shown()]
        left = sink.prepared()
        sink.close()
        return Seen(rows, shown, left)

    yield Target(partial(FileSink, folder / "sink.db"), "_apply", look)


@contextmanager
def delta(folder: Path) -> Iterator[Target]:
    root = folder / "warehouse"

    def look() -> Seen:
        rows, shown, twice = {}, [], []
        for table in TABLES:
            rows[table] = _versions(root / "ods" / table, table, shown)
            twice += _committed_twice(root / "ods" / table)
        staged = (root / STAGING).glob("*/*.parquet")
        return Seen(rows, shown, [str(path.relative_to(root)) for path in staged], twice)

    yield Target(partial(DeltaSink, root, parts=1), "_commit_table", look)


def _versions(path: Path, table: str, shown: list[Change]) -> dict[int, int]:
    """The rows at the end; what each version has changed goes to ``shown``."""
    before: dict[int, int] = {}
    for version in range(DeltaTable(str(path)).version() + 1):
        found = DeltaTable(str(path), version=version).to_pyarrow_table(columns=["id", "op"])
        now = dict(zip(found.column("id").to_pylist(), found.column("op").to_pylist(), strict=True))
        shown += [(table, key, op, False) for key, op in now.items() if before.get(key) != op]
        before = now
    return before


def _committed_twice(path: Path) -> list[str]:
    """Checkpoints that the log of a Delta table has more than once."""
    found: Counter[str] = Counter()
    for entry in (path / "_delta_log").glob("*.json"):
        for line in entry.read_text().splitlines():
            if (transaction := json.loads(line).get("txn")) is not None:
                found[f"{path.name} {transaction['appId']} {transaction['version']}"] += 1
    return [name for name, count in found.items() if count > 1]


@contextmanager
def doris(_: Path, *, two_phase: bool) -> Iterator[Target]:
    with doris_stand_in(backends=1) as server:
        arguments = {"two_phase_commit": two_phase, **_address(server)}
        look = _watched(
            server, lambda: [each.label for each in server.transactions.listed("ods") if not each.status.final]
        )
        yield Target(
            partial(DorisSink, server.fe, **arguments),
            "_commit_load" if two_phase else None,
            look,
            shows_once=two_phase,
        )


@contextmanager
def starrocks(_: Path, *, mode: str) -> Iterator[Target]:
    with starrocks_stand_in() as server:
        arguments = {"multi_table": MODES[mode], "databases": ["ods"], **_address(server)}
        look = _watched(server, lambda: [each.label for each in server.transactions.running("ods")])
        method = "_shared._asked_to_commit" if mode == "multi" else "_commit_load"
        yield Target(partial(StarrocksSink, server.fe, **arguments), method, look)


def _address(server: Any) -> dict[str, Any]:
    return {"username": USER[0], "password": USER[1], "sql_port": server.sql_port, "tries": 3, "pause_s": 0.01}


def _watched(server: Any, left: Callable[[], list[str]]) -> Callable[[], Seen]:
    """From now on every row that becomes visible is kept."""
    shown: list[Change] = []
    apply = server.storage._apply

    def watch(table: Any, rows: Any) -> None:
        if table.name in TABLES:
            columns = (rows.column(name).to_pylist() for name in ("id", "op", SIGN))
            shown.extend((table.name, key, op, bool(deleted)) for key, op, deleted in zip(*columns, strict=True))
        apply(table, rows)

    server.storage._apply = watch

    def look() -> Seen:
        rows = {table: dict(server.execute(f"SELECT id, op FROM ods.{table}")[1]) for table in TABLES}
        return Seen(rows, shown, left())

    return look


def _table(target: str) -> str:
    return target.partition(".")[2]


TARGETS: dict[str, Callable[[Path], Any]] = {
    "file": file,
    "delta": delta,
    "doris": partial(doris, two_phase=True),
    "doris-plain": partial(doris, two_phase=False),
    "starrocks-single": partial(starrocks, mode="single"),
    "starrocks-multi": partial(starrocks, mode="multi"),
}
