"""Log lines: UTC time, level, job, message, then the ``extra`` values as key=value.

Every line is masked: it never has a secret of the job file, even if a library logs it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

SECRET_LEAST = 4  # shorter secrets are not masked, because they are parts of ordinary words
HIDDEN = "[hidden]"
SECRET_SETTING = re.compile(
    r"(?i)secret|password|passphrase|token|credential|webhook|access[.]?key|ssl[.]key[.]pem|api[-_.]?key"
    r"|(account|sas|private)[._]?key(?![._]?(id|file|location|path))"
)  # settings whose value is secret
# of an address, such as sc://host;token=..., or of a setting with several parts: password="...", also quoted in YAML
SECRET_PARAMETER = re.compile(
    r"(?i)(?<![\w-])([\w-]*(?:token|password|secret|api-key))="
    r"""(?:\\?"(?=[^"\s])[^"\n]+|'{1,2}(?=[^'\s])[^'\n]+|[^;&\s"']+)"""
)
LINE_BYTES_MOST = 4096  # upper bound of the average line, tracebacks included
FOLLOW_S = 0.3
_QUIET = {"py4j": logging.ERROR, "uvicorn": logging.WARNING, "asyncio": logging.WARNING, "numba": logging.WARNING}
_QUIET["sqlalchemy"] = logging.CRITICAL  # it logs a lost connection with a traceback; the store reports it
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
        """Mask these secrets too from now on."""
        self._known |= {form for secret in secrets if len(secret) >= SECRET_LEAST for form in _forms(secret)}
        # longest first, because one secret may begin with another
        found = sorted(self._known, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A traceback follows on separate lines."""
        # masked before it is escaped: the text of a secret with a quote or a line break is another one afterwards
        message = self.masked(record.getMessage()).replace("\r", "\\r").replace("\n", "\\n")
        extra = "".join(
            f" {name}={_shown(self.masked(str(value)))}" for name, value in vars(record).items() if name not in _OWN
        )
        text = f"{self.formatTime(record)} {record.levelname} {self._job} {message}{extra}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return self.masked(text)

    def masked(self, text: str) -> str:
        """Return ``text`` without the secrets."""
        return self._secrets.sub(HIDDEN, text) if self._secrets else text


def set_up_logs(job: str, *, secrets: Sequence[str] = (), debug: bool = False, stream: TextIO | None = None) -> None:
    """Send all logs of this process to ``stream`` (stderr) in this form. Libraries log warnings or errors only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(job, secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # py4j uses the root logger: at INFO it logs a stack trace when the JVM of a job ends
    root.setLevel(logging.WARNING)
    for own in ("cdc", "channels", "spark", "__main__"):  # the supervisor runs as __main__
        logging.getLogger(own).setLevel(logging.DEBUG if debug else logging.INFO)
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)


def hide(secrets: Sequence[str]) -> None:
    """Mask these secrets too in all lines from now on: a job file that is read again may have new secrets."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.hide(secrets)


def basic_token(username: str, password: str) -> str:
    """Return the credentials as in the header Authorization: base64, which is as secret as the password."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def masked(text: str) -> str:
    """Return ``text`` without the secrets, for text that is shown outside the log, such as the reason of a pause."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            text = handler.formatter.masked(text)
    return text


def _forms(secret: str) -> set[str]:
    """Return the forms in which a text can have ``secret``: as it is, and escaped by JSON or ``repr``."""
    escaped = json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), repr(secret.encode())[1:]
    return {secret, *(text[1:-1] for text in escaped)}


def _shown(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def last_lines(log: Path, number: int, end: int | None = None) -> list[str]:
    """Return the last ``number`` lines of a log, up to the offset ``end``. Only the end of the file is read."""
    with log.open("rb") as file:
        if end is None:
            end = file.seek(0, os.SEEK_END)
        start = max(0, end - LINE_BYTES_MOST * number)
        file.seek(start)
        lines = file.read(end - start).decode("utf-8", "replace").splitlines()
    return lines[-number:] if number else []


def follow_log(log: Path) -> Iterator[str]:
    """Yield lines as they are written, until the log is deleted. A truncated log is read from its start."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        held = b""
        while True:
            piece = file.read(1 << 16)
            if not piece:
                known = os.fstat(file.fileno())
                if not known.st_nlink:  # `cdc stop --forget` has deleted the log
                    return
                if known.st_size < file.tell():
                    file.seek(0)
                time.sleep(FOLLOW_S)
                continue
            *lines, held = (held + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
