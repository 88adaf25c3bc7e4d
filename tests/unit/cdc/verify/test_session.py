"""Steps of a verification after the source has failed over to another server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.position import CanalPosition
from cdc.model.snapshot import Chunk
from cdc.model.verify import TableVerification, Verification, VerifyRequest, VerifyState
from cdc.run_context import SnapshotSettings, VerifySettings
from cdc.verify.candidates import Candidates
from cdc.verify.session import VerifySession
from channels.chunk_compare import KeyDifferences

ORDERS = "shop.orders"
HIGH, LATER = CanalPosition("one-bin.000009", 700), CanalPosition("two-bin.000002", 4)


@pytest.mark.parametrize("rounds", [0, 1])
def test_keys_that_differed_before_a_failover_are_compared_again(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Their positions have nothing in common. The verification continues, and the run of the job does not end."""
    session_of = "cdc.verify.session."
    monkeypatch.setattr(f"{session_of}Server", mock.MagicMock())
    monkeypatch.setattr(f"{session_of}is_visible", lambda *_: True)
    monkeypatch.setattr(f"{session_of}configure_session", lambda _: None)
    compared: list[str] = []

    def compare(planned: Any, _: object) -> str:
        compared.extend(one.name for one in planned)
        return "step"

    steps = SimpleNamespace(compare=compare)
    read = SimpleNamespace(mapping=None)
    planned = SimpleNamespace(name=ORDERS, compare=SimpleNamespace(read=read))
    monkeypatch.setattr(f"{session_of}StepFactory", lambda *_: steps)
    monkeypatch.setattr(f"{session_of}VerifyPlanner", lambda *_: SimpleNamespace(table=lambda *_: planned))
    context, settings = SimpleNamespace(verify=VerifySettings()), SnapshotSettings(cast(Any, None), lambda _: LATER)
    session = VerifySession(cast(Any, context), settings, lambda _: None)
    open_table = TableVerification(VerifyState.COMPARING, open=(Chunk(0, None, None),), chunks=1)
    session.begin(Verification(1, VerifyRequest(), "2026-01-01T00:00:00Z", began_at="now", tables={ORDERS: open_table}))
    differences = KeyDifferences(Chunk(0, None, None), pa.table({"id": [7]}), np.zeros(1, np.int8))
    session._pending = [Candidates(ORDERS, differences, ("id",), rounds, HIGH)]
    assert session.is_ready(LATER, at_end=False)
    assert cast(Any, session.plan(LATER, 0, 1, at_end=False)) == "step"
    assert compared == [ORDERS] and session.open_keys == 0
