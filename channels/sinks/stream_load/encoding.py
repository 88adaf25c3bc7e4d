r"""Request bodies of Stream Load, built column by column: CSV without quotes, or JSON lines.

CSV has ``\x01`` between fields, ``\x02`` after each row and ``\N`` for NULL. It has no quotes and no escapes, because
versions of Doris and StarRocks read them differently. If a text contains a separator or equals ``\N``, its part is
sent as JSON lines, which are twice as large and half as fast. Every value is sent as text and cast by the server.

Arrow is cheap to write but not used: Doris copies its buffers without checking their types, shifts DATETIME by eight
hours and cannot read it into JSON columns.

Source: Doris, ``csv_reader.cpp``, ``new_json_reader.cpp``, ``arrow_stream_reader.cpp``.
StarRocks manual, "STREAM LOAD".
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from channels.sinks.base import TargetTable
from channels.sinks.null_checks import check_nulls

MEMORY_BYTES = 64 << 20  # for the rows of a part; the rest is in a file until the load ends
FIELD_END, ROW_END, NULL = "\x01", "\x02", "\\N"
_PIECE_ROWS = 1 << 15  # rows encoded at a time: a few MiB, which fit into the cache of a core
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint16)
_CONTROLS = {bytes([code]): json.dumps(chr(code))[1:-1] for code in range(32)}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_PLAIN_FROM = 6  # with more digits after the point, Arrow prints small decimals in scientific form


def checked(table: TargetTable, rows: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of ``rows``. Kept columns of ``table`` are NULL: without a value they get their default.

    Raises: LoadRejected - a NULL in a NOT NULL column of ``table``; with its keys.
    """
    for batch in rows:
        if batch.num_rows:
            check_nulls(table, pa.Table.from_batches([batch]))
            for name in table.kept:
                batch = batch.append_column(name, pa.nulls(batch.num_rows))
            yield batch.select(columns)


class BodyRows:
    """The rows of a part, kept until its load ends, so that each attempt can send them.

    Rows beyond ``limit_bytes`` are in a temporary file. ``longest_field``: the limit of the target's CSV, in bytes.
    """

    def __init__(
        self, batches: Iterable[pa.RecordBatch], *, limit_bytes: int, longest_field: int | None = None
    ) -> None:
        self._kept: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.row_count = 0
        self.byte_count = 0
        self.can_be_csv = True
        self._longest_field = longest_field
        for batch in batches:
            self._add(batch, limit_bytes)
        if self._writer is not None:
            self._writer.close()

    def _add(self, batch: pa.RecordBatch, limit_bytes: int) -> None:
        self.row_count += batch.num_rows
        self.byte_count += batch.nbytes
        self.can_be_csv = self.can_be_csv and can_be_csv(batch, self._longest_field)
        if self.byte_count <= limit_bytes:
            self._kept.append(batch)
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the load
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._kept
        if self._file is not None:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        """Delete the temporary file."""
        if self._file is not None:
            self._file.close()


def can_be_csv(batch: pa.RecordBatch, longest_field: int | None = None) -> bool:
    r"""Return True if no text of ``batch`` contains a separator or equals ``\N``, and no field is too long."""
    for column in batch.columns:
        if longest_field is not None and _longest(column) > longest_field:
            return False
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        data = _characters(column)
        if FIELD_END.encode() in data or ROW_END.encode() in data:
            return False
        if NULL.encode() in data and pc.any(pc.equal(column, NULL)).as_py():
            return False
    return True


