"""Faults between keys of a job file: a table mapped twice, a target used twice, keys that do not go together.

They are told even where other parts of the file are not valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc.jobfile import Fault, Node
from cdc.names import TableName, parsed_table


def crossing(root: Node) -> list[Fault]:
    """Every such fault."""
    return [*_mapped_twice(root), *_out_of_place(root), *_speculative(root)]


def _mapped_twice(root: Node) -> Iterator[Fault]:
    """A source table mapped twice and a target used twice, each naming the other place."""
    seen: dict[str, list[tuple[TableName, int, int]]] = {"source": [], "target": []}
    for index, channel in enumerate(root.items("channels")):
        for side, others in seen.items():
            node = channel.get(side)
            parsed = parsed_table(node.value) if node is not None else None
            if node is None or parsed is None:
                continue
            name, path = str(parsed), ("channels", index, side)
            for other, other_index, other_line in others if side == "source" or not parsed.is_pattern else ():
                place = f"by channels[{other_index}] (line {other_line})"
                if parsed == other or (side == "target" and parsed.plain.lower() == other.plain.lower()):
                    what = "is mapped already" if side == "source" else "is used already"
                    yield Fault(node.line, path, f"{name} {what} {place}; one source table goes to one target table")
                elif side == "source" and (parsed.includes(other) or other.includes(parsed)):
                    yield Fault(node.line, path, f"{name} overlaps with {other}, mapped {place}")
            others.append((parsed, index, node.line))


def _out_of_place(root: Node) -> Iterator[Fault]:
    """Keys of a channel that do not go with each other or with the sink."""
    sink_type = (root.get("sink") or root).get("type")
    for index, channel in enumerate(root.items("channels")):
        path = ("channels", index)
        source, target, tables = channel.get("source"), channel.get("target"), channel.get("tables")
        names = [parsed_table(node.value) for node in (source, target) if node]
        if target and len({name.is_pattern for name in names if name}) > 1:
            yield Fault(target.line, (*path, "target"), "source and target both take one *, or neither does")
        if tables and sink_type and sink_type.value == "delta":
            yield Fault(
                tables.line, (*path, "tables"), "is for the sinks doris and starrocks; Delta tables have none of it"
            )


def _speculative(root: Node) -> Iterator[Fault]:
    """A second copy of a Spark task that runs beside the first one would write the first one's rows."""
    name = "spark.speculation"
    node = ((root.get("spark") or root).get("conf") or root).get(name)
    if node is not None and str(node.value).lower() == "true":
        told = "must stay off: a task and its copy would load the same rows side by side"
        yield Fault(node.line, ("spark", "conf", name), told)
