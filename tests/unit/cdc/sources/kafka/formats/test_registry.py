"""Every format of the job file can be created."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigError
from cdc.sources.kafka.formats.base import topic_table
from cdc.sources.kafka.formats.registry import FORMATS, create_format
from cdc.sources.kafka.schema_registry import SchemaRegistry
from tests.support.kafka_messages import MappedTables, block_of


@pytest.mark.parametrize("name", FORMATS)
def test_create_format_decodes_an_empty_block(name):
    tables, schemas = MappedTables(only=("a.b",)), SchemaRegistry("http://127.0.0.1:1")
    found = create_format(name, tables=tables, zone_us=5, registry=schemas).decode(block_of([None]))
    assert not found.tables and not found.faults and found.source_time_us.tolist() == [-1]


def test_create_format_unknown_name_raises():
    with pytest.raises(ConfigError, match="'xml'"):
        create_format("xml", tables=MappedTables())


def test_topic_table_splits_at_the_first_dot():
    assert [topic_table(each) for each in ("shop.orders", "orders", "a.b.c")] == [
        ("shop", "orders"), ("", "orders"), ("a", "b.c"),
    ]  # fmt: skip