def _longest(column: pa.Array) -> int:
    """Return the bytes of the longest value as it is sent; 0 for types whose values are always short."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.max(pc.binary_length(column)).as_py() or 0
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return 2 * (pc.max(pc.binary_length(column)).as_py() or 0)
    return 0


def csv_body(
    rows: Iterable[pa.RecordBatch], compression: str | None = None, instead: Mapping[str, str] = _NOTHING
) -> Iterator[bytes]:
    """Return CSV in pieces. ``compression``: "lz4" (one frame) or None. ``instead``: see ``csv_lines``."""
    return _compressed((csv_lines(batch, instead) for batch in _pieces(rows)), compression)


def json_body(
    rows: Iterable[pa.RecordBatch], names: Sequence[str], instead: Mapping[str, str] = _NOTHING
) -> Iterator[bytes]:
    """Return JSON lines in pieces. ``names``: the keys."""
    return (json_lines(batch, names, instead) for batch in _pieces(rows))


def csv_lines(batch: pa.RecordBatch, instead: Mapping[str, str] = _NOTHING) -> bytes:
    """Return one line per row, fields in column order. ``instead``: by column, the text that is sent for NULL."""
    columns = [
        _filled(text_of(column), instead.get(name, NULL))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "", ROW_END)
    return _characters(pc.binary_join_element_wise(*columns, FIELD_END))


def json_lines(batch: pa.RecordBatch, names: Sequence[str], instead: Mapping[str, str] = _NOTHING) -> bytes:
    """Return one object per line. Every value is a string or null."""
    parts: list[pa.Array | str] = []
    before = "{"  # the text before the next value; one join of all parts is the fastest
    for number, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
        before += ("," if number else "") + json.dumps(name, ensure_ascii=False) + ":"
        text = text_of(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            text = _escaped(text)
        if text.null_count:
            placeholder = instead.get(batch.schema.names[number])
            quoted = pc.binary_join_element_wise('"', text, '"', "")
            parts += [before, pc.fill_null(quoted, "null" if placeholder is None else json.dumps(placeholder))]
            before = ""
        else:
            parts += [before + '"', text]
            before = '"'
    return _characters(pc.binary_join_element_wise(*parts, before + "}\n", ""))


def text_of(column: pa.Array) -> pa.Array:
    """Return each value as the text that Doris and StarRocks cast to exactly this value."""
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.string())
    if pa.types.is_decimal128(kind) and kind.scale > _PLAIN_FROM:
        return _plain_decimals(column)
    if pa.types.is_timestamp(kind):
        # without a zone, because the server converts a value with a zone to the zone of the load
        return column.cast(pa.timestamp(kind.unit)).cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hex(column)
    if pa.types.is_list(kind):
        ends = pa.array(column.offsets.to_numpy())  # of the slice, from 0
        inner = pc.binary_join(pa.ListArray.from_arrays(ends, _filled(text_of(column.values), "null")), ",")
        return _nulled(pc.binary_join_element_wise("[", inner, "]", ""), column)
    return column.cast(pa.string())


def _pieces(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for start in range(0, batch.num_rows, _PIECE_ROWS):
            yield batch.slice(start, _PIECE_ROWS)


def _compressed(pieces: Iterable[bytes], compression: str | None) -> Iterator[bytes]:
    if compression is None:
        yield from pieces
        return
    sink = _Pieces()
    with pa.CompressedOutputStream(pa.PythonFile(sink, "w"), compression) as stream:
        for piece in pieces:
            stream.write(piece)
            yield from sink.drain()
    yield from sink.drain()


class _Pieces(io.RawIOBase):
    """The output of a compressor, returned piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def drain(self) -> Iterator[bytes]:
        pieces, self._pieces = self._pieces, []
        if pieces:
            yield b"".join(pieces)


def _filled(text: pa.Array, instead: str) -> pa.Array:
    return pc.fill_null(text, instead) if text.null_count else text


def _nulled(text: pa.Array, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def _characters(text: pa.Array) -> bytes:
    """Return the bytes of all values, one after the other."""
    if not len(text):
        return b""
    width = np.int64 if pa.types.is_large_string(text.type) or pa.types.is_large_binary(text.type) else np.int32
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, dtype=width)[text.offset : text.offset + len(text) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0])).to_pybytes() if data is not None else b""


def _escaped(text: pa.Array) -> pa.Array:
    data = _characters(text)
    if b"\\" in data:
        text = pc.replace_substring(text, "\\", "\\\\")
    if b'"' in data:
        text = pc.replace_substring(text, '"', '\\"')
    if (np.frombuffer(data, np.uint8) < 32).any():
        for control, escape in _CONTROLS.items():
            if control in data:
                text = pc.replace_substring(text, control.decode(), escape)
    return text


def _hex(column: pa.Array) -> pa.Array:
    column = column.cast(pa.large_binary())
    _, offsets, _ = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    text = _HEX[np.frombuffer(_characters(column), np.uint8)]
    built = pa.Array.from_buffers(
        pa.large_string(), len(column), [None, pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(text)]
    ).cast(pa.string())
    return _nulled(built, column)


def _plain_decimals(column: pa.Array) -> pa.Array:
    """Return decimals without exponent: the unscaled digits with a point inserted."""
    scale = column.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), null_count=column.null_count, offset=column.offset
    ).cast(pa.string())
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    digits = pc.ascii_lpad(pc.ascii_ltrim(whole, "-"), scale + 1, "0")
    before, after = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")
