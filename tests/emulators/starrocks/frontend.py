"""The emulated FE of StarRocks: the transaction interface, states, cancel."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tests.emulators.faults import Fault, Order
from tests.emulators.http import Handler
from tests.emulators.names import form_segments
from tests.emulators.servers import ClusterFrontend
from tests.emulators.starrocks.bodies import forwarded
from tests.emulators.starrocks.transactions import LabelUsed, Refused, Status, Transaction

if TYPE_CHECKING:
    from tests.emulators.starrocks.emulator import StarrocksEmulator

EXCEPTION = "class com.starrocks.common.StarRocksException: "
LOST = (
    "Can't find the transaction with db [{}] and label[{}]. The possible reasons: 1. FE leader is started or switched; "
    "2. The transaction timeouts and is cleaned."
)


class Frontend(ClusterFrontend):
    """See ClusterFrontend."""

    segments = staticmethod(form_segments)
    cluster: StarrocksEmulator

    def refuse_user(self, request: Handler, user: tuple[str, str] | None) -> None:
        """See ClusterFrontend."""
        text = "Need auth information." if user is None else f"Access denied for {user[0]}@127.0.0.1"
        body = {"status": "FAILED", "code": "1", "msg": text, "message": text}
        request.reply(body, 401, {"WWW-Authenticate": 'Basic realm=""'})

    def route(self, request: Handler, user: tuple[str, str]) -> None:
        """See ClusterFrontend."""
        if self.to_leader(request):
            return
        match request.command, request.segments:
            case "POST" | "PUT", ["api", "transaction", operation]:
                self._transaction(request, user, operation.lower())
            case "GET", ["api", database, "get_load_state"]:
                self._state(request, user[0], database)
            case "POST", ["api", database, _, "_cancel"]:
                self._cancel(request, database)
            case _:
                self._said(request, "Not Found")

    def _failed(self, request: Handler, text: str, exception: str = EXCEPTION) -> None:
        request.reply({"Status": "FAILED", "Message": exception + text})

    # ---- transactions

    def _transaction(self, request: Handler, user: tuple[str, str], operation: str) -> None:
        database, label = request.headers.get("db", ""), request.headers.get("label", "")
        if not request.headers.get("Expect") and not request.body_read:
            for _ in request.body():  # of begin, prepare, commit and rollback it would be parsed
                return self._failed(request, f"Malformed json tablets, label is {label}")
        if operation not in ("begin", "load", "prepare", "commit", "rollback"):
            return self._failed(request, f"Unknown transaction operation: {operation}")
        if not database:
            return self._failed(request, "No database selected.")
        if not label:
            return self._failed(request, "Empty label.")
        if database not in self.cluster.storage.databases:
            return self._failed(request, f"Database[{database}] does not exist.")
        if not self.may_load(user[0], database):
            return self._failed(request, "Access denied; you need (at least one of) the INSERT privilege(s)")
        timeout = request.headers.get("timeout", "600")
        if operation == "begin" and not timeout.lstrip("-").isdecimal():
            text = f'For input string: "{timeout}"'
            return self._failed(request, text, "class java.lang.NumberFormatException: ")
        try:
            if request.headers.get("transaction_type") == "multi" and self.cluster.settings.has_multi:
                self._multi(request, operation, database, label)
            elif operation == "begin":
                self._begin(request, label)
            elif operation in ("load", "prepare"):
                self._to_coordinator(request, database, label, required=True)
            else:
                self._finish(request, operation, database, label)
        except Answered:
            return
        except LabelUsed as error:
            request.reply({"Status": "LABEL_ALREADY_EXISTS", "Message": str(error), "ExistingJobStatus": error.job})
        except Refused as error:
            self._failed(request, str(error))

    def _begin(self, request: Handler, label: str) -> None:
        backend = self.cluster.coordinators.get(label)
        if backend is None or not self.cluster.backends[backend].alive:
            found = self.cluster.next_backend()
            if found is None:
                return self._failed(request, "no alive backend")
            backend = self.cluster.coordinators[label] = found.number
        self.redirect(request, self.cluster.backends[backend].port)

    def _to_coordinator(self, request: Handler, database: str, label: str, *, required: bool) -> None:
        backend = self.cluster.coordinators.get(label)
        if backend is None:
            found = self.cluster.transactions.find(database, label)
            backend = found.backend if found else None
        if backend is None:
            lost = LOST if required else "No transaction found with db[{}] and label[{}]"
            return self._failed(request, lost.format(database, label))
        if not self.cluster.backends[backend].alive:
            return self._failed(
                request,
                f"Can't find node id {backend}. You can check the cluster to see whether the node exists",
            )
        self.redirect(request, self.cluster.backends[backend].port)

    def _finish(self, request: Handler, operation: str, database: str, label: str) -> None:
        """Commit and rollback: answered here once the state is past PREPARE."""
        found = self.cluster.transactions.find(database, label)
        if found is None or found.status is Status.PREPARE:
            if found is None and label in self.cluster.coordinators:
                return self._failed(request, f"No transaction found by label {label}")
            return self._to_coordinator(request, database, label, required=False)
        order = struck_before(self.cluster, request, operation, label)
        done = found.status in (Status.COMMITTED, Status.VISIBLE) if operation == "commit" else (
            found.status is Status.ABORTED
        )  # fmt: skip
        if operation == "commit" and not done:
            self.cluster.transactions.commit(found)
        elif operation == "rollback" and not done:
            self.cluster.transactions.abort(found)
        self._committed(request, found, operation, order, done_before=done)

    def _committed(
        self, request: Handler, found: Transaction, operation: str, order: Order | None, *, done_before: bool
    ) -> None:
        if self._fails_after(request, found, order):
            return
        words = {"commit": "committed", "rollback": "aborted"}[operation]
        text = f"Transaction {found.id} has already {words}, label is {found.label}" if done_before else ""
        request.reply({"TxnId": found.id, "Message": text, "Status": "OK", "Label": found.label})

    def _fails_after(self, request: Handler, found: Transaction, order: Order | None) -> bool:
        """Answer with the fault that strikes after the work, and return True if there is one."""
        match order.fault if order else None:
            case Fault.DROP_ANSWER:
                request.cut()
            case Fault.ERROR_DONE:
                self._failed(request, "get database write lock timeout, database=" + found.database)
            case Fault.PUBLISH_TIMEOUT:
                self._failed(request, f"publish timeout: 20000, transactionId={found.id}")
            case _:
                return False
        return True

    # ---- multi-table transactions

    def _multi(self, request: Handler, operation: str, database: str, label: str) -> None:
        tasks = self.cluster.multi
        match operation:
            case "begin":
                order = struck_before(self.cluster, request, "begin", label)
                there = tasks.begin(database, label, float(request.headers.get("timeout", "20")))
                if order is not None and order.fault is Fault.DROP_ANSWER:
                    request.cut()
                if there is None:
                    return request.reply({"Status": "OK", "Message": ""})
                number, fields = there.transaction.id, {"ExistingJobStatus": there.state}
                text = f"Label [{label}] has already been used."
                if there.state != "COMMITED":
                    text, fields["TxnId"] = f"Transaction already started with label [{label}], txnId: {number}", number
                request.reply({"Status": "LABEL_ALREADY_EXISTS", "Message": text, **fields})
            case "load":
                if not request.headers.get("table"):
                    return self._failed(request, "No table selected.")
                _, share = tasks.share(label, database, request.headers["table"], forwarded(request.headers))
                self.redirect(request, self.cluster.backends[share.backend].port)
            case "prepare":
                self._failed(request, "Unsupported operation: TXN_PREPARE")
            case "commit":
                self._multi_commit(request, label)
            case "rollback":
                order = struck_before(self.cluster, request, "rollback", label)
                text = tasks.rollback(label)
                if order is not None and order.fault is Fault.DROP_ANSWER:
                    request.cut()
                request.reply({"Status": "OK", "Message": text})

    def _multi_commit(self, request: Handler, label: str) -> None:
        order = struck_before(self.cluster, request, "commit", label)
        try:
            found, done = self.cluster.multi.commit(label)
        except Refused as error:
            if self.cluster.settings.false_ok and "stream load task" not in str(error):
                return request.reply({"Status": "OK", "Message": "", "Label": label, "TxnId": 0, "ChannelId": 0})
            raise
        if self._fails_after(request, found, order):
            return
        text = f"Transaction {found.id} has already committed, label is {label}" if done else ""
        request.reply({"Status": "OK", "Message": text, "Label": label, "TxnId": found.id, "ChannelId": 0,
                       "Prepared Channel Num": 0})  # fmt: skip

    # ---- labels

    def _state(self, request: Handler, user: str, database: str) -> None:
        label = request.query.get("label", "")
        if self.is_state_broken(request, label):
            return None
        if not label:
            return self._said(request, "No label selected.")
        if database not in self.cluster.storage.databases and database != "information_schema":
            return self._said(request, f"unknown database, database={database}")
        may_insert = database in self.cluster.storage.databases and self.may_load(user, database)
        if self.cluster.settings.http_auth and not may_insert:
            text = f"Access denied; you need (at least one of) the INSERT privilege(s) on DATABASE {database}"
            return request.reply({"status": "FAILED", "code": "1", "msg": text, "message": text}, 401)
        state, reason = self.cluster.transactions.state(database, label)
        answer = {"state": state, "reason": reason, "status": "OK", "code": "0", "msg": "Success", "message": "OK"}
        request.reply(answer)

    def _said(self, request: Handler, text: str) -> None:
        request.reply({"status": "FAILED", "code": "1", "msg": text, "message": text})

    def _cancel(self, request: Handler, database: str) -> None:
        found = self.cluster.transactions.find(database, request.query.get("label", ""))
        if found is None or found.status is not Status.PREPARE:
            return self._said(request, "no such transaction is running")
        self.cluster.transactions.abort(found, "user cancel")
        request.reply({"status": "OK", "code": "0", "msg": "Success", "message": "OK"})


def struck_before(cluster: StarrocksEmulator, request: Handler, place: str, label: str) -> Order | None:
    """Return the fault that strikes. Faults before the work have struck already. Raises: ConnectionCut, Refused."""
    order = cluster.faults.take(place, label)
    match order.fault if order else None:
        case Fault.RESET:
            request.cut()
        case Fault.HTTP_500:
            request.reply(json.dumps({"status": "FAILED", "code": "1", "msg": "internal"}).encode(), 500)
            raise Answered
        case Fault.ERROR:
            assert order is not None
            raise Refused(order.text or "tablet 10017 has few replicas: 1, alive backends: [10001]", "INTERNAL_ERROR")
        case Fault.SLOW:
            assert order is not None
            time.sleep(order.seconds)
    return order


class Answered(Exception):
    """The fault has answered; nothing follows."""
