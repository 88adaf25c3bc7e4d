"""The PartitionReader contract, for chunks of a real MySQL table and a reader without a source."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass

import pytest

from cdc.model.batch import LoadName
from cdc.model.schema import DELETED, SEQUENCE
from cdc.model.snapshot import Chunk
from cdc.mysql.catalog import table_schemas
from cdc.mysql.key_order import key_order_of
from cdc.mysql.server import Server
from channels.chunk_reader import ChunkReader, TableRead
from tests.support.partition_readers import NumberReader
from tests.support.receiving import endpoint

ROWS = 5000  # more than one batch, whatever size a reader's batches have


@dataclass
class Numbers:
    """Ranges of NumberReader."""

    def reader(self, above=0, upto=ROWS):
        return NumberReader(above or 0, upto, size=700)


class Chunks:
    """Chunks of a table with the ids 1 to ROWS."""

    def __init__(self, server, database):
        numbers = ",".join(f"({number}, REPEAT('x', 4000))" for number in range(1, ROWS + 1))
        server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, note TEXT)")
        server.execute(f"INSERT INTO {database}.t VALUES {numbers}")
        self.endpoint = endpoint(server)
        with Server(self.endpoint) as asked:
            schema = table_schemas(asked, [(database, "t")])[database, "t"]
            order = key_order_of(asked, schema, ["id"])
        name = LoadName("shop", "0a1b2c3d", 1, 1, "ods.t", task=0)
        self.table = TableRead(name, order, schema.columns, frozenset({"id"}), 7, None, writer=None)

    def reader(self, above=None, upto=None):
        if above is not None and not isinstance(above, (list, tuple)):
            above = (str(above),)
        bounds = (None if above is None else tuple(above), None if upto is None else (str(upto),))
        return ChunkReader(self.endpoint, self.table, Chunk(0, *bounds))


@pytest.fixture(params=["numbers", "chunks"])
def ranges(request):
    if request.param == "numbers":
        return Numbers()
    return Chunks(request.getfixturevalue("mysql"), request.getfixturevalue("database"))


def read(reader):
    """Read to the end after a pickle round trip, as an executor does."""
    return list(pickle.loads(pickle.dumps(reader)).batches(lambda: False))


def ids(batches):
    return [number for batch in batches if batch.rows is not None for number in batch.rows.column("id").to_pylist()]


def test_reader_range_is_complete_in_order_and_ends_once(ranges):
    batches = read(ranges.reader())
    assert ids(batches) == list(range(1, ROWS + 1))
    assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]


def test_reader_batches_have_one_schema_with_sign_and_sequence(ranges):
    schemas = {batch.rows.schema for batch in read(ranges.reader()) if batch.rows is not None}
    assert len(schemas) == 1
    assert schemas.pop().names[-2:] == [DELETED, SEQUENCE]


def test_reader_range_without_rows_ends_at_its_start(ranges):
    reader = ranges.reader(10, 10)
    (batch,) = read(reader)
    assert (batch.rows, batch.is_last) == (None, True)
    assert batch.position == reader.start


def test_reader_stopped_range_resumes_without_gap_or_repeat(ranges):
    batches = []
    for batch in ranges.reader().batches(lambda: bool(batches)):
        batches.append(batch)
    assert 0 < len(ids(batches)) < ROWS and not any(batch.is_last for batch in batches)
    position = json.loads(json.dumps(batches[-1].position))
    rest = read(ranges.reader(position))
    assert ids(batches) + ids(rest) == list(range(1, ROWS + 1))


def test_reader_bytes_are_counted_with_their_rows(ranges):
    assert all((batch.byte_count > 0) is (batch.rows is not None) for batch in read(ranges.reader()))
