"""Entries recorded from Canal 1.1.8 give Changes with the values that the statements wrote."""

from __future__ import annotations

import base64
import datetime
import json
import random
import re
import struct
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc.errors import CdcError, DecodeError, SchemaMismatch, UnsupportedRowFormat
from cdc.model.batch import RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, Kind, TableSchema
from cdc.sources.canal import decimal_kernels, value_kernels, value_parsers
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.layout import LayoutColumn, column_of, schema_of
from cdc.sources.canal.protocol_pb2 import Column, Entry, Header, Messages, RowChange, RowData
from tests.support.seeds import seed_of

GOLDEN = Path(__file__).parents[4] / "data/canal/golden.jsonl"
SHANGHAI_US = 8 * 3600 * 1_000_000  # the time zone of the recorded server
UTC = datetime.UTC


class Everything:
    """Maps every table and column, with the given key or that of the rows."""

    def __init__(self, key=()):
        self.key = key

    def maps(self, database, table):
        return True

    def leave_out(self, database, table, error):
        return False

    def reads(self, schema):
        return RequiredColumns(frozenset(column.name for column in schema.columns), frozenset(self.key or schema.key))


class FromRows:
    def schema(self, database, table, layout):
        return schema_of(database, table, layout)


def golden():
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [base64.b64decode(line["entry"]) for line in lines if "entry" in line]


def batch(*entries):
    return Messages(batch_id=7, messages=entries).SerializeToString()


def decoded(body, **options):
    decoder = EntryDecoder(Everything(**options), FromRows(), zone_us=SHANGHAI_US)
    entries = Entries(body)
    changes, rows = decoder.changes(entries, 0, len(entries), 100)
    found = [(each.schema.name, row) for each in changes for row in each.rows.to_pylist()]
    assert rows == len(found)
    return found, decoder


def rows_of(table, event):
    """Return the recorded rows of a table's event with this number."""
    found = []
    for data in golden():
        entry = Entry.FromString(data)
        if entry.header.table == table and RowChange.FromString(entry.store_value).rows:
            found.append(data)
    return decoded(batch(found[event]))[0]


def test_entries_of_every_type_give_the_written_value():
    ((name, row),) = rows_of("types", 0)
    assert name == "shop.types"
    row.pop(DELETED), row.pop(SEQUENCE)
    assert row == {
        "id": 1, "ti": -5, "tu": 200, "su": 65535, "mu": 16777215, "iu": 4294967295, "bi": -(1 << 63),
        "bu": Decimal(2**64 - 1), "de": Decimal("-12345.6000"), "fl": 1e10, "db": 0.1, "b1": 1, "b33": (1 << 32) + 1,
        "yr": 2024, "dt": datetime.date(2024, 2, 29), "t0": "-838:59:58", "t1": "12:00:00.1", "t3": "-00:00:00.123",
        "t6": "100:01:02.000003", "d0": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "d3": datetime.datetime(2024, 1, 2, 3, 4, 5, 70000), "d6": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "ts": datetime.datetime(2024, 7, 1, tzinfo=UTC), "ts6": datetime.datetime(2024, 7, 1, 0, 0, 0, 1, tzinfo=UTC),
        "ch": "ab", "vc": 'hé"\\', "tx": "té中😀", "mtx": "m", "bn": b"ab\0\0", "vb": b"\x00\xff\x80",
        "bl": b"\x00\xff\x80", "en": "it's", "st": "x,z", "ge": struct.pack("<IBIdd", 0, 1, 1, 1, 2),
        "js": '{"a": [1, null, "x"]}',
    }  # fmt: skip


def test_entries_keep_nulls_apart_and_restore_decimal_scale():
    ((_, empty),) = rows_of("types", 1)
    assert (str(empty["de"]), empty["vc"], empty["bl"], empty["bn"], empty["st"]) == ("0.0000", "", b"", b"\0" * 4, "")
    ((_, nulls),) = rows_of("types", 2)
    assert {value for name, value in nulls.items() if name not in ("id", DELETED, SEQUENCE)} == {None}
    scaled = [row for _, row in rows_of("decs", 0)]
    assert [str(row["a"]) for row in scaled] == ["0.0000", "0.5000", "5.0000", "0.0001"]
    assert [str(row["d"]) for row in scaled][2] == "-9999999999.9999999999"


def test_entries_invalid_dates_become_null_and_are_counted(caplog):
    found, decoder = decoded(batch(*golden()[12:14]))
    ((_, row),) = found
    assert (row["dt"], row["d0"], row["ts"], row["en"]) == (None, None, None, "")
    assert decoder.invalid_dates == {("shop.types", name): 1 for name in ("dt", "d0", "ts")}
    assert len(caplog.messages) == 3 and all("shop.types" in message for message in caplog.messages)


