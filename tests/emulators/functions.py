"""Functions of Doris and StarRocks in DuckDB's dialect, as their manuals define them. Unknown ones are refused."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp, parse_one


def translate_functions(tree: exp.Expression) -> Iterator[str]:
    """Replace functions that DuckDB has under another name or definition. Yield the names of unknown ones."""
    for node in reversed(list(tree.find_all(exp.Length, exp.Anonymous, exp.Cast))):  # inner ones first
        match node:
            case exp.Cast() if node.is_type(*exp.DataType.TEXT_TYPES):
                _keep_zero(node)
            case exp.Cast():
                if node.is_type(*exp.DataType.TEMPORAL_TYPES):  # DuckDB's types with other digits have other ranges
                    node.to.set("expressions", None)
            case exp.Length():  # in bytes
                node.replace(exp.Anonymous(this="strlen", expressions=[node.this.copy()]))
            case exp.Anonymous(name=name) if name.upper() == "CONV":
                value, base, to = node.expressions
                if (base.name, to.name) != ("16", "10"):
                    yield node.sql()
                digits = exp.DPipe(this=exp.Literal.string("0x"), expression=value.copy())
                node.replace(exp.cast(exp.cast(digits, "BIGINT"), "TEXT"))
            case _:
                yield node.name


def _keep_zero(cast: exp.Cast) -> None:
    """Both products print the zero before the point, which DuckDB omits if a DECIMAL has no digit there."""
    value = cast.this.sql("duckdb")
    text = f"CAST({value} AS TEXT)"
    plain = f"regexp_replace({text}, '^(-?)\\.', '\\1' || '0.')"
    kept = f"CASE WHEN typeof({value}) LIKE 'DECIMAL%' THEN {plain} ELSE {text} END"
    cast.replace(exp.paren(parse_one(kept, dialect="duckdb"), copy=False))
