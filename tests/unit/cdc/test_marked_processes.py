from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.marked_processes import processes_with

_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_VARIABLE = "CDC_TEST_MARK"


@contextmanager
def sleeping(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env={**os.environ, _VARIABLE: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has its environment
        yield process
        process.kill()


def test_process_with_the_value_is_found() -> None:
    with sleeping("one") as one, sleeping("two"):
        assert [process.pid for process in processes_with(_VARIABLE, "one")] == [one.pid]


def test_this_process_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping("one") as one:
        monkeypatch.setenv(_VARIABLE, "one")
        assert [process.pid for process in processes_with(_VARIABLE, "one")] == [one.pid]


@pytest.mark.skipif(not os.access(_LAST_PID, os.W_OK), reason="needs root: it chooses the next process id")
def test_process_with_the_id_of_an_earlier_one_can_be_killed() -> None:
    with sleeping("one") as earlier:
        assert processes_with(_VARIABLE, "one")
    for _ in range(1000):  # another process may take the id first
        _LAST_PID.write_text(f"{earlier.pid - 1}")
        with sleeping("one") as later:
            if later.pid != earlier.pid:
                continue
            (found,) = processes_with(_VARIABLE, "one")
            found.kill()
            assert later.wait(60) == -9
            return
    pytest.fail(f"process id {earlier.pid} was never free")
