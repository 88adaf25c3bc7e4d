"""The comparison of two checkouts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.rig import against
from benchmarks.rig.suite import Case, Options

PROGRAM = """
import json, os, pathlib, sys
number, rows = int(pathlib.Path("number").read_text()), int(sys.argv[1])
with open("../order", "a") as order:
    print(pathlib.Path.cwd().name, rows, file=order)
result = {"name": "a", "value": 1.0, "unit": "rows/s", "cpu_s_per_million": number}
pathlib.Path(os.environ["CDC_BENCH_RESULTS"], "a.json").write_text(json.dumps(result))
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"cpu_s_per_million": 4, "cpu_s": 9}, {"cpu_s_per_million": 2, "cpu_s": 9}, ("cpu_s_per_million", [4], [2])),
        ({"rows_per_cpu_s": 250_000}, {"rows_per_cpu_s": 500_000}, ("cpu_s_per_million", [4], [2])),
        ({"cpu_s": 9}, {"cpu_s_per_million": 2, "cpu_s": 6}, ("cpu_s", [9], [6])),
        ({"value": 3.0}, {"value": 5.0, "cpu_s": 6}, ("value", [3.0], [5.0])),
    ],
)
def test_summarize_compares_the_best_common_quantity(old, new, expected):
    assert against.summarize([({"a": old, "b": old}, {"a": new, "c": new})]) == {"a": expected}


def test_compare_runs_other_and_this_checkout_in_turns(tmp_path: Path, monkeypatch, capsys):
    for name, number in (("old", 4), ("new", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "number").write_text(str(number))
        (tmp_path / name / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(against, "ROOT", tmp_path / "new")
    monkeypatch.setattr(against, "command_of", lambda case: [sys.executable, "program.py", str(case.options.rows)])
    case = Case("end_to_end.a", lambda _: None, Options(rows=50_000))
    against.compare(case, tmp_path / "old", f"{sys.executable} program.py {{rows}}", 2, tmp_path)
    order = (tmp_path / "order").read_text().splitlines()
    assert order == ["old 20000", "new 20000", *["old 50000", "new 50000"] * 2]
    assert "0.5 (0.5 - 0.5)" in capsys.readouterr().out


def test_compare_with_a_failed_run_ends(tmp_path: Path):
    case = Case("end_to_end.a", lambda _: None)
    with pytest.raises(SystemExit, match="exit code 3"):
        against.compare(case, tmp_path, f"{sys.executable} -c 'raise SystemExit(3)'", 1, tmp_path)
