"""The store in a server: lost answers, frozen holders, outages, formats, refused logins."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from cdc.errors import CheckpointError, LeaseLost
from cdc.model.snapshot import SnapshotRequest
from cdc.model.verify import VerifyRequest
from cdc.state.base import CheckpointState
from cdc.state.opening import open_store
from cdc.state.server import ServerStore
from cdc.state.store_url import PASSWORD, STORE, store_url
from tests.contract.test_checkpoint_store import make_checkpoint
from tests.support.receiving import TcpProxy, until
from tests.support.store_servers import WORD, create_database

ROOT = Path(__file__).parents[2]
SERVERS = ("mysql", "mariadb", "postgres")
servers = pytest.mark.parametrize("environment", SERVERS, indirect=True)
FREEZING = """
import pathlib, sys
from cdc.errors import CheckpointError, LeaseLost
from cdc.state.opening import open_store
from tests.contract.test_checkpoint_store import make_checkpoint
from tests.support.freezing import freeze

store = open_store(folder=pathlib.Path(sys.argv[1]))
store.database._bridge_s = 600.0  # the time for which it is frozen counts too
store.acquire("shop", "f")
prune = store._prune

def prune_and_freeze(transaction, job):
    prune(transaction, job)
    freeze()

store._prune = prune_and_freeze
try:
    store.save(make_checkpoint(7))
except (LeaseLost, CheckpointError) as error:
    print(type(error).__name__)
else:
    print("saved")
