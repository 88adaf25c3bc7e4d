"""One part of a load into Doris: sent once, settled by its label whatever becomes of the answer.

A label is one immutable body. Whatever is unknown after a try - a cut connection, a Fail, an answer that no handler
wrote - is settled by sending the same body under the same label again: Doris takes it once, and says how far it is.

Source: Doris, ``stream_load.cpp``, ``stream_load_executor.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import CdcError, LoadRejected, SinkBusy, SinkSetting, TargetMismatch
from cdc.schema import DELETED, SEQUENCE
from channels.label import label_for
from channels.sinks import bodies
from channels.sinks.base import TargetTable
from channels.sinks.cluster import fillers
from channels.sinks.doris_client import DORIS, DorisHttp, transaction_number
from channels.sinks.doris_types import doris_type
from channels.sinks.stream_load import Unreachable, waits

DELETE_SIGN = "__DORIS_DELETE_SIGN__"
_TRIES = 6
_BUSY_AFTER_S = 5.0
_SETTLE_S = 30.0  # how long a load of ours that nobody answers for may stay under way before it is cancelled
_BAD_ROWS = 5  # shown of a refused load


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What every load of a sink has in common."""

    two_phase: bool
    compression: str | None = None  # "lz4" for CSV
    timeout_s: int = 3600  # Doris drops a load that takes longer
    tries: int = _TRIES
    pause_s: float = 0.2  # before the second try; doubles


