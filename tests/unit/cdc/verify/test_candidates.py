"""A difference is confirmed only if the stream has everything that the source had at its comparison."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.position import BinlogPosition
from cdc.model.verify import Verification, VerifyRequest
from cdc.sources.base import ReceiverStatus
from cdc.verify.candidates import MOST_ROUNDS, Candidates
from cdc.verify.unsaved_parts import UnsavedParts
from channels.chunk_compare import KeyDifferences
from channels.row_compare import EXTRA

RUN = Verification(1, VerifyRequest(), "2026-01-01T00:00:00+00:00")


def at(offset: int) -> BinlogPosition:
    return BinlogPosition("b.000001", offset, "u")


@pytest.mark.parametrize(
    ("position", "read_to", "is_confirmed"),
    [
        (500, None, False),  # not at the end
        (500, 500, False),  # a connection that was lost without notice looks like the end, even after a long time
        (500, 8999, False),
        (500, 9000, True),  # only the head of a file follows the position
        (9000, None, True),
    ],
)
@pytest.mark.parametrize("rounds", [0, MOST_ROUNDS])
def test_difference_waits_until_the_end_at_its_comparison_is_read(
    position: int, read_to: int | None, is_confirmed: bool, rounds: int
) -> None:
    differences = KeyDifferences(None, pa.table({"id": pa.array([7], pa.int64())}), np.array([EXTRA], np.int8))
    one = Candidates("shop.t", differences, ("id",), rounds, high=at(9000), compared_at=-1e9)
    status = ReceiverStatus(is_at_end=True, read_to=at(read_to), heard_at=1e9) if read_to is not None else None
    parts = UnsavedParts([one])
    assert parts.can_continue(at(position), status) is is_confirmed
    assert bool(parts.due(at(position), status)) is (is_confirmed and rounds == 0)
    parts.confirm(RUN, at(position), status)
    assert bool(parts.confirmed) is (is_confirmed and rounds > 0)
