"""ALTER TABLE of columns in the emulators: the refusals of the real servers, and jobs with their states.

Source: Doris and StarRocks, ``SchemaChangeHandler.java``, ``SchemaChangeJobV2.java``, ``Column.java``,
``ColumnType.java``; for a rename ``Env.java`` of Doris and ``LocalMetastore.java`` of StarRocks.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.emulators.storage import Storage, StoredColumn, StoredTable

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")
_TEXTS = ("CHAR", "VARCHAR", "STRING", "TEXT")
_WITHOUT_DEFAULT = ("JSON", "JSONB", "VARIANT", "ARRAY", "MAP", "STRUCT", "VARBINARY")
SHOWN = ("JobId", "TableName", "CreateTime", "FinishTime", "IndexName", "IndexId", "OriginIndexId", "SchemaVersion",
         "TransactionId", "State", "Msg", "Progress", "Timeout")  # fmt: skip


class AlterRefused(Exception):
    """The server's refusal, in its words."""


@dataclass(slots=True)
class Job:
    """A schema change. ``waits_for``: transactions that began before it."""

    number: int
    table: StoredTable
    apply: Callable[[], None]
    waits_for: list[Any]
    changed_at: float
    message: str = ""  # it is cancelled with this text
    state: str = "PENDING"
    states: list[str] = field(default_factory=lambda: ["PENDING"])

    @property
    def has_ended(self) -> bool:
        return self.state in ("FINISHED", "CANCELLED")


class Alters:
    """The jobs of a cluster. They advance when a statement arrives, at the earliest after ``delay_s`` in a state."""

    def __init__(self, storage: Storage, known: Callable[[], list[Any]]) -> None:
        """``known``: returns all transactions."""
        self._storage, self._known, self._lock = storage, known, threading.RLock()
        self.delay_s = 0.0
        self.is_held = False  # jobs stay RUNNING
        self.are_light = True  # False: every change needs a job, also ADD and DROP COLUMN
        self.cancelled: list[str] = []  # the messages of the next jobs, which are cancelled
        self.jobs: list[Job] = []

    def submit(self, table: StoredTable, apply: Callable[[], None], *, light: bool) -> None:
        """Run a change that was checked: at once if it is light, else by a job."""
        with self._lock:
            open_ones = [
                each for each in self._known()
                if each.database == table.database and each.table in ("", table.name) and not each.status.final
            ]  # fmt: skip
            message = self.cancelled.pop(0) if self.cancelled else ""
            job = Job(10_000 + len(self.jobs), table, apply, open_ones, time.monotonic(), message)
            self.jobs.append(job)
            if light and self.are_light and not message:
                apply()
                self._set(job, "FINISHED")
            self.advance()

    def advance(self) -> None:
        """Move each job on as far as its time and the open transactions allow."""
        with self._lock:
            for job in self.jobs:
                while not job.has_ended and self._is_due(job):
                    self._step(job)

    def _is_due(self, job: Job) -> bool:
        if job.state == "WAITING_TXN":
            return all(each.status.final for each in job.waits_for)
        if job.state == "RUNNING" and self.is_held:
            return False
        return time.monotonic() - job.changed_at >= self.delay_s

    def _step(self, job: Job) -> None:
        match job.state:
            case "PENDING":
                self._set(job, "WAITING_TXN")
            case "WAITING_TXN":
                self._set(job, "RUNNING")
            case _ if job.message:
                self._set(job, "CANCELLED")
            case _:
                job.apply()
                self._set(job, "FINISHED")

    def _set(self, job: Job, state: str) -> None:
        job.state, job.changed_at = state, time.monotonic()
        job.states.append(state)

    def refuse_second(self, table: StoredTable) -> None:
        """Raises: AlterRefused - a job of the table runs."""
        if any(job.table is table and not job.has_ended for job in self.jobs):
            raise AlterRefused(
                f"Table[{table.name}]'s state(SCHEMA_CHANGE) is not NORMAL. Do not allow doing ALTER ops"
            )

    def rows(self, database: str, table: str | None, limit: int | None) -> list[tuple[Any, ...]]:
        """Return what SHOW ALTER TABLE COLUMN shows, newest first."""
        found = [job for job in self.jobs if job.table.database == database and table in (None, job.table.name)]
        return [
            (str(job.number), job.table.name, "2026-01-01 00:00:00", "", job.table.name, "1", "1", "1:1", "1",
             job.state, job.message if job.state == "CANCELLED" else "", _progress(job), "86400")
            for job in reversed(found)
        ][:limit]  # fmt: skip


def _progress(job: Job) -> str:
    if job.state != "RUNNING":
        return "N/A"
    return "50%" if job.table.model == "PRIMARY" else "1/2"


# ---- refusals


