"""Committed loads that are not visible yet."""

from __future__ import annotations

import pytest

from cdc.errors import SinkUnavailable
from channels.sinks.doris.errors import DORIS
from channels.sinks.stream_load.visibility import LoadVisibility


class Labels:
    """The states of labels. Those that are not named are visible."""

    def __init__(self, *committed: str) -> None:
        self.committed = set(committed)
        self.asked: list[str] = []

    def state(self, database: str, label: str) -> str:
        self.asked.append(label)
        return "COMMITTED" if label in self.committed else "VISIBLE"


def visibility_of(labels: Labels) -> LoadVisibility:
    visibility = LoadVisibility(DORIS, labels.state)
    visibility.timeout_s = 0.0
    return visibility


def test_earlier_load_of_another_partition_keeps_the_table_unread() -> None:
    labels = Labels("l1")
    visibility = visibility_of(labels)
    visibility.wait("ods", ["l1", "l2"], ["ods.days"])
    with pytest.raises(SinkUnavailable, match="not visible yet") as caught:
        visibility.check("ods.days")
    assert caught.value.context["label"] == "l1"
    labels.committed.clear()
    visibility.check("ods.days")
    asked = len(labels.asked)
    visibility.check("ods.days")
    assert len(labels.asked) == asked and not visibility._unpublished


def test_load_of_an_earlier_commit_keeps_the_table_unread() -> None:
    labels = Labels("l1")
    visibility = visibility_of(labels)
    visibility.wait("ods", ["l1"], ["ods.days"])
    visibility.wait("ods", ["l2"], ["ods.days"])
    with pytest.raises(SinkUnavailable, match="not visible yet"):
        visibility.check("ods.days")


def test_shared_label_is_kept_for_each_table() -> None:
    labels = Labels("all")
    visibility = visibility_of(labels)
    visibility.wait("ods", ["all"], ["ods.a", "ods.b"])
    for table in ("ods.a", "ods.b"):
        with pytest.raises(SinkUnavailable):
            visibility.check(table)
    labels.committed.clear()
    visibility.check("ods.a")
    assert list(visibility._unpublished) == ["ods.b"]


def test_wait_asks_each_visible_load_once() -> None:
    labels = Labels()
    visibility_of(labels).wait("ods", ["l1", "l2", "l3"], ["ods.days"])
    assert labels.asked == ["l1", "l2", "l3"]
