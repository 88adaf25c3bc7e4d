"""The names that StarRocks creates.

Source: StarRocks, ``FeNameFormat.java``; ``AstBuilder.java``, which drops every backtick of an identifier in quotes.
"""

from __future__ import annotations

from channels.sinks.stream_load.name_rules import NameRules

STARROCKS_NAMES = NameRules(
    "StarRocks",
    r"(?:[a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_\-~!@#$%^&<>=+]{0,254}",
    ".{1,1024}",
    r"(?!(?i:__op|__row)$|__generated_partition_column_|__starrocks_shadow_)[^=<>!*]{1,1024}",
    "A database's name begins with a letter, or with _ and a letter, and has letters of ASCII, digits and "
    "-_~!@#$%^&<>=+. A column's name has none of =<>!* and is not a reserved name (__op, __row).",
    unreadable="`",
)
