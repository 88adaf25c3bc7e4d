"""The checker finds its faults, and short walks have none. ``make stress`` runs long walks between all pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.soak.__main__ as stress
from cdc.errors import CdcError, PrerequisiteError
from tests.conftest import unavailable
from tests.emulators.canal import obtain_canal
from tests.soak.checker import Checker, Promise
from tests.soak.pairs import Source, Target
from tests.soak.random_walk import Group, Row, Walk
from tests.soak.run import Outcome, _walk, run
from tests.support.seeds import VARIABLE

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
        ([{A: 7}], Promise.IN_THE_END, (A,), "never reached step 8: 7"),
        ([{}], Promise.IN_THE_END, (A,), "never reached step 8: None"),
        ([{A: 1, B: 1}, {A: 8, B: 8}], Promise.IN_THE_END, (A,), "never written"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 4}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.IN_ORDER, (A, B), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.TABLE_AT_ONCE, (A, C), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.ALL_AT_ONCE, (A, C), "half a transaction"),
    ],
)
def test_checker_finds_each_fault(
    reads: list[dict[Row, int]], promise: Promise, rows: tuple[Row, ...], expected: str
) -> None:
    found = faults(reads, promise, rows)
    assert any(expected in fault for fault in found) if expected else found == []


def test_checker_finds_rows_that_were_not_written_yet() -> None:
    assert "the source has only started 2" in faults([{A: 3}], Promise.IN_THE_END, begun=2)[0]


def test_walk_of_a_job_that_never_catches_up_has_a_fault() -> None:
    class Stuck:
        def start(self) -> None:
            raise CdcError("The job did not catch up.", hint="See its log.")

    class Server:
        def connect(self, database: str) -> None:
            raise ConnectionError

    ends = (Source("", lambda: None), Target("", Promise.IN_ORDER, dict, lambda table: None))
    outcome = _walk(Server(), Stuck(), ends, ("binlog", "delta", 7), seconds=1)  # type: ignore[arg-type]
    assert outcome.kills == 0 and "The job did not catch up." in outcome.faults[0]


def test_walk_that_ends_early_is_a_row_and_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def walk(folder: Path, source: str, target: str, *, seconds: float, seed: int) -> Outcome:
        if target == "delta":
            raise TimeoutError("nothing became visible")
        return Outcome(source, target, seed, 5, 1, 800, 2000, 900, ())

    monkeypatch.setenv(VARIABLE, "0")  # restored afterwards
    monkeypatch.setattr(stress, "run", walk)
    monkeypatch.setattr("sys.argv", ["stress", "--seed", "7", "binlog:delta", "binlog:doris"])
    with pytest.raises(SystemExit) as ended:
        stress.main()
    assert ended.value.code == 1
    output = capsys.readouterr().out
    summary = output[output.rindex("Walks under kills") :]
    assert "delta" in summary and "doris" in summary and "800" in summary
    assert "binlog -> delta: the walk ended early: TimeoutError: nothing became visible" in summary
    assert f"{VARIABLE}=7" in output


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("binlog", "delta", 16), pytest.param("canal", "starrocks-multi", 27, marks=pytest.mark.canal)],
)
def test_short_walk_has_no_fault(tmp_path: Path, source: str, target: str, seed: int) -> None:
    if source == "canal":
        try:
            obtain_canal()
        except PrerequisiteError as error:
            unavailable(str(error))
    outcome = run(tmp_path, source, target, seconds=15, seed=seed)
    assert outcome.faults == ()
    assert outcome.groups > 60 and outcome.views > 3
