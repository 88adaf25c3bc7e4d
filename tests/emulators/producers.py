"""Real producers of Kafka messages: a Canal server and Debezium's engine, which read a MySQL server. Fetched with Maven."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from cdc.demo.local_servers import LocalServer
from cdc.errors import PrerequisiteError
from tests.emulators.canal import CanalServer, end_of_binlog
from tests.emulators.kafka import KafkaBroker
from tests.emulators.maven import obtain_jars

_PARTS = Path(__file__).parent / "producer_parts"
_OF_ALL_CANALS = Path(__file__).parent / "canal_parts" / "CanalForTests.java"  # instance.xml names a class in it
_START_TIMEOUT_S = 240.0  # of a machine that does much else
DEBEZIUM_PREFIX = "srv"


def obtain_producer(name: str) -> Path:
    """Return the folder with the jars of ``canal`` or ``debezium``. The first call downloads 50 MB.

    Raises: PrerequisiteError.
    """
    program = {"canal": "CanalToKafka", "debezium": "DebeziumToKafka"}[name]

    def compile_(jars: Path) -> None:
        sources = [_PARTS / name / f"{program}.java", *([_OF_ALL_CANALS] if name == "canal" else [])]
        command = ["javac", "-cp", f"{jars}/*", "-d", str(jars), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PrerequisiteError(
                f"javac failed: {done.stderr[-900:]}", hint="apt-get install openjdk-17-jdk-headless"
            )

    return obtain_jars(f"{name}-to-kafka", _PARTS / name / "pom.xml", compile_)


class CanalToKafka(CanalServer):
    """A Canal server that sends flat messages to Kafka. A topic ``DATABASE_TABLE`` for each table, or one for all.

    It sends what is in the binary log from its first start on, also if it is killed before it has saved a cursor.
    """

    _program = "CanalToKafka"

    def __init__(
        self,
        jars: Path,
        folder: Path,
        source: LocalServer,
        broker: KafkaBroker,
        database: str,
        *,
        topic: str | None = None,
        partitions: int = 1,
    ) -> None:
        """``topic``: of all tables, by the hash of the primary key in ``partitions`` partitions."""
        super().__init__(jars, folder, source)
        self._first_start: tuple[str, int] | None = None
        self._settings |= {
            "canal.filter": rf"{database}\..*",
            "kafka.bootstrap.servers": broker.address,
            "kafka.acks": "all",
            "canal.mq.flatMessage": "true",
            "canal.mq.topic": topic or database,
            "canal.mq.dynamicTopic": "" if topic else r".*\..*",
            "canal.mq.partitionsNum": partitions,
            "canal.mq.partitionHash": r".*\..*:$pk$",
        }

    def _start_without_cursor(self) -> tuple[str, int]:
        self._first_start = self._first_start or end_of_binlog(self.source)
        return self._first_start

    def _listening(self) -> bool:
        return "the MQ producer" in self._log_from(0)


class DebeziumToKafka:
    """Debezium's engine, which sends JSON with schemas to the topics ``srv.DATABASE.TABLE``. A context manager.

    It sends what is in the binary log from its first start on, and the tables' rows before.
    """

    def __init__(
        self, jars: Path, folder: Path, source: LocalServer, broker: KafkaBroker, tables: Sequence[str]
    ) -> None:
        """``tables``: as ``database.table``."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self._jars, self._broker = folder / "debezium.log", jars, broker
        self._process: subprocess.Popen[bytes] | None = None
        if "debezium" not in _users(source):
            rights = "SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT"
            source.create_user("debezium", "debezium", rights)
        settings = {
            "name": "engine",
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "topic.prefix": DEBEZIUM_PREFIX,
            "database.hostname": "127.0.0.1",
            "database.port": source.port,
            "database.user": "debezium",
            "database.password": "debezium",
            "database.server.id": 7000 + source.port % 1000,
            "table.include.list": ",".join(table.replace(".", r"\\.") for table in tables),
            "snapshot.mode": "initial",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": 0,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": folder / "history",
            "include.schema.changes": "false",  # they would need one more topic
            "skipped.operations": "none",
            "column.propagate.source.type": ".*",
            "converter.schemas.enable": "true",
            "converter.replace.null.with.default": "false",
        }
        self._file = folder / "debezium.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def __enter__(self) -> DebeziumToKafka:
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGTERM)

    def launch(self) -> None:
        """Start, and wait until it reads tables or the binary log."""
        wrapper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*wrapper, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]
        command += [f"{self._jars}:{self._jars}/*", "DebeziumToKafka", str(self._file), self._broker.address]
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if b"the task has started" in self.log.read_bytes()[start:]:
                return
            time.sleep(0.1)
        self.kill()
        raise PrerequisiteError(f"Debezium did not start: {self.log.read_text()[-3000:]}", hint=f"See {self.log}.")

    def kill(self) -> None:
        """End at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.kill(process.pid, how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _users(source: LocalServer) -> set[str]:
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT user FROM mysql.user")
        return {str(user) for (user,) in cursor.fetchall()}
