"""JSON documents of StarRocks loads: the text that is sent, what the server makes of it, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from cdc.errors import LoadRejected
from cdc.model.schema import DELETED
from channels.row_compare import compare_rows
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.starrocks.documents import in_arrays
from channels.sinks.starrocks.loader import LoadBody
from channels.sinks.stream_load import encoding
from tests.emulators.starrocks.documents import stored_document

TABLE = TargetTable(
    "ods.docs",
    (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("doc", pa.string(), True, "json")),
    ("id",),
)
SCALARS = ("0", "15", "-2.5", "1e20", "-0.0", "18446744073709551615", "true", "false", " 7\n", "\t-1 ")
DOCUMENTS = (
    '"null"',
    '"x\\n\\u00e4"',
    '""',
    "[]",
    "[null]",
    "[[1]]",
    "{}",
    '{"a": null}',
    ' \n{"a": [1, true]} ',
    '"a]"',
)
NO_DOCUMENTS = ("", " ", "abc", "1,2", "1 2", "1\n2", "01", "+1", ".5", "1.", "NaN", "True", "nulls", "'x'", "\ufeff{}")

# the array of several documents is valid JSON, and its first element is one of them
UNREADABLE = (
    "{} , {}", "[1],[2]", '"x","y"', '{"a": 1}],[1', '{"a": 1', '{"a": 1}}', '{"a": x}', '{"a": NaN}', '["\\ud800"]', '"a',
    "[" * 100_000,
)  # fmt: skip


def batch_of(*documents: str | None, deleted: tuple[bool, ...] = ()) -> pa.RecordBatch:
    numbers = list(range(len(documents)))
    return pa.record_batch(
        {
            "id": pa.array(numbers, pa.int64()),
            "doc": pa.array(documents, pa.string()),
            DELETED: pa.array(deleted or [False] * len(numbers), pa.bool_()),
        }
    )


def sent(*documents: str | None, deleted: tuple[bool, ...] = (), parses: bool = False) -> list[str | None]:
    (batch,) = in_arrays(TABLE, [batch_of(*documents, deleted=deleted)], parses=parses)
    return batch.column("doc").to_pylist()


@pytest.mark.parametrize("document", [*SCALARS, *DOCUMENTS])
def test_stored_document_equals_its_source(document: str) -> None:
    (text,) = sent(document)
    assert sent(document, parses=True) == [text]
    stored = stored_document(text, 1 << 20, first_element=True)
    assert stored is not None
    assert json.loads(stored) == json.loads(document) and type(json.loads(stored)) is type(json.loads(document))
    source, target = (pa.table({"id": [1], "doc": [text]}) for text in (document, stored))
    assert not any(compare_rows(source, target, ["id"], json_columns=["doc"]).counts())


@pytest.mark.parametrize("document", SCALARS)
def test_parse_json_alone_stores_a_string_for_a_scalar(document: str) -> None:
    assert stored_document(document, 1 << 20, first_element=False) == json.dumps(document)


def test_nulls_and_deleted_rows_have_no_document() -> None:
    assert sent(None, "1", "null", "abc", "2", deleted=(False, True, True, True, False)) == [
        None,
        None,
        None,
        None,
        "[2]",
    ]


@pytest.mark.parametrize("document", ["null", " null", "null\n"])
def test_document_null_is_refused_with_its_key(document: str) -> None:
    with pytest.raises(LoadRejected, match="the JSON value null") as caught:
        sent("1", document, "{}")
    assert caught.value.context["keys"] == [{"id": 1}]
    assert '{doc: "cast(doc as string)"}' in caught.value.hint
    assert """{doc: "nullif(doc, 'null')"}""" in caught.value.hint


@pytest.mark.parametrize("text", NO_DOCUMENTS)
def test_text_that_is_no_document_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(LoadRejected, match="is not a JSON document") as caught:
        sent("1", "{}", text)
    assert caught.value.context["keys"] == [{"id": 2}]


@pytest.mark.parametrize("text", [*NO_DOCUMENTS, *UNREADABLE])
def test_parsed_text_that_is_no_document_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(LoadRejected, match="is not a JSON document") as caught:
        sent("1", None, text, parses=True)
    assert caught.value.context["keys"] == [{"id": 2}]


def test_parsed_rows_without_documents_are_loaded() -> None:
    assert sent(None, "{} , {}", deleted=(False, True), parses=True) == [None, None]
    assert sent(parses=True) == []


def test_document_of_16_mib_with_its_array_is_refused() -> None:
    longest = f'"{"x" * ((16 << 20) - 4)}"'
    assert len(sent(longest)[0] or "") == 16 << 20
    with pytest.raises(LoadRejected, match="longer than the 16 MiB"):
        sent(longest[:-1] + 'x"')


def test_placeholder_of_a_deleted_row_is_in_an_array() -> None:
    columns = (TABLE.columns[0], TargetColumn("doc", pa.string(), False, "json"))
    table = TargetTable("ods.docs", columns, ("id",))
    batches = in_arrays(table, [batch_of("null", deleted=(True,))], parses=True)
    body = LoadBody(table, encoding.BodyRows(batches, limit_bytes=1 << 20), as_csv=True)
    assert "".join(piece.decode() for piece in body.pieces()) == "0\x01[{}]\x011\x02"
    assert body.headers()["columns"].endswith("`doc`=json_query(parse_json(`_cdc_doc`), '$[0]')")