def check_add(table: StoredTable, column: StoredColumn) -> None:
    """Raises: AlterRefused."""
    same = next((old for old in table.columns if old.name.lower() == column.name.lower()), None)
    if same is not None and (table.model != "PRIMARY" or same == column):
        raise AlterRefused(f"Can not add column which already exists in base table: {column.name}")
    if same is not None:
        raise AlterRefused(f"Repeatedly add column: {column.name}")
    ids = {table.ids.get(old.name, old.name).lower() for old in table.columns}
    if table.model == "PRIMARY" and column.name.lower() in ids:
        raise AlterRefused(f"Can not add column which already exists in column id: {column.name}, you can remove it")
    if table.model != "PRIMARY" and column.default is None and not column.nullable:
        raise AlterRefused(f"Field '{column.name}' doesn't have a default value")
    if column.default is not None and column.base in _WITHOUT_DEFAULT:
        raise AlterRefused(f"{column.base} type column default value just support null")
    limit = (column.parameters or (1,))[0] if column.base in ("CHAR", "VARCHAR") else None
    if column.default is not None and limit is not None and len(column.default.encode()) > limit:
        raise AlterRefused("Default value is too long")


def check_drop(table: StoredTable, name: str) -> StoredColumn:
    """Return the column. Raises: AlterRefused."""
    column = _existing(table, name, f"Column does not exists: {name}")
    if column.name in table.key:
        raise AlterRefused(f"Can not drop key column in {table.model.lower()} data model table")
    _refuse_fixed(table, column, "drop")
    return column


def check_rename(table: StoredTable, name: str, new: str) -> None:
    """Raises: AlterRefused."""
    if name.lower() == new.lower():
        raise AlterRefused("Same column name")
    column = _existing(table, name, f"Column[{name}] does not exists")
    if any(old.name.lower() == new.lower() for old in table.columns):
        raise AlterRefused(f"Column name[{new}] is already used")
    if table.properties.get("light_schema_change") == "false":
        raise AlterRefused("not implemented for table without column unique id, which are created with property "
                           "[light_schema_change].")  # fmt: skip
    _refuse_fixed(table, column, "rename")


def check_modify(table: StoredTable, new: StoredColumn) -> None:
    """Raises: AlterRefused."""
    old = _existing(table, new.name, f"Column[{new.name}] does not exists")
    if old.name in table.key:
        raise AlterRefused(f"Can not modify key column: {new.name} for primary key table")
    _refuse_fixed(table, old, "modify")
    if replace(new, comment=old.comment) == old:
        raise AlterRefused("Nothing is changed. please check your alter stmt.")
    if old.nullable and not new.nullable:
        raise AlterRefused("Can not change from nullable to non-nullable")
    if old.default != new.default:
        raise AlterRefused("Can not change default value")
    if old.type == new.type:
        return
    if not _can_change(old, new):
        raise AlterRefused(f"Can not change {old.base} to {new.base}")
    is_text = old.base in ("CHAR", "VARCHAR") and new.base in ("CHAR", "VARCHAR")
    if is_text and (old.parameters or (1,))[0] > (new.parameters or (1,))[0]:
        raise AlterRefused(f"Shorten type length is prohibited, srcType={old.type.lower()}, dstType={new.type.lower()}")


def is_longer_text(table: StoredTable, new: StoredColumn) -> bool:
    """Return True if Doris changes only the length of a VARCHAR, which needs no rewrite."""
    old = table.column(new.name)
    return table.model == "UNIQUE" and old.base == new.base == "VARCHAR" and old.nullable == new.nullable


def _can_change(old: StoredColumn, new: StoredColumn) -> bool:
    if old.base in _INTEGERS and new.base in _INTEGERS:
        return _INTEGERS.index(old.base) < _INTEGERS.index(new.base)
    if old.base == new.base == "DECIMAL":
        (old_digits, old_scale), (digits, scale) = old.parameters, new.parameters
        return digits - scale >= old_digits - old_scale and scale >= old_scale
    numbers = (*_INTEGERS, "FLOAT", "DOUBLE", "DECIMAL")
    pairs = {("FLOAT", "DOUBLE"), ("DATE", "DATETIME"), ("DATETIME", "DATETIME"), ("JSON", "STRING")}
    return (
        (old.base, new.base) in pairs
        or (old.base in numbers and new.base in _TEXTS)
        or (old.base in _INTEGERS and new.base in ("DOUBLE", "DECIMAL"))
        or (old.base in ("CHAR", "VARCHAR") and new.base in ("VARCHAR", "CHAR", "STRING", "TEXT"))
    )


def _existing(table: StoredTable, name: str, text: str) -> StoredColumn:
    found = next((column for column in table.columns if column.name.lower() == name.lower()), None)
    if found is None:
        raise AlterRefused(text)
    return found


def _refuse_fixed(table: StoredTable, column: StoredColumn, what: str) -> None:
    buckets = re.search(r"DISTRIBUTED\s+BY\s+HASH\s*\(([^)]*)\)", table.tail, re.IGNORECASE)
    names = [name.strip().strip("`") for name in buckets[1].split(",")] if buckets else []
    if column.name == table.partition_column:
        raise AlterRefused(f"Can not {what} partition column[{column.name}]")
    if column.name in (*names, *table.key):
        raise AlterRefused(f"Can not {what} distribution column[{column.name}]")
