"""The names that Doris creates.

Source: Doris, ``FeNameFormat.java``; ``stream_load_2pc.cpp``, which does not decode the database's name in the path.
"""

from __future__ import annotations

from dataclasses import replace

from channels.sinks.stream_load.name_rules import NameRules

_RESERVED = "(?!__DORIS_|__doris_|mva?_)"
_MORE = "A column's name does not begin with mv_, mva_ or __DORIS_."

DORIS_NAMES = NameRules(
    "Doris",
    "[a-zA-Z][a-zA-Z0-9_-]{0,63}",
    "[a-zA-Z][a-zA-Z0-9_-]{0,63}",
    _RESERVED + r"""[_a-zA-Z@0-9\s<>/][.a-zA-Z0-9_+,\-/><?@#$%^&*"\s:]{0,255}""",
    f"It begins with a letter and has letters of ASCII, digits, - and _ (columns: some other characters too). {_MORE}",
    unicode_databases=False,
    table_in_path=True,
)
_LETTER = r"[^\W\d_]"
DORIS_UNICODE_NAMES = replace(  # with the session variable enable_unicode_name_support
    DORIS_NAMES,
    table=rf"{_LETTER}(?:{_LETTER}|[0-9_-]){{0,63}}",
    column=rf"{_RESERVED}(?:{_LETTER}|[_@0-9])(?:{_LETTER}|[.0-9_+,\-/><?@#$%^&*]){{0,255}}",
    form=f"It begins with a letter and has letters, digits, - and _ (columns: some other characters too). {_MORE}",
)


def in_lower_case(rules: NameRules) -> NameRules:
    """Return the rules of a cluster with ``lower_case_table_names`` 1, which stores names in lower case."""
    form = f"{rules.form} lower_case_table_names is 1: a table's name has no capital letters."
    return replace(rules, table=rf"(?!.*[A-Z]){rules.table}", form=form)
