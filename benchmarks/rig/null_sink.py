"""A sink that counts rows and discards them, to measure reading, decoding and Spark without writing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import LoadName, PreparedLoad
from channels.sinks.base import SinkCheckpoint, TargetTable
from channels.sinks.memory import MemorySink

TALLY = "tally.json"
# `cdc` with this sink in the place of Delta; -c keeps the class in an importable module, where Spark's workers find it
PROGRAM = (sys.executable, "-c", f"from {__name__} import main; main()")


class NullSink(MemorySink):
    """Keeps, per table, the number of rows and the sum of their ids in the file ``TALLY``, for the parity check.

    It is created in place of ``DeltaSinkConfig`` with the same arguments, and uses only the folder.
    """

    def __init__(self, root: Path | str, **_: Any) -> None:
        """Start without rows."""
        super().__init__()
        self._path = Path(root) / TALLY
        self._tally: dict[str, list[int]] = {}

    def part_writer(self, table: TargetTable) -> Any:
        """See ``Sink``."""
        return _count

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
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


def main() -> None:
    """Run ``cdc`` with this sink instead of Delta."""
    from cdc.cli import main as cli
    from channels.sinks.delta import sink as delta

    delta.DeltaSink = NullSink  # type: ignore[assignment,misc]
    cli.main()
