"""Names as the servers read and refuse them: in statements, in the header ``columns``, and in URL paths.

Source: ``FeNameFormat.java`` of Doris and of StarRocks; Doris, ``path_trie.hpp``, ``stream_load_2pc.cpp``; StarRocks,
``PathTrie.java``, ``AstBuilder.java`` (``visitBackQuotedIdentifier``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from urllib.parse import unquote, unquote_plus

IDENTIFIER = r"(?:`(?:[^`]|``)+`|\w+)"
TABLE = rf"(?:{IDENTIFIER}\s*\.\s*)?{IDENTIFIER}"
_TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)
_INNER = r"`(?:[^`]|``)*`|'[^']*'|[^()`']"
_ENTRY = re.compile(rf"(?:`(?:[^`]|``)*`|\((?:{_INNER}|\((?:{_INNER})*\))*\)|[^,`(])+", re.DOTALL)

Unquote = Callable[[str], str]


def doubled(text: str) -> str:
    """Return the identifier ``text`` without its backticks; two of them within stand for one. As Doris reads it."""
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def dropped(text: str) -> str:
    """Return the identifier ``text`` without any backtick, those within it included. As StarRocks reads it."""
    return text.replace("`", "")


def without_inner_backticks(sql: str) -> str:
    """Return ``sql`` as StarRocks reads it: of an identifier all backticks but the outer ones are dropped."""

    def read(found: re.Match[str]) -> str:
        return f"`{dropped(found[0])}`" if found[0].startswith("`") else found[0]

    return _TOKEN.sub(read, sql)


def identifiers(text: str, unquote_name: Unquote) -> list[str]:
    """Return the parts of ``database.table``."""
    return [unquote_name(part) for part in re.findall(IDENTIFIER, text)]


def column_entries(header: str) -> list[str]:
    """Return the entries of a ``columns`` header, which both FEs parse as ``COLUMNS (...)`` in SQL."""
    return [entry.strip() for entry in _ENTRY.findall(header) if entry.strip()]


# ---- paths


def routed_segments(path: str, *, decode: Callable[[str], str] = unquote) -> list[str]:
    """Return the segments of a raw path as a PathTrie has them: split first, decoded then, ``..`` is a name."""
    return [decode(part) for part in path.split("/") if part]


def raw_segments(path: str) -> list[str]:
    """Return the segments as Doris' BE has them: as they were sent. Each action decodes them, or does not."""
    return routed_segments(path, decode=str)


def form_segments(path: str) -> list[str]:
    """Return the segments as StarRocks' FE has them, where ``+`` is a space."""
    return routed_segments(path, decode=unquote_plus)


def normal_segments(path: str) -> list[str]:
    """Return the segments as Jetty 9 and Spring have them: decoded first, path parameters and ``..`` resolved then."""
    decoded = unquote("/".join(part.partition(";")[0] for part in path.split("/")))
    return [part for part in posixpath.normpath(decoded).split("/") if part]


def is_ambiguous(path: str) -> bool:
    """Return whether Jetty 10 and later refuse the raw path: 400, Ambiguous URI."""
    segments = [part.lower().replace("%2e", ".") for part in path.split("/")[1:]]
    is_odd = any(part.partition(";")[0] in (".", "..", "") for part in segments[:-1]) or ";" in path
    return is_odd or re.search(r"%2f|%5c|%25|%0|%1|%7f", path, re.IGNORECASE) is not None


# ---- rules


class Misnamed(Exception):
    """A name that the server refuses, in its words."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class DorisNames:
    """What Doris calls a name. Letters of other scripts need the session variable enable_unicode_name_support."""

    def __init__(self, version: tuple[int, int], *, unicode_names: bool) -> None:
        letter = r"[^\W\d_]" if unicode_names else "[a-zA-Z]"
        is_new = version >= (2, 1)
        dash, odd = ("-", r".+,\-/?@#$%^&*<>") if is_new else ("", "")
        first, space = (r"\s/<>", r'"\s:') if is_new and not unicode_names else ("", "")
        self._common = rf"{letter}(?:{letter}|[0-9{dash}_]){{0,63}}"
        self._table = rf"{letter}(?:{letter}|[0-9{dash}_])*"
        self._column = rf"(?:{letter}|[_@0-9{first}])(?:{letter}|[0-9_{odd}{space}]){{0,255}}"

    def check_database(self, name: str) -> None:
        """Raises: Misnamed."""
        if not re.fullmatch(self._common, name):
            raise Misnamed(f"Incorrect database name '{name}'", 1102)

    def check_table(self, name: str) -> None:
        """Raises: Misnamed."""
        if not re.fullmatch(self._table, name):
            raise Misnamed(f"Incorrect table name '{name}'. Table name regex is '^{self._table}$'", 1103)
        if len(name) > 64:
            raise Misnamed(f"Table name length exceeds limit, the length of table name '{name}' is {len(name)} which "
                           "is greater than the configuration 'table_name_length_limit' (64).", 1059)  # fmt: skip

    def check_column(self, name: str) -> None:
        """Raises: Misnamed."""
        if not re.fullmatch(self._column, name) or name.startswith("__doris_shadow_"):
            raise Misnamed(f"Incorrect column name '{name}'. Column regex is '^{self._column}$'", 1166)
        if name.startswith(("mv_", "mva_")):
            raise Misnamed(f"Incorrect column name {name}, column name can't start with 'mv_'/'mva_'", 1105)


class StarrocksNames:
    """What StarRocks calls a name."""

    def __init__(self, *, shared_data: bool) -> None:
        self._column = "[^\0]{1,1024}" if shared_data else "[^\0=<>!*]{1,1024}"

    def check_database(self, name: str) -> None:
        """Raises: Misnamed."""
        rest = r"[\w\-~!@#$%^&<>=+]"
        if not re.fullmatch(rf"[a-zA-Z]{rest}{{0,255}}|_[a-zA-Z0-9]{rest}{{0,254}}", name, re.ASCII):
            raise Misnamed(f"Incorrect database name '{name}'", 1102)

    def check_table(self, name: str) -> None:
        """Raises: Misnamed."""
        if not re.fullmatch("[^\0]{1,1024}", name, re.DOTALL):
            raise Misnamed(f"Incorrect table name '{name}'", 1103)

    def check_column(self, name: str) -> None:
        """Raises: Misnamed."""
        if not re.fullmatch(self._column, name, re.DOTALL) or name.startswith("__starrocks_shadow_"):
            raise Misnamed(f"Incorrect column name '{name}'", 1166)
        if name.lower() in ("__op", "__row") or name.startswith("__generated_partition_column_"):
            raise Misnamed(f"Column name [{name}] is a system reserved name. Please choose a different one.", 1064)
