"""The lag of a run counts the changes that the source holds back."""

from __future__ import annotations

import pytest

from cdc.pipeline.progress import _with_held


@pytest.mark.parametrize(
    ("lag_s", "held_s", "expected"), [(0.0, 90.0, 90.0), (None, 90.0, 90.0), (100.0, 90.0, 100.0), (None, 0.0, None)]
)
def test_lag_has_changes_that_the_source_holds_back(lag_s: float | None, held_s: float, expected: float | None) -> None:
    assert _with_held(lag_s, held_s) == expected