def test_entries_zero_date_in_a_key_raises():
    with pytest.raises(DecodeError, match="zero or invalid date") as caught:
        decoded(batch(*golden()[12:14]), key=("dt",))
    assert caught.value.context["column"] == "dt" and caught.value.context["table"] == "shop.types"


def test_entries_update_of_a_key_gives_a_delete_and_a_row():
    assert [(row["id"], row["a"], row["b"], row[DELETED]) for _, row in rows_of("t", 3)] == [
        (1, "A2", "x", False),
        (2, "b", "now", False),
    ]
    assert [(row["id"], row["a"], row[DELETED]) for _, row in rows_of("t", 4)] == [(1, "A2", True), (10, "A2", False)]


def test_entries_minimal_image_raises():
    with pytest.raises(UnsupportedRowFormat, match="not FULL"):
        rows_of("t", 5)


def test_entries_sequences_follow_their_order_over_tables():
    def row(table, number):
        change = RowChange(event_kind=1, rows=[RowData(after_columns=[_column("id", "int", str(number), key=True)])])
        header = Header(file="b.1", offset=number, database="d", table=table, event_kind=1)
        return Entry(header=header, kind=Entry.ROW_DATA, store_value=change.SerializeToString()).SerializeToString()

    found, _ = decoded(batch(*(row("ab"[i % 2], i) for i in range(6))))
    assert {values["id"]: values[SEQUENCE] for _, values in found} == {i: 101 + i for i in range(6)}


def _column(name, kind, value, index=0, key=False):
    null = value is None
    return Column(index=index, name=name, is_key=key, is_null=null, value=value or "", mysql_type=kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", "128"),
        ("tinyint unsigned", "-1"),
        ("int", "12x"),
        ("bigint", "9223372036854775808"),
        ("bigint unsigned", "184467440737095516160"),
        ("decimal(4,2)", "123.45"),
        ("decimal(4,2)", "1.234"),
        ("decimal(4,2)", ""),
        ("double", "x"),
        ("date", "2024-1-1"),
        ("datetime", "2024-01-01T00:00:00"),
        ("blob", "中"),
        ("enum('a')", "2"),
        ("set('a')", "2"),
    ],
)
def test_entries_invalid_text_error_has_column_and_position(kind, value):
    change = RowChange(event_kind=1, rows=[RowData(after_columns=[_column("v", kind, value)])])
    header = Header(file="b.000001", offset=44, database="d", table="t")
    entry = Entry(header=header, kind=Entry.ROW_DATA, store_value=change.SerializeToString())
    with pytest.raises(DecodeError) as caught:
        decoded(batch(entry.SerializeToString()))
    assert (caught.value.context["table"], caught.value.context["column"]) == ("d.t", "v")
    assert caught.value.context["at"] == "b.000001:44"


