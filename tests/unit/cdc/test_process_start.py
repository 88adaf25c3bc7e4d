"""The start of a process: the same at each call, another one for a later process, none for an ended one."""

from __future__ import annotations

import os
import subprocess
import sys

from cdc.process_start import start_of


def test_start_of_identifies_a_process_until_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = start_of(child.pid)
        assert start and start == start_of(child.pid) != start_of(os.getpid())
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_of(child.pid) == ""  # a zombie
    assert start_of(child.pid) == ""
