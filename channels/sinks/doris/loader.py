"""One part of a load into Doris: one request, and the state of its label if the answer is lost.

A label belongs to one body that never changes. If the result is unknown (disconnected, Fail, or an answer of a proxy),
the same body is sent again under the same label: Doris accepts it once, and reports its state.

Source: Doris, ``stream_load.cpp``, ``stream_load_executor.cpp``, ``DatabaseTransactionMgr.java``.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc.errors import CdcError, LoadRejected, SinkLimitExceeded
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import TargetTable
from channels.sinks.doris.client import DorisHttp, transaction_number
from channels.sinks.doris.errors import DORIS
from channels.sinks.doris.types import doris_type
from channels.sinks.labels import label_for
from channels.sinks.stream_load import encoding
from channels.sinks.stream_load.http import Unreachable
from channels.sinks.stream_load.loader import LoadSettings, load_rows, repeat_until_prepared, wait_for_state
from channels.sinks.stream_load.messages import first_rejected_rows
from channels.sinks.stream_load.name_rules import url_segment
from channels.sinks.stream_load.statements import placeholders, quoted

DELETE_SIGN = "__DORIS_DELETE_SIGN__"
_DONE = ("PRECOMMITTED", "COMMITTED", "VISIBLE")


@dataclass(frozen=True, slots=True)
class DorisPartWriter:
    """See ``PartWriter``. Pickled for executors, with the backends known at that time."""

    client: DorisHttp
    table: TargetTable
    settings: LoadSettings
    two_phase: bool
    compression: str | None = None  # "lz4" for CSV

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """See ``PartWriter``."""
        # delete sign first: Doris removes a byte order mark at the start of a line, and a text may begin with one
        columns = [DELETED, SEQUENCE, *(column.name for column in self.table.columns), *self.table.kept]
        return load_rows(encoding.checked(self.table, rows, columns), lambda kept: DorisLoad(self, name, kept).run())


class DorisLoad:
    """One load under one label."""

    def __init__(self, writer: DorisPartWriter, name: LoadName, rows: encoding.BodyRows) -> None:
        self._writer, self._client, self._table = writer, writer.client, writer.table
        self._name, self._rows = name, rows
        self._database, _, table = writer.table.name.partition(".")
        self._label = label_for(name)
        self._context: dict[str, object] = {"table": writer.table.name, "label": self._label}
        self._path = f"/api/{url_segment(self._database)}/{url_segment(table)}/_stream_load"
        names = [column.name for column in writer.table.columns]
        self._columns = [DELETE_SIGN, SEQUENCE, *names, *writer.table.kept]

    def run(self) -> PreparedLoad:
        """Send the load until it is prepared. Raises: see ``PartWriter``."""
        return repeat_until_prepared(self._attempt, self._writer.settings, DORIS, **self._context)

    def _attempt(self, number: int) -> PreparedLoad | CdcError:
        offset = int.from_bytes(hashlib.blake2s(self._label.encode(), digest_size=4).digest())
        hosts = self._client.backends(fresh=bool(number))
        host = self._client.http.least_busy(hosts, offset + number)[0]
        return self._result(self._client.load(host, self._path, self._headers(), self._body()))

    def _headers(self) -> Mapping[str, str]:
        headers = {
            "label": self._label,
            "columns": ",".join(map(quoted, self._columns)),
            "function_column.sequence_col": SEQUENCE,
            "strict_mode": "true",
            "max_filter_ratio": "0",
            "timeout": str(self._writer.settings.timeout_s),
            "timezone": "+00:00",
            "two_phase_commit": "true" if self._writer.two_phase else "false",
            "group_commit": "off_mode",  # without it, 4.1 and later give a chunked body another label
            "comment": f"spark-binlog-load, rows {self._rows.row_count}",
        }
        if not self._rows.can_be_csv:
            return headers | {"format": "json", "read_json_by_line": "true", "num_as_string": "true"}
        headers |= {"format": "csv", "column_separator": "\\x01", "line_delimiter": "\\x02"}
        return headers | ({"compress_type": "LZ4"} if self._writer.compression == "lz4" else {})

    def _body(self) -> Callable[[], Iterable[bytes]]:
        instead = placeholders(self._table, lambda column: doris_type(column, key=False).base)
        if self._rows.can_be_csv:
            return lambda: encoding.csv_body(self._rows, self._writer.compression, instead)
        return lambda: encoding.json_body(self._rows, self._columns, instead)

    # ---- answers

    def _result(self, answer: Mapping[str, Any]) -> PreparedLoad | CdcError:
        """Return the prepared load, or the error to retry. Raises: errors that no retry fixes."""
        message = str(answer.get("Message", ""))
        match answer["Status"]:
            case "Success" | "Publish Timeout":
                self._refuse_other_label(answer)
                loaded = answer.get("NumberLoadedRows")
                if loaded == self._rows.row_count:
                    return self._prepared(int(answer["TxnId"]))
                self._abort(int(answer["TxnId"]))
                raise LoadRejected(
                    f"Doris loaded {loaded} of {self._rows.row_count} rows and reported success.",
                    hint="Check if the table has a filter for loads; the load was aborted.",
                    **self._context,
                )
            case "Label Already Exists":
                return self._existing(str(answer.get("ExistingJobStatus") or ""), transaction_number(message))
            case _:
                return self._failed(answer, message)

    def _refuse_other_label(self, answer: Mapping[str, Any]) -> None:
        """Raise SinkLimitExceeded if Doris loaded the rows under another label: no repeat would find this load."""
        reported_label = answer.get("Label", self._label)
        if reported_label == self._label and not answer.get("GroupCommit"):
            return
        self._abort(int(answer["TxnId"]))
        raise SinkLimitExceeded(
            f"Doris loaded the rows under the label {reported_label} instead of the requested one.",
            hint='Check that no proxy changes headers, and run: ALTER TABLE ... SET ("group_commit_mode" = '
            '"off_mode").',
            **self._context,
        )

    def _abort(self, number: int) -> None:
        """Abort a transaction that is not committed. Without an answer it ends at its time limit."""
        with contextlib.suppress(Unreachable):
            self._client.finish("abort", self._database, number)

    def _existing(self, job: str, number: int | None) -> PreparedLoad | CdcError:
        """Return the result of an earlier attempt whose answer was lost, or that is still running."""
        state = {"FINISHED": "VISIBLE", "PRECOMMITTED": "PRECOMMITTED"}.get(job) or self._final_state()
        if state == "PRECOMMITTED" and not self._writer.two_phase and number is not None:
            self._abort(number)
        elif state in _DONE and number is not None:
            return self._prepared(number)
        return DORIS.unavailable(f"an earlier attempt of the load is {state.lower()}", **self._context)

    def _failed(self, answer: Mapping[str, Any], message: str) -> CdcError:
        """Return the error to retry. Fail proves nothing, so the label decides; the next attempt finds a load."""
        state = self._final_state() if answer.get("TxnId", -1) != -1 else "UNKNOWN"
        if state in _DONE:
            return DORIS.unavailable(f"the load is {state.lower()}, but the answer was: {message}", **self._context)
        username = self._client.address.username
        DORIS.raise_refused(message, username, self._context, lambda: self._rejected_rows(answer))
        return DORIS.unavailable(message, **self._context)

    def _final_state(self) -> str:
        """Return the label's state when it does not change any more. A load that still runs is cancelled."""
        state = wait_for_state(lambda: self._client.state(self._database, self._label), ("PREPARE",))
        if state == "PREPARE":
            self._client.cancel(self._database, self._label)
        return state

    def _prepared(self, number: int) -> PreparedLoad:
        detail = {
            "label": self._label, "transaction": number, "two_phase": self._writer.two_phase,
            "columns": [column.name for column in self._table.columns],
        }  # fmt: skip
        return PreparedLoad(self._name, self._table.name, self._rows.row_count, self._rows.byte_count, detail)

    def _rejected_rows(self, answer: Mapping[str, Any]) -> dict[str, object]:
        url = answer.get("ErrorURL")
        if not url:
            return {}
        rows = first_rejected_rows(self._client.http.page(str(url)), encoding.FIELD_END)
        return {"key": ", ".join(self._table.key), "refused_rows": answer.get("NumberFilteredRows"), "first": rows}
