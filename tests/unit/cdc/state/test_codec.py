"""Saved values with all their bytes, and those that an older version wrote."""

import json

import pytest

from cdc.errors import DdlStop
from cdc.job.record import SavedRecord
from cdc.model.position import CanalPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind, SchemaChange, TableChange
from cdc.state.base import JobState, ResumeKind
from cdc.state.codec import from_json, to_json
from cdc.state.sqlite import SqliteStore


def test_schema_saved_without_charset_has_an_unknown_one():
    schema = TableSchema("shop", "t", (Column("id", Kind.INT, "int"),), ("id",), charset="latin1")
    saved = json.loads(to_json(schema))
    assert from_json(TableSchema, json.dumps(saved)) == schema
    del saved["charset"]
    older = from_json(TableSchema, json.dumps(saved))
    assert older.charset == "" and older.same_shape(schema)


@pytest.mark.parametrize("text", [b"", b"5", "\u00fc".encode(), b"\xff\x00", bytes(range(256)), None])
def test_fill_of_any_bytes_is_saved(text):
    fill = Fill(FillKind.LITERAL, text)
    assert from_json(Fill, to_json(fill)) == fill


def test_fill_saved_by_an_older_version_is_read():
    assert from_json(Fill, '{"kind": "literal", "text": "\\u00fc5"}') == Fill(FillKind.LITERAL, "\u00fc5".encode())


def test_job_paused_at_a_binary_default_saves_the_change(tmp_path):
    before = TableSchema("shop", "t", (Column("id", Kind.INT, "int"),), ("id",))
    column = Column("c", Kind.VARBINARY, "varbinary(4)", length=4)
    added = ColumnChange(ChangeKind.ADD_COLUMN, None, column, Fill(FillKind.LITERAL, b"\xff\x00"))
    at = CanalPosition("bin.000001", 4)
    change = SchemaChange("ALTER TABLE t ...", at, at, (TableChange(before, before, (added,)),))
    stop = DdlStop("A statement changes shop.t.", hint="Resume.", position=at)
    stop.change = change
    store = SqliteStore(tmp_path)
    saved = SavedRecord(store, "shop", "/shop.yaml")
    saved.now = store.acquire("shop", "/shop.yaml")
    saved.pause(stop, ResumeKind.MANUAL)
    record = store.job("shop")
    store.release()
    assert (record.state, record.pending_change) == (JobState.PAUSED, change)
