"""Text files that a command line names."""

from __future__ import annotations

from pathlib import Path

from cdc.errors import ConfigError


def read_text_file(file: str | Path, what: str = "The file", hint: str = "Give the path of a readable file.") -> str:
    """Return the text of a UTF-8 file. ``what``: for the message. Raises: ConfigError - it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = "the path is not valid"  # it contains a zero byte
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise ConfigError(f"{what} cannot be read: {reason}.", hint=hint, file=file) from error
