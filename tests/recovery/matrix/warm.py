"""Imports and kernels that each job process needs, loaded once in the parent process of all."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import tests.recovery.matrix.process  # noqa: F401
from cdc.sources.binlog.decoder.warm_up import warm_up
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.layout import schema_of
from cdc.sources.canal.protocol_pb2 import Messages
from tests.support.decoding import Everything

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


warm_up()
warm_up_canal()
