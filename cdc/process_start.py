"""Identify a process by its start: a later process with the same id has another one.

Source: proc(5), /proc/PID/stat and /proc/sys/kernel/random/boot_id.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the name
_ENDED = ("Z", "X", "x")


def start_of(pid: int) -> str:
    """Return the clock ticks from the boot to the start of a process, and the boot; "" if the process has ended.

    A time of day is not used, because it changes if the clock of the machine is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[_STATE] in _ENDED else f"{fields[_START]}-{_boot()}"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
