"""The stacks of a profile."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rig.profile import _python_stacks


def test_python_stacks_are_counted_by_kind_of_process_without_waits(tmp_path: Path):
    text = (
        'process 1:"cdc start";main (cdc/cli/main.py:5);run (cdc/job/job.py:7) 3\n'
        'process 1:"cdc start";main (cdc/cli/main.py:5);wait (threading.py:9) 50\n'
        'process 1:"cdc start";process 2:"python -c\nimport spark\n";process 3:"python";main (spark/frames.py:1) 4\n'
        'process 1:"cdc start";process 2:"python -c\nimport spark\n";process 3:"python";main (spark/frames.py:1) 5\n'
    )
    (tmp_path / "stacks").write_text(text)
    assert _python_stacks(tmp_path / "stacks") == {
        "driver": {"main (cdc/cli/main.py:5);run (cdc/job/job.py:7)": 3},
        "workers": {"main (spark/frames.py:1)": 9},
    }
