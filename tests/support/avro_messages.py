"""Debezium's JSON messages with schemas as Avro messages, written by fastavro."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import fastavro

_TYPES = {"int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double",
          "boolean": "boolean", "string": "string", "bytes": "bytes"}  # fmt: skip


def avro_schema(connect: dict[str, Any], name: str = "Envelope", space: str = "s") -> Any:
    """Return a Connect schema as the AvroConverter writes it. ``before`` and ``after`` share one record."""
    if connect["type"] == "struct":
        fields = []
        for field in connect["fields"]:
            inner = "Value" if field["field"] in ("before", "after") else f"{name}_{field['field']}"
            kind = f"{space}.Value" if field["field"] == "after" else avro_schema(field, inner, space)
            kind = ["null", kind] if field.get("optional") else kind
            fields.append(
                {"name": field["field"], "type": kind, **({"default": None} if field.get("optional") else {})}
            )
        return {"type": "record", "name": name, "namespace": space, "fields": fields}
    plain = _TYPES[connect["type"]]
    extra = {
        "connect.type": connect["type"] if connect["type"] in ("int8", "int16") else None,
        "connect.name": connect.get("name"),
        "connect.parameters": connect.get("parameters"),
        "connect.default": connect.get("default"),
    }
    extra = {key: value for key, value in extra.items() if value is not None}
    return {"type": plain, **extra} if extra else plain


def avro_value(connect: dict[str, Any], value: Any) -> Any:
    """Return a JSON value as fastavro takes it."""
    if value is None:
        return None
    if connect["type"] == "struct":
        return {field["field"]: avro_value(field, value.get(field["field"])) for field in connect["fields"]}
    return base64.b64decode(value) if connect["type"] == "bytes" else value


def avro_message(number: int, schema: Any, value: Any) -> bytes:
    """Return a message with its head."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, number) + out.getvalue()
