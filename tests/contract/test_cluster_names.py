"""Names are untrusted: a request to Doris or StarRocks names exactly the table that is meant, or is not sent."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from cdc.errors import TargetMismatch
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.doris.client import DorisHttp
from channels.sinks.doris.loader import DorisPartWriter
from channels.sinks.doris.names import DORIS_NAMES
from channels.sinks.starrocks.names import STARROCKS_NAMES
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Reply
from channels.sinks.stream_load.loader import LoadSettings
from channels.sinks.stream_load.name_rules import header_value, name_findings, url_segment
from channels.sinks.stream_load.statements import quoted
from tests.emulators.cases import name_of, rows_of
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.support.hostile_names import HOSTILE

COLUMNS = (TargetColumn("id", pa.int64(), False, "bigint"), TargetColumn("name", pa.string(), True, "varchar(40)"))


def table_of(name: str, column: str = "name") -> TargetTable:
    return TargetTable(name, (COLUMNS[0], TargetColumn(column, pa.string(), True, "varchar(40)")), ("id",))


@pytest.mark.parametrize("name", HOSTILE)
def test_url_segment_is_one_segment_or_refused(name: str) -> None:
    try:
        segment = url_segment(name)
    except TargetMismatch as error:
        assert repr(name)[:20] in str(error) and error.hint
        return
    assert segment.isascii() and segment not in (".", "..") and not set(segment) & set("/\\?#;& \n")
    assert unquote(segment) == name and ".." not in name.split("/")


@pytest.mark.parametrize("name", HOSTILE)
def test_header_value_arrives_as_it_is_or_is_refused(name: str) -> None:
    try:
        value = header_value(name)
    except TargetMismatch as error:
        assert error.hint
        return
    assert value.decode().strip() == name and not any(byte < 32 or byte == 127 for byte in value)


@pytest.mark.parametrize("name", HOSTILE)
def test_quoted_name_ends_where_it_should(name: str) -> None:
    text = quoted(name)
    assert text[0] == text[-1] == "`" and "`" not in text[1:-1].replace("``", "")
    assert text[1:-1].replace("``", "`") == name


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "..", "nul\0", "line\nend", "space ", " space", "\x7f"])
@pytest.mark.parametrize("cases", [doris, starrocks])
def test_name_that_no_request_can_have_is_refused_before_it_is_sent(cases: Any, name: str) -> None:
    with cases.emulator() as there:
        sink = cases.sink_on(there)
        for table in (table_of(f"{name}.t"), *([table_of(f"ods.{name}")] if cases is doris else [])):
            if "." in name:
                table = table_of(f"ods.{name}")
            if not [*name_findings(table, DORIS_NAMES if cases is doris else STARROCKS_NAMES)]:
                continue  # StarRocks has the table's name in a header, which may have a slash
            with pytest.raises(TargetMismatch, match="name"):
                sink.ensure_table(table)
            assert sink.describe(table)[0].fatal
        assert there.storage.databases == {"ods"} or not there.storage.tables
        sink.close()


def test_column_with_line_end_is_refused_by_name() -> None:
    (finding,) = name_findings(table_of("ods.t", "a\r\nX-Evil: 1"), DORIS_NAMES)
    assert "control characters" in finding.problem and "columns" in finding.hint


def test_columns_header_of_doris_doubles_backticks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, str] = {}

    def request(client: HttpClient, method: str, host: str, path: str, **more: Any) -> Reply:
        sent.update(more["headers"], path=path)
        raise http.client.HTTPException

    monkeypatch.setattr(HttpClient, "request", request)
    address = ClusterAddress(("fe:8030",), "cdc", "", ("be:8040",))
    table = table_of("ods.a%2e b", "x`),(`y")
    writer = DorisPartWriter(DorisHttp(HttpClient(address)), table, LoadSettings(tries=1), two_phase=True)
    batch = rows_of((1, "a", False, 1))
    with pytest.raises(http.client.HTTPException):
        writer(name_of(), iter([batch.rename_columns(["id", "x`),(`y", *batch.schema.names[2:]])]))
    assert sent["columns"].endswith(",`id`,`x``),(``y`")
    assert sent["path"] == "/api/ods/a%252e%20b/_stream_load"
