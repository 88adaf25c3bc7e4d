"""Logs: one line an event, UTC, level, job, message, then what travels as ``extra`` in the form key=value.

Secrets of the job file never reach a line, whoever logs them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

SECRET_LEAST = 4  # masking shorter ones would only shred words
HIDDEN = "[hidden]"
SECRET_SETTING = re.compile(r"(?i)secret|password|token|access[.]?key|credential")  # a setting whose value is one
LINE_BYTES_MOST = 4096  # that a line has on average at the very most, tracebacks included
FOLLOW_S = 0.3
_QUIET = {"py4j": logging.ERROR, "uvicorn": logging.WARNING, "asyncio": logging.WARNING, "numba": logging.WARNING}
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"=]+")


class LineFormatter(logging.Formatter):
    """``2026-01-01T00:00:00.123Z INFO shop Committed. rows=120 bytes=9000``."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, job: str, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._job = job
        self._known: frozenset[str] = frozenset()
        self._secrets: re.Pattern[str] | None = None
        self.hide(secrets)

    def hide(self, secrets: Sequence[str]) -> None:
        """Mask these from now on, beside those that are masked already."""
        self._known |= {secret for secret in secrets if len(secret) >= SECRET_LEAST}
        # longest first: one secret may begin with another
        found = sorted(self._known, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None

    def format(self, record: logging.LogRecord) -> str:
        """The whole line; a traceback follows on lines of its own."""
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        extra = "".join(f" {name}={_shown(value)}" for name, value in vars(record).items() if name not in _OWN)
        text = f"{self.formatTime(record)} {record.levelname} {self._job} {message}{extra}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self.masked(text)

    def masked(self, text: str) -> str:
        """``text`` without the secrets."""
        return self._secrets.sub(HIDDEN, text) if self._secrets else text


def set_up_logs(job: str, *, secrets: Sequence[str] = (), debug: bool = False, stream: TextIO | None = None) -> None:
    """Send every log of this process to ``stream`` (stderr) in our form, and quieten chatty libraries."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(job, secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for ours in ("cdc", "channels", "spark"):
        logging.getLogger(ours).setLevel(logging.DEBUG if debug else logging.INFO)
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)


def hide(secrets: Sequence[str]) -> None:
    """Keep these too out of every line from now on: a job file that is read again may have new ones."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.hide(secrets)


def masked(text: str) -> str:
    """``text`` without the secrets that no line shows: for what is told elsewhere, as the reason of a pause is."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            text = handler.formatter.masked(text)
    return text


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def last_lines(log: Path, number: int) -> list[str]:
    """The last lines of a log, read from its end."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - LINE_BYTES_MOST * number)
        file.seek(start)
        lines = file.read(end - start).decode("utf-8", "replace").splitlines()
    return lines[-number:] if number else []


def follow_log(log: Path) -> Iterator[str]:
    """Lines as they are written, until the log is deleted; one that is begun anew is read from its start."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        held = b""
        while True:
            piece = file.read(1 << 16)
            if not piece:
                known = os.fstat(file.fileno())
                if not known.st_nlink:  # the job is forgotten
                    return
                if known.st_size < file.tell():
                    file.seek(0)
                time.sleep(FOLLOW_S)
                continue
            *lines, held = (held + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