@dataclass(frozen=True, slots=True)
class DorisPartWriter:
    """See PartWriter. Travels to executors with the backends known when it was made."""

    http: DorisHttp
    table: TargetTable
    settings: LoadSettings

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See PartWriter."""
        # ours first: Doris cuts a byte order mark off what begins a line, and a text may begin with one
        columns = [DELETED, SEQUENCE, *(column.name for column in self.table.columns)]
        kept = bodies.Rows(bodies.checked(self.table, rows, columns), limit_bytes=bodies.MEMORY_BYTES)
        try:
            if not kept.row_count:
                return None
            return _Load(self, name, kept).settled()
        finally:
            kept.close()


class _Load:
    """A load until it is settled."""

    def __init__(self, writer: DorisPartWriter, name: LoadName, rows: bodies.Rows) -> None:
        self._http, self._settings, self._table = writer.http, writer.settings, writer.table
        self._name, self._rows = name, rows
        self._database, _, self._target = writer.table.name.partition(".")
        self.label = label_for(name)
        self._path = f"/api/{quote(self._database)}/{quote(self._target)}/_stream_load"

    def settled(self) -> PreparedLoad:
        """Send until the label stands where it should. Raises: see PartWriter."""
        last: CdcError | None = None
        pauses = waits(self._settings.pause_s, 5.0)
        turn = int.from_bytes(hashlib.blake2s(self.label.encode(), digest_size=4).digest())
        for number in range(self._settings.tries):
            if number:
                time.sleep(next(pauses))
            host = self._http.least_busy(self._backends(fresh=bool(number)), turn + number)[0]
            try:
                answer = self._http.load(host, self._path, self._headers(), self._body())
            except Unreachable as error:
                last = DORIS.unavailable(error, label=self.label, table=self._table.name)
                continue
            done, last = self._understood(answer)
            if done is not None:
                return done
        raise last or DORIS.unavailable("no try was made", label=self.label, table=self._table.name)

    def _backends(self, *, fresh: bool) -> tuple[str, ...]:
        return self._http.backends(fresh=fresh, via=self._path)

    def _headers(self) -> Mapping[str, str]:
        names = ",".join(f"`{name}`" for name in self._columns())
        headers = {
            "label": self.label,
            "columns": names,
            "function_column.sequence_col": SEQUENCE,
            "strict_mode": "true",
            "max_filter_ratio": "0",
            "timeout": str(self._settings.timeout_s),
            "timezone": "+00:00",
            "two_phase_commit": "true" if self._settings.two_phase else "false",
            "group_commit": "off_mode",  # unasked, 4.1 and later take a chunked body under a label of their own
            "comment": f"spark-binlog-load, rows {self._rows.row_count}",
        }
        if not self._rows.fits_csv:
            return headers | {"format": "json", "read_json_by_line": "true", "num_as_string": "true"}
        headers |= {"format": "csv", "column_separator": "\\x01", "line_delimiter": "\\x02"}
        return headers | ({"compress_type": "LZ4"} if self._settings.compression == "lz4" else {})

    def _columns(self) -> list[str]:
        return [DELETE_SIGN, SEQUENCE, *(column.name for column in self._table.columns)]

    def _body(self) -> Callable[[], Iterable[bytes]]:
        instead = fillers(self._table, lambda column: doris_type(column, key=False).base)
        if self._rows.fits_csv:
            return lambda: bodies.csv_body(self._rows, self._settings.compression, instead)
        return lambda: bodies.json_body(self._rows, self._columns(), instead)

    def _understood(self, answer: Mapping[str, Any]) -> tuple[PreparedLoad | None, CdcError | None]:
        """The load when it stands where it should; else why to try again. Raises: what no try can mend."""
        message = str(answer.get("Message", ""))
        match answer["Status"]:
            case "Success" | "Publish Timeout":
                self._refuse_other_label(answer)
                loaded = answer.get("NumberLoadedRows")
                if loaded == self._rows.row_count:
                    return self._prepared(int(answer["TxnId"])), None
                self._abort(int(answer["TxnId"]))
                raise LoadRejected(
                    f"Doris took {loaded} of {self._rows.row_count} rows and called it success.",
                    mend="Look for a filter on the table's loads; the load was cancelled.",
                    **self._where(),
                )
            case "Label Already Exists":
                return self._existing(str(answer.get("ExistingJobStatus") or ""), transaction_number(message))
            case _:
                return self._failed(answer, message)

    def _refuse_other_label(self, answer: Mapping[str, Any]) -> None:
        """A load under another label is one that no repeat finds. Raises: SinkSetting."""
        given = answer.get("Label", self.label)
        if given == self.label and not answer.get("GroupCommit"):
            return
        self._abort(int(answer["TxnId"]))
        raise SinkSetting(
            f"Doris did not take the load under its label, but under {given}.",
            mend='See that no proxy changes headers on the way, and: ALTER TABLE ... SET ("group_commit_mode" = '
            '"off_mode").',
            **self._where(),
        )

    def _abort(self, number: int) -> None:
        """End a transaction that is not committed, prepared ones too; what cannot be ended now ends by its time-out."""
        with contextlib.suppress(Unreachable):
            self._http.finish("abort", self._database, number)

    def _existing(self, job: str, number: int | None) -> tuple[PreparedLoad | None, CdcError | None]:
        """An earlier try got further than its answer, or still runs."""
        state = {"FINISHED": "VISIBLE", "PRECOMMITTED": "PRECOMMITTED"}.get(job) or self._state_at_rest()
        if state == "PREPARE":
            self._http.cancel(self._database, self.label)
        if state in ("PRECOMMITTED", "COMMITTED", "VISIBLE"):
            if state == "PRECOMMITTED" and not self._settings.two_phase and number is not None:
                self._abort(number)
            elif number is not None:
                return self._prepared(number), None
        return None, DORIS.unavailable(f"an earlier try of the load is {state.lower()}", **self._where())

    def _failed(self, answer: Mapping[str, Any], message: str) -> tuple[None, CdcError | None]:
        """Fail proves nothing: the label says. What was done after all is found by the next try."""
        state = self._state_at_rest() if answer.get("TxnId", -1) != -1 else "UNKNOWN"
        if state == "PREPARE":
            self._http.cancel(self._database, self.label)
        if state in ("PRECOMMITTED", "COMMITTED", "VISIBLE"):
            return None, DORIS.unavailable(
                f"the load is {state.lower()}, though it was answered by: {message}", **self._where()
            )
        raise_refused(message, lambda: self._bad_rows(answer), self._http.access.username, self._where())
        return None, DORIS.unavailable(message, **self._where())

    def _state_at_rest(self) -> str:
        """The label's state, once it is none that passes by itself, or patience has ended."""
        deadline = time.monotonic() + _SETTLE_S
        for pause in waits(0.05, 1.0):
            state = self._http.state(self._database, self.label)
            if state != "PREPARE" or time.monotonic() > deadline:
                return state
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _prepared(self, number: int) -> PreparedLoad:
        columns = [column.name for column in self._table.columns]
        detail = {
            "label": self.label, "transaction": number, "two_phase": self._settings.two_phase, "columns": columns,
        }  # fmt: skip
        return PreparedLoad(self._name, self._table.name, self._rows.row_count, self._rows.byte_count, detail)

    def _bad_rows(self, answer: Mapping[str, Any]) -> dict[str, object]:
        url = answer.get("ErrorURL")
        if not url:
            return {}
        lines = [line for line in self._http.page(str(url)).splitlines() if line.strip()]
        rows = " | ".join(line.replace(bodies.FIELD_END, ", ")[:500] for line in lines[:_BAD_ROWS])
        return {"key": ", ".join(self._table.key), "refused_rows": answer.get("NumberFilteredRows"), "first": rows}

    def _where(self) -> dict[str, object]:
        return {"table": self._table.name, "label": self.label}


