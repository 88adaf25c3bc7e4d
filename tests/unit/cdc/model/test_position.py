"""Comparison of Canal positions: by GTIDs if it has them, because its source may be another server now."""

from __future__ import annotations

import pytest

from cdc.model.position import CanalPosition

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(file, offset, gtid_set="", entry=0):
    return CanalPosition(f"bin.{file:06}", offset, entry, gtid_set)


def test_reached_without_gtids_compares_file_offset_entry():
    assert at(2, 4).reached(at(1, 900)) and not at(1, 900).reached(at(2, 4))
    assert at(1, 900, entry=3).reached(at(1, 900, entry=2)) and not at(1, 900, entry=2).reached(at(1, 900, entry=3))


@pytest.mark.parametrize(
    ("less", "more"), [(f"{A}:1-5", f"{A}:1-6"), (f"{A}:1-5", f"{A}:1-5,{B}:1"), ("0-1-5", "0-2-6")]
)
def test_reached_after_failover_compares_gtid_sets(less, more):
    # after a failover, the newer transaction can be in a file with a lower number
    assert not at(9, 500, less).reached(at(2, 500, more))
    assert at(2, 500, more).reached(at(9, 500, less))


def test_reached_within_a_transaction_compares_offsets():
    seen = f"{A}:1-5"
    assert at(1, 900, seen).reached(at(1, 850, seen, entry=2)) and not at(1, 850, seen, entry=2).reached(
        at(1, 900, seen)
    )
    # a transaction without a GTID, after one with a GTID
    assert not at(1, 900, seen).reached(at(1, 950, seen, entry=1))


def test_reached_whole_transaction_with_other_file_name():
    seen = f"{A}:1-5"
    other = CanalPosition("other.000001", 50, 2, seen)
    assert at(1, 900, seen).reached(other) and not at(1, 850, seen, entry=2).reached(other)
    with pytest.raises(ValueError, match="in common"):
        at(1, 900).reached(CanalPosition("other.000001", 50))


@pytest.mark.parametrize(
    ("before", "after", "follows"),
    [
        (f"{A}:1-5", f"{A}:1-6", True),
        (f"{A}:1-5", f"{A}:1-5,{B}:1", True),
        ("0-1-5", "0-2-6", True),
        (f"{A}:1-5", f"{A}:1-7", False),
        (f"{A}:1-5", f"{A}:1-5", False),
        (f"{A}:1-5", f"{A}:2-7", False),
        ("0-1-5", "0-1-7", False),
        ("", f"{A}:1", False),
        ("", "", False),
    ],
)
def test_is_followed_by_compares_gtid_sets(before, after, follows):
    assert at(1, 900, before).is_followed_by(at(1, 980, after, entry=1)) is follows
    # the rest of the split transaction may be missing
    assert not at(1, 900, before, entry=2).is_followed_by(at(1, 980, after, entry=1))


def test_is_followed_by_position_at_its_end():
    assert at(1, 900).is_followed_by(at(1, 900, entry=1)) and not at(1, 900).is_followed_by(at(1, 980, entry=1))
