"""A command for the fork server: it prints what it is, and does what its first argument says.

``exit N`` ends with that code, ``raise`` fails, ``wait`` waits for a signal, ``start WORDS`` starts itself as a child, and ``upgrade WORDS`` does so after its code has changed.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import psutil

from cdc.job import fork


def main() -> int:
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    itself = psutil.Process()
    print(
        json.dumps({
            "words": itself.cmdline(), "arguments": sys.argv[1:], "parent": os.getppid(), "session": os.getsid(0),
            "pid": os.getpid(), "blocked": blocked, "added": os.environ.get("ADDED"), "files": sorted({one.path for one in itself.open_files()}),
            "is_imported": "tests.integration.forked_program" in sys.modules,
        }),
        flush=True,
    )  # fmt: skip
    verb, *words = sys.argv[1:]
    if verb == "exit":
        return int(words[0])
    if verb == "raise":
        raise OSError("it fails")
    if verb == "wait":
        signal.pause()
    if verb == "upgrade":
        fork._imported = "of the code before"
    command = [sys.executable, "-m", "tests.integration.forked_program", *words]
    try:
        with fork.start_process(command, {**os.environ, "ADDED": "yes"}) as child:
            return child.wait(60)
    except OSError:
        return 99


if __name__ == "__main__":
    sys.exit(main())
