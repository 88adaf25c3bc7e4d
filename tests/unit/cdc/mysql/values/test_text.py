"""Bytes of variable-length columns to Arrow text and binary."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.errors import DecodeError
from cdc.mysql.charsets import Charset, charset_of
from cdc.mysql.values import text


def scattered(values):
    """Return values as the decoder passes them: one buffer with other bytes in between, starts and lengths."""
    data, starts, lengths = bytearray(b"\xff"), [], []
    for value in values:
        starts.append(len(data) if value is not None else 0)
        lengths.append(-1 if value is None else len(value))
        data += (value or b"") + b"\xfe"
    return np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), np.array(lengths, np.int32)


@settings(deadline=None)  # the first example may compile kernels
@given(st.lists(st.none() | st.text()))
def test_utf8_array_keeps_values(values):
    array = text.utf8_array(*scattered([value and value.encode() if value is not None else None for value in values]))
    array.validate(full=True)
    assert array.to_pylist() == values


@settings(deadline=None)  # the first example may compile kernels
@given(st.lists(st.binary(max_size=12), min_size=1))
def test_utf8_array_invalid_utf8_raises_with_row(values):
    def good(value):
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True

    first_bad = next((i for i, value in enumerate(values) if not good(value)), None)
    if first_bad is None:
        assert text.utf8_array(*scattered(values)).to_pylist() == [value.decode() for value in values]
        return
    with pytest.raises(DecodeError) as caught:
        text.utf8_array(*scattered(values))
    assert caught.value.context["row"] == first_bad


def test_utf8_array_lone_surrogate_raises_with_its_bytes():
    with pytest.raises(DecodeError, match=r"not UTF-8.*row 1.*ed a0 80"):
        text.utf8_array(*scattered([b"ok", b"\xed\xa0\x80"]))


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (3, 100), (2**62, 1), (9, 1)])
def test_utf8_array_range_outside_buffer_raises(start, length):
    data = np.zeros(9, np.uint8)
    for make in (text.utf8_array, text.binary_array, lambda *a: text.text_array(*a, Charset("gbk")), text.uuid_array):
        with pytest.raises(DecodeError):
            make(data, np.array([start], np.int64), np.array([length], np.int32))


@settings(deadline=None)  # the first example may compile kernels
@given(st.lists(st.none() | st.binary(max_size=5)))
def test_binary_array_fixed_width_is_padded_with_zeros(values):
    array = text.binary_array(*scattered(values), pad_to=5)
    assert array.to_pylist() == [None if value is None else value.ljust(5, b"\0") for value in values]


def test_enum_and_set_arrays_return_labels():
    valid = np.array([True, True, True, False])
    assert text.enum_array(np.array([1, 0, 2, 9]), valid, ("a", "é")).to_pylist() == ["a", "", "é", None]
    masks = np.array([0, 3, 5, 255], np.uint64)
    assert text.set_array(masks, valid, ("a", "é", "c")).to_pylist() == ["", "a,é", "a,c", None]
    everything = np.array([2**64 - 1], np.uint64)
    labels = tuple(f"m{i}" for i in range(64))
    assert text.set_array(everything, np.array([True]), labels).to_pylist() == [",".join(labels)]


@pytest.mark.parametrize("make", [text.enum_array, text.set_array])
def test_enum_and_set_unknown_label_raises_with_row(make):
    with pytest.raises(DecodeError) as caught:
        make(np.array([1, 8]), np.array([True, True]), ("a", "b"))
    assert caught.value.context["row"] == 1


def test_inet_and_uuid_arrays_equal_text_of_mariadb():
    def short(*values):
        return scattered([bytes.fromhex(value).rstrip(b"\0") if value is not None else None for value in values])

    assert text.uuid_array(*short("123e4567e89b12d3a456426655440000", None, "00" * 16)).to_pylist() == [
        "123e4567-e89b-12d3-a456-426655440000",
        None,
        "00000000-0000-0000-0000-000000000000",
    ]
    assert text.inet4_array(*short("01020300", "ffffffff", "00000000")).to_pylist() == [
        "1.2.3.0",
        "255.255.255.255",
        "0.0.0.0",
    ]
    addresses = {
        "::": "00" * 16, "::1": "00" * 15 + "01", "1::": "0001" + "00" * 14, "::ffff:1.2.3.4": "00" * 10 + "ffff01020304",
        "::1.2.3.4": "00" * 12 + "01020304", "::102": "00" * 14 + "0102", "::0.1.0.2": "00" * 12 + "00010002",
        "1::2:3:4:5:6:7": "00010000000200030004000500060007", "1:0:0:2::3": "00010000000000020000000000000003",
        "::fffe:102:304": "00" * 10 + "fffe01020304", "1:2:3:4:5:6:7::": "00010002000300040005000600070000",
    }  # fmt: skip
    assert text.inet6_array(*short(*addresses.values())).to_pylist() == list(addresses)


def test_uncompress_inflates_and_limits_size():
    plain = b"abc" * 1000
    deflater = zlib.compressobj(wbits=-15)
    raw = b"\x8a" + len(plain).to_bytes(2, "big") + deflater.compress(plain) + deflater.flush()
    wrapped = b"\x82" + len(plain).to_bytes(2, "big") + zlib.compress(plain)
    data, starts, lengths = text.uncompress(*scattered([raw, wrapped, b"", None, b"\0short"]))
    assert text.binary_array(data, starts, lengths).to_pylist() == [plain, plain, b"", None, b"short"]
    for damaged in (
        b"\x90\x00",
        b"\x82\x00\x05" + zlib.compress(plain),
        b"\x82\xff\xff" + zlib.compress(plain),
        b"\x82\x00\x05x",
    ):
        with pytest.raises(DecodeError):
            text.uncompress(*scattered([damaged]))


@pytest.mark.parametrize(
    ("charset", "codec"),
    [("latin1", "cp1252"), ("cp1251", "cp1251"), ("gbk", "gbk"), ("gb18030", "gb18030"), ("big5", "big5"), ("cp932", "cp932"),
     ("ujis", "euc_jp"), ("euckr", "cp949"), ("utf16", "utf-16-be"), ("utf16le", "utf-16-le"), ("utf32", "utf-32-be"),
     ("ucs2", "utf-16-be"), ("utf8mb4", "utf-8")],
)  # fmt: skip
def test_text_array_converts_other_charsets(charset, codec):
    words = ["plain words of ASCII", "", "x", "é€", "Привет", "漢字テスト", "한글", "😀 and more", "mixed 漢 and é"]
    good = []
    for word in words:
        try:
            good.append((word, word.encode(codec)))
        except UnicodeEncodeError:
            continue
        if charset == "ucs2" and len(good[-1][1]) != 2 * len(word):
            good.pop()
    values = [raw for _, raw in good]
    assert text.text_array(*scattered([*values, None]), Charset(charset)).to_pylist() == [
        *(word for word, _ in good),
        None,
    ]


@pytest.mark.parametrize(
    ("charset", "value"),
    [("gbk", b"a\x81"), ("gbk", b"\x81\x20"), ("gb2312", b"\x80\x80"), ("ujis", b"\x8f\xa1"), ("gb18030", b"\x81\x30\x81"),
     ("utf16", b"\xd8\x00"), ("utf16", b"\xd8\x00\x00a"), ("utf16", b"abc"), ("utf32", b"\0\x11\0\0"), ("ucs2", b"\xd8\x00\xdc\x00")],
)  # fmt: skip
def test_text_array_ill_formed_text_raises_with_row(charset, value):
    with pytest.raises(DecodeError, match=charset) as caught:
        text.text_array(*scattered([None, value]), Charset(charset))
    assert caught.value.context["row"] == 1


@settings(deadline=None)  # the first example may compile kernels
@given(
    st.lists(st.binary(max_size=20)),
    st.sampled_from(["gbk", "gb18030", "ujis", "sjis", "big5", "euckr", "utf16", "utf32", "swe7"]),
)
def test_text_array_any_bytes_are_text_or_error(values, charset):
    try:
        array = text.text_array(*scattered(values), Charset(charset))
    except DecodeError:
        return
    array.validate(full=True)


def test_charset_of_collations_of_both_servers():
    assert [charset_of(number, "mysql") for number in (8, 28, 46, 63, 255, 250)] == [
        "latin1",
        "gbk",
        "utf8mb4",
        "binary",
        "utf8mb4",
        "gb18030",
    ]
    assert [charset_of(number, "mariadb") for number in (2304, 1069, 2048)] == ["utf8mb4", "utf8mb4", "utf8mb3"]
    with pytest.raises(DecodeError, match="collation 2304"):
        charset_of(2304, "mysql")
