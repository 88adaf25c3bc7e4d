"""Cycles: how often the state of a source without changes is compared and saved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cdc.pipeline.cycles import Cycles


def test_state_at_rest_is_compared_once_a_second() -> None:
    """A comparison needs some milliseconds for 1,000 tables, and an idle job polls ten times a second."""
    now, compared = [100.0], list[float]()
    dispatcher = SimpleNamespace(
        read_schemas=lambda: compared.append(now[0]), cycle=SimpleNamespace(first=None), schemas=()
    )
    context = SimpleNamespace(receiver=None, routes=SimpleNamespace(left_out={}))
    committed = SimpleNamespace(snapshots={}, left_out={}, schemas=())
    parts: Any = (context, None, None, None, None)
    cycles = Cycles(*parts, lambda: now[0], dispatcher=cast(Any, dispatcher), committed=cast(Any, committed),
                    coordinator=None)  # fmt: skip
    for tenth in range(25):
        now[0] = 100 + tenth / 10
        cycles.save_at_rest()
    assert len(compared) == 3 and compared[0] == 100
