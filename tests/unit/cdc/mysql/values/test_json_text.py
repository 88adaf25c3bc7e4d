"""Binary JSON to text: documents of a real server, shortest doubles, damaged documents, partial updates."""

from __future__ import annotations

import json
import random
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.errors import DecodeError
from cdc.mysql.values import json_text as documents
from cdc.sources.binlog.decoder.partial_json import apply_diffs
from tests.unit.cdc.mysql.values.test_text import scattered

NESTED = (
    "00 02 00 31 00 12 00 01 00 13 00 01 00 05 01 00 02 14 00 61 62 05 00 1d 00 05 01 00 0b 13 00 0c 1b 00 04 00 00 04 01 00 "
    "00 00 00 00 00 00 04 40 01 78"
)
VECTORS = {
    NESTED: '{"a": 1, "b": [1, 2.5, "x", null, true]}',
    "05 ff ff": "-1",
    "07 00 80 00 00": "32768",
    "02 00 00 04 00": "[]",
    "04 00": "null",
    "": "null",
    "0f f6 0d 17 05 7f ff ff fe f2 04 c7 2d ff cf f3": "-1234567890.12300",
    "0f 0a 08 00 00 00 00 00 44 b2 19": '"2024-01-02"',
    "0f 0f 03 61 62 63": '"base64:type15:YWJj"',
}


def text_of(*values):
    array = documents.text_array(*scattered(values))
    array.validate(full=True)
    return array.to_pylist()


def double(value):
    return b"\x0b" + struct.pack("<d", value)


def test_text_array_equals_text_of_a_real_server():
    assert text_of(*map(bytes.fromhex, VECTORS), None) == [*VECTORS.values(), None]


@settings(deadline=None)  # the first example may compile kernels
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_doubles_round_trip_and_are_as_short_as_in_python(values):
    for value, printed in zip(values, text_of(*map(double, values)), strict=True):
        assert struct.pack("<d", float(printed)) == struct.pack("<d", value)
        assert _digits(printed) == _digits(repr(value))


def _digits(text):
    return text.lstrip("-").split("e")[0].replace(".", "").strip("0")


