"""Read files that a user names: never without a limit, and never from a device."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from cdc.errors import ConfigError

TEXT_BYTES_MOST = 1 << 20


def read_limited(file: Path, most: int) -> bytes:
    """Return the first ``most`` bytes of a file and one more: a longer result means that the file is too large.

    A pipe of the shell, such as /dev/stdin or <(command), is read too. Raises: OSError - the file cannot be read, or
    reading it could block for ever or never end: a device, a socket, a named pipe.
    """
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISFIFO(mode) and _is_unnamed(file))):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with file.open("rb") as opened:
        return opened.read(most + 1)


def read_text_limited(file: Path, most: int) -> str:
    """Return the text of a file of at most ``most`` bytes, without a byte order mark. Line ends are \\n.

    Raises: OSError - see ``read_limited``, or the file is larger; UnicodeDecodeError - it is not UTF-8.
    """
    data = read_limited(file, most)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes")
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()


def read_text_file(file: str | Path, what: str = "The file", hint: str = "Give the path of a readable file.") -> str:
    """Return the text of a UTF-8 file of at most 1 MiB. ``what``: for the message.

    Raises: ConfigError - it cannot be read.
    """
    try:
        return read_text_limited(Path(file), TEXT_BYTES_MOST)
    except (OSError, ValueError) as error:
        reason = "the path is not valid"  # it contains a zero byte
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise ConfigError(f"{what} cannot be read: {reason}.", hint=hint, file=file) from error


def reading_problem(file: Path) -> str | None:
    """Return why a regular file cannot be read, as a part of a message; None: it can be read."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return f"{file} is not a regular file"
        with file.open("rb"):
            return None
    except (FileNotFoundError, ValueError):  # ValueError: with a NUL character
        return f"there is no file {file}"
    except OSError as error:  # not by ``Path.is_file``, which raises it up to Python 3.13
        return f"the file {file} cannot be read: {error.strerror}"


def _is_unnamed(pipe: Path) -> bool:
    """Return whether a pipe has no path: its link in /proc names none."""
    try:
        return not stat.S_ISFIFO(os.stat(os.path.realpath(pipe)).st_mode)  # noqa: PTH116 - resolve() raises for it
    except OSError:
        return True
