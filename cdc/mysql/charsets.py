"""Character sets: the charset of a collation id, and conversion of text to UTF-8 with the same result as the servers.

Single-byte and multi-byte charsets use tables of code points. They are built at the first use of a charset, from
Python's codec and the differences in ``charset_tables``. A well-formed code without a character becomes "?", as in
``CONVERT(... USING utf8mb4)`` of the servers. Bytes that are not well-formed are an error: no server stores them.

Source: mysql-server strings/ctype-*.c behaviour as observed; MariaDB numbers its own collations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from cdc.errors import DecodeError
from cdc.mysql.charset_tables import CODEC_DIFFERENCES, SWE7, UPPER_HALVES
from cdc.mysql.values.arrow_arrays import LARGEST, SLACK, array_of_buffers, copy_bytes, fault, measure, too_large
from cdc.mysql.values.kernels import kernel, part

_COLLATIONS = {
    "big5": "1 84",
    "latin2": "2 9 21 27 77",
    "dec8": "3 69",
    "cp850": "4 80",
    "latin1": "5 8 15 31 47-49 94",
    "hp8": "6 72",
    "koi8r": "7 74",
    "swe7": "10 82",
    "ascii": "11 65",
    "ujis": "12 91",
    "sjis": "13 88",
    "cp1251": "14 23 50-52",
    "hebrew": "16 71",
    "tis620": "18 89",
    "euckr": "19 85",
    "latin7": "20 41 42 79",
    "koi8u": "22 75",
    "gb2312": "24 86",
    "greek": "25 70",
    "cp1250": "26 34 44 66 99",
    "gbk": "28 87",
    "cp1257": "29 58 59",
    "latin5": "30 78",
    "armscii8": "32 64",
    "utf8mb3": "33 76 83 192-215 223",
    "ucs2": "35 90 128-151 159",
    "cp866": "36 68",
    "keybcs2": "37 73",
    "macce": "38 43",
    "macroman": "39 53",
    "cp852": "40 81",
    "utf8mb4": "45 46 224-247 255-323",
    "utf16": "54 55 101-124",
    "utf16le": "56 62",
    "cp1256": "57 67",
    "utf32": "60 61 160-183",
    "binary": "63",
    "geostd8": "92 93",
    "cp932": "95 96",
    "eucjpms": "97 98",
    "gb18030": "248-250",
}
_MARIADB_COLLATIONS = {
    "utf8mb3": "576-579 2048-2247",
    "utf8mb4": "608-611 2304-2503",
    "ucs2": "640-642 2560-2759",
    "utf16": "672-674 2816-3015",
    "utf32": "736-738 3072-3271",
}
_MARIADB_NOPAD = 1024  # the id of a NOPAD collation of MariaDB is the id of its base plus this

_CODECS = {
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "euckr": "cp949",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
}
# charset -> well-formed codes: single bytes above ASCII, lead bytes, trail bytes
_WELL_FORMED = {
    "big5": ("", "a1-f9", "40-7e a1-fe"),
    "sjis": ("a1-df", "81-9f e0-fc", "40-7e 80-fc"),
    "cp932": ("a1-df", "81-9f e0-fc", "40-7e 80-fc"),
    "gbk": ("", "81-fe", "40-7e 80-fe"),
    "gb2312": ("", "a1-f7", "a1-fe"),
    "gb18030": ("", "81-fe", "40-7e 80-fe"),
    "euckr": ("", "81-fe", "41-5a 61-7a 81-fe"),
    "ujis": ("", "8e a1-fe", "a1-fe"),
    "eucjpms": ("", "8e a1-fe", "a1-fe"),
}
_UNICODE_UNITS = {"ucs2": (2, True), "utf16": (2, True), "utf16le": (2, False), "utf32": (4, True)}

_ILL = np.int32(-1)  # marks in the table of first bytes
_DOUBLE = np.int32(-2)
_TRIPLE = np.int32(-3)
_QUAD = np.int32(-4)
_SUPPLEMENTARY = 189_000  # linear number of GB 18030's code 90 30 81 30, which is U+10000


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set of the server, by MySQL's name."""

    name: str

    @property
    def is_utf8(self) -> bool:
        """Whether its bytes are UTF-8 without conversion. Binary text is treated as UTF-8."""
        return self.name in ("utf8mb4", "utf8mb3", "utf8", "binary")


@dataclass(frozen=True, slots=True)
class CharsetTables:
    """Tables that decode the characters of one multi-byte character set."""

    first: np.ndarray  # int32[256]: code point, or one of the marks
    double: np.ndarray  # uint16[32768] by code - 0x8000; 0 = not well-formed
    triple: np.ndarray  # uint16[32768] by the last two bytes - 0x8000
    quad: np.ndarray  # uint16[50400]: GB 18030's four-byte codes of the basic plane
    ascii_below: bool  # bytes below 0x80 are ASCII, so words of them are copied