"""


class LossyProxy(TcpProxy):
    """Cuts a connection at its next COMMIT: before the server gets it, or when the server answers."""

    def __init__(self, port):
        super().__init__(port)
        self.loses = None  # "request" or "answer"
        self.lost = 0

    def on_client_data(self, data):
        is_commit = data.endswith((b"COMMIT", b"COMMIT\x00"))  # not READ COMMITTED
        if self.loses == "request" and is_commit:
            self.loses, self.lost = None, self.lost + 1
            raise ConnectionAbortedError
        if self.loses == "answer" and is_commit:
            self.loses = "next"

    def _damage(self, data, seen):
        if self.loses == "next":
            self.loses, self.lost = None, self.lost + 1
            raise ConnectionAbortedError
        return data


@pytest.fixture
def environment(request):
    return {**create_database(request.getfixturevalue(request.param), "server_store"), "CDC_LEASE": "2"}


@pytest.fixture
def proxy(environment):
    with LossyProxy(store_url(environment).port) as proxy:
        yield proxy


@pytest.fixture
def store(environment, proxy, tmp_path):
    address = re.sub(r":\d+/", f":{proxy.port}/", environment[STORE])
    store = open_store(environment={**environment, STORE: address}, folder=tmp_path / "home")
    yield store
    store.close()


@servers
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_save_with_a_lost_commit_is_saved_once(store, proxy, lost):
    record = store.acquire("shop", "shop.yaml")
    for number in range(3):
        proxy.loses = lost
        store.save(make_checkpoint(number))
    proxy.loses = lost
    store.save_job(record)
    store.check_fence()
    assert proxy.lost == 4
    assert [one.id for one in store.committed("shop")] == [2, 1, 0]
    proxy.loses = lost
    number = store.events.request("shop", "pause", {})
    proxy.loses = lost
    assert store.events.take(number, "driver")


@servers
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_request_with_a_lost_commit_is_saved_once(store, proxy, lost):
    """A second row would be carried out too: a resume with --past-ddl would pass a later statement unseen."""
    store.acquire("shop", "shop.yaml")
    before = proxy.lost
    proxy.loses = lost
    number = store.events.request("shop", "resume", {"past_ddl": True}, actor="ann")
    assert [event.id for event in store.events.open_requests("shop")] == [number]
    for where in ("id > 9", None):
        proxy.loses = lost
        store.add_request("shop", SnapshotRequest("shop.orders", where))
    assert [one.where for one in store.requests("shop")] == ["id > 9", None]
    proxy.loses = lost
    store.add_verification("shop", VerifyRequest(token="abc"))
    assert [one.request.token for one in store.verifications("shop", 9)] == ["abc"]
    assert proxy.lost == before + 4


@servers
def test_connection_lost_before_a_query_is_replaced(store, monkeypatch):
    dialect = store.database._engine.dialect
    name = "set_isolation_level" if dialect.name == "postgresql" else "do_execute"  # what follows the ping
    real, lost = getattr(dialect, name), []

    def lose_once(*arguments):
        if not lost:
            lost.append(name)
            raise dialect.loaded_dbapi.OperationalError(2013, "Lost connection to MySQL server during query")
        real(*arguments)

    monkeypatch.setattr(dialect, name, lose_once)
    assert store.jobs() == () and lost


@servers
def test_acquire_and_greater_fence_with_a_lost_answer_keep_the_job(store, proxy):
    proxy.loses = "answer"
    record = store.acquire("shop", "shop.yaml")
    assert record.fence == 2, "the first answer was lost, so the fence was raised twice"
    proxy.loses = "answer"
    store.save_job(type(record)(**{**{name: getattr(record, name) for name in record.__slots__}, "fence": 40}))
    store.save(make_checkpoint(1))
    assert proxy.lost == 2


@servers
def test_save_during_a_failover_is_repeated(store, proxy):
    store.acquire("shop", "shop.yaml")
    proxy.refusing = True
    proxy.cut_all()
    timer = threading.Timer(2.0, setattr, (proxy, "refusing", False))
    timer.start()
    store.save(make_checkpoint(1))
    timer.join()
    assert store.last_committed("shop").id == 1


@servers
def test_save_without_a_server_raises_and_continues_later(environment, proxy, tmp_path):
    address = re.sub(r":\d+/", f":{proxy.port}/", environment[STORE])
    store = ServerStore(store_url({**environment, STORE: address}), tmp_path, 2.0, bridge_s=0.0)
    store.acquire("shop", "shop.yaml")
    store.save(make_checkpoint(1, CheckpointState.OPEN))
    proxy.refusing = True
    proxy.cut_all()
    for call in (lambda: store.save(make_checkpoint(2)), store.renew, store.check_fence, store.unfinished):
        with pytest.raises(CheckpointError, match="cannot be reached") as refused:
            call()
        assert refused.value.hint and WORD not in str(refused.value)
    proxy.refusing = False
    store.save(make_checkpoint(2))
    assert [one.id for one in store.unfinished()] == [1]
    store.close()


@servers
def test_save_on_a_silent_connection_is_repeated_on_a_new_one(store, proxy):
    """The peer acknowledges the data, as a proxy does, and never answers."""
    store.acquire("shop", "shop.yaml")
    ended = threading.Event()

    def save():
        store.save(make_checkpoint(1))
        ended.set()

    proxy.fall_silent()
    threading.Thread(target=save, daemon=True).start()
    assert ended.wait(60), "the save waits without limit: it takes about 7 s on an idle machine"
    assert [one.id for one in store.committed("shop")] == [1]


def test_postgres_connection_has_keepalives(postgres, tmp_path):
    environment = create_database(postgres, "server_store")
    with (
        closing(open_store(environment=environment, folder=tmp_path)) as store,
        store.database._engine.connect() as one,
    ):
        found = dict(pair.split("=", 1) for pair in one.connection.dbapi_connection.info.dsn.split())
    assert {name: found[f"keepalives_{name}"] for name in ("idle", "interval", "count")} == {
        "idle": "2", "interval": "2", "count": "2",
    }  # fmt: skip


@servers
def test_frozen_inside_a_transaction_is_taken_over(environment, tmp_path):
    """Without a time limit of the session, the frozen process keeps the row locked: for 8 hours on MySQL."""
    command = [sys.executable, "-c", FREEZING, str(tmp_path / "first")]
    lease = {"CDC_LEASE": "15"}  # which does not end before `third` asks
    variables = {**os.environ, **environment, **lease, "CDC_HOST": "first", "PYTHONPATH": str(ROOT)}
    with (
        closing(open_store(environment=environment, folder=tmp_path / "second")) as second,
        closing(ServerStore(store_url(environment), tmp_path / "third", 2.0)) as third,
        subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as frozen,
    ):
        try:
            until(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED, 120, "a frozen process")
            with pytest.raises(LeaseLost, match="first"):
                third.acquire("shop", "f")
            record = taken_over(second)
            assert record.fence == 2
            assert second.last_committed("shop") is None
            second.save(make_checkpoint(1))
            frozen.send_signal(signal.SIGCONT)
            assert frozen.communicate(timeout=120)[0] == "LeaseLost\n"
        finally:
            frozen.kill()
        second.check_fence()
        assert [one.id for one in second.committed("shop")] == [1]


def taken_over(store):
    deadline = time.monotonic() + 120
    while True:
        try:
            return store.acquire("shop", "f")
        except (LeaseLost, CheckpointError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@servers
def test_store_opened_by_many_at_once_is_created_once(environment, tmp_path):
    found, errors = [], []

    def open_one(number):
        try:
            store = open_store(environment=environment, folder=tmp_path / str(number))
            found.append(store.jobs())
            store.close()
        except CheckpointError as error:
            errors.append(error)

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == [] and found == [()] * 4


@servers
def test_store_of_another_format_is_refused(store, environment, tmp_path):
    store.database.transact(lambda transaction: transaction.run("UPDATE cdc_meta SET format = 99"))
    with pytest.raises(CheckpointError, match="format 99"):
        open_store(environment=environment, folder=tmp_path / "home")


@servers
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({PASSWORD: "wrong-word"}, "refused the login"),
        ({STORE: "/no_such_database"}, "does not exist|may not use"),
        ({STORE: ":1/server_store"}, "cannot be reached"),
    ],
)
def test_store_that_cannot_be_opened_says_why(environment, tmp_path, change, says):
    values = {**environment, **change}
    if STORE in change:
        values[STORE] = re.sub(r":\d+/.*", change[STORE], environment[STORE])
        if change[STORE].startswith("/"):
            values[STORE] = re.sub(r"/server_store$", change[STORE], environment[STORE])
    with pytest.raises(CheckpointError, match=says) as refused:
        open_store(environment=values, folder=tmp_path / "home")
    assert refused.value.hint and refused.value.context["store"].startswith(store_url(environment).kind)
    assert not {"wrong-word", WORD} & set(re.findall(r"[\w-]+", str(refused.value)))