def raise_refused(
    message: str, bad_rows: Callable[[], dict[str, object]], username: str, where: Mapping[str, object]
) -> None:
    """Raise what a definite refusal means; returns where another try may do."""
    low = message.lower()

    def says(*words: str) -> bool:
        return any(word in low for word in words)

    if says("too many filtered rows", "data_quality_error", "filtered data", "unqualified data"):
        raise LoadRejected(
            "Doris refused rows.",
            mend="Widen the column or mend the row at the source, then `cdc resume`; `cdc check` compares the table.",
            **where,
            **bad_rows(),
        )
    if says("current running txns", "larger than limit"):
        raise SinkBusy(
            f"Doris has too many running transactions: {message}",
            mend="It goes on by itself; ALTER DATABASE <db> SET TRANSACTION QUOTA <n> raises the limit.",
            after_s=_BUSY_AFTER_S,
            **where,
        )
    if says("too many version", "version count", "[e-235]", "exceed limit", "mem_limit", "too many aborted txn"):
        raise SinkBusy(
            f"Doris asks for patience: {message}",
            mend="It goes on by itself; a longer commit.interval makes fewer versions.",
            after_s=_BUSY_AFTER_S,
            **where,
        )
    if says("access denied", "not_authorized", "no valid basic authorization", "privilege"):
        raise TargetMismatch(
            f"Doris refuses the user: {message}",
            mend=f"Check sink.username and sink.password; GRANT LOAD_PRIV ON <database>.* TO '{username}'.",
            **where,
        )
    if says("unknown database", "unknown table"):
        raise TargetMismatch(
            f"The target is not there: {message}", mend="Create it: `cdc ddl JOB.yaml` prints the statement.", **where
        )
    if says("sequence column", "has no default value", "batch delete", "only supported in unique", "unknown column"):
        raise TargetMismatch(
            f"The target table does not fit: {message}",
            mend="`cdc check JOB.yaml` names the ALTER that mends it.",
            **where,
        )
    if says("unsupported for mow table"):
        raise SinkSetting(
            "Doris with separated storage has no two-phase commit for this table.",
            mend="Set sink.two_phase_commit: false.",
            **where,
        )
    if says("exceed max size", "exceed be's conf", "transaction quota", "quota exceed", "exceeds quota"):
        raise SinkSetting(
            f"The load outgrows a limit: {message}", mend="Raise the limit named, or lower tasks.max_bytes.", **where
        )