def charset_of(collation: int, flavor: str) -> str:
    """Return the charset of a collation id. Raises: DecodeError - no supported server has this id."""
    name = _by_collation(flavor).get(collation)
    if name is None:
        raise DecodeError(
            f"collation {collation} is not known to this version",
            hint="Change the column to a collation of MySQL 9.7 or MariaDB 11.8, or omit it in the mapping.",
        )
    return name


def charset_names() -> frozenset[str]:
    """Return the names of all charsets, as MySQL spells them."""
    return frozenset(_COLLATIONS)


@lru_cache(maxsize=2)
def _by_collation(flavor: str) -> dict[int, str]:
    found = {number: name for name, text in _COLLATIONS.items() for number in _numbers(text, 10)}
    if flavor == "mariadb":
        extra = ((number, name) for name, text in _MARIADB_COLLATIONS.items() for number in _numbers(text, 10))
        found.update(extra)
        found.update({number + _MARIADB_NOPAD: name for number, name in list(found.items()) if number < _MARIADB_NOPAD})
    return found


def _numbers(text: str, base: int) -> list[int]:
    """Return the numbers of a text such as ``1 5-7``."""
    found: list[int] = []
    for piece in text.split():
        low, _, high = piece.partition("-")
        found.extend(range(int(low, base), int(high or low, base) + 1))
    return found


@lru_cache
def _tables(name: str) -> CharsetTables:
    none = np.zeros(1, np.uint16)
    if name in UPPER_HALVES:
        first = np.array([*range(128), *map(ord, UPPER_HALVES[name])], np.int32)
        if name == "swe7":
            for byte, character in SWE7.items():
                first[byte] = ord(character)
        return CharsetTables(first, none, none, none, name != "swe7")
    if name not in _CODECS:
        raise DecodeError(
            f"charset {name} is not known to this version",
            hint="Change the column to utf8mb4, or omit it in the mapping.",
        )
    return _multi_byte_tables(name)


def _multi_byte_tables(name: str) -> CharsetTables:
    codec = _CODECS[name]
    singles, leads, trails = (_numbers(text, 16) for text in _WELL_FORMED[name])
    first = np.full(256, _ILL, np.int32)
    first[:128] = np.arange(128)
    for byte in singles:
        first[byte] = _character(bytes([byte]), codec)
    first[leads] = _QUAD if name == "gb18030" else _DOUBLE
    double = np.zeros(0x8000, np.uint16)
    for lead in leads:
        for trail in trails:
            double[(lead << 8 | trail) - 0x8000] = _character(bytes([lead, trail]), codec)
    triple = quad = np.zeros(1, np.uint16)
    if codec == "euc_jp":
        double[0x0EE0:0x0EFF] = 0  # 8e e0 to 8e fe: half-width kana end at df
        first[0x8F] = _TRIPLE
        triple = np.zeros(0x8000, np.uint16)
        for second in trails:
            for third in trails:
                triple[(second << 8 | third) - 0x8000] = _character(bytes([0x8F, second, third]), codec)
    if name == "gb18030":
        quad = np.array([_character(_gb_bytes(number), codec) for number in range(50_400)], np.uint16)
    for run in CODEC_DIFFERENCES.get(name, "").split():
        code, character, count = (int(digits, 16) for digits in run.split(":"))
        table, position = double, code - 0x8000
        if code > 0xFFFFFF:
            table, position = quad, _gb_number(code)
        elif code > 0xFFFF:
            table, position = triple, (code & 0xFFFF) - 0x8000
        table[position : position + count] = np.arange(character, character + count)
    return CharsetTables(first, double, triple, quad, True)


def _character(code: bytes, codec: str) -> int:
    try:
        text = code.decode(codec)
    except UnicodeDecodeError:
        return ord("?")
    return ord(text) if len(text) == 1 else ord("?")


def _gb_bytes(number: int) -> bytes:
    """Return the four-byte code of GB 18030 with this linear number."""
    number, fourth = divmod(number, 10)
    number, third = divmod(number, 126)
    first, second = divmod(number, 10)
    return bytes([0x81 + first, 0x30 + second, 0x81 + third, 0x30 + fourth])


def _gb_number(code: int) -> int:
    first, second, third, fourth = code.to_bytes(4, "big")
    return (((first - 0x81) * 10 + second - 0x30) * 126 + third - 0x81) * 10 + fourth - 0x30


