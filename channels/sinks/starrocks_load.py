"""One part of a load into StarRocks: a transaction of its own, or a share of one that has all tables of a checkpoint.

There is no check of a body's length on this road: rows of a body that was cut may be in the transaction already. So a
load is never sent twice into the same one. Alone, it is rolled back and tried under the next label; together with
others, all of them are made again.

Source: StarRocks, ``TransactionLoadAction.java``, ``StreamLoadMultiStmtTask.java``, ``transaction_stream_load.cpp``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import CdcError, LoadRejected, SinkSetting
from cdc.schema import DELETED
from channels.label import label_for, label_prefix
from channels.sinks import bodies
from channels.sinks.base import TargetTable
from channels.sinks.cluster import fillers, quoted
from channels.sinks.starrocks_client import DONE, STARROCKS, Answer, NotSent, StarrocksHttp, Transaction
from channels.sinks.starrocks_refusals import BAD_ROWS, bad_rows, raise_refused
from channels.sinks.starrocks_types import conversion, starrocks_type
from channels.sinks.stream_load import Unreachable, waits

OPERATION = "__op"
PREPARED_TIMEOUT_S = 86_400  # StarRocks' own; said so that a cluster's other setting does not surprise
_TRIES = 6
_SETTLE_S = 30.0  # how long a prepare without an answer may still be under way
_CSV_FIELD_BYTES = 1 << 20  # a longer field of CSV is refused, whatever its column holds; in JSON it is not
_DOCUMENT_BYTES = 16 << 20  # parse_json makes NULL of a longer one, and says nothing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What every load of a sink has in common."""

    timeout_s: int = 3600  # of what is begun and not prepared
    tries: int = _TRIES
    pause_s: float = 0.2  # before the second try; doubles


@dataclass(frozen=True, slots=True)
class StarrocksPartWriter:
    """See PartWriter. Travels to executors."""

    http: StarrocksHttp
    table: TargetTable
    settings: LoadSettings
    multi: bool
    losses: Mapping[tuple[int, int], int] = field(default_factory=dict)  # see shared_label

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See PartWriter."""
        columns = [*(column.name for column in self.table.columns), DELETED]
        checked = _with_short_documents(self.table, bodies.checked(self.table, rows, columns))
        kept = bodies.Rows(checked, limit_bytes=bodies.MEMORY_BYTES, longest_field=_CSV_FIELD_BYTES)
        try:
            if not kept.row_count:
                return None
            return _Shared(self, name, kept).joined() if self.multi else _Alone(self, name, kept).settled()
        finally:
            kept.close()


def shared_label(job: str, incarnation: str, fence: int, checkpoint: int, losses: Mapping[tuple[int, int], int]) -> str:
    """The label of a checkpoint's one transaction.

    ``losses``: how often it was lost, by fence and checkpoint. It is part of the label, so that a late executor of a
    transaction that was given up cannot write into the one that follows.
    """
    return f"{label_prefix(job, incarnation, fence, checkpoint)}all-{losses.get((fence, checkpoint), 0)}"


def _with_short_documents(table: TargetTable, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``rows``. Raises: LoadRejected - a JSON document that would become NULL, with its key."""
    names = [
        column.name for column in table.columns if starrocks_type(column, key=column.name in table.key).base == "JSON"
    ]
    for batch in rows:
        for name in names:
            is_long = pc.greater(pc.binary_length(batch.column(name)), _DOCUMENT_BYTES)
            found = batch.filter(pc.and_not(is_long, batch.column(DELETED)))
            if found.num_rows:
                raise LoadRejected(
                    f"A document for column {name} is longer than the {_DOCUMENT_BYTES >> 20} MiB that StarRocks takes "
                    "as JSON.",
                    mend=f"Take a part of it by columns: {{{name}: ...}}, leave the row out by filter:, or mend it at "
                    "the source; then `cdc resume`.",
                    table=table.name,
                    column=name,
                    keys=found.select(list(table.key)).slice(0, BAD_ROWS).to_pylist(),
                )
        yield batch


