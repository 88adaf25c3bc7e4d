"""Steps of a verification after a failover to another server, and after a change of the key's order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.position import CanalPosition
from cdc.model.snapshot import Chunk
from cdc.model.verify import DifferenceKind, RowDifference, TableVerification, Verification, VerifyRequest, VerifyState
from cdc.run_context import SnapshotSettings, VerifySettings
from cdc.verify.candidates import Candidates
from cdc.verify.session import VerifySession
from channels.chunk_compare import KeyDifferences

ORDERS = "shop.orders"
WHOLE = (Chunk(0, None, None),)
SHOWN = tuple(RowDifference(name, DifferenceKind.MISSING, {"id": "7"}) for name in ("shop.people", ORDERS))
HIGH, LATER = CanalPosition("one-bin.000009", 700), CanalPosition("two-bin.000002", 4)


def session_of(monkeypatch: pytest.MonkeyPatch, table: TableVerification, compared: list[str]) -> VerifySession:
    """Return a session that continues with ``table``, and adds the tables of a comparison to ``compared``."""
    module = "cdc.verify.session."
    monkeypatch.setattr(f"{module}Server", mock.MagicMock())
    monkeypatch.setattr(f"{module}is_visible", lambda *_: True)
    monkeypatch.setattr(f"{module}configure_session", lambda _: None)

    def compare(planned: Any, _: object) -> str:
        compared.extend(one.name for one in planned)
        return "step"

    read = SimpleNamespace(mapping=None)
    planned = SimpleNamespace(name=ORDERS, order=SimpleNamespace(text="id"), compare=SimpleNamespace(read=read))
    again = TableVerification(VerifyState.COMPARING, open=WHOLE, chunks=1, order="id")
    planner = SimpleNamespace(table=lambda *_: planned, chunks=lambda *_: again)
    monkeypatch.setattr(f"{module}StepFactory", lambda *_: SimpleNamespace(compare=compare))
    monkeypatch.setattr(f"{module}VerifyPlanner", lambda *_: planner)
    context, settings = SimpleNamespace(verify=VerifySettings()), SnapshotSettings(cast(Any, None), lambda _: LATER)
    session = VerifySession(cast(Any, context), settings, lambda _: None)
    run = Verification(1, VerifyRequest(), "2026-01-01T00:00:00Z", "now", tables={ORDERS: table}, differences=SHOWN)
    session.begin(run)
    return session


@pytest.mark.parametrize("rounds", [0, 1])
def test_keys_that_differed_before_a_failover_are_compared_again(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Their positions have nothing in common. The verification continues, and the run of the job does not end."""
    compared: list[str] = []
    session = session_of(monkeypatch, TableVerification(VerifyState.COMPARING, open=WHOLE, chunks=1), compared)
    differences = KeyDifferences(Chunk(0, None, None), pa.table({"id": [7]}), np.zeros(1, np.int8))
    session._unsaved.pending = [Candidates(ORDERS, differences, ("id",), rounds, HIGH)]
    assert session.is_ready(LATER, at_end=False)
    assert cast(Any, session.plan(LATER, 0, 1, at_end=False)) == "step"
    assert compared == [ORDERS] and session.open_keys == 0


@pytest.mark.parametrize(("planned", "is_compared_again"), [("id", False), (None, False), ("id utf8mb4_bin", True)])
def test_table_whose_chunks_have_another_order_is_compared_again(
    monkeypatch: pytest.MonkeyPatch, planned: str | None, is_compared_again: bool
) -> None:
    """Rows that are in no chunk that is left would count as equal."""
    left = TableVerification(
        VerifyState.COMPARING, (Chunk(3, ("7",), None),), 4, 3, rows=30, missing=2, repaired=1, order=planned
    )
    session = session_of(monkeypatch, left, [])
    assert cast(Any, session.plan(LATER, 0, 1, at_end=False)) == "step" and session.run is not None
    found = session.run.tables[ORDERS]
    again = TableVerification(VerifyState.COMPARING, WHOLE, 1, repaired=1, order="id")
    assert found == (again if is_compared_again else left)
    assert [one.table for one in session.run.differences] == ["shop.people", *([] if is_compared_again else [ORDERS])]
