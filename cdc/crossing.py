"""Faults between keys of a job file: a table mapped twice, a target used twice, keys that do not go together.

They are told even where other parts of the file are not valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from cdc.jobfile import Fault, Node


def crossing(root: Node) -> list[Fault]:
    """Every such fault."""
    return [*_mapped_twice(root), *_out_of_place(root), *_speculative(root)]


def _mapped_twice(root: Node) -> Iterator[Fault]:
    """A source table mapped twice and a target used twice, each naming the other place."""
    seen: dict[str, list[tuple[str, int, int]]] = {"source": [], "target": []}
    for index, channel in enumerate(root.items("channels")):
        for side, others in seen.items():
            node = channel.get(side)
            if node is None or not isinstance(node.value, str):
                continue
            name, path = node.value, ("channels", index, side)
            for other, other_index, other_line in others if side == "source" or "*" not in name else ():
                place = f"by channels[{other_index}] (line {other_line})"
                if name == other or (side == "target" and "*" not in name and name.lower() == other.lower()):
                    what = "is mapped already" if side == "source" else "is used already"
                    yield Fault(node.line, path, f"{name} {what} {place}; one source table goes to one target table")
                elif side == "source" and (fnmatchcase(name, other) or fnmatchcase(other, name)):
                    yield Fault(node.line, path, f"{name} overlaps with {other}, mapped {place}")
            others.append((name, index, node.line))


def _out_of_place(root: Node) -> Iterator[Fault]:
    """Keys of a channel that do not go with each other or with the sink."""
    sink_type = (root.get("sink") or root).get("type")
    for index, channel in enumerate(root.items("channels")):
        path = ("channels", index)
        source, target, tables = channel.get("source"), channel.get("target"), channel.get("tables")
        if source and target and ("*" in str(source.value)) != ("*" in str(target.value)):
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
