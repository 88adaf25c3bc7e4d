"""A Task on a real standalone cluster: one master and two workers from the installed PySpark, on loopback."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.demo.local_servers import free_port
from cdc.errors import PrerequisiteError, SinkUnavailable
from cdc.model.batch import Changes, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.sink import DeltaSink
from channels.spark_runner import SparkTaskRunner
from channels.task import RunIdentity, Task
from spark.remote_rows import RowServer
from spark.row_transport import find_transport
from spark.session import SessionHolder
from tests.support.spark_cluster import SparkCluster, standalone_cluster

SCHEMA = TableSchema("shop", "orders", (Column("id", Kind.INT, "int", nullable=False),), ("id",))
CONF = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def _in_own_process(work: Callable[..., None], *arguments: object) -> None:
    """Run ``work`` in a process of its own: PySpark has one session per process, and another test may have it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(work, *arguments).result()


def test_executors_get_the_packages_and_write_the_loads(cluster: SparkCluster, tmp_path: Path) -> None:
    _in_own_process(_load_and_kill, cluster, tmp_path)


def _load_and_kill(cluster: SparkCluster, tmp_path: Path) -> None:
    sink, sessions = DeltaSink(tmp_path), SessionHolder("cluster-test", cluster.url, CONF)
    runner = SparkTaskRunner(sessions, sink)
    channels = _channels(sink)
    try:
        assert _load(runner, channels, 1, sink, tmp_path) == [2] * 4
        assert sessions.get().sparkContext.master == cluster.url
        assert isinstance(sessions.transport(), RowServer)

        def imported_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import spark.shared_loads

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"file": [spark.shared_loads.__file__]})

        found = sessions.get().range(2, numPartitions=2).mapInArrow(imported_from, "file string").collect()
        assert {row["file"].rpartition("/")[2] for row in found} == {"shared_loads.pyc"}, "compiled modules"

        executors = cluster.executors()
        for process in executors:
            process.kill()
        assert executors
        assert len(_loaded(runner, channels, 2)) == 4, "another executor runs the Tasks"

        sink._staging._probe = lambda: "seen-elsewhere"  # type: ignore[method-assign]
        for future in runner.submit(_tasks(channels, 3)):
            with pytest.raises(SinkUnavailable, match="does not see"):
                future.result()
    finally:
        runner.close()
        sink.close()


def test_rows_go_through_the_jvm_if_executors_cannot_reach_the_driver(cluster: SparkCluster, tmp_path: Path) -> None:
    _in_own_process(_load_without_row_server, cluster, tmp_path)


def _load_without_row_server(cluster: SparkCluster, tmp_path: Path) -> None:
    closed_port = free_port()
    sink, sessions = DeltaSink(tmp_path), SessionHolder("cluster-test", cluster.url, CONF)
    runner = SparkTaskRunner(sessions, sink)
    channels = _channels(sink)
    try:
        server = sessions.transport()
        assert isinstance(server, RowServer)
        server.reader = replace(server.reader, port=closed_port)  # as executors behind a firewall see it
        with pytest.raises(SinkUnavailable, match="could not write"):
            _loaded(runner, channels, 1)
        assert sessions.transport() is None
        assert _load(runner, channels, 2, sink, tmp_path) == [2] * 4

        with patch("spark.row_transport._server", lambda _: server):  # as a job that starts there sees it
            assert find_transport(sessions.get(), 2, is_local=False) is None
    finally:
        runner.close()
        sink.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.reader.host, server._server.server_address[1]))


def test_cluster_without_executors_is_reported(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, workers=0) as cluster:
        _in_own_process(_probe_without_executors, cluster)


def _probe_without_executors(cluster: SparkCluster) -> None:
    sessions = SessionHolder("cluster-test", cluster.url, CONF)
    try:
        context = sessions.get().sparkContext
        context.setJobGroup("tasks", "Tasks")
        with pytest.raises(PrerequisiteError, match="No executor"):
            find_transport(sessions.get(), 2, is_local=False, limit_s=2)
        assert context.getLocalProperty("spark.jobGroup.id") == "tasks" and not context.getJobTags()
    finally:
        sessions.close()


def _channels(sink: DeltaSink) -> list[Channel]:
    channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(4)]
    for channel in channels:
        sink.ensure_table(channel.target)
    return channels


def _loaded(runner: SparkTaskRunner, channels: list[Channel], checkpoint: int) -> list[PreparedLoad]:
    return [load for future in runner.submit(_tasks(channels, checkpoint)) for load in future.result()]


def _load(
    runner: SparkTaskRunner, channels: list[Channel], checkpoint: int, sink: DeltaSink, folder: Path
) -> list[int]:
    """Load two rows into each table, and return the rows of each one."""
    loads, position = _loaded(runner, channels, checkpoint), BinlogPosition("b.1", 4)
    sink.commit(loads, SinkCheckpoint("shop", "0badcafe", 1, checkpoint, position, position, 2))
    return [DeltaTable(str(folder / f"ods/t{number}")).count() for number in range(4)]


def _tasks(channels: list[Channel], checkpoint: int) -> list[Task]:
    rows = {"id": pa.array([1, 2], pa.int32()), DELETED: pa.array([False] * 2), SEQUENCE: pa.array([1, 2], pa.int64())}
    for channel in channels:
        channel.add(Changes(SCHEMA, pa.RecordBatch.from_pydict(rows)))
    return [channel.task_for(RunIdentity("shop", "0badcafe", 1), checkpoint) for channel in channels]
