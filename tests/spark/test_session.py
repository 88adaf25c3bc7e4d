"""The session: settings of its JVM, secrets, Python workers, Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import py4j
import pyarrow as pa
import pyspark
import pytest

import spark.session
from spark.session import SessionHolder
from spark.settings import static_settings

_SESSION = """
from pathlib import Path
from spark.session import SessionHolder
from spark.settings import static_settings
def show(key):
    conf = {"spark.hadoop.fs.s3a.secret.key": key, "spark.hadoop.fs.s3a.endpoint": "an-endpoint",
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
    holder = SessionHolder("settings", "local[1]", conf)
    context = holder.get().sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    print(hadoop.get("fs.s3a.secret.key"), context.getConf().get("spark.hadoop.fs.s3a.secret.key"))
    print(hadoop.get("fs.s3a.endpoint"), context.master, context.appName)
    line = Path(f"/proc/{context._gateway.proc.pid}/cmdline").read_text()
    print("java" in line, "an-endpoint" in line, key in line)
    print("-XX:+UseParallelGC" in line, "-Djava.io.tmpdir=" in line, "-XX:+UseSerialGC" in line)
    holder.close()
show("first-key")
show("second-key")  # another job file: the JVM is the same one
"""


def test_session_secrets_are_not_on_command_line_of_jvm() -> None:
    done = subprocess.run([sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "first-key first-key",
        "an-endpoint local[1] settings",
        "True True False",
        "True True False",
        "second-key second-key",
        "an-endpoint local[1] settings",
        "True True False",
        "True True False",
    ]


def test_workers_import_pyspark_from_folder_not_from_zip(
    sessions: SessionHolder,
) -> None:
    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        names = [path.rpartition("/")[2] for path in sys.path]
        archives = [name for name in names if name.startswith(("pyspark", "py4j", "spark-core"))]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__, py4j.__file__, str(archives)]})

    rows = sessions.get().range(1).mapInArrow(seen, "path string").collect()
    assert [row.path for row in rows] == [pyspark.__file__, py4j.__file__, "[]"], "Numba lists each archive"


def test_workers_are_forked_from_process_with_one_thread_and_without_pandas(sessions: SessionHolder) -> None:
    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for _ in batches:
            threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
            known = {name: [name in sys.modules] for name in ("pandas", "spark.shared_loads")}
            yield pa.RecordBatch.from_pydict({"threads": [threads], **known})

    types = "threads long, pandas boolean, `spark.shared_loads` boolean"
    for _ in range(2):  # the second time PyArrow has created an array
        (row,) = sessions.get().range(1).mapInArrow(seen, types).collect()
        assert tuple(row) == (1, False, True)


class ConnectSession:
    """A session of Spark Connect, which its server closes when it is idle."""

    def __init__(self) -> None:
        self.is_stopped = self.is_expired = False
        self.client = SimpleNamespace(close=self.stop)
        self.conf = SimpleNamespace(get=self.ask)

    def stop(self) -> None:
        self.is_stopped = True

    def ask(self, _: str) -> str:
        if self.is_expired:
            raise RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.")
        return "UTC"


def test_get_session_closed_by_spark_connect_creates_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.session, "build_session", lambda *_, **__: ConnectSession())
    holder = SessionHolder("idle", remote="sc://spark:15002")
    first = holder.get()
    assert holder.get() is first
    first.is_expired = True
    second = holder.get()
    assert second is not first and holder.get() is second
    assert first.is_stopped, "otherwise PySpark would return it again"


def test_static_settings_of_cluster_have_no_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    cluster, local = (static_settings(master) for master in ("spark://elsewhere:7077", "local[2]"))
    assert "spark.driver.host" not in cluster, "Spark finds the address that others can call"
    assert "spark.python.unix.domain.socket.enabled" not in cluster and cluster["spark.rpc.message.maxSize"] == "1024"
    assert local["spark.python.unix.domain.socket.enabled"] == "true" and local["spark.driver.host"] == "127.0.0.1"


def test_refused_transport_is_tried_again_with_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transport:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    made, is_alive = list[Transport](), [True]

    def found(*_: object, **__: object) -> Transport:
        made.append(Transport())
        return made[-1]

    def built(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    monkeypatch.setattr(spark.session, "build_session", built)
    monkeypatch.setattr(spark.session, "find_transport", found)
    holder = SessionHolder("shop", "spark://elsewhere:7077")
    for name, value in {"is_alive": lambda _: is_alive[0], "_forget": lambda _: None, "_stop": lambda _: None}.items():
        monkeypatch.setattr(holder, name, value)
    first = holder.transport()
    assert first is not None and holder.transport() is first
    holder.refuse_transport(first)
    assert holder.transport() is None and not made[0].is_closed, "other Tasks may still use it"
    is_alive[0] = False
    holder.get()
    is_alive[0] = True
    assert holder.transport() is made[1]
    holder.close()
    assert all(one.is_closed for one in made)