class LoadBody:
    """Rows as a request: headers and pieces."""

    def __init__(self, table: TargetTable, rows: bodies.Rows, *, as_csv: bool) -> None:
        self._rows, self._as_csv = rows, as_csv
        kinds = {column.name: starrocks_type(column, key=column.name in table.key) for column in table.columns}
        # a field that has to be converted bears another name than its column
        converted = {name: made for name, kind in kinds.items() if (made := conversion(kind, quoted(f"_cdc_{name}")))}
        self._fields = [f"_cdc_{name}" if name in converted else name for name in kinds] + [OPERATION]
        conversions = [f"{quoted(name)}={expression}" for name, expression in converted.items()]
        self._columns = ",".join([*map(quoted, self._fields), *conversions])
        self._instead = fillers(table, lambda column: kinds[column.name].base)

    def headers(self) -> dict[str, str]:
        """How the body is to be read; nothing is filtered."""
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
        """The bytes, made as they are sent."""
        if self._as_csv:
            return bodies.csv_body(self._rows, None, self._instead)
        return bodies.json_body(self._rows, self._fields, self._instead)


class _Load:
    """What both ways of loading share."""

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: bodies.Rows, *, as_csv: bool) -> None:
        self.http, self.settings, self.table = writer.http, writer.settings, writer.table
        self.name, self.rows = name, rows
        self.body = LoadBody(writer.table, rows, as_csv=as_csv)
        self.database, _, self.target = writer.table.name.partition(".")

    def send(self, transaction: Transaction) -> Answer:
        """The load itself. Raises: NotSent, Unreachable."""
        return self.http.load(transaction, self.body.headers(), self.body.pieces)

    def prepared(self, **detail: str | int) -> PreparedLoad:
        """Said to the driver."""
        told = {**detail, "columns": [column.name for column in self.table.columns]}
        return PreparedLoad(self.name, self.table.name, self.rows.row_count, self.rows.byte_count, told)

    def where(self, transaction: Transaction) -> dict[str, object]:
        """For errors."""
        return {"table": self.table.name, "label": transaction.label}

    def refused(self, answer: Answer, transaction: Transaction) -> CdcError:
        """The error to go on with. Raises: what no other try can mend."""
        raise_refused(
            answer.message, lambda: bad_rows(self.http, self.table, answer), self.http.access.username,
            self.where(transaction), multi=transaction.multi,
        )  # fmt: skip
        return STARROCKS.unavailable(f"{answer.status} {answer.message}", **self.where(transaction))


class _Alone(_Load):
    """A load that is a transaction of its own: begun, sent, prepared."""

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: bodies.Rows) -> None:
        super().__init__(writer, name, rows, as_csv=rows.fits_csv)

    def settled(self) -> PreparedLoad:
        """Try until it is prepared. Raises: see PartWriter."""
        last: CdcError | None = None
        pauses = waits(self.settings.pause_s, 5.0)
        for number in range(self.settings.tries):
            if number:
                time.sleep(next(pauses))
            label = label_for(self.name) + (f"-{number}" if number else "")
            transaction = Transaction(self.database, label, self.target)
            try:
                done, last = self._tried(transaction)
            except Unreachable as error:
                last = STARROCKS.unavailable(error, **self.where(transaction))
                done = None
            if done is not None:
                return done
            roll_back(self.http, transaction)
        raise last or STARROCKS.unavailable("no try was made", label=label_for(self.name))

    def _tried(self, transaction: Transaction) -> tuple[PreparedLoad | None, CdcError | None]:
        answer = self.http.ask("begin", transaction, timeout=str(self.settings.timeout_s))
        if answer.exists:  # this very part, tried before by somebody who could not tell
            state = self.http.state(transaction.database, transaction.label)
            if state in ("PREPARED", *DONE):
                return self.prepared(label=transaction.label), None
            return None, STARROCKS.unavailable(f"an earlier try is {state.lower()}", **self.where(transaction))
        if answer.is_ok:
            answer = self.send(transaction)
        if not answer.is_ok:
            return self._given_up(answer, transaction)
        answer = self._asked_to_prepare(transaction)
        if answer.is_ok:
            return self._counted(answer, transaction)
        if self.http.state(transaction.database, transaction.label) == "PREPARED":
            return self.prepared(label=transaction.label), None  # done, though it was answered by an error
        return self._given_up(answer, transaction)

    def _asked_to_prepare(self, transaction: Transaction) -> Answer:
        """A prepare may be repeated: one that was done is then unknown to its backend, and known to the frontend."""
        answer = Answer("TIMEOUT", "no answer to prepare")
        deadline = time.monotonic() + _SETTLE_S
        for _, pause in zip(range(self.settings.tries), waits(self.settings.pause_s, 5.0), strict=False):
            try:
                answer = self.http.ask("prepare", transaction, prepared_timeout=str(PREPARED_TIMEOUT_S))
            except Unreachable:
                answer = Answer("TIMEOUT", "no answer to prepare")
            if answer.status not in ("TIMEOUT", "TXN_IN_PROCESSING") or time.monotonic() > deadline:
                break
            time.sleep(pause)
        return answer

    def _counted(self, answer: Answer, transaction: Transaction) -> tuple[PreparedLoad, None]:
        loaded = answer.fields.get("NumberLoadedRows", self.rows.row_count)
        if loaded != self.rows.row_count:
            roll_back(self.http, transaction)
            raise LoadRejected(
                f"StarRocks took {loaded} of {self.rows.row_count} rows and called it success.",
                mend="Look for a filter on the table's loads; the load was rolled back.",
                **self.where(transaction),
            )
        return self.prepared(label=transaction.label), None

    def _given_up(self, answer: Answer, transaction: Transaction) -> tuple[None, CdcError]:
        try:
            return None, self.refused(answer, transaction)
        except CdcError:
            roll_back(self.http, transaction)
            raise