@part
def put_utf8(out, at, point):  # type: ignore[no-untyped-def]
    """Write a code point as UTF-8. Return the offset after it."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at] = 0xC0 | point >> 6
        out[at + 1] = 0x80 | point & 0x3F
        return at + 2
    if point < 0x10000:
        out[at] = 0xE0 | point >> 12
        out[at + 1] = 0x80 | point >> 6 & 0x3F
        out[at + 2] = 0x80 | point & 0x3F
        return at + 3
    out[at] = 0xF0 | point >> 18
    out[at + 1] = 0x80 | point >> 12 & 0x3F
    out[at + 2] = 0x80 | point >> 6 & 0x3F
    out[at + 3] = 0x80 | point & 0x3F
    return at + 4


@part
def _quad_point(data, at, end, quad):  # type: ignore[no-untyped-def]
    """Return the code point of the four bytes of GB 18030 at ``at``; -1 if they are not well-formed."""
    if at + 4 > end:
        return -1
    a, b, c, d = np.int64(data[at]), np.int64(data[at + 1]), np.int64(data[at + 2]), np.int64(data[at + 3])
    if b < 0x30 or b > 0x39 or c < 0x81 or c > 0xFE or d < 0x30 or d > 0x39:
        return -1
    number = (((a - 0x81) * 10 + b - 0x30) * 126 + c - 0x81) * 10 + d - 0x30
    if number < quad.size:
        return np.int64(quad[number])
    if _SUPPLEMENTARY <= number < _SUPPLEMENTARY + 0x100000:
        return 0x10000 + number - _SUPPLEMENTARY
    return 0x3F


@kernel
def _transcode(data, starts, lengths, first, double, triple, quad, ascii_below, offsets, out):  # type: ignore[no-untyped-def]
    """Fill ``offsets`` and ``out``. Return (total bytes, first row that is not well-formed or -1)."""
    position = np.int64(0)
    offsets[0] = 0
    for row in range(starts.size):
        length = np.int64(lengths[row])
        if length > 0:
            at = starts[row]
            end = at + length
            seen = copy_bytes(data, at, length, out, position)
            if ascii_below and not seen & np.uint64(0x8080808080808080):
                position += length
                at = end
            while at < end:
                byte = np.int64(data[at])
                point = np.int64(first[byte])
                if point >= 0:
                    at += 1
                elif point == _ILL:
                    return position, row
                elif point == _TRIPLE:
                    if at + 3 > end or data[at + 1] < 0x80:
                        return position, row
                    point = np.int64(triple[(np.int64(data[at + 1]) << 8 | np.int64(data[at + 2])) - 0x8000])
                    at += 3
                elif at + 2 > end:
                    return position, row
                elif point == _QUAD and 0x30 <= data[at + 1] <= 0x39:
                    point = _quad_point(data, at, end, quad)
                    at += 4
                else:
                    point = np.int64(double[(byte << 8 | np.int64(data[at + 1])) - 0x8000])
                    at += 2
                if point < 0 or (point == 0 and byte):
                    return position, row
                position = put_utf8(out, position, point)
            if position > LARGEST:
                return position, row
        offsets[row + 1] = position
    return position, -1


@kernel
def _from_units(data, starts, lengths, width, big, paired, offsets, out):  # type: ignore[no-untyped-def]
    """Do the same for code units of 2 or 4 bytes. ``paired``: two surrogates are one character."""
    position = np.int64(0)
    offsets[0] = 0
    for row in range(starts.size):
        length = np.int64(lengths[row])
        if length > 0:
            at = starts[row]
            end = at + length
            if length % width:
                return position, row
            while at < end:
                point = np.int64(0)
                for i in range(width):
                    point = point << 8 | np.int64(data[at + i if big else at + width - 1 - i])
                at += width
                if 0xD800 <= point < 0xDC00 and paired and at + 2 <= end:
                    high = np.int64(data[at] if big else data[at + 1])
                    low = np.int64(data[at + 1] if big else data[at])
                    second = high << 8 | low
                    at += 2
                    if second < 0xDC00 or second > 0xDFFF:
                        return position, row
                    point = 0x10000 + ((point - 0xD800) << 10) + (second - 0xDC00)
                elif 0xD800 <= point < 0xE000 or point > 0x10FFFF:
                    return position, row
                position = put_utf8(out, position, point)
            if position > LARGEST:
                return position, row
        offsets[row + 1] = position
    return position, -1


def transcoded(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, charset: Charset) -> pa.StringArray:
    """Return text of a charset other than UTF-8 as Arrow. Raises: DecodeError - see ``text.text_array``."""
    offsets = np.empty(len(starts) + 1, np.int32)
    source_bytes, row, nulls = measure(starts, lengths, data.size, offsets)
    if source_bytes < 0:
        raise fault(source_bytes, row, data, starts, lengths)
    out = np.empty(3 * source_bytes + SLACK, np.uint8)  # a byte becomes at most three
    units = _UNICODE_UNITS.get(charset.name)
    if units:
        width, big = units
        total, row = _from_units(data, starts, lengths, width, big, charset.name != "ucs2", offsets, out)
    else:
        tables = _tables(charset.name)
        codes = (tables.first, tables.double, tables.triple, tables.quad, tables.ascii_below)
        total, row = _transcode(data, starts, lengths, *codes, offsets, out)
    if total > LARGEST:
        raise too_large(row)
    if row >= 0:
        start = int(starts[row])
        raise DecodeError(
            f"text that is not well-formed in {charset.name}",
            hint="Correct the value in the source, or omit the column in the mapping.",
            row=row,
            length=int(lengths[row]),
            bytes=data[start : start + min(int(lengths[row]), 24)].tobytes().hex(" "),
        )
    return array_of_buffers(pa.string(), offsets, out[:total].copy(), total, lengths, nulls)
