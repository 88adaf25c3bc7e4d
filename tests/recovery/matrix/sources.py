"""Where rows come from: one short history, in memory, in a real MySQL's binlog, in files of it, and behind a real Canal."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pymysql

import cdc.receiver.binlog
import cdc.receiver.canal
from cdc.binlog.connection import Endpoint, ReaderIdentity
from cdc.position import CanalPosition, Position
from cdc.receiver.binlog import BinlogReceiver
from cdc.receiver.feeds import FilesFeed, ServerFeed
from tests.canal_sources import canal_receiver
from tests.flow.canal import UntilEnd
from tests.flow.faults import Faulty
from tests.flow.source import Row, Source, SourceReceiver, place

TABLES = ("orders", "items")
TRANSACTIONS, KEYS = 24, 10
HISTORIES = 3  # different ones in the binlog
_SIP_BYTES = 500  # about a transaction: a binlog that is read so comes in many Batches
_SIP_S = 0.002  # so that reading is not over before the first commit


def history(seed: object, database: str) -> Source:
    """Upserts and deletes of rows that are there, some transactions over both tables, one of them large."""
    draw, source, there = random.Random(f"history {seed}"), Source(), {}
    for number in range(TRANSACTIONS):
        rows = []
        for _ in range(draw.choice([1, 2, 2, 3, 5]) if number != TRANSACTIONS // 2 else 12):
            key = (f"{database}.{draw.choice(TABLES)}", draw.randrange(KEYS))
            deleted = key in there and draw.random() < 0.3
            if deleted:
                op = there.pop(key)  # a row that is deleted still says what was in it
            else:
                source.operations += 1
                op = there[key] = source.operations
            rows.append(Row(*key, op, deleted))
        source.transactions.append(rows)
    return source


@dataclass(frozen=True)
class Given:
    """A history and the way to it. Travels to the job's process."""

    model: Source
    database: str
    start: Position
    end: Position

    def receiver(self, routes):
        """A new receiver of it, which is finished at its end."""
        raise NotImplementedError

    def put_in(self, script) -> None:
        """Faults of ``script`` where rows are decoded, in this process."""


@dataclass(frozen=True)
class InMemory(Given):
    def receiver(self, routes):
        return SourceReceiver(self.model, routes, per_batch=1, piece_rows=3)


@dataclass(frozen=True)
class InBinlog(Given):
    endpoint: Endpoint
    job: str = ""  # one name for all processes of a cell: the server ends the reader that died before them

    def receiver(self, routes):
        identity = ReaderIdentity.of(self.job, "0badcafe", self.endpoint.host)
        feed = Sips(self.endpoint, identity, heartbeat_s=1.0)
        return UntilEnd(BinlogReceiver(feed, routes, endpoint=self.endpoint, identity=identity), self)

    def put_in(self, script) -> None:
        _break_decoder(script)


@dataclass(frozen=True)
class InFiles(Given):
    pattern: str

    def receiver(self, routes):
        return BinlogReceiver(SipsOfFiles(self.pattern), routes)  # it ends behind the last file by itself

    def put_in(self, script) -> None:
        _break_decoder(script)


def _break_decoder(script) -> None:
    class FaultyDecoder(cdc.receiver.binlog.BinlogDecoder):
        def _decode(self, count, transactions):
            work = super()._decode
            return script.run("decode", lambda: work(count, transactions)) if count else work(count, transactions)

    cdc.receiver.binlog.BinlogDecoder = FaultyDecoder


class Sips(ServerFeed):
    """A server's binlog in small pieces."""

    def fill(self, decoder, wait_s):
        time.sleep(_SIP_S)
        count = self._stream.receive(decoder.room()[:_SIP_BYTES], wait_s)
        if count:
            decoder.feed(count)
        return count


class SipsOfFiles(FilesFeed):
    """Binlog files in small pieces."""

    def fill(self, decoder, wait_s):
        time.sleep(_SIP_S)
        return super().fill(Narrow(decoder, None), wait_s)


class Narrow(Faulty):
    """A decoder with little room."""

    def room(self):
        return self.inner.room()[:_SIP_BYTES]


@dataclass(frozen=True)
class BehindCanal(Given):
    address: str

    def receiver(self, routes):
        # the smallest fetches: many batches, so that there are many cycles
        return UntilEnd(canal_receiver(self.address, routes, batch_size=1), self)

    def put_in(self, script) -> None:
        class FaultyDecoder(cdc.receiver.canal.EntryDecoder):
            def changes(self, *arguments):
                work = super().changes
                return script.run("decode", lambda: work(*arguments))

        cdc.receiver.canal.EntryDecoder = FaultyDecoder


@dataclass(frozen=True)
class Servers:
    """What cells need of the world."""

    mysql: Endpoint | None
    binlogs: tuple[InBinlog, ...]
    files: Path | None  # the same binlogs, copied
    canal: str | None


def in_memory(seed: object) -> InMemory:
    model = history(seed, "shop")
    return InMemory(model, "shop", place(0), place(len(model.transactions)))


def write_binlogs(mysql: Endpoint, seed: object, resolve) -> tuple[InBinlog, ...]:
    """Histories in the binlog, each in a database of its own and over two files of its own. ``resolve``: the position now."""
    return tuple(
        InBinlog(*_written(mysql, f"{seed}/{number}", f"matrix_{number}", resolve, rotate=True), mysql)
        for number in range(HISTORIES)
    )


def copy_files(binlogs: tuple[InBinlog, ...], data: Path, folder: Path) -> Path:
    """The files of ``binlogs`` in a folder, as somebody's archive has them. ``data``: the server's folder."""
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
    """A history that Canal has not shown yet; the job drops what comes before it."""
    found = _written(servers.mysql, seed, f"matrix_canal_{number}", lambda: _end_of_binlog(servers.mysql))
    return BehindCanal(*found, servers.canal)


def drop(servers: Servers, given: Given) -> None:
    with _connected(servers.mysql) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {given.database}")


def _written(mysql: Endpoint, seed: object, database: str, where, rotate: bool = False):
    model = history(seed, database)
    with _connected(mysql) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        cursor.execute(f"CREATE DATABASE {database}")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY, op BIGINT NOT NULL)")
        if rotate:
            cursor.execute("FLUSH BINARY LOGS")  # who reads files begins at their heads
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


def _connected(mysql: Endpoint):
    settings = {"host": mysql.host, "port": mysql.port, "user": mysql.username, "password": mysql.password}
    return closing(pymysql.connect(**settings, autocommit=True))


def _end_of_binlog(mysql: Endpoint) -> CanalPosition:
    with _connected(mysql) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, offset, *_ = cursor.fetchone()
        return CanalPosition(file, offset)
