"""One part of a load into StarRocks: in its own transaction, or in the shared one of all tables of a checkpoint.

StarRocks does not check the length of a body: if the connection breaks, a part of the rows may be in the transaction.
A load is therefore never sent twice into the same transaction. A single-table transaction is rolled back and the load
is repeated under the next label; a shared transaction is rolled back with all of its loads.

Source: StarRocks, ``TransactionLoadAction.java``, ``StreamLoadMultiStmtTask.java``, ``transaction_stream_load.cpp``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from cdc.errors import CdcError, LoadRejected, SinkLimitExceeded, SinkUnavailable
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED
from cdc.retry import Backoff
from channels.sinks.base import TargetTable
from channels.sinks.labels import label_for, label_prefix
from channels.sinks.starrocks.client import DONE, LoadTransaction, NotSent, StarrocksHttp, StarrocksReply
from channels.sinks.starrocks.documents import document_columns, in_array, in_arrays
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.starrocks.types import conversion, starrocks_type
from channels.sinks.stream_load import encoding
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.loader import (
    STATE_TIMEOUT_S,
    LoadSettings,
    attempts,
    load_rows,
    repeat_until_prepared,
    wait_for_state,
)
from channels.sinks.stream_load.statements import placeholders, quoted

OPERATION = "__op"
PREPARED_TIMEOUT_S = 86_400  # StarRocks' default, sent because a cluster can have another setting
_CSV_FIELD_BYTES = 1 << 20  # a longer field is rejected in CSV, but not in JSON
_BUSY_TIMEOUT_S = 900.0  # parts of one table wait for each other, and the transaction has one hour
_BUSY_PAUSE_S, _LONGEST_BUSY_PAUSE_S = 0.1, 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StarrocksPartWriter:
    """See ``PartWriter``. Pickled for executors."""

    client: StarrocksHttp
    table: TargetTable
    settings: LoadSettings
    multi: bool
    losses: Mapping[tuple[int, int], int] = field(default_factory=dict)  # see shared_label
    parses_documents: bool = False  # see in_arrays

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See ``PartWriter``."""
        columns = [*(column.name for column in self.table.columns), *self.table.kept, DELETED]
        checked = encoding.checked(self.table, rows, columns)
        checked = in_arrays(self.table, checked, parses=self.parses_documents)
        kind = MultiTableLoad if self.multi else SingleTableLoad
        return load_rows(checked, lambda kept: kind(self, name, kept).run(), longest_field=_CSV_FIELD_BYTES)


def shared_label(job: str, incarnation: str, fence: int, checkpoint: int, losses: Mapping[tuple[int, int], int]) -> str:
    """Return the label of a checkpoint's shared transaction.

    ``losses``: how often it was lost, by (fence, checkpoint). The number is part of the label, so that a late executor
    of a transaction that was rolled back cannot write into the next one.
    """
    return f"{label_prefix(job, incarnation, fence, checkpoint)}all-{losses.get((fence, checkpoint), 0)}"


class LoadBody:
    """Rows as a request: headers and pieces."""

    def __init__(self, table: TargetTable, rows: encoding.BodyRows, *, as_csv: bool) -> None:
        self._rows, self._as_csv = rows, as_csv
        kinds = {column.name: starrocks_type(column, key=column.name in table.key) for column in table.columns}
        # a field that is converted needs another name than its column
        prefix = "_cdc_"
        while any(name.casefold().startswith(prefix) for name in (*kinds, *table.kept)):
            prefix = f"_{prefix}"  # a column of the table may have the name of such a field
        converted = {
            name: made for name, kind in kinds.items() if (made := conversion(kind, quoted(f"{prefix}{name}")))
        }
        fields = [f"{prefix}{name}" if name in converted else name for name in kinds]
        self._fields = [*fields, *table.kept, OPERATION]
        conversions = [f"{quoted(name)}={expression}" for name, expression in converted.items()]
        self._columns = ",".join([*map(quoted, self._fields), *conversions])
        documents = document_columns(table)
        self._instead = {
            name: in_array(text) if name in documents else text
            for name, text in placeholders(table, lambda column: kinds[column.name].base).items()
        }

    def headers(self) -> dict[str, str]:
        """Return the headers that describe the body. No row may be filtered."""
        shape = (
            {"format": "csv", "column_separator": "\\x01", "row_delimiter": "\\x02"}
            if self._as_csv
            else {"format": "json", "strip_outer_array": "false", "ignore_json_size": "true"}
        )
        return {
            "columns": self._columns,
            "strict_mode": "true",
            "max_filter_ratio": "0",
            "timezone": "UTC",
            "Expect": "100-continue",
            **shape,
        }

    def pieces(self) -> Iterable[bytes]:
        """Return the bytes, which are made while they are sent."""
        if self._as_csv:
            return encoding.csv_body(self._rows, None, self._instead)
        return encoding.json_body(self._rows, self._fields, self._instead)


