"""A real job on two hosts of ``cdc serve``, while a host is frozen, cut off, or has a wrong clock, or the store is old.

The hosts share one source, one store and one job; its table is written to all the time, and compared after each fault.
"""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.tables import TABLES
from tests.conftest import unavailable
from tests.support.fleet import STATE, Fleet, FleetHost, Writer, running_fleet
from tests.support.seeds import seed_of
from tests.support.serving import wait_until

JOB = "t00"
LEASE_S = 20
AHEAD_S = 3600
CLOCK = Path(__file__).with_name("clock.c")


class Watched:
    """A fleet of one job, and what writes to its table."""

    def __init__(self, fleet: Fleet, writer: Writer) -> None:
        self.fleet, self.writer = fleet, writer

    def check_equal(self) -> None:
        assert self.fleet.compare(self.writer, "after the fault") > 0
        self.fleet.wait_for_one_driver_each()

    @property
    def record(self) -> JobRecord:
        return self.fleet.record(JOB)

    @property
    def owner(self) -> FleetHost:
        return self.fleet.host_of(self.record)

    @property
    def other(self) -> FleetHost:
        owner = self.owner
        return next(host for host in self.fleet.hosts if host is not owner)

    def wait_for_commits_on(self, host: FleetHost) -> None:
        """Wait until ``host`` runs the job and has committed rows that are written from now on."""
        wait_until(lambda: self.record.host == host.name and self.record.state is JobState.RUNNING, host.name)
        self.fleet.wait_for_commits(self.fleet.end())

    def log(self, host: FleetHost) -> str:
        return (host.home / "jobs" / JOB / "driver.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("hosts")

    def set_clock(hosts: Sequence[FleetHost]) -> None:
        """Let the clock of one host be an hour ahead, in all its processes."""
        library, clock = folder / "clock.so", folder / "clock"
        compiler = shutil.which("cc")
        if compiler is None:
            return
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", library, CLOCK], check=True)
        clock.write_bytes(struct.pack("q", AHEAD_S))
        hosts[1].environment |= {"LD_PRELOAD": str(library), "CDC_TEST_CLOCK": str(clock)}

    with running_fleet(folder, hosts=2, jobs=1, lease_s=LEASE_S, prepare=set_clock) as fleet:
        writer = Writer(fleet.source, fleet.jobs, seed_of(), per_s=4)
        writer.start()
        yield Watched(fleet, writer)
        writer.stop()


def test_host_whose_clock_is_ahead_takes_over_and_keeps_the_job(watched: Watched) -> None:
    if shutil.which("cc") is None:
        unavailable("there is no C compiler")
    right, ahead = watched.fleet.hosts
    if watched.owner is ahead:
        ahead.cdc("move", JOB, right.name)
    watched.wait_for_commits_on(right)
    fence = watched.record.fence
    right.kill()
    watched.wait_for_commits_on(ahead)
    assert watched.record.fence == fence + 2  # taken and started once: the clock did not end a lease early
    started = watched.record.started_at
    right.start()
    assert all(0 < host.lease_left_s <= LEASE_S for host in watched.fleet.store.hosts.all())
    watched.check_equal()
    assert watched.record.started_at == started, "the job stayed on the host whose clock is ahead"
    committed = watched.fleet.store.last_committed(JOB)
    assert committed is not None and (committed.committed_at or "") > (watched.fleet.now(1800)), "the clock is right"


def test_frozen_host_is_taken_over_and_its_driver_ends(watched: Watched) -> None:
    """The frozen host is the one whose clock is ahead, after the test before."""
    frozen, other = watched.owner, watched.other
    old = watched.record
    frozen.signal_all(signal.SIGSTOP)
    try:
        watched.wait_for_commits_on(other)
        assert old.driver_pid is not None and psutil.Process(old.driver_pid).status() == psutil.STATUS_STOPPED
    finally:
        frozen.signal_all(signal.SIGCONT)
    watched.check_equal()
    assert watched.record.host == other.name
    assert "Another process runs the job t00 now." in watched.log(frozen)


def test_host_cut_off_from_the_store_is_taken_over(watched: Watched) -> None:
    cut, other = watched.owner, watched.other
    cut.cut_store(off=True)
    try:
        watched.wait_for_commits_on(other)
    finally:
        cut.cut_store(off=False)
    watched.check_equal()
    assert watched.record.host == other.name
    wait_until(lambda: cut.row("alive") is True, "the heartbeat of the host")


def test_host_cut_off_from_the_source_pauses_and_continues(watched: Watched) -> None:
    cut, old = watched.owner, watched.record
    watched.fleet.line.cut(cut.home)
    try:
        wait_until(lambda: watched.record.state is JobState.PAUSED, "the pause")
        paused = watched.record
        assert paused.resume is ResumeKind.AUTOMATIC and paused.hint
    finally:
        watched.fleet.line.restore(cut.home)
    watched.check_equal()
    assert (watched.record.host, watched.record.fence) == (cut.name, old.fence), "the same run continues"


def test_restored_older_store_is_refused_until_adopted(watched: Watched) -> None:
    server, owner = watched.fleet.store_server, watched.owner
    names = ["cdc_meta", *TABLES]
    copies = [f"CREATE TABLE backup.{name} AS SELECT * FROM {STATE}.{name}" for name in names]
    server.execute("CREATE DATABASE backup", *copies)
    watched.wait_for_commits_on(owner)
    connection = server.connect(STATE)
    with connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for name in names:
            cursor.execute(f"DELETE FROM {name}")
            cursor.execute(f"INSERT INTO {name} SELECT * FROM backup.{name}")
        cursor.execute("COMMIT")
    wait_until(lambda: "--adopt" in (watched.record.hint or ""), "the refusal")
    assert "ahead of the state" in (watched.record.reason or "")
    assert "The state store was replaced by an older copy while the job ran." in watched.log(owner)
    owner.cdc("start", str(owner.home / "jobs" / JOB / "job.yaml"), "--adopt")
    watched.check_equal()