@pytest.mark.parametrize(
    ("value", "printed"),
    [(1.0, "1.0"), (-0.0, "-0.0"), (0.1, "0.1"), (1e14, "100000000000000.0"), (1e15, "1e15"), (123456789012345.0, "123456789012345.0"),
     (1234567890123456.0, "1.234567890123456e15"), (1234567890123456.8, "1234567890123456.8"), (1e20, "1e20"), (1.234e20, "1.234e20"),
     (1e-7, "0.0000001"), (1e-15, "0.000000000000001"), (1e-16, "1e-16"), (1.2345678901234567e-15, "0.0000000000000012345678901234568"),
     (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308")],
)  # fmt: skip
def test_doubles_have_exponents_like_the_server(value, printed):
    assert text_of(double(value)) == [printed]


def test_strings_are_escaped_like_the_server():
    everything = "".join(map(chr, range(128))) + "é漢😀/"
    raw = everything.encode()
    (printed,) = text_of(b"\x0c" + bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw)
    assert json.loads(printed) == everything
    assert (
        printed.startswith('"\\u0000\\u0001')
        and "\\b\\t\\n\\u000b\\f\\r" in printed
        and "/" in printed
        and "\\/" not in printed
    )


def test_text_array_invalid_utf8_raises_with_row():
    with pytest.raises(DecodeError, match="UTF-8") as caught:
        text_of(b"\x04\x00", b"\x0c\x01\xff")
    assert caught.value.context["row"] == 1


@settings(deadline=None)  # the first example may compile kernels
@given(st.binary(max_size=80))
def test_text_array_any_bytes_are_document_or_error(raw):
    try:
        text_of(raw)
    except DecodeError:
        return


def test_text_array_mutated_bytes_are_document_or_error():
    dice = random.Random(1)
    seeds = [bytes.fromhex(vector) for vector in VECTORS if vector]
    for _ in range(3_000):
        raw = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        if dice.random() < 0.2:
            del raw[dice.randint(1, len(raw)) :]
        try:
            text_of(bytes(raw))
        except DecodeError:
            continue


def test_text_array_recursive_document_ends_at_once():
    # given: an array of 1000 entries that all point at an array of 1000 entries that all point at ... (90 levels)
    level = struct.pack("<HH", 1000, 65535) + b"\x02\x00\x00" * 1000
    raw = bytearray(b"\x02" + level.ljust(65535, b"\0"))

    # when
    start = time.monotonic()
    with pytest.raises(DecodeError):
        text_of(bytes(raw))

    # then
    assert time.monotonic() - start < 60  # the kernel may be compiled first


def test_text_array_too_deep_document_raises():
    deep = b"\x02\x00\x00\x04\x00"
    for _ in range(200):
        deep = b"\x02" + struct.pack("<HH", 1, 7 + len(deep) - 1) + deep[:1] + struct.pack("<H", 7) + deep[1:]
    with pytest.raises(DecodeError):
        text_of(deep)


def difference(operation, path, value=b""):
    def counted(raw):
        return bytes([len(raw)]) + raw

    return bytes([operation]) + counted(path.encode()) + (counted(value) if operation != 2 else b"")


REPLACE, INSERT, REMOVE = 0, 1, 2
ONE = b"\x05\x01\x00"


def applied(before, *differences):
    data, starts, lengths = scattered([before])
    plain, places = apply_diffs(data, starts, lengths, *scattered([b"".join(differences)]))
    return documents.text_array(plain, places[:, 0].copy(), places[:, 1].astype(np.int32)).to_pylist()[0]


@pytest.mark.parametrize(
    ("differences", "after"),
    [
        ([], '{"a": 1, "b": [1, 2.5, "x", null, true]}'),
        ([bytes.fromhex("00 03 24 2e 61 03 05 02 00")], '{"a": 2, "b": [1, 2.5, "x", null, true]}'),
        ([difference(REMOVE, "$.b[0]"), difference(REMOVE, "$.b[0]")], '{"a": 1, "b": ["x", null, true]}'),
        ([difference(INSERT, "$.b[99]", ONE)], '{"a": 1, "b": [1, 2.5, "x", null, true, 1]}'),
        ([difference(INSERT, "$.b[1]", ONE)], '{"a": 1, "b": [1, 1, 2.5, "x", null, true]}'),
        ([difference(REPLACE, "$.b[last]", ONE)], '{"a": 1, "b": [1, 2.5, "x", null, 1]}'),
        ([difference(INSERT, '$."key with space"', ONE), difference(REMOVE, "$.b")], '{"a": 1, "key with space": 1}'),
        ([difference(INSERT, '$."q\\"\\\\"', ONE), difference(REMOVE, "$.b")], '{"a": 1, "q\\"\\\\": 1}'),
        ([difference(REPLACE, "$.b", bytes.fromhex(NESTED)), difference(REPLACE, "$.b.b", ONE)], '{"a": 1, "b": {"a": 1, "b": 1}}'),
        ([difference(REPLACE, "$.a[0]", b"\x04\x00")], '{"a": null, "b": [1, 2.5, "x", null, true]}'),
        ([difference(REPLACE, "$", ONE)], "1"),
    ],
)  # fmt: skip
def test_partial_update_changes_previous_document(differences, after):
    assert applied(bytes.fromhex(NESTED), *differences) == after


@pytest.mark.parametrize(
    "wrong",
    [difference(REPLACE, "$.zzz", ONE), difference(REMOVE, "$.b[9]"), difference(REMOVE, "$"), difference(INSERT, "$.a.b", ONE),
     difference(REPLACE, "a", ONE), difference(REPLACE, "$[", ONE), difference(7, "$.a", ONE), b"\x00\xfc", b"\x00\x09$", b"\x00",
     difference(REPLACE, "$.a", b"\x02\xff\xff\xff\xff"), difference(REPLACE, '$."\\x"', ONE)],
)  # fmt: skip
def test_partial_update_not_matching_document_raises(wrong):
    with pytest.raises(DecodeError) as caught:
        applied(bytes.fromhex(NESTED), wrong)
    assert caught.value.context["row"] == 0
