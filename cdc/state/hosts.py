"""The hosts of a store: one row for each ``cdc serve``, with its heartbeat."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdc.errors import LeaseLost
from cdc.state.database import Database, Row, Transaction, delete_once

CLOCK_STEP_S = 1.0  # a smaller step of the clock delays a take-over by as much

_STARTING = 2  # value of `schedulable`; earlier versions take it for 1

_COLUMNS = "name, run_id, address, memory, labels, schedulable, drained, lease_until, seen_at"


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """This host, as other hosts of the store know it."""

    name: str  # $CDC_HOST, else the name of the machine
    home: str  # random, for the life of a ``$CDC_HOME``: two of them on one machine are two hosts


@dataclass(frozen=True, slots=True)
class Host:
    """One ``cdc serve`` in the store."""

    name: str
    run_id: str  # random, of the process
    address: str | None = None  # "https://a1:8480", for other hosts
    memory: int = 0  # bytes that jobs may use
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True  # the process accepts jobs, and no user drains the host
    drained: bool = False  # a user drains the host
    is_starting: bool = False  # not ready to start drivers yet: it gets a job only if no ready host has room for it
    lease_left_s: float = 0.0  # until the heartbeat expires; negative: the host is dead
    seen_ago_s: float = 0.0  # age of the last heartbeat

    @property
    def is_alive(self) -> bool:
        """Whether the heartbeat has not expired."""
        return self.lease_left_s > 0

    @property
    def accepts_jobs(self) -> bool:
        """Whether it is alive and no user drains it, and it can start drivers."""
        return self.is_alive and self.schedulable


class Hosts:
    """The hosts of a store. Calls: any thread. Raises: CheckpointError."""

    def __init__(self, database: Database, identity: HostIdentity, lease_s: float) -> None:
        self._database = database
        self._identity = identity
        self.lease_s = lease_s  # of a heartbeat
        self._registered: set[str] = set()  # run_ids that have had their name

    def heartbeat(self, host: Host) -> None:
        """Save the row of this host and extend its lease by the clock of the store.

        ``host``: name, run_id, address, memory, labels, schedulable and is_starting are saved. A new run_id
        replaces one of the same ``$CDC_HOME``, whose process has ended, because its lock is free; and one whose lease
        has expired.

        Raises: LeaseLost - another process has this name and its heartbeat has not expired, or has replaced this one.
        """
        is_first = host.run_id not in self._registered
        taken = self._database.transact(lambda transaction: self._save(transaction, host, is_first=is_first))
        if not taken:
            raise LeaseLost(
                f"Another process runs the host {host.name}.",
                hint="Give each host its own name (CDC_HOST or `host.name`), or end the other process.",
                host=host.name,
                run=host.run_id,
            )
        self._registered.add(host.run_id)

    def all(self) -> tuple[Host, ...]:
        """Return all hosts, ordered by name."""
        now = self._database.words.now
        rows = self._database.all(f"SELECT {_COLUMNS}, {now} FROM cdc_hosts ORDER BY name")
        return tuple(_host(row) for row in rows)

    def shorten_leases(self) -> None:
        """Correct the leases of hosts and of runs that were renewed in the future: the clock of the store was set back.

        A lease then ends as long after this call as it was to end after its renewal. The length is that of its own
        host. A live host or run renews its lease again; nothing else would end the lease of a dead one in time.
        """
        now = self._database.words.now

        def work(transaction: Transaction) -> None:
            for table, renewed in (("cdc_hosts", "seen_at"), ("cdc_jobs", "summary_at")):
                transaction.run(  # MySQL assigns from left to right
                    f"UPDATE {table} SET lease_until = {now} + (lease_until - {renewed}), {renewed} = {now}"
                    f" WHERE {renewed} > {now} + {CLOCK_STEP_S} AND lease_until > {renewed}"
                )

        self._database.transact(work)

    def leave(self, name: str, run_id: str) -> None:
        """End the lease of this host at once, so that other hosts need not wait for it. May be repeated."""
        sql = "UPDATE cdc_hosts SET lease_until = 0 WHERE name = :name AND run_id = :run_id"
        self._database.transact(lambda transaction: transaction.run(sql, name=name, run_id=run_id))

    def set_drained(self, name: str, *, drained: bool) -> bool:
        """Save whether a user drains the host. Return False if there is no such host."""
        sql = "UPDATE cdc_hosts SET drained = :drained WHERE name = :name"
        return self._database.transact(lambda transaction: transaction.run(sql, drained=int(drained), name=name)) == 1

    def forget(self, name: str) -> bool:
        """Delete the row of a host whose heartbeat has expired. Return False if it is alive or unknown."""
        sql = f"DELETE FROM cdc_hosts WHERE name = :name AND lease_until <= {self._database.words.now}"
        return self._database.transact(delete_once(sql, "SELECT name FROM cdc_hosts WHERE name = :name", name=name))

    def _save(self, transaction: Transaction, host: Host, *, is_first: bool) -> bool:
        now = self._database.words.now
        values = {
            "name": host.name,
            "run_id": host.run_id,
            "home": self._identity.home,
            "address": host.address,
            "memory": host.memory,
            "labels": json.dumps(dict(host.labels)),
            "schedulable": _STARTING if host.schedulable and host.is_starting else int(host.schedulable),
            "lease_s": self.lease_s,
        }
        # a replaced process must not take its name back; one that has never had it may take a free name
        may = f"run_id = :run_id OR lease_until <= {now} OR home = :home" if is_first else "run_id = :run_id"
        update = (
            f"UPDATE cdc_hosts SET run_id = :run_id, home = :home, address = :address, memory = :memory,"
            f" labels = :labels, schedulable = :schedulable, lease_until = {now} + :lease_s, seen_at = {now}"
            f" WHERE name = :name AND ({may})"
        )
        if transaction.run(update, **values):
            return True
        if transaction.all("SELECT 1 FROM cdc_hosts WHERE name = :name", name=host.name):
            return False
        # its first heartbeat, or a user has deleted the row of a host that was cut off
        transaction.run(
            "INSERT INTO cdc_hosts (name, run_id, home, address, memory, labels, schedulable, drained, lease_until,"
            f" seen_at) VALUES (:name, :run_id, :home, :address, :memory, :labels, :schedulable, 0, {now} + :lease_s,"
            f" {now})",
            **values,
        )
        return True


def this_host(folder: Path) -> HostIdentity:
    """Return the identity of this host. ``folder``: ``$CDC_HOME``, in which the random part is kept.

    Raises: OSError - the folder cannot be written.
    """
    file = folder / "host-id"
    try:
        number = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        number = ""
    if not number:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        new = folder / f".host-id.{os.getpid()}"
        new.write_text(f"{secrets.token_hex(8)}\n", encoding="ascii")
        try:
            os.link(new, file)  # fails if another process was first
        except FileExistsError:
            pass
        finally:
            new.unlink()
        number = file.read_text(encoding="ascii").strip()
    machine = socket.gethostname()
    # with the name of the machine: a copied folder, as in an image of a container, is another host
    return HostIdentity(os.environ.get("CDC_HOST") or machine, f"{machine}/{number}"[:190])


def _host(row: Row) -> Host:
    name, run_id, address, memory, labels, schedulable, drained, lease_until, seen_at, now = row
    return Host(
        name, run_id, address, int(memory), json.loads(labels), bool(schedulable) and not drained, bool(drained),
        schedulable == _STARTING, float(lease_until) - float(now), float(now) - float(seen_at),
    )  # fmt: skip
