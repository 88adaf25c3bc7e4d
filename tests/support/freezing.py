"""A process that stops itself at an exact point."""

from __future__ import annotations

import signal
import threading


def freeze() -> None:
    """Stop this process until SIGCONT. The calling thread does nothing more before.

    ``os.kill`` signals the process: the kernel may stop another thread first, and this one a moment later.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