class _Shared(_Load):
    """A load that is one of many in the transaction of its checkpoint.

    The first one begins it, whichever comes first. All say which transaction they are in: one that was lost and begun
    again by a later load has another number, and the commit sees that it does not hold everything.
    """

    def __init__(self, writer: StarrocksPartWriter, name: LoadName, rows: bodies.Rows) -> None:
        # the first load of a table says how all are read: the form may not depend on the rows
        any_length = any(
            pa.types.is_string(column.arrow) or pa.types.is_binary(column.arrow) for column in writer.table.columns
        )
        super().__init__(writer, name, rows, as_csv=not any_length)
        if not (self.database + self.target + self.body.headers()["columns"]).isascii():
            raise SinkSetting(
                "A transaction over several tables takes no names that are not ASCII: it would leave columns empty.",
                mend="Set sink.multi_table: off, then `cdc resume`.",
                table=self.table.name,
            )
        label = shared_label(name.job, name.incarnation, name.fence, name.checkpoint, writer.losses)
        self._transaction = Transaction(self.database, label, self.target, multi=True)

    def joined(self) -> PreparedLoad:
        """Send it. Raises: see PartWriter; the transaction is then rolled back."""
        whole = Transaction(self.database, self._transaction.label, multi=True)
        try:
            return self._loaded(whole)
        except BaseException:
            roll_back(self.http, whole)
            raise

    def _loaded(self, whole: Transaction) -> PreparedLoad:
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            raise STARROCKS.unavailable(
                "an executor was lost while it loaded, and what arrived of it is unknown", **self.where(whole)
            )
        last: Unreachable | None = None
        for number, pause in zip(range(self.settings.tries), waits(self.settings.pause_s, 5.0), strict=False):
            if number:
                time.sleep(pause)
            try:
                answer = self.http.ask("begin", whole, timeout=str(self.settings.timeout_s))
                if answer.is_ok or answer.exists:
                    answer = self.send(self._transaction)
            except NotSent as error:
                last = error
                continue
            except Unreachable as error:
                raise STARROCKS.unavailable(error, **self.where(whole)) from error
            if not answer.is_ok or answer.number is None:
                raise self.refused(answer, whole)
            return self.prepared(label=whole.label, transaction=answer.number)
        raise STARROCKS.unavailable(last, **self.where(whole))


def settled_state(http: StarrocksHttp, transaction: Transaction) -> str:
    """The label's state, once it is neither begun nor prepared, or patience has ended."""
    deadline = time.monotonic() + _SETTLE_S
    for pause in waits(0.05, 1.0):
        state = http.state(transaction.database, transaction.label)
        if state not in ("PREPARE", "PREPARED") or time.monotonic() > deadline:
            return state
        time.sleep(pause)
    raise AssertionError("unreachable")


def roll_back(http: StarrocksHttp, transaction: Transaction) -> None:
    """Drop what is there of a transaction, as far as somebody answers: what stays behind expires."""
    try:
        answer = http.ask("rollback", transaction)
        if answer.is_gone and not transaction.multi:
            http.cancel(transaction.database, transaction.label)  # its backend was restarted, its frontend was not
    except (Unreachable, CdcError) as error:
        logger.info("rollback of %s has no answer (%s); it expires by itself", transaction.label, error)