def test_kernel_decimals_random_numbers_equal_python():
    draw = random.Random(seed_of())
    numbers = [
        Decimal(draw.choice((-1, 1)) * draw.randrange(10 ** draw.randint(1, 38))).scaleb(-10) for _ in range(2000)
    ]
    texts = [format(number, "f").encode() for number in numbers]
    lengths = np.array([len(text) for text in texts], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    out = np.empty((len(texts), 2), np.uint64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    assert decimal_kernels.decimals(data, starts, lengths, 38, 10, out) == -1
    words = out.view(np.int64)
    found = [(int(high) << 64) + int(low) for (_, high), (low, _) in zip(words, out, strict=True)]
    assert found == [int(number.scaleb(10)) for number in numbers]


@pytest.mark.parametrize("seed", range(3))
def test_kernel_decimals_with_exponents_equal_python(seed):
    draw = random.Random(seed_of() + seed)
    for _ in range(2000):
        digits, scale = draw.choice([(10, 2), (18, 8), (38, 10), (38, 38)])
        number = Decimal(draw.choice((-1, 1)) * draw.choice((0, draw.randrange(10 ** draw.randint(1, 9)))))
        text = str(number.scaleb(draw.randint(-45, 40))).encode()
        if draw.random() < 0.2:
            text = _damaged(draw, text)
        data, starts, lengths = _values([text])
        out = np.empty((1, 2), np.uint64)
        found = decimal_kernels.decimals(data, starts, lengths, digits, scale, out)
        units = None
        if re.fullmatch(rb"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
            units = Decimal(text.decode()).scaleb(scale, Context(prec=80))
        if units is not None and abs(units) < 10**digits and units == int(units):
            low, high = out.view(np.int64)[0].tolist()
            assert found == -1 and (high << 64) + (low & (1 << 64) - 1) == units, text
        else:
            assert found == 0, text


def _values(texts):
    lengths = np.array([len(text) for text in texts], np.int32)
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum(lengths, dtype=np.int64) - lengths, lengths


def _damaged(draw, text):
    at = draw.randrange(len(text))
    return text[:at] + bytes([draw.choice((0x2F, 0x3A, 0x20, 0x2D, 0x2E, 0x00, 0x8A, 0xB1, 0xFF))]) + text[at + 1 :]


def _first_row(kernel, text, *arguments):
    """Return what a kernel says of a text at the beginning of its buffer, and of one after others."""
    data, starts, lengths = _values([text])
    alone = kernel(data, starts, lengths, *arguments)
    data, starts, lengths = _values([b"7" * 9, text])
    return alone, kernel(data, starts[1:], lengths[1:], *arguments)


@pytest.mark.parametrize("seed", range(3))
def test_kernel_integers_of_any_length_equal_python(seed):
    draw = random.Random(f"{seed_of()} {seed}")
    for _ in range(3000):
        text = b"%d" % (draw.choice((-1, 1)) * draw.randrange(10 ** draw.randint(1, 20)))
        text = draw.choice((text, b"0" * draw.randrange(3) + text, _damaged(draw, text)))
        out = np.empty(1, np.int64)
        found = _first_row(value_kernels.integers, text, -(1 << 63), (1 << 63) - 1, out)
        valid = re.fullmatch(rb"-?[0-9]{1,19}", text) and -(1 << 63) <= int(text) < 1 << 63
        assert found == ((-1, -1) if valid else (0, 0)), text
        assert not valid or out[0] == int(text)


@pytest.mark.parametrize("seed", range(3))
def test_kernel_decimals_of_any_form_equal_python(seed):
    draw = random.Random(f"{seed_of()} {seed}")
    for _ in range(3000):
        digits = draw.randint(1, 38)
        scale = draw.randint(0, digits)
        whole = b"%d" % draw.randrange(10 ** draw.randint(1, max(1, digits - scale)))
        text = draw.choice((b"", b"-")) + draw.choice((whole, b""))
        text += b"." + b"%d" % draw.randrange(10 ** draw.randint(1, scale + 1)) + b"0" * draw.randrange(3)
        text = draw.choice((text, text.partition(b".")[0] or b"0", _damaged(draw, text)))
        out = np.empty((1, 2), np.uint64)
        found = _first_row(decimal_kernels.decimals, text, digits, scale, out)
        valid = re.fullmatch(rb"-?([0-9]+\.?[0-9]*|\.[0-9]+)", text) is not None
        with localcontext(prec=100):
            units = Decimal(text.decode()).scaleb(scale) if valid else Decimal(0)
            valid = valid and units == units.to_integral_value() and abs(units) < 10**digits
        assert found == ((-1, -1) if valid else (0, 0)), (text, digits, scale)
        low, high = (int(word) for word in out.view(np.int64)[0])
        assert not valid or (high << 64) + (low & (1 << 64) - 1) == int(units), (text, digits, scale)


@pytest.mark.parametrize("seed", range(3))
def test_kernel_moments_of_any_form_equal_python(seed):
    draw = random.Random(f"{seed_of()} {seed}")
    for _ in range(3000):
        moment = datetime.datetime(1900, 1, 1) + datetime.timedelta(microseconds=draw.randrange(10**16))
        text = moment.isoformat(" ", draw.choice(("seconds", "milliseconds", "microseconds"))).encode()
        text = draw.choice((text, _damaged(draw, text)))
        out, valid = np.empty(1, np.int64), np.empty(1, np.bool_)
        found = _first_row(value_kernels.moments, text, 0, out, valid)
        well_formed = re.fullmatch(rb"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,6})?", text)
        try:
            expected = datetime.datetime.fromisoformat(text.decode()) if well_formed else None
        except ValueError:
            expected = None
        if well_formed is None:
            assert {row for row, _ in found} == {0}, text
        else:
            assert found == (((-1, 0), (-1, 0)) if expected else ((-1, 1), (-1, 1))), text
            assert expected is None or out.view("datetime64[us]")[0] == np.datetime64(expected), text


@pytest.mark.parametrize(
    ("type_text", "kind", "arrow"),
    [
        ("int(11)", Kind.INT, "int32"),
        ("BIGINT(20) UNSIGNED", Kind.BIGINT, "decimal128(20, 0)"),
        ("tinyint(1)", Kind.TINYINT, "int8"),
        ("INTEGER", Kind.INT, "int32"),
        ("bool", Kind.TINYINT, "int8"),
        ("decimal", Kind.DECIMAL, "decimal128(10, 0)"),
        ("NUMERIC(12,2)", Kind.DECIMAL, "decimal128(12, 2)"),
        ("double precision", Kind.DOUBLE, "double"),
        ("datetime(6)", Kind.DATETIME, "timestamp[us]"),
        ("text(1000)", Kind.TEXT, "string"),
        ("enum('a,b','it''s')", Kind.ENUM, "string"),
        ("bit(64)", Kind.BIT, "decimal128(20, 0)"),
        ("geometry", Kind.GEOMETRY, "binary"),
    ],
)
def test_column_of_type_text_returns_kind_and_arrow(type_text, kind, arrow):
    column = column_of("d", "t", LayoutColumn(0, "c", type_text, False))
    assert (column.kind, str(column.arrow)) == (kind, arrow)
    if kind is Kind.ENUM:
        assert column.labels == ("a,b", "it's")


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        ("utf8mb4", "utf-8", "\U0001f600"),
        ("latin1", "latin-1", "\xc3\xa9"),  # its bytes are also another text in UTF-8
        ("latin1", "latin-1", "\xe9"),
        ("gbk", "gbk", "\u9686"),
        ("ucs2", "utf-16-be", "AB"),
        ("utf16", "utf-16-be", "A\U0001f600"),
        ("", "utf-8", "\xe9"),
    ],
)
def test_text_with_a_length_is_decoded_in_its_charset(charset, codec, text):
    received = LayoutColumn(0, "c", "text(1000)", False)
    column = replace(column_of("d", "t", received), charset=charset)
    parse = value_parsers.value_parser(column, received, TableSchema("d", "t", (column,), ()), 0)
    sent = text.encode(codec).decode("latin-1").encode()  # Canal sends each byte as a character
    values = np.frombuffer(sent + bytes(8), np.uint8), np.array([0, 0]), np.array([len(sent), -1], np.int32)
    assert parse(values).to_pylist() == [text, None]


@pytest.mark.parametrize("type_text", ["sql_variant", "enum", "set\t'a')"])
def test_column_of_unknown_type_raises(type_text):
    with pytest.raises(SchemaMismatch, match="is not known"):
        column_of("d", "t", LayoutColumn(0, "c", type_text, False))


def test_entries_damaged_bytes_give_values_or_errors():
    draw = random.Random(seed_of())
    whole = batch(*golden())
    outcomes = set()
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.3:
            data = data[: draw.randrange(len(data))]
        try:
            decoded(bytes(data))
            outcomes.add("value")
        except (CdcError, UnicodeDecodeError) as error:
            outcomes.add(type(error).__name__)
    assert "DecodeError" in outcomes
    assert "UnicodeDecodeError" not in outcomes


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_floats_of_random_texts_equal_pyarrow(kind):
    rng = random.Random(seed_of())
    texts = ["-0.0", "1.0E10", "9007199254740993", "1E-400", "4.9E-324", "1" * 40, "0." + "0" * 30 + "1", None]
    for _ in range(20_000):
        number = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(63)))[0]
        texts.append(repr(number) if number < 1e308 else str(rng.randrange(-(10**18), 10**18)))
        texts.append(f"{rng.uniform(-1e6, 1e6):.{rng.randrange(1, 17)}f}")
        texts.append(f"{rng.uniform(-10, 10):.{rng.randrange(1, 9)}E}")
    sizes = np.array([-1 if text is None else len(text) for text in texts], np.int32)
    starts = np.cumsum(np.maximum(sizes, 0), dtype=np.int64) - np.maximum(sizes, 0)
    data = np.frombuffer("".join(text or "" for text in texts).encode(), np.uint8)
    found = value_parsers._floats((data, starts, sizes), kind)
    assert found.equals(pc.cast(pa.array(texts), kind)) and str(found[0]) == "-0.0"


@pytest.mark.parametrize("text", ["", "-", ".", "x", "1.2.3", "1e", "1e+", "1e5x", "- 1", "1 ", "NaN", "1e1234567"])
def test_floats_other_texts_raise_with_their_row(text):
    data = np.frombuffer(b"1.5" + text.encode() + bytes(8), np.uint8)
    with pytest.raises(DecodeError, match="is not a number") as caught:
        value_parsers._floats((data, np.array([0, 3]), np.array([3, len(text)], np.int32)), pa.float64())
    assert caught.value.context["row"] == 1
