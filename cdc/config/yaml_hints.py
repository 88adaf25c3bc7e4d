"""Corrections of the usual mistakes in YAML, because the messages of PyYAML name the tokens of its grammar."""

from __future__ import annotations

_INDENTATION = "check the indentation of this line and of the lines above it, and the colon after each key"
_QUOTES = "put the value in quotes"
# words of PyYAML's message, and the correction; the first match counts
_HINTS = (
    ("'\\t'", "indent with spaces instead of tabs"),
    ("while scanning an alias", f"{_QUOTES} if it begins with *"),
    ("while scanning an anchor", f"{_QUOTES} if it begins with &"),
    ("that cannot start any token", _QUOTES),
    ("mapping values are not allowed here", _INDENTATION),
    ("expected <block end>", _INDENTATION),
    ("could not find expected ':'", _INDENTATION),
)


def with_yaml_hint(problem: str) -> str:
    """Return the message of PyYAML with a correction, if the cause is known."""
    hint = next((hint for words, hint in _HINTS if words in problem), None)
    return f"{problem}; {hint}" if hint else problem
