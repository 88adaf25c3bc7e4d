"""A real job whose driver is stopped (SIGSTOP) for longer than the retention, and continues later (SIGCONT)."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc.demo.local_servers import LocalServer, obtain
from cdc.demo.process import JobProcess
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.sink import DeltaSink
from tests.recovery.test_environment import Shop, create_tables
from tests.support.limits import HANG_S
from tests.support.receiving import TcpProxy, until

PROGRAM = (sys.executable, "-m", "tests.recovery.freezing_cli")
RETENTION_S = 1


class FrozenShop(Shop):
    """A job whose driver stops itself, and whose sink deletes unused files after a second."""

    def another(self, home: str, more: str = "") -> JobProcess:
        job = super().another(home, more)
        text = job.job_file.read_text().replace(
            "type: delta,", f"type: delta, merge: rewrite, retention: {RETENTION_S}s,"
        )
        job.job_file.write_text(text)
        port = int(text.rpartition("port: ")[2].rstrip("}\n"))
        job = JobProcess(job.job_file, home=self.folder / home, port=port, program=PROGRAM)
        job.environment["CDC_TEST_FREEZE"] = str(self.armed)
        return job

    @property
    def armed(self) -> Path:
        return self.folder / "armed"

    def freeze(self, point: str) -> None:
        """Write rows until the driver has stopped itself at ``point``."""
        self.armed.write_text(point)

        def is_stopped() -> bool:
            self.write()
            return psutil.Process(self.job.pid).status() == psutil.STATUS_STOPPED

        until(is_stopped, HANG_S, f"a driver that is stopped: {point}")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrozenShop]:
    folder = tmp_path_factory.mktemp("frozen")
    with (
        LocalServer.start(obtain("mysql"), folder / "mysql", options=("--binlog-row-metadata=FULL",)) as server,
        TcpProxy(server.port) as proxy,
    ):
        create_tables(server)
        shop = FrozenShop(folder, server, proxy)
        with shop.job:
            shop.job.start()
            shop.wait_for_status("RUNNING", timeout_s=HANG_S)
            yield shop


def _rewrite(root: Path, target: str, checkpoint: int) -> None:
    """Commit rows of the table unchanged, as another job would: new files replace the files that contain them."""
    sink = DeltaSink(root, retention_s=3600)
    folder = root / target.replace(".", "/")
    found = DeltaTable(str(folder))
    schema = delta_tables.arrow_schema(found)
    nullable = {field.name: field.nullable for field in found.schema().fields}
    columns = tuple(TargetColumn(field.name, field.type, nullable[field.name]) for field in schema)
    name = LoadName("other", "deadbeef", 1, checkpoint, target, 0)
    files = [pq.read_table(path, partitioning=None) for path in found.file_uris()]
    rows = [table.select(schema.names).cast(schema).slice(0, 1) for table in files if table.num_rows]
    parts = []
    for number, row in enumerate(rows):
        row = row.append_column(DELETED, [[False]]).append_column(SEQUENCE, [[number]])
        load = sink.part_writer(TargetTable(target, columns, ("id",)))(
            replace(name, part=number), iter(row.to_batches())
        )
        assert load is not None
        parts.append(load)
    binlog_position = BinlogPosition("b.000001", 4)
    sink.commit(parts, SinkCheckpoint("other", "deadbeef", 1, checkpoint, binlog_position, binlog_position, checkpoint))
    sink.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("point", ["vacuum", "merge", "log"])
def test_frozen_driver_deletes_no_live_files(shop: FrozenShop, point: str) -> None:
    shop.check_equal()
    shop.freeze(point)
    checkpoint = 1 + ["vacuum", "merge", "log"].index(point)
    for table in ("orders", "items"):
        _rewrite(shop.warehouse, f"ods.{table}", checkpoint)
    with shop.another("home") as second:  # the frozen process keeps its lock
        second.log = shop.folder / f"second-{point}.log"
        second.start()
        assert second.wait(HANG_S) != 0
        # another thread of the frozen process may be in a transaction: then the state file stays locked too
        refusals = ("LeaseLost", "runs", "The state file stays locked.")
        assert any(text in second.log.read_text() for text in refusals), second.log.read_text()
    shop.proxy.cut_all()  # as the server does after its timeout
    shop.write()
    time.sleep(RETENTION_S + 0.5)
    os.kill(shop.job.pid, signal.SIGCONT)
    shop.check_equal()
    for table in ("orders", "items"):
        files = DeltaTable(str(shop.warehouse / "ods" / table)).file_uris()
        assert files and all(Path(path).exists() for path in files)
