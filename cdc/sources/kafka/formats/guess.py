"""Guess the format of messages, for a hint when they cannot be read."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from google.protobuf.message import DecodeError

from cdc.sources.canal.protocol_pb2 import Packet
from cdc.sources.kafka.formats import avro_kernels
from cdc.sources.kafka.messages import MessageBlock

_LOOKED_AT = 20  # messages


def guess_format(block: MessageBlock) -> str | None:
    """Return the format of most of the first messages, by its name in the job file; None: there are no messages."""
    found: Counter[str] = Counter()
    for at, size in zip(block.value_at.tolist(), block.value_size.tolist(), strict=True):
        if size > 0 and found.total() < _LOOKED_AT:
            found[_format_of(block.data[at : at + size].tobytes())] += 1
    return found.most_common(1)[0][0] if found else None


def _format_of(value: bytes) -> str:
    if value[0] == 0 and len(value) >= avro_kernels.HEAD:
        return "debezium-avro"
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return "canal" if _is_packet(value) else "csv"
    return _format_of_document(document) if isinstance(document, dict) else "csv"


def _format_of_document(document: dict[str, Any]) -> str:
    payload = document.get("payload")
    envelope = payload if "schema" in document and isinstance(payload, dict) else document
    if "op" in envelope and ("before" in envelope or "after" in envelope):
        return "debezium-json"
    if {"database", "table", "type"} <= document.keys():
        if "isDdl" in document or isinstance(document.get("data"), list):
            return "canal-json"
        return "maxwell"
    return "json"


def _is_packet(value: bytes) -> bool:
    try:
        return Packet.FromString(value).kind == Packet.MESSAGES
    except DecodeError:
        return False
