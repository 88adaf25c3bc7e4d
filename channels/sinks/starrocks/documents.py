r"""The JSON documents of a load, each sent as the only element of an array.

``parse_json`` of StarRocks reads a text as JSON only if it begins with ``{``, ``[`` or ``"``. It makes a JSON string of
any other text, such as ``15`` or ``true``; only early versions read these too. All versions read ``[15]`` alike, and
``json_query`` returns its element with its type. The path of the element is the same for every document, so one
expression serves all rows.

The array makes valid JSON of some texts that are not JSON: ``{}, {}`` would be stored as ``{}``. The documents of
MySQL's binary log need no check of this, because the server has parsed them. Texts of Kafka and Canal are parsed here.

The document ``null`` is refused. A column with flat JSON, which is the default from 4.0 on, does not keep it: its
segments store no value for it, as for NULL, and the reader makes ``{}`` of that.

Source: StarRocks, ``json_value.cpp`` (before: ``json.cpp``), ``json_functions.cpp``, ``jsonpath.cpp``,
``json_flattener.cpp``; its issue 63764.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import LoadRejected
from cdc.model.schema import DELETED
from channels.sinks.base import TargetTable
from channels.sinks.starrocks.types import starrocks_type

_LONGEST_BYTES = (16 << 20) - 2  # parse_json returns NULL for more than 16 MiB, without an error
_KEYS_SHOWN = 5
_NULL = r"^[ \t\r\n]*null[ \t\r\n]*$"
_OPENING = ("{", "[", '"')  # nearly all documents begin so; this test takes a quarter of the time of the expressions
# of an object, an array and a string only the first character is checked here
_DOCUMENT = (
    r"^[ \t\r\n]*(?:[\[{\"]|(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)[ \t\r\n]*$)"
)


def document_columns(table: TargetTable) -> tuple[str, ...]:
    """Return the columns of ``table`` that StarRocks stores as JSON."""
    kinds = {column.name: starrocks_type(column, key=column.name in table.key).base for column in table.columns}
    return tuple(name for name, kind in kinds.items() if kind == "JSON")


def in_array(document: str) -> str:
    """Return the text that is sent for ``document``."""
    return f"[{document}]"


def in_arrays(table: TargetTable, rows: Iterable[pa.RecordBatch], *, parses: bool) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` with the texts that are sent for documents. Deleted rows have no documents.

    ``parses``: the texts may be incomplete or more than one document, so parse each, which takes about 1.3 us.
    Raises: LoadRejected - StarRocks would store another value than the document; with its key.
    """
    names = document_columns(table)
    for batch in rows:
        for name in names:
            column = batch.column(name)
            documents = pc.if_else(batch.column(DELETED), pa.scalar(None, column.type), column)
            _check(table, batch, name, documents)
            if parses and (where := _rejected(table, batch, name, _unreadable(documents))):
                raise _no_document(name, where)
            start, end, nothing = (pa.scalar(text, column.type) for text in ("[", "]", ""))
            sent = pc.binary_join_element_wise(start, documents, end, nothing)
            batch = batch.set_column(batch.schema.get_field_index(name), name, sent)
        yield batch


def _check(table: TargetTable, batch: pa.RecordBatch, name: str, documents: pa.Array) -> None:
    if where := _rejected(table, batch, name, pc.greater(pc.binary_length(documents), _LONGEST_BYTES)):
        raise LoadRejected(
            f"A document for column {name} is longer than the 16 MiB that StarRocks accepts as JSON.",
            hint=f"Select a part of it under columns: {{{name}: ...}}, exclude the row by filter:, or correct it in "
            "the source; then `cdc resume`.",
            **where,
        )
    is_other = functools.reduce(
        pc.and_not, (pc.starts_with(documents, first) for first in _OPENING), documents.is_valid()
    )
    if not pc.any(is_other).as_py():
        return
    batch, documents = batch.filter(is_other), documents.filter(is_other)
    if where := _rejected(table, batch, name, pc.match_substring_regex(documents, _NULL)):
        raise LoadRejected(
            f"A document for column {name} is the JSON value null, for which StarRocks can return {{}}.",
            hint="To load NULL instead, list all columns under columns: of the channel, and this one as "
            f"{{{name}: \"nullif({name}, 'null')\"}}. Or exclude the row by filter:, or store the texts of the column "
            f'in a new table: {{{name}: "cast({name} as string)"}}. Then `cdc resume`.',
            **where,
        )
    if where := _rejected(table, batch, name, pc.invert(pc.match_substring_regex(documents, _DOCUMENT))):
        raise _no_document(name, where)


def _no_document(name: str, where: Mapping[str, Any]) -> LoadRejected:
    return LoadRejected(
        f"A text for column {name} is not a JSON document. StarRocks would store NULL or a part of it.",
        hint=f"Exclude the row by filter:, or store the texts of the column in a new table: columns: {{{name}: "
        f'"cast({name} as string)"}}; then `cdc resume`.',
        **where,
    )


def _unreadable(documents: pa.Array) -> pa.Array:
    """Return which texts are not exactly one JSON document."""
    found = (text is not None and not _is_document(text) for text in documents.to_pylist())
    return pa.array(found, pa.bool_(), size=len(documents))


def _is_document(text: str) -> bool:
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is not a character
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _rejected(table: TargetTable, batch: pa.RecordBatch, name: str, found: pa.Array) -> dict[str, Any]:
    """Return the context of an error for the rows ``found``; {} if there is none."""
    keys = batch.select(list(table.key)).filter(found).slice(0, _KEYS_SHOWN).to_pylist()
    return {"table": table.name, "column": name, "keys": keys} if keys else {}
