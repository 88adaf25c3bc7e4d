"""Settings of Spark that depend on its master."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark.settings import available_cores, local_cores, with_java_options


def _set_quota(monkeypatch: pytest.MonkeyPatch, quota: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: quota)


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
    _set_quota(monkeypatch, "max 100000")
    assert local_cores(master) == cores


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 5), ("150000 100000", 2), ("50000 100000", 1)])
def test_cores_of_a_container_follow_its_quota(monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    _set_quota(monkeypatch, quota)
    assert available_cores() == cores == local_cores("local[*]")


@pytest.mark.parametrize(
    ("given", "forwards_rows", "expected"),
    [("", False, True), ("", True, False), ("-XX:+UseG1GC", False, False)],
)
def test_young_generation_is_small_unless_rows_pass_the_jvm(*, given: str, forwards_rows: bool, expected: bool) -> None:
    folder = cast("Any", SimpleNamespace(log_settings=Path("/a/log4j2.properties")))
    assert ("-XX:NewSize=48m" in with_java_options("", given, folder, forwards_rows=forwards_rows)) is expected
