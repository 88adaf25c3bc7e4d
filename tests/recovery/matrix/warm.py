"""What a job's process begins with, done once: its parent forks every one of them."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import tests.recovery.matrix.cell  # noqa: F401
from cdc.binlog.warm import warm_up
from cdc.canal.entries import Entries, EntryDecoder
from cdc.canal.layout import schema_of
from cdc.canal.protocol_pb2 import Messages
from tests.decoding import Everything

RECORDED = Path(__file__).parents[2] / "data/canal/golden.jsonl"
_PLAIN = 14


class FromRows:
    """Tables as their rows show them."""

    def schema(self, database, table, layout):
        return schema_of(database, table, layout)


def warm_up_canal() -> None:
    """Decode recorded entries, which runs the kernels. Those behind the first ones are refused, as they are to be."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    recorded = [base64.b64decode(line["entry"]) for line in lines if "entry" in line][:_PLAIN]
    entries = Entries(Messages(batch_id=1, messages=recorded).SerializeToString())
    logging.disable()  # what it says of zero dates is of no interest here
    EntryDecoder(Everything("shop"), FromRows()).changes(entries, 0, len(entries), 0)
    logging.disable(logging.NOTSET)


warm_up()
warm_up_canal()
