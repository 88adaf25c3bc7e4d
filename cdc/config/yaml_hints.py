"""Corrections of the usual mistakes in YAML, because the messages of PyYAML name the tokens of its grammar."""

from __future__ import annotations

import re

_INDENTATION = "check the indentation of this line and of the lines above it, and the colon after each key"
_QUOTES = "put the value in quotes"
# words of PyYAML's message, and the correction; the first match counts
_HINTS = (
    ("'\\t'", "indent with spaces instead of tabs"),
    ("while scanning an alias", f"{_QUOTES} if it begins with *"),
    ("undefined alias", f"{_QUOTES} if it begins with *"),
    ("while scanning an anchor", f"{_QUOTES} if it begins with &"),
    ("duplicate anchor", f"{_QUOTES} if it begins with &"),
    ("while scanning a tag", f"{_QUOTES} if it begins with !"),
    ("while parsing a tag", f"{_QUOTES} if it begins with !"),
    ("undefined tag handle", f"{_QUOTES} if it begins with !"),
    ("for the tag", f"{_QUOTES} if it begins with !"),
    ("that cannot start any token", _QUOTES),
    ("mapping values are not allowed here", _INDENTATION),
    ("expected <block end>", _INDENTATION),
    ("could not find expected ':'", _INDENTATION),
)
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")


def with_yaml_hint(problem: str) -> str:
    """Return the message of PyYAML with a correction, if the cause is known.

    A password without quotes can be read as the name of an anchor, an alias or a tag, so names are left out.
    """
    problem = _QUOTED.sub(_without_name, problem)
    hint = next((hint for words, hint in _HINTS if words in problem), None)
    return f"{problem}; {hint}" if hint else problem


def _without_name(quoted: re.Match[str]) -> str:
    """Return a character of the file or a token of the grammar as it is, and a longer text as '...'."""
    inside = quoted[1] or quoted[2] or ""
    return quoted[0] if len(inside) < 2 or inside.startswith(("\\", "<")) else "'...'"