class StarrocksLoad:
    """What both kinds of loads use."""

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: encoding.BodyRows, *, as_csv: bool) -> None:
        self.client, self.settings, self.table = writer.client, writer.settings, writer.table
        self.name, self.rows = name, rows
        self.body = LoadBody(writer.table, rows, as_csv=as_csv)
        self.database, _, self.target = writer.table.name.partition(".")

    def send(self, transaction: LoadTransaction) -> StarrocksReply:
        """Send the rows. Raises: NotSent, Unreachable."""
        return self.client.load(transaction, self.body.headers(), self.body.pieces)

    def prepared(self, **detail: str | int) -> PreparedLoad:
        """Return the load for the driver."""
        columns = [column.name for column in self.table.columns]
        count, size = self.rows.row_count, self.rows.byte_count
        return PreparedLoad(self.name, self.table.name, count, size, {**detail, "columns": columns})

    def unavailable(self, error: object, transaction: LoadTransaction) -> CdcError:
        """Return the error to retry."""
        return STARROCKS.unavailable(error, **self._context(transaction))

    def refused(self, reply: StarrocksReply, transaction: LoadTransaction) -> CdcError:
        """Return the error to retry. Raises: errors that no retry fixes."""
        STARROCKS.raise_refused(
            reply.message, self.client.address.username, self._context(transaction),
            lambda: self.client.rejected_rows(reply, self.table), multi=transaction.multi,
        )  # fmt: skip
        return self.unavailable(f"{reply.status} {reply.message}", transaction)

    def _context(self, transaction: LoadTransaction) -> dict[str, object]:
        return {"table": self.table.name, "label": transaction.label}


class SingleTableLoad:
    """A load that is its own transaction: begin, load, prepare."""

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: encoding.BodyRows) -> None:
        self._load = StarrocksLoad(writer, name, rows, as_csv=rows.can_be_csv)
        self._client = writer.client

    def run(self) -> PreparedLoad:
        """Repeat the load until it is prepared. Raises: see ``PartWriter``."""
        label = label_for(self._load.name)
        return repeat_until_prepared(self._attempt, self._load.settings, STARROCKS, label=label)

    def _attempt(self, number: int) -> PreparedLoad | CdcError:
        label = label_for(self._load.name) + (f"-{number}" if number else "")
        transaction = LoadTransaction(self._load.database, label, self._load.target)
        try:
            result = self._prepare(transaction)
        except Unreachable as error:
            result = self._load.unavailable(error, transaction)
        if not isinstance(result, PreparedLoad):
            roll_back(self._client, transaction)
        return result

    def _prepare(self, transaction: LoadTransaction) -> PreparedLoad | CdcError:
        reply = self._client.ask("begin", transaction, timeout=str(self._load.settings.timeout_s))
        if reply.exists:  # an earlier attempt to load this part, whose answer was lost
            state = self._client.state(transaction.database, transaction.label)
            if state in ("PREPARED", *DONE):
                return self._load.prepared(label=transaction.label)
            return self._load.unavailable(f"an earlier attempt is {state.lower()}", transaction)
        if reply.is_ok:
            reply = self._load.send(transaction)
        if not reply.is_ok:
            return self._refused(reply, transaction)
        reply = self._ask_to_prepare(transaction)
        if reply.is_ok:
            return self._counted(reply, transaction)
        if self._client.state(transaction.database, transaction.label) == "PREPARED":
            return self._load.prepared(label=transaction.label)  # done, although the answer was an error
        return self._refused(reply, transaction)

    def _ask_to_prepare(self, transaction: LoadTransaction) -> StarrocksReply:
        """Prepare, and repeat it if there is no answer: after a prepare only the frontend knows the transaction.

        Sleep after the last try as well: the caller then asks for the state, and a slow prepare may be done by then.
        """
        reply = StarrocksReply("TIMEOUT", "no answer to prepare")
        deadline = time.monotonic() + STATE_TIMEOUT_S
        for _, pause in zip(range(self._load.settings.tries), Backoff(self._load.settings.pause_s, 5.0), strict=False):
            try:
                reply = self._client.ask("prepare", transaction, prepared_timeout=str(PREPARED_TIMEOUT_S))
            except Unreachable:
                reply = StarrocksReply("TIMEOUT", "no answer to prepare")
            if (not reply.is_busy and reply.status != "TIMEOUT") or time.monotonic() > deadline:
                break
            time.sleep(pause)
        return reply

    def _counted(self, reply: StarrocksReply, transaction: LoadTransaction) -> PreparedLoad:
        count = self._load.rows.row_count
        loaded = reply.fields.get("NumberLoadedRows", count)
        if loaded == count:
            return self._load.prepared(label=transaction.label)
        roll_back(self._client, transaction)
        raise LoadRejected(
            f"StarRocks loaded {loaded} of {count} rows and reported success.",
            hint="Check if the table has a filter for loads; the load was rolled back.",
            table=self._load.table.name,
            label=transaction.label,
        )

    def _refused(self, reply: StarrocksReply, transaction: LoadTransaction) -> CdcError:
        try:
            return self._load.refused(reply, transaction)
        except CdcError:
            roll_back(self._client, transaction)
            raise


