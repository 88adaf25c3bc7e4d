"""Bodies of Stream Load to columns of text: CSV, JSON lines and arrays, Arrow streams."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pyarrow as pa


class BadFormat(Exception):
    """The body is not what its headers say."""


def unpacked(body: bytes, compression: str) -> bytes:
    """The body without its compression."""
    match compression.upper():
        case "":
            return body
        case "GZ":
            return zlib.decompress(body, wbits=31)
        case "LZ4":
            return pa.CompressedInputStream(pa.BufferReader(body), "lz4").read()
        case other:
            raise BadFormat(f"unknown compress type, compress_type={other}")


def separator(text: str | None, default: str) -> str:
    r"""A separator as headers give it: plain, ``\x01`` or ``\t``."""
    if text is None:
        return default
    if text.lower().startswith("\\x"):
        return bytes.fromhex(text[2:].replace("\\x", "")).decode()
    return text.encode().decode("unicode_escape")


def csv_fields(body: bytes, names: list[str], column: str, line: str) -> tuple[pa.Table, list[str]]:
    r"""Fields without enclosing quotes; ``\N`` is NULL. Lines of another width or not UTF-8 are refused one by one."""
    rows, bad = [], []
    lines = body.split(line.encode())
    if lines[-1] == b"":
        lines.pop()
    for raw in lines:
        try:
            fields = raw.decode().split(column)
        except UnicodeDecodeError:
            bad.append("Reason: only support csv data in utf8 codec. src line [];")
            continue
        if len(fields) != len(names):
            word = "more" if len(fields) > len(names) else "less"
            bad.append(
                f"Reason: actual column number in csv file is {word} than schema column number.actual number: "
                f"{len(fields)}, schema column number: {len(names)}; src line [{raw[:200].decode()}];"
            )
            continue
        rows.append([None if field == "\\N" else field for field in fields])
    return _table(names, list(zip(*rows, strict=True)) if rows else [[] for _ in names]), bad


def json_fields(
    body: bytes, names: list[str], *, by_line: bool, strip_array: bool, through_double: bool
) -> tuple[pa.Table, list[str]]:
    """Values by key; numbers keep their text, or pass through a double as in the oldest reader."""
    number = (lambda text: repr(float(text))) if through_double else str
    parse = {"parse_int": number, "parse_float": number, "object_pairs_hook": _first_wins}
    documents: list[Any] = []
    bad = []
    for raw in body.split(b"\n") if by_line else [body]:
        if not raw.strip():
            continue
        try:
            document = json.loads(raw, **parse)
        except ValueError as error:
            bad.append(f"Reason: Parse json data failed. code: 3, error info: {error}. src line [{raw[:200]!r}];")
            continue
        documents += document if strip_array and isinstance(document, list) else [document]
    return _table(names, [[_json_text(document.get(name)) for document in documents] for name in names]), bad


def arrow_fields(body: bytes, names: list[str]) -> pa.Table:
    """Columns by name, as text. A missing one is an error, as in the newest reader."""
    source = pa.BufferReader(body)
    tables = []
    while source.tell() < source.size():
        tables.append(pa.ipc.open_stream(source).read_all())
    table = pa.concat_tables(tables)
    if table.column_names != names:
        raise BadFormat(f"arrow columns {table.column_names} are not {names}")
    texts = []
    for column in table.columns:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        texts.append(column.cast(pa.string()))
    return pa.table(texts, names=names)


def _table(names: list[str], columns: list[Any]) -> pa.Table:
    return pa.table([pa.array(list(column), pa.string()) for column in columns], names=names)


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _json_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value, ensure_ascii=False)
