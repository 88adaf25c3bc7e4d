"""The checker finds what it is for, and short walks find nothing; ``make stress`` walks long, between all pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.stress.__main__ as stress
from cdc.errors import CdcError, SurroundingsError
from tests.conftest import unavailable
from tests.seeds import VARIABLE
from tests.servers.canal import obtain_canal
from tests.stress.checker import Checker, Promise
from tests.stress.pairs import Source, Target
from tests.stress.run import Outcome, _walk, run
from tests.stress.walk import Group, Row, Walk

A, B, C = ("left_feet", 1), ("left_feet", 2), ("right_feet", 1)


def faults(reads: list[dict[Row, int]], promise: Promise, rows: tuple[Row, ...] = (A,), begun: int = 8) -> list[str]:
    walk = Walk()
    group = Group(rows, begun=begun, done=begun)
    walk.groups.append(group)
    walk.by_row |= dict.fromkeys(rows, group)
    checker = Checker(walk, promise)
    for read in reads[:-1]:
        checker.observe(read)
    checker.at_rest(reads[-1])
    return checker.faults


@pytest.mark.parametrize(
    ("reads", "promise", "rows", "expected"),
    [
        ([{}, {A: 1}, {A: 3}, {}, {A: 6}, {A: 8}], Promise.IN_ORDER, (A,), ""),
        ([{}, {A: 6}, {A: 8}], Promise.IN_ORDER, (A,), ""),
        ([{A: 4}, {A: 3}, {A: 8}], Promise.IN_ORDER, (A,), "went back from step 4 to 3"),
        ([{A: 4}, {A: 3}, {A: 8}], Promise.IN_THE_END, (A,), ""),
        ([{A: 4}, {}, {A: 4}, {A: 8}], Promise.IN_ORDER, (A,), "went back from step 5 to 4"),
        ([{A: 7}, {}, {A: 8}], Promise.IN_ORDER, (A,), "is gone"),
        ([{A: 7}], Promise.IN_THE_END, (A,), "never came to step 8: 7"),
        ([{}], Promise.IN_THE_END, (A,), "never came to step 8: None"),
        ([{A: 1, B: 1}, {A: 8, B: 8}], Promise.IN_THE_END, (A,), "never written"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 4}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.IN_ORDER, (A, B), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.TABLE_AT_ONCE, (A, C), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.ALL_AT_ONCE, (A, C), "half a transaction"),
    ],
)
def test_the_checker_finds(reads: list[dict[Row, int]], promise: Promise, rows: tuple[Row, ...], expected: str) -> None:
    found = faults(reads, promise, rows)
    assert any(expected in fault for fault in found) if expected else found == []


def test_the_checker_finds_rows_from_the_future() -> None:
    assert "the source has only begun 2" in faults([{A: 3}], Promise.IN_THE_END, begun=2)[0]


def test_a_job_that_never_catches_up_is_a_fault_of_its_walk() -> None:
    class Stuck:
        def start(self) -> None:
            raise CdcError("The job did not get there.", mend="See its log.")

    class Server:
        def connect(self, database: str) -> None:
            raise ConnectionError

    ends = (Source("", lambda: None), Target("", Promise.IN_ORDER, dict, lambda table: None))
    outcome = _walk(Server(), Stuck(), ends, ("binlog", "delta", 7), seconds=1)  # type: ignore[arg-type]
    assert outcome.kills == 0 and "The job did not get there." in outcome.faults[0]


def test_pairs_that_end_early_are_rows_of_the_summary_and_the_others_are_walked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def walk(folder: Path, source: str, target: str, *, seconds: float, seed: int) -> Outcome:
        if target == "delta":
            raise TimeoutError("nothing became visible")
        return Outcome(source, target, seed, 5, 1, 800, 2000, 900, ())

    monkeypatch.setenv(VARIABLE, "0")  # put back afterwards
    monkeypatch.setattr(stress, "run", walk)
    monkeypatch.setattr("sys.argv", ["stress", "--seed", "7", "binlog:delta", "binlog:doris"])
    with pytest.raises(SystemExit) as ended:
        stress.main()
    assert ended.value.code == 1
    told = capsys.readouterr().out
    summary = told[told.rindex("Walks under kills") :]
    assert "delta" in summary and "doris" in summary and "800" in summary
    assert "binlog -> delta: the walk ended early: TimeoutError: nothing became visible" in summary
    assert f"{VARIABLE}=7" in told


@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("binlog", "delta", 16), pytest.param("canal", "starrocks-multi", 27, marks=pytest.mark.canal)],
)
def test_a_short_walk(tmp_path: Path, source: str, target: str, seed: int) -> None:
    if source == "canal":
        try:
            obtain_canal()
        except SurroundingsError as error:
            unavailable(str(error))
    outcome = run(tmp_path, source, target, seconds=15, seed=seed)
    assert outcome.faults == ()
    assert outcome.groups > 60 and outcome.views > 3