class MultiTableLoad:
    """A load that is one of many in the shared transaction of its checkpoint.

    Whichever load is first begins the transaction. Every load returns the number of its transaction: if the transaction
    was lost and a later load has begun another one, the numbers differ, and the commit sees that it is incomplete.
    """

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: encoding.BodyRows) -> None:
        # the first load of a table decides the format of all, so the format must not depend on the rows
        any_length = any(
            pa.types.is_string(column.arrow) or pa.types.is_binary(column.arrow) for column in writer.table.columns
        )
        self._load = StarrocksLoad(writer, name, rows, as_csv=not any_length)
        database, table = self._load.database, self._load.target
        if not (database + table + self._load.body.headers()["columns"]).isascii():
            raise SinkLimitExceeded(
                "In a transaction over several tables, columns stay empty if a name is not ASCII.",
                hint="Set sink.multi_table: off, then `cdc resume`.",
                table=writer.table.name,
            )
        label = shared_label(name.job, name.incarnation, name.fence, name.checkpoint, writer.losses)
        self._client = writer.client
        self._whole = LoadTransaction(database, label, multi=True)
        self._share = LoadTransaction(database, label, table, multi=True)

    def run(self) -> PreparedLoad:
        """Send the load. Raises: see ``PartWriter``; the whole transaction is then rolled back."""
        try:
            return self._send()
        except BaseException:
            roll_back(self._client, self._whole)
            raise

    def _send(self) -> PreparedLoad:
        context, settings = TaskContext.get(), self._load.settings
        if context is not None and context.attemptNumber():
            raise self._load.unavailable(
                "an executor was lost during a load, and how many rows have arrived is unknown", self._whole
            )
        last: Unreachable | None = None
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        for _ in attempts(settings.tries, 2 * settings.pause_s, 5.0):
            try:
                reply = self._client.ask("begin", self._whole, timeout=str(settings.timeout_s))
                if reply.is_ok or reply.exists:
                    reply = self._load_when_free(deadline)
            except NotSent as error:
                last = error
                continue
            except Unreachable as error:
                raise self._load.unavailable(error, self._whole) from error
            if not reply.is_ok or reply.number is None:
                raise self._load.refused(reply, self._whole)
            return self._load.prepared(label=self._whole.label, transaction=reply.number)
        raise self._load.unavailable(last, self._whole)

    def _load_when_free(self, deadline: float) -> StarrocksReply:
        """Send the rows when no other part of the table is being loaded. Raises: NotSent, Unreachable, SinkUnavailable.

        Several executors can load parts of one table. StarRocks accepts one load per label and table at a time. It
        rejects others before they send a byte of their body, and keeps the transaction, so they are sent again.
        """
        for pause in Backoff(_BUSY_PAUSE_S, _LONGEST_BUSY_PAUSE_S):
            reply = self._load.send(self._share)
            if not reply.is_busy:
                return reply
            if time.monotonic() + pause > deadline:
                raise SinkUnavailable(
                    f"Another part of {self._load.table.name} is still being loaded after {_BUSY_TIMEOUT_S:g} s.",
                    hint="The rows are replayed automatically. If this is repeated, set sink.multi_table: off.",
                    table=self._load.table.name,
                    label=self._whole.label,
                )
            time.sleep(pause)
        raise AssertionError("unreachable")


def final_state(client: StarrocksHttp, transaction: LoadTransaction) -> str:
    """Return the label's state when it is neither begun nor prepared, or the last state after 30 s."""
    return wait_for_state(lambda: client.state(transaction.database, transaction.label), ("PREPARE", "PREPARED"))


def roll_back(client: StarrocksHttp, transaction: LoadTransaction) -> None:
    """Roll back what exists of a transaction. Without an answer it ends at its time limit."""
    try:
        reply = client.ask("rollback", transaction)
        if reply.is_missing and not transaction.multi:
            client.cancel(transaction.database, transaction.label)  # its backend was restarted, its frontend was not
    except (Unreachable, CdcError) as error:
        logger.info("the rollback of %s has no answer (%s); it ends at its time limit", transaction.label, error)
