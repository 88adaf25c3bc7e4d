"""Every fault of Doris at every step of a load and a commit: each label is used once, and no row is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdc.errors import PreparedLoadLost, SinkBusy, SinkUnavailable
from cdc.model.batch import PreparedLoad
from channels.sinks.base import LoadState
from channels.sinks.doris.sink import DorisSink
from tests.emulators.cases import TABLE, USER, committed_once, mark_of, name_of, rows_of, write
from tests.emulators.doris.cases import emulator, sink_on
from tests.emulators.doris.emulator import DorisEmulator
from tests.emulators.faults import Fault

ROWS = ((1, "a", False, 1), (2, "b", False, 2))
SEEN = [(1, "a"), (2, "b")]


@pytest.fixture
def doris() -> Iterator[DorisEmulator]:
    with emulator(backends=2) as doris:
        yield doris


@pytest.fixture(params=[True, False], ids=["two_phase", "plain"])
def sink(request: pytest.FixtureRequest, doris: DorisEmulator) -> Iterator[DorisSink]:
    sink = sink_on(doris, two_phase_commit=request.param)
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


@pytest.fixture
def two_phase(doris: DorisEmulator) -> Iterator[DorisSink]:
    sink = sink_on(doris)
    sink.ensure_table(TABLE)
    yield sink
    sink.close()


def labels(*loads: PreparedLoad) -> list[str]:
    return [load.detail["label"] for load in loads]


@pytest.mark.parametrize(
    "fault", [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.SLOW, Fault.ERROR_DONE, Fault.PUBLISH_TIMEOUT]
)
@pytest.mark.parametrize("times", [1, 3])
def test_doris_load_with_lost_reply_is_visible_once(
    doris: DorisEmulator, sink: DorisSink, fault: Fault, times: int
) -> None:
    doris.faults.order("load", fault, times=times, match="cdc-")
    load = write(sink, *ROWS)
    sink.commit([load], mark_of())
    assert doris.faults.struck
    assert doris.rows("SELECT * FROM ods.orders") == SEEN
    assert sink.state(load) is LoadState.COMMITTED
    committed_once(doris, labels(load))


@pytest.mark.parametrize(
    "fault", [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.SLOW, Fault.ERROR_DONE, Fault.ERROR]
)
def test_doris_commit_with_lost_reply_happens_once(doris: DorisEmulator, two_phase: DorisSink, fault: Fault) -> None:
    doris.faults.order("commit", fault, times=2)
    loads = [write(two_phase, *ROWS), write(two_phase, (2, "c", False, 3), name=name_of(task=1))]
    two_phase.commit(loads, mark_of())
    assert doris.faults.struck
    assert doris.rows("SELECT * FROM ods.orders") == [(1, "a"), (2, "c")]
    assert two_phase.last_checkpoint("shop") == mark_of()
    committed_once(doris, labels(*loads))


@pytest.mark.parametrize("place", ["state", "backends"])
def test_doris_failed_queries_are_repeated(doris: DorisEmulator, sink: DorisSink, place: str) -> None:
    doris.faults.order("load", Fault.ERROR_DONE)
    doris.faults.order(place, Fault.HTTP_500)
    try:
        load = write(sink, *ROWS)
    except SinkUnavailable:
        load = write(sink, *ROWS)  # as the consumer does: the same Task with the same label
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == SEEN
    committed_once(doris, labels(load))


def test_doris_load_that_hangs_is_found_by_its_label(doris: DorisEmulator) -> None:
    sink = sink_on(doris, answer_timeout_s=0.3)
    sink.ensure_table(TABLE)
    doris.faults.order("load", Fault.SLOW, seconds=1.0, match="cdc-")
    load = write(sink, *ROWS)
    sink.commit([load], mark_of())
    committed_once(doris, labels(load))
    assert len(doris.loads()) == 1
    sink.close()


def test_doris_too_many_versions_raises_busy(doris: DorisEmulator, sink: DorisSink) -> None:
    doris.faults.order("load", Fault.ERROR)
    with pytest.raises(SinkBusy):
        write(sink, *ROWS)
    load = write(sink, *ROWS)
    sink.commit([load], mark_of())
    committed_once(doris, labels(load))


def test_doris_lost_quorum_raises_until_it_is_back(doris: DorisEmulator, two_phase: DorisSink) -> None:
    load = write(two_phase, *ROWS)
    doris.faults.order("commit", Fault.ERROR, times=100)
    with pytest.raises(SinkUnavailable, match="success replica num"):
        two_phase.commit([load], mark_of())
    assert two_phase.state(load) is LoadState.PREPARED
    doris.faults.clear()
    two_phase.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == SEEN


@pytest.mark.parametrize("loss", ["expire", "forget"])
def test_doris_lost_prepared_load_is_named_and_loaded_again(
    doris: DorisEmulator, two_phase: DorisSink, loss: str
) -> None:
    loads = [write(two_phase, (number, "a", False, number), name=name_of(task=number)) for number in range(3)]
    getattr(doris.transactions, loss)(labels(loads[1])[0])
    with pytest.raises(PreparedLoadLost) as caught:
        two_phase.commit(loads, mark_of())
    assert caught.value.context["labels"] == labels(loads[1])
    assert two_phase.last_checkpoint("shop") is None
    again = [
        write(two_phase, (number, "a", False, 10 + number), name=name_of(task=number, attempt=1)) for number in range(3)
    ]
    two_phase.commit(again, mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == [(0, "a"), (1, "a"), (2, "a")]
    committed_once(doris, labels(*again))


def test_doris_label_forgotten_after_commit_is_not_lost(doris: DorisEmulator, two_phase: DorisSink) -> None:
    load = write(two_phase, *ROWS)
    two_phase.commit([load], mark_of())
    doris.transactions.forget()
    assert two_phase.state(load) is LoadState.COMMITTED
    two_phase.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == SEEN


def test_doris_backend_that_dies_during_a_load_is_replaced(doris: DorisEmulator, sink: DorisSink) -> None:
    doris.faults.order("load", Fault.SLOW, seconds=0.5, match="cdc-")
    killer = threading.Timer(0.2, lambda: [doris.restart_backend(number) for number in range(2)])
    killer.start()
    load = write(sink, *ROWS)
    killer.join()
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == SEEN
    committed_once(doris, labels(load))


def test_doris_dead_backend_is_skipped(doris: DorisEmulator, sink: DorisSink) -> None:
    loads = [write(sink, (1, "a", False, 1))]
    doris.stop_backend(0)
    loads += [write(sink, (number, "a", False, number), name=name_of(task=number)) for number in range(2, 6)]
    sink.commit(loads, mark_of())
    assert doris.rows("SELECT count(*) FROM ods.orders") == [(5,)]
    committed_once(doris, labels(*loads))


def test_doris_frontend_restart_between_prepare_and_commit(doris: DorisEmulator, sink: DorisSink) -> None:
    load = write(sink, *ROWS)
    doris.restart_frontend()
    sink.commit([load], mark_of())
    assert doris.rows("SELECT * FROM ods.orders") == SEEN
    assert sink.last_checkpoint("shop") == mark_of()


def test_doris_loads_continue_without_a_frontend(doris: DorisEmulator, sink: DorisSink) -> None:
    writer = sink.part_writer(TABLE)
    doris.frontends[0].stop()
    load = writer(name_of(), iter([rows_of(*ROWS)]))
    assert load is not None
    doris.frontends[0] = type(doris.frontends[0])(doris, leader=True, port=doris.frontends[0].port)
    sink.commit([load], mark_of())
    committed_once(doris, labels(load))


def test_doris_follower_redirects_to_the_master() -> None:
    with emulator(followers=1) as doris:
        doris.frontends.reverse()
        sink = sink_on(doris)
        sink.ensure_table(TABLE)
        doris.faults.order("load", Fault.ERROR_DONE)
        load = write(sink, *ROWS)
        sink.commit([load], mark_of())
        assert sink.state(load) is LoadState.COMMITTED
        doris.frontends[1].stop()  # the master
        with pytest.raises(SinkUnavailable):
            sink.state(load)
        sink.close()


def test_doris_running_load_of_an_earlier_run_is_aborted(
    doris: DorisEmulator, sink: DorisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.sinks.stream_load.loader.STATE_TIMEOUT_S", 0.3)
    label = write(sink, *ROWS).detail["label"].replace("-1-ods", "-2-ods")
    dead = doris.transactions.begin("ods", "orders", label, two_phase=True, timeout_s=600)
    load = write(sink, (3, "c", False, 3), name=name_of(2))
    assert labels(load) == [label]
    assert dead.status.value == "ABORTED"
    sink.commit([load], mark_of(2))
    committed_once(doris, [label])


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500])
def test_doris_abort_affects_only_its_checkpoint(doris: DorisEmulator, two_phase: DorisSink, fault: Fault) -> None:
    kept = [write(two_phase, *ROWS, name=name_of(1)), write(two_phase, *ROWS, name=name_of(21))]
    gone = [write(two_phase, *ROWS, name=name_of(2, task)) for task in range(3)]
    doris.execute("CREATE DATABASE other")
    doris.settings.denied.add((USER[0], "other"))  # Doris does not show the transactions of this database
    doris.faults.order("abort", fault, times=2)
    two_phase.abort("shop", "0a1b2c3d", 1, 2)
    two_phase.abort("shop", "0a1b2c3d", 1, 2)
    assert {two_phase.state(load) for load in gone} == {LoadState.ABORTED}
    assert {two_phase.state(load) for load in kept} == {LoadState.PREPARED}


def test_doris_plain_loads_are_visible_and_repeatable(doris: DorisEmulator) -> None:
    sink = sink_on(doris, two_phase_commit=False)
    sink.ensure_table(TABLE)
    load = write(sink, *ROWS)
    assert sink.state(load) is LoadState.COMMITTED
    assert doris.rows("SELECT * FROM ods.orders") == SEEN
    sink.abort("shop", "0a1b2c3d", 1, 1)
    write(sink, (1, "a", True, 3), name=name_of(2))
    write(sink, *ROWS, name=name_of(attempt=1))  # read again by a later run, with the old sequence
    assert doris.rows("SELECT * FROM ods.orders") == [(2, "b")]
    sink.close()


@pytest.mark.parametrize("is_old", [False, True], ids=["load", "old_load"])
def test_doris_prepared_loads_are_finished_without_two_phase(
    doris: DorisEmulator, two_phase: DorisSink, is_old: bool
) -> None:
    loads = [write(two_phase, *ROWS), write(two_phase, (3, "c", False, 3), name=name_of(task=1))]
    gone = write(two_phase, (4, "d", False, 4), name=name_of(2))
    plain = sink_on(doris, two_phase_commit=False)
    if is_old:
        loads = [replace(load, detail={name: load.detail[name] for name in ("label", "transaction")}) for load in loads]
    plain.commit(loads, mark_of())
    plain.abort("shop", "0a1b2c3d", 1, 2)
    assert doris.rows("SELECT * FROM ods.orders") == [*SEEN, (3, "c")]
    assert plain.state(gone) is LoadState.ABORTED
    doris.transactions.forget(labels(gone)[0])
    with pytest.raises(PreparedLoadLost):
        plain.commit([gone], mark_of(2))
    plain.close()


def test_doris_plain_loads_need_no_commit_with_two_phase(doris: DorisEmulator, two_phase: DorisSink) -> None:
    plain = sink_on(doris, two_phase_commit=False)
    load = write(plain, *ROWS)
    doris.transactions.forget(labels(load)[0])
    two_phase.commit([load], mark_of())
    assert two_phase.last_checkpoint("shop") == mark_of()
    plain.close()


def test_doris_commit_waits_for_publishing(doris: DorisEmulator, two_phase: DorisSink) -> None:
    load = write(two_phase, *ROWS)
    doris.transactions.hold_publish = True
    publisher = threading.Timer(0.3, doris.transactions.publish)
    started = time.monotonic()
    publisher.start()
    two_phase.commit([load], mark_of())
    publisher.join()
    assert time.monotonic() - started >= 0.3
    assert doris.rows("SELECT * FROM ods.orders") == SEEN


def test_doris_older_run_cannot_reset_the_record(doris: DorisEmulator, two_phase: DorisSink) -> None:
    two_phase.commit([write(two_phase, *ROWS)], mark_of(5, sequence=500))
    two_phase.commit([write(two_phase, *ROWS, name=name_of(4))], mark_of(4, sequence=400))
    assert two_phase.last_checkpoint("shop") == mark_of(5, sequence=500)
    assert two_phase.last_checkpoint("other") is None


def test_doris_random_faults_keep_every_row_once(doris: DorisEmulator, sink: DorisSink) -> None:
    for place, faults in {
        "load": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE, Fault.PUBLISH_TIMEOUT],
        "commit": [Fault.DROP_ANSWER, Fault.RESET, Fault.HTTP_500, Fault.ERROR_DONE, Fault.ERROR],
        "state": [Fault.HTTP_500, Fault.DROP_ANSWER],
    }.items():
        for fault in faults:
            doris.faults.order(place, fault, times=10**6, chance=0.08)
    written: dict[int, str] = {}
    loads: list[PreparedLoad] = []
    sequence = 0
    for checkpoint in range(1, 26):
        rows_by_name = []
        for task in range(2):
            rows = []
            for number in range(4):
                sequence += 1
                key, gone = (checkpoint * 3 + task + number * 5) % 17, number == checkpoint % 4
                rows.append((key, f"v{sequence}", gone, sequence))
                written[key] = "" if gone else f"v{sequence}"
            rows_by_name.append((name_of(checkpoint, task), rows))
        prepared = [
            _until_done(lambda name=name, rows=rows: write(sink, *rows, name=name)) for name, rows in rows_by_name
        ]
        _until_done(lambda prepared=prepared, checkpoint=checkpoint: sink.commit(prepared, mark_of(checkpoint)))
        loads += prepared
    assert len(doris.faults.struck) > 20
    expected = sorted((key, value) for key, value in written.items() if value)
    assert sorted(doris.rows("SELECT * FROM ods.orders")) == expected
    committed_once(doris, labels(*loads))


def _until_done(step):  # type: ignore[no-untyped-def]
    for _ in range(50):
        try:
            return step()
        except SinkUnavailable:
            continue
    raise AssertionError("50 tries were not enough")
