"""The sources: one short history, in memory, in the binlog of a real MySQL, in its files, in a real Canal, in Kafka."""

from __future__ import annotations

import random
import shutil
import ssl
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pymysql

import cdc.sources.canal.receiver
import cdc.sources.kafka.reader
from cdc.model.position import CanalPosition, Position
from cdc.mysql.connection import Endpoint
from cdc.sources.binlog.decoder import batch_cutting
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.transport import FileByteSource, ServerByteSource
from cdc.sources.kafka.formats.canal_json import CanalJson
from tests.model.canal import UntilEnd
from tests.model.faults import Faulty
from tests.model.kafka import READ_MESSAGES, Sent, canal_json_receiver, send
from tests.model.source import Row, Source, SourceReceiver, position_at
from tests.support.canal_sources import canal_receiver

TABLES = ("orders", "items")
TRANSACTIONS, KEYS = 24, 10
HISTORIES = 3  # different histories in the binlog
_READ_BYTES = 500  # about one transaction, so that a binlog is read in many Batches
_READ_S = 0.002  # so that reading takes longer than the first commit


def history(seed: object, database: str) -> Source:
    """Return upserts, and deletes of existing rows. Some transactions change both tables, and one is large."""
    draw, source, existing = random.Random(f"history {seed}"), Source(), {}
    for number in range(TRANSACTIONS):
        rows = []
        for _ in range(draw.choice([1, 2, 2, 3, 5]) if number != TRANSACTIONS // 2 else 12):
            key = (f"{database}.{draw.choice(TABLES)}", draw.randrange(KEYS))
            deleted = key in existing and draw.random() < 0.3
            if deleted:
                op = existing.pop(key)  # a delete carries the content of its row
            else:
                source.operations += 1
                op = existing[key] = source.operations
            rows.append(Row(*key, op, deleted))
        source.transactions.append(rows)
    return source


@dataclass(frozen=True)
class Given:
    """A history and how to read it. It is sent to the job's process."""

    model: Source
    database: str
    start: Position
    end: Position

    def receiver(self, routes):
        """Return a new receiver of the history, which is finished at its end."""
        raise NotImplementedError

    def put_in(self, script) -> None:
        """Inject the faults of ``script`` into the decoder of this process."""


@dataclass(frozen=True)
class InMemory(Given):
    def receiver(self, routes):
        return SourceReceiver(self.model, routes, per_batch=1, piece_rows=3)


@dataclass(frozen=True)
class InBinlog(Given):
    endpoint: Endpoint
    job: str = ""  # one name for all processes of a scenario: the server closes the reader of a dead process

    def receiver(self, routes):
        identity = ReaderIdentity.of(self.job, "0badcafe", self.endpoint.host)
        feed = SmallReads(self.endpoint, identity, heartbeat_s=1.0)
        return UntilEnd(BinlogReceiver(feed, routes, endpoint=self.endpoint, identity=identity), self)

    def put_in(self, script) -> None:
        _break_decoder(script)


@dataclass(frozen=True)
class InFiles(Given):
    pattern: str

    def receiver(self, routes):
        return BinlogReceiver(SmallFileReads(self.pattern), routes)  # it ends automatically after the last file

    def put_in(self, script) -> None:
        _break_decoder(script)


def _break_decoder(script) -> None:
    work = batch_cutting.decode_rows

    def decode_rows(stream, count, transactions):
        if not count:
            return work(stream, count, transactions)
        return script.run("decode", lambda: work(stream, count, transactions))

    batch_cutting.decode_rows = decode_rows


class SmallReads(ServerByteSource):
    """The binlog of a server in small pieces."""

    def read_into(self, decoder, wait_s):
        time.sleep(_READ_S)
        count = self._stream.receive(decoder.free_space()[:_READ_BYTES], wait_s)
        if count:
            decoder.feed(count)
        return count


class SmallFileReads(FileByteSource):
    """Binlog files in small pieces."""

    def read_into(self, decoder, wait_s):
        time.sleep(_READ_S)
        return super().read_into(SmallBuffer(decoder, None), wait_s)


class SmallBuffer(Faulty):
    """A decoder with a small buffer."""

    def free_space(self):
        return self.inner.free_space()[:_READ_BYTES]


@dataclass(frozen=True)
class BehindCanal(Given):
    address: str

    def receiver(self, routes):
        # the smallest fetches give many batches, and so many cycles
        return UntilEnd(canal_receiver(self.address, routes, batch_size=1), self)

    def put_in(self, script) -> None:
        class FaultyDecoder(cdc.sources.canal.receiver.EntryDecoder):
            def changes(self, *arguments):
                work = super().changes
                return script.run("decode", lambda: work(*arguments))

        cdc.sources.canal.receiver.EntryDecoder = FaultyDecoder


@dataclass(frozen=True)
class InKafka(Given):
    sent: Sent

    def receiver(self, routes):
        # small reads give many Batches
        cdc.sources.kafka.reader.MESSAGES = READ_MESSAGES
        return canal_json_receiver(self.sent, routes, stop_at=lambda: self.end)

    def put_in(self, script) -> None:
        work = CanalJson.decode
        CanalJson.decode = lambda decoder, block: script.run("decode", lambda: work(decoder, block))


@dataclass(frozen=True)
class Servers:
    """The servers for the scenarios."""

    mysql: Endpoint | None
    binlogs: tuple[InBinlog, ...]
    files: Path | None  # copies of the same binlogs
    canal: str | None
    canal_log: Path | None = None
    topics: tuple[InKafka, ...] = ()
    s3: str | None = None  # the endpoint of an S3 server


def in_memory(seed: object) -> InMemory:
    model = history(seed, "shop")
    return InMemory(model, "shop", position_at(0), position_at(len(model.transactions)))


def write_binlogs(mysql: Endpoint, seed: object, resolve) -> tuple[InBinlog, ...]:
    """Write histories to the binlog, each in its own database and files. ``resolve`` returns the current position."""
    return tuple(
        InBinlog(*_write(mysql, f"{seed}/{number}", f"matrix_{number}", resolve, rotate=True), mysql)
        for number in range(HISTORIES)
    )


def write_topics(broker, seed: object) -> tuple[InKafka, ...]:
    """Send histories to Kafka as messages of Canal, each to its own topics."""
    found = []
    for number in range(HISTORIES):
        database = f"matrix_{number}"
        sent = send(broker, database, history(f"{seed}/{number}", database))
        found.append(InKafka(sent.model, database, sent.position("earliest"), sent.position("latest"), sent))
    return tuple(found)


def copy_files(binlogs: tuple[InBinlog, ...], data: Path, folder: Path) -> Path:
    """Copy the files of ``binlogs`` to a folder, as an archive has them. ``data``: the folder of the server."""
    first, last = (int(Path(place.file).suffix[1:]) for place in (binlogs[0].start, binlogs[-1].end))
    for number in range(first, last + 1):
        name = f"{Path(binlogs[0].start.file).stem}.{number:06}"
        shutil.copy(data / name, folder / name)
    return folder


def in_files(servers: Servers, seed: int) -> InFiles:
    one = one_of(servers.binlogs, seed, "")
    return InFiles(one.model, one.database, one.start, one.end, str(servers.files / "*.*"))


def one_of(binlogs: tuple[InBinlog, ...], seed: int, job: str) -> InBinlog:
    return replace(binlogs[seed % len(binlogs)], job=job)


def behind_canal(servers: Servers, seed: object, number: int) -> BehindCanal:
    """Write a history that Canal has not delivered yet; the job drops earlier events."""
    found = _write(servers.mysql, seed, f"matrix_canal_{number}", lambda: _end_of_binlog(servers.mysql))
    return BehindCanal(*found, servers.canal)


def drop(servers: Servers, given: Given) -> None:
    with _connected(servers.mysql) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {given.database}")


def _write(mysql: Endpoint, seed: object, database: str, where, rotate: bool = False):
    model = history(seed, database)
    with _connected(mysql) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        cursor.execute(f"CREATE DATABASE {database}")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY, op BIGINT NOT NULL)")
        if rotate:
            cursor.execute("FLUSH BINARY LOGS")  # a reader of files starts at their heads
        start = where()
        for number, transaction in enumerate(model.transactions):
            if rotate and number == TRANSACTIONS // 3:
                cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("BEGIN")
            for row in transaction:
                cursor.execute(
                    f"DELETE FROM {row.table} WHERE id = {row.key}"
                    if row.deleted
                    else f"INSERT INTO {row.table} VALUES ({row.key}, {row.op}) ON DUPLICATE KEY UPDATE op = {row.op}"
                )
            cursor.execute("COMMIT")
        return model, database, start, where()


# without the certificates of the system, which cost more to load than a scenario's statements
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname, _TLS.verify_mode = False, ssl.CERT_NONE


def _connected(mysql: Endpoint):
    settings = {"host": mysql.host, "port": mysql.port, "user": mysql.username, "password": mysql.password}
    return closing(pymysql.connect(**settings, ssl=_TLS, autocommit=True))


def _end_of_binlog(mysql: Endpoint) -> CanalPosition:
    with _connected(mysql) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, offset, *_ = cursor.fetchone()
        return CanalPosition(file, offset)
