"""Errors between keys of a job file: a table mapped twice, a target used twice, keys that exclude each other.

They are reported even if other parts of the file are not valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc.config.loader import ConfigIssue, Node
from cdc.model.table_names import TableName, parsed_table

_FALSE = ("false", "f", "no", "n", "off", "0", "0.0")  # values that the models read as false


def validate(root: Node) -> list[ConfigIssue]:
    """Return all errors between keys."""
    return [*_mapped_twice(root), *_misplaced(root), *_speculative(root), *_unnumbered(root)]


def _mapped_twice(root: Node) -> Iterator[ConfigIssue]:
    """Yield source tables that are mapped twice and targets that are used twice, with the line of the first use."""
    seen: dict[str, list[tuple[TableName, int, int]]] = {"source": [], "target": []}
    for index, channel in enumerate(root.items("channels")):
        for side, others in seen.items():
            node = channel.get(side)
            parsed = parsed_table(node.value) if node is not None else None
            if node is None or parsed is None:
                continue
            name, path = str(parsed), ("channels", index, side)
            for other, other_index, other_line in others if side == "source" or not parsed.is_pattern else ():
                first_use = f"by channels[{other_index}] (line {other_line})"
                if parsed == other or (side == "target" and parsed.plain.lower() == other.plain.lower()):
                    what = "is mapped already" if side == "source" else "is used already"
                    yield ConfigIssue(
                        node.line, path, f"{name} {what} {first_use}; each source table needs its own target table"
                    )
                elif side == "source" and (parsed.includes(other) or other.includes(parsed)):
                    yield ConfigIssue(node.line, path, f"{name} overlaps with {other}, mapped {first_use}")
            others.append((parsed, index, node.line))


def _misplaced(root: Node) -> Iterator[ConfigIssue]:
    """Yield keys of a channel that conflict with each other or with the sink."""
    sink_type = (root.get("sink") or root).get("type")
    for index, channel in enumerate(root.items("channels")):
        path = ("channels", index)
        source, target, tables = channel.get("source"), channel.get("target"), channel.get("tables")
        names = [parsed_table(node.value) for node in (source, target) if node]
        if target and len({name.is_pattern for name in names if name}) > 1:
            yield ConfigIssue(
                target.line, (*path, "target"), "source and target must both have one *, or neither of them"
            )
        if tables and sink_type and sink_type.value == "delta":
            yield ConfigIssue(
                tables.line, (*path, "tables"), "applies to the sinks doris and starrocks only; remove it"
            )


def _speculative(root: Node) -> Iterator[ConfigIssue]:
    """Yield an error if Spark may run a second copy of a task, because both copies would write the same rows."""
    name = "spark.speculation"
    node = ((root.get("spark") or root).get("conf") or root).get(name)
    if node is not None and str(node.value).lower() == "true":
        message = "must stay off: a task and its copy would load the same rows at the same time"
        yield ConfigIssue(node.line, ("spark", "conf", name), message)


def _unnumbered(root: Node) -> Iterator[ConfigIssue]:
    """Yield an error if executors would show rows at once.

    Executors number the rows of a range in the order in which messages arrive. If the range is read again, an older
    version of a row that is visible already may have a higher number than a newer one, which Doris then ignores.
    """
    read, two_phases = (root.get("source") or root).get("read"), (root.get("sink") or root).get("two_phase_commit")
    is_off = two_phases is not None and str(two_phases.value).lower() in _FALSE
    if two_phases is not None and is_off and read is not None and read.value == "executors":
        message = (
            "must be true with `source.read: executors`: a range that is read again needs loads that are not visible"
        )
        yield ConfigIssue(two_phases.line, ("sink", "two_phase_commit"), message)
