"""Imports and kernels that each job process needs, loaded once in the parent process of all."""

from __future__ import annotations

import base64
import gc
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import tests.recovery.matrix.process  # noqa: F401
from cdc.sources.binlog.decoder.warm_up import warm_up
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.layout import schema_of
from cdc.sources.canal.protocol_pb2 import Messages
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.key_partitions import KeyPartitions
from tests.model.harness import Harness
from tests.model.kafka import DescribedTables
from tests.recovery.matrix.sources import history
from tests.support.decoding import Everything
from tests.support.kafka_receivers import block_of

RECORDED = Path(__file__).parents[2] / "data/canal/golden.jsonl"
_PLAIN = 14


class FromRows:
    """Table schemas derived from the rows."""

    def schema(self, database, table, layout):
        return schema_of(database, table, layout)


def warm_up_canal() -> None:
    """Decode recorded entries, which runs the kernels. Later entries of the recording are rejected on purpose."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    recorded = [base64.b64decode(line["entry"]) for line in lines if "entry" in line][:_PLAIN]
    entries = Entries(Messages(batch_id=1, messages=recorded).SerializeToString())
    logging.disable()  # the warnings about zero dates are irrelevant here
    EntryDecoder(Everything("shop"), FromRows()).changes(entries, 0, len(entries), 0)
    logging.disable(logging.NOTSET)


def warm_up_kafka() -> None:
    """Decode a flat message of Canal, which loads the kernels."""
    rows = [{"id": "1", "op": "2"}]
    found = {"data": rows, "old": None, "type": "INSERT", "database": "shop", "table": "orders", "isDdl": False}
    text = json.dumps({**found, "mysqlType": {"id": "int", "op": "bigint"}, "pkNames": ["id"]})
    (rows,) = CanalJson(DescribedTables(Everything("shop"))).decode(block_of((0, 0, text))).tables
    KeyPartitions().first_conflict([rows.rows.column("id")], np.zeros(1, np.int32), 1)


def warm_up_job() -> None:
    """Run a job once, which imports the rest and creates what reads and writes saved state."""
    with TemporaryDirectory() as folder:
        harness = Harness(Path(folder), history("warm", "shop"))
        harness.until_finished()
        harness.close()


warm_up()
warm_up_canal()
warm_up_kafka()
warm_up_job()
if __name__ != "__main__":
    gc.collect()
    gc.freeze()  # a job's process does not copy the memory that it shares with this one by looking for garbage in it
