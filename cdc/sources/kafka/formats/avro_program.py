"""Avro schemas of change events as programs for ``avro_kernels``: one instruction per field, unions as jumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdc.sources.kafka.formats import avro_kernels as kernels

Path = tuple[str, ...]

OWN_RECORDS = "io.debezium.connector."  # heartbeats, transaction marks and DDL
_SIMPLE = {
    "null": kernels.NULL,
    "boolean": kernels.BOOLEAN,
    "int": kernels.VARINT,
    "long": kernels.VARINT,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "bytes": kernels.SIZED,
    "string": kernels.SIZED,
    "enum": kernels.VARINT,
}
_MOST_INSTRUCTIONS = 1 << 17  # a table of MySQL has up to 4,096 columns, each with a few instructions in two images
_MOST_BYTES = (1 << 31) - 1  # a message of Kafka is smaller
_CONNECT = {"int": "int32", "long": "int64"}
_ENVELOPE = (
    ("before",),
    ("after",),
    ("op",),
    ("source", "db"),
    ("source", "table"),
    ("source", "ts_ms"),
    ("source", "ts_us"),
)
BEFORE, AFTER, OP, DB, TABLE, TS_MS, TS_US = range(len(_ENVELOPE))


@dataclass(frozen=True, slots=True)
class AvroEvents:
    """How change events with one schema are read."""

    program: NDArray[np.int64]  # shape (instructions, 3)
    slots: Mapping[Path, int]
    fields: Mapping[str, Mapping[str, Any]]  # of the rows, as Kafka Connect describes them
    is_row: bool  # False: such messages have no rows


def events_of(schema: Any) -> AvroEvents:
    """Return how messages with ``schema`` are read.

    Raises: ValueError - they are not change events of Debezium, or the schema uses types that Debezium does not.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it is not a record")
    names = {str(field["name"]) for field in schema["fields"]}
    if not {"before", "after", "op", "source"} <= names:
        if _full_name(schema, "").startswith(OWN_RECORDS):
            return AvroEvents(np.empty((0, 3), np.int64), {}, {}, False)
        raise ValueError("it has no `before`, `after`, `op` and `source`")
    compiler = _Compiler()
    compiler.add(schema, (), "", frozenset())
    image = next(field["type"] for field in schema["fields"] if field["name"] == "before")
    record = next((one for one in (image if isinstance(image, list) else [image]) if one != "null"), None)
    if not isinstance(record, dict):
        raise ValueError("its `before` is not a record")
    fields = {str(field["name"]): compiler.connect_field(field) for field in record["fields"]}
    if missing := [name for name in fields if ("after", name) not in compiler.slots]:
        raise ValueError(f"its `after` does not have {missing[0]}, which is in `before`")
    return AvroEvents(np.array(compiler.code, np.int64), compiler.slots, fields, True)


def key_of(schema: Any) -> AvroEvents:
    """Return how keys with ``schema`` are read: as a before image. Raises: ValueError - see ``events_of``."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it is not a record")
    compiler = _Compiler()
    compiler.add(schema, ("before",), "", frozenset())
    fields = {str(field["name"]): compiler.connect_field(field) for field in schema["fields"]}
    return AvroEvents(np.array(compiler.code, np.int64), compiler.slots, fields, True)


def name_of(schema: Any) -> str:
    """Return the full name of a record; "" for another schema."""
    return _full_name(schema, "") if isinstance(schema, dict) and "name" in schema else ""


class _Compiler:
    def __init__(self) -> None:
        self.code: list[tuple[int, int, int]] = []
        self.slots: dict[Path, int] = {path: slot for slot, path in enumerate(_ENVELOPE)}
        self._named: dict[str, tuple[Any, str]] = {}  # full name: the type, and the namespace in it

    def add(self, node: Any, path: Path, space: str, outer: frozenset[str]) -> None:
        """Append the instructions of a type. ``outer``: the records that it is in. Raises: ValueError."""
        if len(self.code) > _MOST_INSTRUCTIONS:  # a named record in each of several others multiplies
            raise ValueError("it is too large")
        slot = self._slot(path)
        if isinstance(node, list):
            self._add_union(node, path, space, outer, slot)
            return
        kind = node if isinstance(node, str) else node["type"]
        if not isinstance(kind, str):
            self.add(kind, path, space, outer)
        elif kind in ("record", "fixed", "enum"):
            name = _full_name(node, space)
            self._named[name] = (node, name.rpartition(".")[0])
            self._add_named(node, path, name, outer, slot)
        elif kind in _SIMPLE:
            self.code.append((_SIMPLE[kind], slot, 1 if kind == "string" else 0))
        else:
            name = kind if kind in self._named or "." in kind else f"{space}.{kind}"
            if name not in self._named:
                raise ValueError(f"the type {kind} is not supported")
            self._add_named(self._named[name][0], path, name, outer, slot)

    def _add_named(self, node: Any, path: Path, name: str, outer: frozenset[str], slot: int) -> None:
        if node["type"] == "fixed":
            if not isinstance(node["size"], int) or not 0 <= node["size"] <= _MOST_BYTES:
                raise ValueError(f"the size of {name} is not from 0 to {_MOST_BYTES}")
            self.code.append((kernels.FIXED, slot, node["size"]))
            return
        if node["type"] == "enum":
            self.code.append((kernels.VARINT, -1, 0))
            return
        if name in outer:
            raise ValueError(f"the record {name} contains itself")
        self.code.append((kernels.RECORD, slot, 0))
        for field in node["fields"]:
            self.add(field["type"], (*path, str(field["name"])), self._named[name][1], outer | {name})

    def _add_union(self, node: list[Any], path: Path, space: str, outer: frozenset[str], slot: int) -> None:
        start = len(self.code)
        self.code.append((kernels.UNION, slot, len(node)))
        self.code += [(kernels.JUMP, -1, 0)] * len(node)
        ends = []
        for branch, kind in enumerate(node):
            self.code[start + 1 + branch] = (kernels.JUMP, -1, len(self.code))
            self.add(kind, path, space, outer)
            ends.append(len(self.code))
            self.code.append((kernels.JUMP, -1, 0))
        for end in ends:
            self.code[end] = (kernels.JUMP, -1, len(self.code))

    def _slot(self, path: Path) -> int:
        if len(path) == 2 and path[0] in ("before", "after"):
            self.slots.setdefault(path, len(self.slots))
        return self.slots.get(path, -1)

    def connect_field(self, field: Mapping[str, Any]) -> dict[str, Any]:
        """Return a field as Kafka Connect describes it in JSON."""
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        present = [kind for kind in kinds if kind != "null"]
        found: dict[str, Any] = {"field": field["name"], "optional": "null" in kinds, "default": field.get("default")}
        if len(present) != 1:
            return {**found, "type": "union"}
        kind = present[0]
        if isinstance(kind, str) and kind not in _SIMPLE:
            kind = next((node for name, (node, _) in self._named.items() if name.rpartition(".")[2] == kind), kind)
        if isinstance(kind, str):
            return {**found, "type": _CONNECT.get(kind, kind)}
        base = str(kind["type"])
        if base == "record":  # a geometry
            return {**found, "type": base}
        return {
            **found,
            "type": kind.get("connect.type") or _CONNECT.get(base, base),
            "name": kind.get("connect.name"),
            "parameters": kind.get("connect.parameters"),
            "default": kind.get("connect.default", field.get("default")),
        }


def _full_name(node: Mapping[str, Any], space: str) -> str:
    name = str(node["name"])
    space = str(node.get("namespace") or space)
    return name if "." in name or not space else f"{space}.{name}"
