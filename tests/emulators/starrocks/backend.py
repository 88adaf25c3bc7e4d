"""The emulated BE of StarRocks: single-table transactions in memory, and bodies of multi-table ones."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.emulators.faults import Fault, Order
from tests.emulators.http import BadBody, ConnectionCut, Handler, row_ends
from tests.emulators.servers import ClusterBackend
from tests.emulators.starrocks.bodies import Plan, as_utf8, forwarded
from tests.emulators.starrocks.frontend import Answered, struck_before
from tests.emulators.starrocks.multi import Share
from tests.emulators.starrocks.transactions import LabelUsed, Refused, Transaction

if TYPE_CHECKING:
    from tests.emulators.starrocks.emulator import StarrocksEmulator

_MULTI = "Multi-statement transaction requests can only be sent to FE nodes, not BE nodes"


@dataclass(slots=True)
class Context:
    """What a BE knows of a single-table transaction, until it is prepared or the BE is gone."""

    transaction: Transaction
    plan: Plan | None = None  # of its first load
    bodies: list[bytes] = field(default_factory=list)
    rest: bytes = b""  # of a body that was cut; the next one is taken for its end
    byte_count: int = 0
    is_busy: bool = False


class Backend(ClusterBackend):
    """See ClusterBackend."""

    cluster: StarrocksEmulator

    def __init__(self, cluster: StarrocksEmulator, number: int, *, port: int = 0, generation: int = 0) -> None:
        self.number, self.generation = number, generation
        self.contexts: dict[str, Context] = {}
        self._lock = threading.Lock()
        super().__init__(cluster, port)

    def route(self, request: Handler) -> bool:
        """See ClusterBackend."""
        match request.command, request.segments:
            case "POST" | "PUT", ["api", "transaction", operation]:
                self._transaction(request, operation)
                return True
        return False

    def _transaction(self, request: Handler, operation: str) -> None:
        label, database = request.headers.get("label", ""), request.headers.get("db", "")
        table = request.headers.get("table", "")
        try:
            if (request.command == "PUT") is not (operation == "load"):
                raise Refused(f"unsupport transaction operation {operation}", "INVALID_ARGUMENT")
            if not label:
                raise Refused("empty label", "INVALID_ARGUMENT")
            if request.headers.get("transaction_type") == "multi":
                if operation != "load":
                    raise Refused(_MULTI, "INVALID_ARGUMENT")
                return self._multi_load(request, database, table, label)
            database, table = as_utf8(database), as_utf8(table)
            work = {"begin": self._begin, "load": self._load, "prepare": self._prepare, "commit": self._commit,
                    "rollback": self._rollback}  # fmt: skip
            work[operation](request, database, table, label)
        except Answered:
            return
        except LabelUsed as error:
            self._reply(request, "LABEL_ALREADY_EXISTS", str(error), database, table, ExistingJobStatus=error.job)
        except Refused as error:
            self._reply(request, error.status, str(error), database, table)

    def _reply(
        self, request: Handler, status: str, message: str = "", database: str = "", table: str = "", **more: Any
    ) -> None:
        request.reply({"Status": status, "Message": message, "Db": database, "Table": table, **more})

    # ---- single-table transactions

    def _context(self, label: str, word: str = "Transaction") -> Context:
        context = self.contexts.get(label)
        if context is None:
            raise Refused(f"{word} with label {label} not exists", "TXN_NOT_EXISTS")
        return context

    def _begin(self, request: Handler, database: str, table: str, label: str) -> None:
        order = struck_before(self.cluster, request, "begin", label)
        if label in self.contexts:
            return self._reply(request, "LABEL_ALREADY_EXISTS", "", database, table, ExistingJobStatus="")
        if (database, table) not in self.cluster.storage.tables:
            raise Refused(f'unknown table "{database}.{table}"')
        timeout_s = float(request.headers.get("timeout", "600"))
        transaction = self.cluster.transactions.begin(
            database, table, label, timeout_s=timeout_s, backend=self.number
        )  # fmt: skip
        self.contexts[label] = Context(transaction)
        if order is not None and order.fault is Fault.DROP_ANSWER:
            request.cut()
        self._reply(
            request, "OK", "", database, table, Label=label, TxnId=transaction.id, BeginTxnTimeMs=1
        )  # fmt: skip

    def _begin_work(self, context: Context | Share) -> None:
        with self._lock:
            if context.is_busy:
                raise Refused("Transaction is in processing", "TXN_IN_PROCESSING")
            context.is_busy = True

    def _keep(self, request: Handler, body: bytes, order: Order | None, context: Context | Share) -> None:
        """Keep a body that was read. Faults strike before and after."""
        if order is not None and order.fault is Fault.SLOW:
            time.sleep(order.seconds)
        if not self.alive:
            request.cut()
        context.bodies.append(body)
        fail_after(request, order)

    def _loaded(self, request: Handler, number: int, body: bytes, database: str, table: str, label: str) -> None:
        self._reply(
            request, "OK", "", database, table, Label=label, TxnId=number, LoadBytes=len(body),
            StreamLoadPlanTimeMs=1, ReceivedDataTimeMs=1,
        )  # fmt: skip

    def _load(self, request: Handler, database: str, table: str, label: str) -> None:
        context = self._context(label)
        transaction = context.transaction
        for asked, known, what in ((database, transaction.database, "database"), (table, transaction.table, "table")):
            if asked != known:
                text = f"Request {what} {asked} not equal transaction {what} {known}"
                raise Refused(text, "INVALID_ARGUMENT")
        self._begin_work(context)
        try:
            order = struck_before_load(self.cluster, request, label)
            headers = {name: as_utf8(value) for name, value in forwarded(request.headers).items()}
            if context.plan is None:
                context.plan = Plan(headers, self.cluster.storage.tables[database, table])
            elif context.plan.headers != headers:
                raise Refused("load request not equal last.", "INTERNAL_ERROR")
            if order is not None and order.fault is Fault.ERROR:
                raise Refused(order.text or "tablet writer write failed: too many versions", "SERVICE_UNAVAILABLE")
            body = read(request, self.cluster, order, context)
            context.byte_count += len(body)
            is_bounded = context.plan.format == "json" and headers.get("ignore_json_size") != "true"
            if is_bounded and context.byte_count > self.cluster.settings.batch_bytes:
                raise Refused(
                    "The size of this batch exceed the max size [104857600]  of json type data", "INTERNAL_ERROR"
                )
            self._keep(request, body, order, context)
        except Refused as error:
            self._drop(label, context, str(error))
            raise
        finally:
            context.is_busy = False
        self._loaded(request, transaction.id, body, database, table, label)

    def _drop(self, label: str, context: Context, reason: str) -> None:
        self.contexts.pop(label, None)
        try:
            self.cluster.transactions.abort(context.transaction, reason)
        except Refused:
            return

    def _flushed(self, database: str, label: str, context: Context) -> tuple[dict[str, Any], int]:
        """All rows parsed, checked and on their tablets. Raises: Refused - the transaction is rolled back."""
        settings, plan, transaction = self.cluster.settings, context.plan, context.transaction
        try:
            if plan is None:
                raise Refused(f"transaction {transaction.id} hasn't send any data yet", "INTERNAL_ERROR")
            life_s = settings.prepared_timeout_s
            counts: dict[str, Any] = {}
            if settings.null and transaction.table != "cdc_checkpoints":
                self.cluster.transactions.prepare(transaction, [], sum(map(len, context.bodies)), life_s)
                return counts, 0
            if context.rest:
                context.bodies.append(context.rest)
            checked = plan.check(context.bodies, self.cluster.storage, settings)
            bad = len(checked.bad)
            if not checked.total:
                raise Refused("No rows were imported from upstream", "INTERNAL_ERROR")
            if bad > plan.max_filter_ratio * checked.total:
                raise Filtered(self.keep_error_log(f"error_log_{transaction.id}", checked.bad))
            rows = [(plan.table, [checked.rows])] if checked.rows is not None else []
            self.cluster.transactions.prepare(transaction, rows, checked.total - bad, life_s)
            counts = {
                "NumberTotalRows": checked.total, "NumberLoadedRows": checked.total - bad, "NumberFilteredRows": bad,
                "NumberUnselectedRows": 0,
            }  # fmt: skip
            return counts, checked.total
        except Refused as error:
            self._drop(label, context, str(error))
            raise

    def _prepare(self, request: Handler, database: str, table: str, label: str) -> None:
        context = self._context(label, "transaction")
        if database != context.transaction.database:
            text = f"request db {database} transaction db {context.transaction.database} not match"
            raise Refused(text, "INVALID_ARGUMENT")
        life = request.headers.get("prepared_timeout", "1")
        if self.cluster.settings.has_prepared_timeout and not (life.isdecimal() and int(life) > 0):
            raise Refused(f"Invalid prepared_timeout: {life}", "INVALID_ARGUMENT")
        self._begin_work(context)
        try:
            order = struck_before(self.cluster, request, "prepare", label)
            counts, _ = self._flushed(database, label, context)
            self.contexts.pop(label, None)
        except Filtered as error:
            return self._reply(
                request, "INTERNAL_ERROR", "too many filtered rows", database, table, ErrorURL=str(error)
            )  # fmt: skip
        except ConnectionCut:
            raise
        finally:
            context.is_busy = False
        fail_after(request, order)
        self._reply(request, "OK", "", database, table, Label=label, TxnId=context.transaction.id, **counts)

    def _commit(self, request: Handler, database: str, table: str, label: str) -> None:
        """In one phase."""
        context = self._context(label, "transaction")
        self._flushed(database, label, context)
        self.contexts.pop(label, None)
        self.cluster.transactions.commit(context.transaction)
        self._reply(request, "OK", "", database, table, Label=label, TxnId=context.transaction.id)

    def _rollback(self, request: Handler, database: str, table: str, label: str) -> None:
        """Does not wait for what the label is busy with."""
        context = self._context(label, "transaction")
        order = struck_before(self.cluster, request, "rollback", label)
        self._drop(label, context, "User Aborted")
        if order is not None and order.fault is Fault.DROP_ANSWER:
            request.cut()
        self._reply(request, "OK", "", database, table)

    # ---- multi-table transactions

    def _multi_load(self, request: Handler, database: str, table: str, label: str) -> None:
        task, share = self.cluster.multi.share(label, database, table, forwarded(request.headers))
        self._begin_work(share)
        try:
            order = struck_before_load(self.cluster, request, label)
            if order is not None and order.fault is Fault.ERROR:
                raise Refused(order.text or "tablet writer write failed: too many versions", "SERVICE_UNAVAILABLE")
            body = read(request, self.cluster, order, share)
            self._keep(request, body, order, share)
        except Refused as error:
            self.cluster.multi.abort(task, str(error))
            raise
        finally:
            share.is_busy = False
        self._loaded(request, task.transaction.id, body, database, table, label)


class Filtered(Refused):
    """Too many rows were refused; the message is the address of their log."""


def fail_after(request: Handler, order: Order | None) -> None:
    """Let the fault strike that follows the work. Raises: ConnectionCut, Refused."""
    match order.fault if order else None:
        case Fault.DROP_ANSWER:
            request.cut()
        case Fault.ERROR_DONE:
            raise Refused("call frontend service failed, THRIFT_EAGAIN (timed out)", "INTERNAL_ERROR")


def struck_before_load(cluster: StarrocksEmulator, request: Handler, label: str) -> Order | None:
    """As struck_before, but a reset strikes in mid-body and an error once the headers are read."""
    order = cluster.faults.take("load", label)
    if order is not None and order.fault is Fault.HTTP_500:
        request.reply(b"Internal Server Error", 500, {"Content-Type": "text/plain"})
        raise Answered
    return order


def read(request: Handler, cluster: StarrocksEmulator, order: Order | None, into: Any) -> bytes:
    """Return the body without checking its length. The rest of a body that was cut becomes the start of the next one."""
    pieces = [into.rest]
    into.rest = b""
    try:
        for piece in request.body():
            is_null = cluster.settings.null and request.headers.get("table") != "cdc_checkpoints"
            pieces.append(row_ends(piece, request) if is_null else piece)
            if order is not None and order.fault is Fault.RESET:
                into.rest = b"".join(pieces)[: max(1, len(piece) // 2)]
                request.cut()
    except (BadBody, OSError, ValueError):
        into.rest = b"".join(pieces)
        request.cut()
    return b"".join(pieces)
