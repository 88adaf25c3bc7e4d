"""Settings of Spark that depend on its master."""

from __future__ import annotations

import os

import pytest

from spark.settings import local_cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("local[*]", 5),
        ("local[*,3]", 5),
        ("local-cluster[2,1,1024]", None),
        ("spark://master:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
    ],
)
def test_cores_of_a_master(monkeypatch: pytest.MonkeyPatch, master: str, cores: int | None) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    assert local_cores(master) == cores
