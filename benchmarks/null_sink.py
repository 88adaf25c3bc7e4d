"""A sink that takes rows as any other does and throws them away: what is left is what reading and Spark cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.batch import LoadName, PreparedLoad
from channels.sinks.base import CheckpointMark, TargetTable
from channels.sinks.memory import MemorySink

TALLY = "tally.json"


class NullSink(MemorySink):
    """Keeps how many rows came for each table and the sum of their ids, in ``TALLY``: for the parity check.

    Takes the place of ``DeltaSink``, and its arguments, of which it needs the folder alone.
    """

    def __init__(self, root: Path | str, **_: Any) -> None:
        """Starts with nothing."""
        super().__init__()
        self._path = Path(root) / TALLY
        self._tally: dict[str, list[int]] = {}

    def part_writer(self, table: TargetTable) -> Any:
        """See ``Sink``."""
        return _count

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """See ``Sink``."""
        super().commit((), checkpoint)
        for load in loads:
            sums = self._tally.setdefault(load.table, [0, 0])
            sums[0] += load.rows
            sums[1] += load.detail["keys"]
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(self._tally))


def _count(name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
    """See ``PartWriter``."""
    count = size = keys = 0
    for batch in rows:
        count, size = count + batch.num_rows, size + batch.nbytes
        keys += pc.sum(batch.column("id")).as_py() or 0
    return PreparedLoad(name, name.channel, count, size, {"keys": keys}) if count else None
