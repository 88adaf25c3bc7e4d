"""The protobuf definition of Canal's messages against frames and entries recorded from Canal 1.1.8."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from cdc.sources.canal.connection import scramble411
from cdc.sources.canal.protocol_pb2 import (
    Ack,
    BatchRef,
    ClientAuth,
    Entry,
    Get,
    Handshake,
    Messages,
    Packet,
    RowChange,
    Subscription,
    TransactionEdge,
)
from tests.emulators.canal_frames import recorded

GOLDEN = Path(__file__).parents[4] / "data/canal/golden.jsonl"
BODIES = {
    "HANDSHAKE": Handshake,
    "CLIENTAUTHENTICATION": ClientAuth,
    "ACK": Ack,
    "SUBSCRIPTION": Subscription,
    "UNSUBSCRIPTION": Subscription,
    "GET": Get,
    "MESSAGES": Messages,
    "CLIENTACK": BatchRef,
    "CLIENTROLLBACK": BatchRef,
}


def test_scramble411_equals_the_protocol() -> None:
    seed = bytes(range(1, 9))
    assert scramble411("canal", seed) == "7de44690d8e53782cb61804a2455c284a3bbfb06"
    assert scramble411("", seed) == "ed26d729f84a104ddef91f5ba7b5174f537fad40"


def test_scramble411_is_accepted_by_a_server_with_the_hash() -> None:
    stored = hashlib.sha1(hashlib.sha1(b"canal").digest()).digest()
    mask = hashlib.sha1(b"12345678" + stored).digest()
    token = bytes.fromhex(scramble411("canal", b"12345678"))
    assert hashlib.sha1(bytes(a ^ b for a, b in zip(token, mask, strict=True))).digest() == stored


def test_recorded_frames_are_parsed_and_serialized_unchanged() -> None:
    frames = recorded()
    assert len(frames) > 40
    for frame in frames:
        packet = Packet.FromString(frame.data[4:])
        assert Packet.Kind.Name(packet.kind).replace("_", "") == frame.kind
        assert packet.SerializeToString() == frame.data[4:]
        body = BODIES.get(frame.kind)
        if body is not None:
            assert body.FromString(packet.body).SerializeToString() == packet.body


def test_recorded_entries_have_no_unknown_fields() -> None:
    kinds = {
        Entry.TRANSACTION_BEGIN: TransactionEdge,
        Entry.TRANSACTION_END: TransactionEdge,
        Entry.ROW_DATA: RowChange,
    }
    for line in GOLDEN.read_text().splitlines():
        data = json.loads(line)
        if "entry" not in data:
            continue
        entry = Entry.FromString(base64.b64decode(data["entry"]))
        inner = kinds[entry.kind].FromString(entry.store_value)
        for message in (entry, inner):
            reduced = type(message).FromString(message.SerializeToString())
            reduced.DiscardUnknownFields()
            assert reduced == message


@pytest.mark.parametrize("name", ["protocol_pb2.py", "protocol_pb2.pyi"])
def test_generated_module_equals_the_protocol_file(name: str, tmp_path: Path) -> None:
    from grpc_tools import protoc

    root = Path(__file__).parents[5]
    arguments = ["protoc", f"-I{root}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([*arguments, str(root / "cdc/sources/canal/protocol.proto")]) == 0
    generated = (tmp_path / "cdc/sources/canal" / name).read_text()
    assert generated == (root / "cdc/sources/canal" / name).read_text()
