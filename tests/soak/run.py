"""One walk from a source to a target, with a job that is killed every few seconds and readers that watch the target."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from tests.soak.checker import Checker
from tests.soak.pairs import PASSWORD, SOURCES, TARGETS, Source, Target
from tests.soak.random_walk import CREATE, DATABASE, TABLES, Walk, Walkers

WRITERS, LIVE, STEPS_PER_S, READERS = 3, 22, 60.0, 2  # about a hundred rows at a time
VIEW_TIMEOUT_S = 300.0
LEAST_KILLS = 3  # for each walk, however short
WHILE_STARTING = 3  # one of this many kills happens while the driver starts
JOB = """\
name: walk
{source}
{sink}
channels:
  - {{source: {database}.*, target: ods.*}}
commit: {{interval: 1s}}
status: {{port: {port}}}
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a walk."""

    source: str
    target: str
    seed: int
    kills: int
    disturbances: int  # of source and target, while the job was running
    groups: int
    polls: int
    views: int  # polls that showed something new, of the reader with the most
    faults: tuple[str, ...]


def run(folder: Path, source: str, target: str, *, seconds: float, seed: int) -> Outcome:
    """Walk for ``seconds`` and at least a few kills, let all groups finish, and check what the readers have seen."""
    options = ("--binlog-row-metadata=FULL", "--max-binlog-size=1M")
    with (
        LocalServer.start(obtain("mysql"), folder / "mysql", options=options) as server,
        TARGETS[target](folder, seed) as sink,
    ):
        server.create_user("cdc", PASSWORD)
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(*(CREATE.format(table=f"{DATABASE}.{table}") for table in TABLES))
        with SOURCES[source](server, end_of(server), folder) as origin:
            port = free_port()
            text = JOB.format(source=origin.yaml, sink=sink.yaml, database=DATABASE, port=port)
            (folder / "job.yaml").write_text(text)
            with JobProcess(folder / "job.yaml", home=folder / "state", port=port) as job:
                return _walk(server, job, (origin, sink), (source, target, seed), seconds)


def _walk(
    server: LocalServer, job: JobProcess, ends: tuple[Source, Target], names: tuple[str, str, int], seconds: float
) -> Outcome:
    (source, sink), draw = ends, random.Random(names[2])
    walk, is_over = Walk(), threading.Event()
    readers = [Reader(walk, sink, is_over) for _ in range(READERS)]
    writers = [
        Walkers(
            lambda: server.connect(DATABASE),
            walk,
            seed=names[2] * 100 + number,
            live=LIVE,
            steps_per_s=STEPS_PER_S / WRITERS,
        )
        for number in range(WRITERS)
    ]
    for thread in (*writers, *readers):
        thread.start()
    done, early = Counter[str](), list[str]()
    try:
        _kill(job, readers, (source, sink), draw, seconds, done)
        for writer in writers:
            writer.finish()
        job.start()
        end = end_of(server)
        job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), 300)
    except Exception as error:  # the faults that the readers have found until then say more
        early.append(ended_early(error))
    finally:
        is_over.set()
        for thread in (*writers, *readers):
            thread.give_up()
    for reader in readers:
        if reader.failure is None:
            reader.checker.at_rest(sink.read())
        else:
            early.append(ended_early(reader.failure))
    found = sorted({fault for reader in readers for fault in reader.checker.faults})
    polls = sum(reader.checker.polls for reader in readers)
    views = max(reader.checker.views for reader in readers)
    return Outcome(*names, done["kills"], done["disturbances"], len(walk.groups), polls, views, (*early, *found))


def _kill(
    job: JobProcess,
    readers: Sequence[Reader],
    ends: tuple[Source, Target],
    draw: random.Random,
    seconds: float,
    done: Counter[str],
) -> None:
    """Start and kill the job repeatedly. ``done`` counts the kills and the other disturbances."""
    source, sink = ends
    faults = [None, source.disturb] if sink.disturb is None else [None, source.disturb, partial(sink.disturb, draw)]
    deadline = time.monotonic() + seconds
    while done["kills"] < LEAST_KILLS or time.monotonic() < deadline:
        job.start()
        if done["kills"] % WHILE_STARTING == 0:  # from before the driver has read its job file
            time.sleep(draw.uniform(0.5, 8))
        else:  # between its cycles, however slow the machine is
            _await_view(readers)
            time.sleep(draw.uniform(0, 5))
        disturb = draw.choice(faults)
        if disturb is not None:
            disturb()
            done["disturbances"] += 1
        time.sleep(draw.uniform(0, 3))
        job.kill()
        done["kills"] += 1


def ended_early(error: BaseException) -> str:
    """Return a fault of the walk as a whole."""
    return f"the walk ended early: {type(error).__name__}: {error}"


def _await_view(readers: Sequence[Reader]) -> None:
    """Wait until a reader sees something new. Raises: TimeoutError - nothing becomes visible."""
    before, deadline = [reader.checker.views for reader in readers], time.monotonic() + VIEW_TIMEOUT_S
    while [reader.checker.views for reader in readers] == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing became visible for {VIEW_TIMEOUT_S:.0f} s")
        if any(reader.failure for reader in readers):
            return
        time.sleep(0.1)


class Reader(threading.Thread):
    """Read the target repeatedly."""

    def __init__(self, walk: Walk, sink: Target, is_over: threading.Event) -> None:
        super().__init__(name="reader", daemon=True)
        self.checker = Checker(walk, sink.promise)
        self._sink, self._arrived = sink, is_over
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Read until the walk is over."""
        try:
            while not self._arrived.wait(0.1):
                self.checker.observe(self._sink.read())
        except BaseException as error:
            self.failure = error

    def give_up(self) -> None:
        """Wait for the end of the thread."""
        self.join()


def end_of(server: LocalServer) -> tuple[str, int]:
    """Return file and offset after the last event."""
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS" if "mariadb" in str(server.data) else "SHOW BINARY LOG STATUS")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0]), int(row[1])
