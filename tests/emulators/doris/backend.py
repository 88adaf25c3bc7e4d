"""The emulated BE of Doris: Stream Load and two-phase commit."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.emulators.doris.transactions import LabelUsed, Refused, Status, Transaction
from tests.emulators.faults import Fault, Order
from tests.emulators.http import BadBody, Handler, row_ends
from tests.emulators.names import IDENTIFIER, column_entries, doubled, raw_segments
from tests.emulators.rows import BadFormat, arrow_fields, csv_fields, json_fields, separator, unpacked
from tests.emulators.servers import ClusterBackend
from tests.emulators.storage import SEQUENCE, SIGN, Checked, StoredTable

if TYPE_CHECKING:
    from tests.emulators.doris.emulator import DorisEmulator

_JOB_STATUS = {Status.PREPARE: "RUNNING", Status.PRECOMMITTED: "PRECOMMITTED"}

_BYTE_ORDER_MARK = "\ufeff".encode()
_MOST_BAD_ROWS = 50  # where none is allowed
_VISIBLE_LATER = "[PUBLISH_TIMEOUT]TStatus: transaction commit successfully, BUT data will be visible later"
_TOO_MANY_VERSIONS = (
    "TStatus: tablet error: [E-235]failed to init rowset builder. version count: 2001, exceed limit: 2000, tablet: "
    "10017. Please reduce the frequency of loading data or adjust the max_tablet_version_num in be.conf"
)


class LoadError(Exception):
    """A load's refusal: ``[CODE]text``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"[{code}]{text}")


