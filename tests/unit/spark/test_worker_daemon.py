"""The path of Spark's Python workers."""

from __future__ import annotations

import sys

import py4j
import pyspark
import pytest

from spark.worker_daemon import _without_unused_archives

LIB = "/opt/spark/python/lib"
ARCHIVES = [f"{LIB}/pyspark.zip", f"{LIB}/py4j-0.10.9.9-src.zip", "/opt/spark/jars/spark-core_2.13-4.3.0.jar"]


def test_archives_without_an_imported_module_leave_the_path() -> None:
    assert pyspark.__file__ and py4j.__file__
    kept = ["/jobs", f"{LIB}/helpers.zip", "/opt/lib/pyspark_helpers.zip", "/opt/jars/own.jar"]
    assert _without_unused_archives([*kept[:2], *ARCHIVES, *kept[2:]]) == kept


def test_zip_of_an_imported_module_stays_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pyspark"], "__file__", f"{ARCHIVES[0]}/pyspark/__init__.py")
    monkeypatch.delitem(sys.modules, "py4j")
    assert _without_unused_archives(ARCHIVES) == ARCHIVES[:2]
