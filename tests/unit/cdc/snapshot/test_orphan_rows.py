"""Search for orphan rows: pages of a target in key order, the time limit, and the first key of the next step."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import cdc.snapshot.orphan_rows
from cdc.model.schema import Column, Kind
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.snapshot.orphan_rows import OrphanSearch, find_orphan_rows, key_of, key_text
from channels.sinks.key_pages import key_page

NONE = pa.table({"id": pa.array([], pa.int64())})


def test_search_with_concurrent_writes_continues_after_last_key() -> None:
    target, source = [*range(0, 100, 2), 7], set(range(0, 100, 4))
    found: list[int] = []

    def missing(page: pa.Table) -> pa.Table:
        return page.filter(pa.array([key not in source for key in page.column("id").to_pylist()], pa.bool_()))

    def step(search: OrphanSearch) -> None:
        rows = search.run(lambda after: key_page(pa.table({"id": target}), after, 3), missing, 0.0)
        found.extend(rows.column("id").to_pylist())

    search, steps = OrphanSearch(None), 0
    while not search.is_done:
        step(search)
        steps += 1
        search = OrphanSearch(search.last, search.is_done)  # as after a restart
        if steps == 5:
            target.append(31)  # after the last compared key, and missing in the source
            target.append(1)  # the stream has inserted a row before the last compared key
            source.update({1, 2})
    assert sorted(found) == sorted([key for key in (*range(0, 100, 2), 7, 31) if key not in range(0, 100, 4)])
    assert steps > 15, "three keys per step"


def test_search_ends_at_time_limit_and_with_many_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pa.table({"id": list(range(100))})
    search = OrphanSearch(None)
    assert search.run(lambda after: key_page(keys, after, 30), lambda page: page, 3600.0).num_rows == 100
    assert search.is_done
    monkeypatch.setattr(cdc.snapshot.orphan_rows, "MOST_ORPHANS", 50)
    search = OrphanSearch(None)
    assert search.run(lambda after: key_page(keys, after, 30), lambda page: page, 3600.0).num_rows == 60
    assert not search.is_done
    search = OrphanSearch(None)
    assert search.run(lambda after: key_page(NONE, after, 30), lambda page: page, 0.0).num_rows == 0 and search.is_done


def test_search_cancelled_ends_after_its_page() -> None:
    keys = pa.table({"id": list(range(100))})
    search = OrphanSearch(None)

    def page_after(after: pa.Table | None) -> pa.Table:
        search.is_cancelled = after is not None
        return key_page(keys, after, 10)

    assert search.run(page_after, lambda page: page, 3600.0).num_rows == 20 and not search.is_done


@pytest.mark.parametrize("seed", range(5))
def test_key_pages_of_composite_keys_have_each_key_once(seed: int) -> None:
    draw = random.Random(seed)
    day = datetime.date(2026, 1, 1)
    rows = {
        (draw.randrange(4), draw.choice(["", "a", "A", "\u00e9", "b\0"]), decimal.Decimal(draw.randrange(9)) / 10, day)
        for _ in range(100)
    }
    types = [pa.int32(), pa.string(), pa.decimal128(5, 1), pa.date32()]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    keys, after, found = pa.table(columns, ["a", "b", "c", "d"]), None, []
    while (page := key_page(keys, after, 7)).num_rows:
        found += [tuple(row.values()) for row in page.to_pylist()]
        after = key_of(key_text(page.slice(page.num_rows - 1)))
    assert len(found) == len(rows) and set(found) == rows


@pytest.mark.parametrize("first_page", [False, True])
def test_search_cancelled_while_the_source_is_read_drops_the_page(
    monkeypatch: pytest.MonkeyPatch, first_page: bool
) -> None:
    """A scan of all keys takes minutes. The keys that it has not returned yet would count as orphan rows."""
    reads: list[int] = []

    class Select:
        ended = False

        def __init__(self, *_: object) -> None:
            reads.append(1)

        def __enter__(self) -> Select:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def rows(self, is_over: Callable[[], bool]) -> Iterator[Any]:
            for number in range(3):
                search.is_cancelled = search.is_cancelled or (number == 1 and len(reads) == 1 + (not first_page))
                if is_over():
                    return
                yield SimpleNamespace(batch=pa.record_batch({"id": pa.array([bytes([number])], pa.binary())}))
            self.ended = True

    monkeypatch.setattr(cdc.snapshot.orphan_rows, "Select", Select)
    column = Column("id", Kind.BINARY, "binary(1)", nullable=False, length=1)
    order = cast(KeyOrder, SimpleNamespace(columns=(KeyColumn(column),), tail=lambda _: (" FROM t", [])))
    pages = [pa.table({"id": pa.array(keys, pa.binary())}) for keys in ([b"\1", b"\7"], [b"\2", b"\10"])]
    search = OrphanSearch(None)
    endpoint = Endpoint("db.example")
    found = search.run(
        lambda after: pages[0] if after is None else pages[1],
        lambda page: find_orphan_rows(endpoint, order, [column], page, lambda: search.is_cancelled),
        3600.0,
    )
    assert found.column("id").to_pylist() == ([] if first_page else [b"\7"])
    assert search.last == (None if first_page else key_text(pages[0].slice(1))) and not search.is_done