class Backend(ClusterBackend):
    """See ClusterBackend."""

    segments = staticmethod(raw_segments)
    cluster: DorisEmulator
    bytes_read = 0

    def route(self, request: Handler) -> bool:
        """See ClusterBackend. Paths of loads are decoded; those of two-phase commits are not."""
        match request.command, request.segments:
            case "PUT", ["api", database, table, "_stream_load"]:
                self._stream_load(request, unquote(database), unquote(table))
            case "PUT", ["api", database, "_stream_load_2pc"] | ["api", database, _, "_stream_load_2pc"]:
                self._two_phase(request, database)
            case _:
                return False
        return True

    # ---- Stream Load

    def _stream_load(self, request: Handler, database: str, table: str) -> None:
        label = request.headers.get("label") or str(uuid.uuid4())
        unasked = request.chunked and not request.headers.get("group_commit")
        if unasked and self.cluster.settings.has("forgets_labels_of_chunked_bodies"):
            label = str(uuid.uuid4())
        two_phase = request.headers.get("two_phase_commit") == "true"
        order = self.cluster.faults.take("load", label)
        if order is not None and order.fault is Fault.HTTP_500:
            return request.reply(b"Internal Server Error", 500, {"Content-Type": "text/plain"})
        result: dict[str, Any] = {
            "TxnId": -1,
            "Label": label,
            "Comment": request.headers.get("comment", ""),
            "TwoPhaseCommit": "true" if two_phase else "false",
            "Status": "Success",
            "Message": "OK",
            **dict.fromkeys(("NumberTotalRows", "NumberLoadedRows", "NumberFilteredRows", "NumberUnselectedRows"), 0),
            "LoadBytes": 0,
            "LoadTimeMs": 1,
            **({"GroupCommit": True} if self.cluster.settings.group_commit and not two_phase else {}),
        }
        transaction: Transaction | None = None
        try:
            self._check_headers(request)
            self._check_user(request, database)
            target = self._target(database, table)
            timeout_s = int(request.headers.get("timeout", "259200"))
            transaction = self.cluster.transactions.begin(
                database, table, label, two_phase=two_phase, timeout_s=timeout_s
            )
            result["TxnId"] = transaction.id
            plan = Plan(request, target)
            if order is not None and order.fault is Fault.ERROR:
                raise LoadError("INTERNAL_ERROR", order.text or _TOO_MANY_VERSIONS)
            self._work(request, result, transaction, plan, order)
        except LabelUsed as error:
            result |= {
                "Status": "Label Already Exists",
                "ExistingJobStatus": _JOB_STATUS.get(error.existing.status, "FINISHED"),
                "Message": f"[LABEL_ALREADY_EXISTS]TStatus: errCode = 2, detailMessage = {error}",
            }
        except (LoadError, Refused, BadBody, BadFormat) as error:
            text = str(error)
            if isinstance(error, Refused):
                text = f"[ANALYSIS_ERROR]TStatus: errCode = 2, detailMessage = {error}"
            elif isinstance(error, BadBody):
                text = f"[NETWORK_ERROR]{error}"
            elif isinstance(error, BadFormat):
                text = f"[INTERNAL_ERROR]{error}"
            self._roll_back(transaction, text)
            result |= {"Status": "Fail", "Message": text}
        except OSError:
            self._roll_back(transaction, "connection lost")
            raise
        request.reply(result)

    def _roll_back(self, transaction: Transaction | None, reason: str) -> None:
        if transaction is not None:
            try:
                self.cluster.transactions.abort(transaction, reason)
            except Refused:
                return

    def _work(
        self, request: Handler, result: dict[str, Any], transaction: Transaction, plan: Plan, order: Order | None
    ) -> None:
        """Read, check, and (pre-)commit; every fault has its moment here."""
        generation = self.cluster.generation
        body = self._read(request, transaction, order)
        if order is not None and order.fault is Fault.SLOW:
            time.sleep(order.seconds)
        if generation != self.cluster.generation:
            raise BadBody("this BE was restarted")
        result["LoadBytes"] = self.bytes_read if self.cluster.settings.null else len(body)
        checked = Checked(None, len(body), ()) if self.cluster.settings.null else plan.check(body, self.cluster)
        bad = len(checked.bad)
        result |= {"NumberTotalRows": checked.total, "NumberLoadedRows": checked.total - bad, "NumberFilteredRows": bad}
        if bad > _MOST_BAD_ROWS and not plan.max_filter_ratio and self.cluster.settings.has("stops_at_bad_rows"):
            result |= dict.fromkeys(("NumberTotalRows", "NumberLoadedRows", "NumberFilteredRows"), 0)
            raise LoadError("CANCELLED", "[END_OF_FILE]Encountered unqualified data, stop processing")
        if bad:
            result["ErrorURL"] = self.keep_error_log(f"__shard_0/error_log_{transaction.id}", checked.bad)
            if bad > plan.max_filter_ratio * checked.total:
                code = "DATA_QUALITY_ERROR" if self.cluster.settings.version >= (2, 0) else "INTERNAL_ERROR"
                raise LoadError(code, "too many filtered rows")
        loaded = checked.total - bad
        if transaction.two_phase:
            self.cluster.transactions.precommit(transaction, checked.rows, loaded)
        else:
            self.cluster.transactions.commit_at_once(transaction, checked.rows, loaded)
        match order.fault if order else None:
            case Fault.DROP_ANSWER:
                request.cut()
            case Fault.ERROR_DONE:
                raise LoadError("INTERNAL_ERROR", "TStatus: call frontend service failed, THRIFT_EAGAIN (timed out)")
            case Fault.PUBLISH_TIMEOUT if not transaction.two_phase:
                result |= {
                    "Status": "Publish Timeout",
                    "Message": _VISIBLE_LATER,
                }

    def _read(self, request: Handler, transaction: Transaction, order: Order | None) -> bytes:
        pieces = []
        for number, piece in enumerate(request.body()):
            if order is not None and order.fault is Fault.RESET and not number:
                self._roll_back(transaction, "connection reset")
                request.cut()
            self.bytes_read += len(piece)
            pieces.append(row_ends(piece, request) if self.cluster.settings.null else piece)
        return b"".join(pieces)

    def _check_headers(self, request: Handler) -> None:
        headers = request.headers
        if request.credentials() is None:
            raise LoadError("NOT_AUTHORIZED", "no valid Basic authorization")
        if headers.get("Content-Length") and request.chunked:
            raise LoadError("INVALID_ARGUMENT", "please do not set both content_length and transfer-encoding")
        if not headers.get("Content-Length") and not request.chunked:
            raise LoadError("INVALID_ARGUMENT", "content_length is empty and transfer-encoding!=chunked, please set "
                            "content_length or transfer-encoding=chunked")  # fmt: skip
        known = {"", "csv", "json"} | ({"arrow"} if self.cluster.settings.has("arrow") else set())
        if headers.get("format", "") not in known:
            raise LoadError("DATA_FILE_TYPE_ERROR", f"unknown data format, format={headers['format']}")
        if headers.get("strict_mode", "false") not in ("true", "false"):
            raise LoadError("INVALID_ARGUMENT", "Invalid strict mode format. Must be bool type")
        if (
            headers.get("compress_type")
            and headers.get("format") == "json"
            and not self.cluster.settings.has("compressed_json")
        ):
            raise LoadError("NOT_IMPLEMENTED_ERROR", "compress data of JSON format is not supported.")

    def _check_user(self, request: Handler, database: str) -> None:
        user = request.credentials() or ("", "")
        refusal = "TStatus: errCode = 2, detailMessage = Access denied"
        if not self.cluster.knows(user):
            raise LoadError("ANALYSIS_ERROR", f"{refusal} for {user[0]}@127.0.0.1")
        if (user[0], database) in self.cluster.settings.denied:
            raise LoadError("ANALYSIS_ERROR", f"{refusal}; you need (at least one of) the LOAD privilege(s)")

    def _target(self, database: str, table: str) -> StoredTable:
        if database not in self.cluster.storage.databases:
            raise LoadError("NOT_FOUND", f"TStatus: errCode = 7, detailMessage = unknown database, database={database}")
        found = self.cluster.storage.find(database, table)
        if found is None:
            raise LoadError("NOT_FOUND", f"TStatus: errCode = 7, detailMessage = unknown table, tableName={table}")
        return found

    # ---- two-phase commit

    def _two_phase(self, request: Handler, database: str) -> None:
        operation = request.headers.get("txn_operation", "")
        number, label = request.headers.get("txn_id", ""), request.headers.get("label", "")
        for _ in request.body():
            continue
        if self.cluster.settings.asks_all:
            return request.reply(b"", 403)
        transactions = self.cluster.transactions
        try:
            self._check_user(request, database)
            if database not in self.cluster.storage.databases:
                raise LoadError(
                    "NOT_FOUND", f"TStatus: errCode = 7, detailMessage = unknown database, database={database}"
                )
            if operation not in ("commit", "abort"):
                raise LoadError("INTERNAL_ERROR", "transaction operation should be 'commit' or 'abort'")
            if number and not number.isdecimal():
                raise LoadError("INTERNAL_ERROR", f"convert txn_id [{number}] failed, reason=invalid")
            if not number and not self.cluster.settings.has("two_phase_by_label"):
                raise LoadError("INTERNAL_ERROR", "convert txn_id [] failed, reason=empty")
            wanted = (Status.PRECOMMITTED,) if operation == "commit" else (Status.PREPARE, Status.PRECOMMITTED)
            found = transactions.by_id(int(number)) if number else transactions.by_label(database, label, wanted)
            order = self.cluster.faults.take(operation, found.label)
            fault = order.fault if order else None
            if fault is Fault.RESET:
                request.cut()
            if fault is Fault.HTTP_500:
                return request.reply(b"Internal Server Error", 500, {"Content-Type": "text/plain"})
            if fault is Fault.SLOW and order is not None:
                time.sleep(order.seconds)
            if fault is Fault.ERROR:
                raise Refused(f"Failed to commit txn {found.id}. Tablet [10{found.id}] success replica num is 1 < load "
                              "required replica num 2")  # fmt: skip
            (transactions.commit if operation == "commit" else transactions.abort)(found)
            if fault is Fault.DROP_ANSWER:
                request.cut()
            if fault is Fault.ERROR_DONE:
                raise LoadError("INTERNAL_ERROR", "TStatus: call frontend service failed, THRIFT_EAGAIN (timed out)")
        except Refused as error:
            text = f"TStatus: errCode = 2, detailMessage = {error}"
            return request.reply({"status": "ANALYSIS_ERROR", "msg": text})
        except LoadError as error:
            code, _, text = str(error)[1:].partition("]")
            return request.reply({"status": code, "msg": text})
        named = " ".join(part for part in (label and f"label [{label}]", number and f"transaction [{number}]") if part)
        request.reply({"status": "Success", "msg": f"{named} {operation} successfully."})


