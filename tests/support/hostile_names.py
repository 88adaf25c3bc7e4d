"""Names of tables, databases and columns that a hostile source may have."""

from __future__ import annotations

HOSTILE = (
    *("../../../evil", "/etc/evil", "..", ".", "a/b", "a\\b", "\\\\host\\share", "nul\0byte", "tab\there", "line\nend"),
    *("\x01\x1f\x7f", "it's", 'a "quote"', "back`tick", "%2e%2e", "%2f", "100%", "%", "a%20b", "a#b?c=d", "[x]", "a:b"),
    *("dot.", "space ", " space", "~2f", "~", "emoji😀", "ü", "u\u0308", "T0", "t0", "_delta_log", "_cdc_staging"),
    *("_cdc_sink.json", ".hidden", "x" * 64, "ü" * 64, "*", "$(rm -rf /)", "; DROP TABLE x", "-rf", "CON", "a.b.c"),
    *("a%sb", "a,b", "a`,`id", "mv_x", "__op", "cdc_checkpoints", "a=b", "id2)", "a+b", "a;b"),
)