class Plan:
    """What the headers ask for, checked against the table before a byte of the body is read."""

    def __init__(self, request: Handler, table: StoredTable) -> None:
        headers = request.headers
        self.table = table
        self.format = headers.get("format") or "csv"
        self.compression = headers.get("compress_type", "")
        self.column_separator = separator(headers.get("column_separator"), "\t")
        self.line_delimiter = separator(headers.get("line_delimiter"), "\n")
        self.by_line = headers.get("read_json_by_line") == "true"
        self.strip_array = headers.get("strip_outer_array") == "true"
        self.strict = headers.get("strict_mode") == "true"
        self.max_filter_ratio = float(headers.get("max_filter_ratio", "0"))
        self.zone_hours = _hours(headers.get("timezone", headers.get("time_zone", "Asia/Shanghai")))
        # the BE hands the bytes of the header on, and the FE parses them as SQL
        listed = [
            _plain_column(entry) for entry in column_entries(headers.get("columns", "").encode("latin-1").decode())
        ]
        hidden = [part for part in re.sub(r"\s", "", headers.get("hidden_columns", "")).split(",") if part]
        self.fields = listed or [*(column.name for column in table.columns), *hidden]
        self.sequence = headers.get("function_column.sequence_col")
        self._check()

    def _check(self) -> None:
        table = self.table
        refusal = "TStatus: errCode = 2, detailMessage = "
        if self.sequence and not table.sequence_type:
            raise LoadError("ANALYSIS_ERROR", f"{refusal}There is no sequence column in the table {table.name}")
        if table.sequence_type and (not self.sequence or self.sequence not in self.fields):
            raise LoadError("ANALYSIS_ERROR", f"{refusal}Table {table.name} has sequence column, need to specify the "
                            "sequence column")  # fmt: skip
        if table.sequence_column and table.sequence_column not in self.fields:
            raise LoadError("ANALYSIS_ERROR", f"{refusal}Table {table.name} has sequence column, need to specify the "
                            "sequence column")  # fmt: skip
        for column in table.columns:
            if column.name not in self.fields and not column.nullable and column.default is None:
                raise LoadError("ANALYSIS_ERROR", f"{refusal}Column({column.name}) has no default value.")
        if SIGN in self.fields and not table.delete_sign:
            raise LoadError("ANALYSIS_ERROR", f"{refusal}{table.name} need to upgrade table to support batch delete.")

    def check(self, body: bytes, cluster: DorisEmulator) -> Checked:
        """Parse and check the body."""
        body = unpacked(body, self.compression)
        bad: list[str] = []
        if not body:
            return Checked(None, 0, ())
        if self.format == "json":
            exact = cluster.settings.has("exact_json_numbers")
            fields, bad = json_fields(
                body, self.fields, by_line=self.by_line, strip_array=self.strip_array, through_double=not exact
            )
        elif self.format == "arrow":
            fields = arrow_fields(body, self.fields)
        else:
            body = body.removeprefix(_BYTE_ORDER_MARK)
            fields, bad = csv_fields(body, self.fields, self.column_separator, self.line_delimiter)
        if self.sequence:
            fields = fields.rename_columns([SEQUENCE if name == self.sequence else name for name in self.fields])
        checked = cluster.storage.check(self.table, fields, strict=self.strict, zone_hours=self.zone_hours)
        return Checked(checked.rows, checked.total + len(bad), (*bad, *checked.bad))


def _plain_column(entry: str) -> str:
    if re.fullmatch(IDENTIFIER, entry) is None:
        raise LoadError("ANALYSIS_ERROR", f"TStatus: errCode = 2, detailMessage = the emulator cannot parse {entry}")
    return doubled(entry)


def _hours(zone: str) -> float:
    if match := re.fullmatch(r"([+-])(\d{2}):(\d{2})", zone):
        return (1 if match[1] == "+" else -1) * (int(match[2]) + int(match[3]) / 60)
    return {"Asia/Shanghai": 8.0, "UTC": 0.0, "Etc/UTC": 0.0}[zone]
