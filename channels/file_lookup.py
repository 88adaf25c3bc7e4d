"""Find the keys of a merge in the files of a Delta table by one Spark job. See ``channels.sinks.delta.lookup``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from channels.partition_read import SLOW_START_S
from channels.sinks.delta.lookup import MergeKeys, layout_of
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile
from channels.sinks.delta.table_paths import target_of
from channels.sinks.delta.vectors import Positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOUND = "file int, rows binary"
_SLOW_ROWS_PER_S = 1e6  # a core reads ten times as many keys


@dataclass(frozen=True, slots=True)
class FileLookup:
    """The files to read for one merge. See ``ReadRequest``."""

    folder: StorePath
    files: Sequence[TableFile]
    lookup: MergeKeys

    @property
    def channels(self) -> tuple[str, ...]:
        """See ``ReadRequest``."""
        return (target_of(self.folder),)

    @property
    def work(self) -> str:
        """See ``ReadRequest``."""
        return "lookup of keys"

    @property
    def usual_s(self) -> float:
        """See ``ReadRequest``."""
        return SLOW_START_S + sum(file.rows for file in self.files) / _SLOW_ROWS_PER_S

    def run(self, spark_session: SparkSession, core_count: int) -> list[Positions]:
        """Return the rows of each file that have one of the keys."""
        numbers = sorted(range(len(self.files)), key=lambda number: -self.files[number].rows)
        count = min(core_count, len(numbers))
        shares = [[(number, self.files[number]) for number in numbers[first::count]] for first in range(count)]
        frame = spark_session.range(count, numPartitions=count)
        rows = frame.mapInArrow(_finder(self.folder, self.lookup, shares), _FOUND).collect()
        found = {row["file"]: np.frombuffer(row["rows"], np.uint64) for row in rows}
        return [found[number] for number in range(len(self.files))]


def _finder(
    folder: StorePath, lookup: MergeKeys, shares: Sequence[Sequence[tuple[int, TableFile]]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for share in (number for batch in batches for number in batch.column(0).to_pylist()):
            for number, file in shares[share]:
                path = folder / file.path
                rows = lookup.rows_in(path, layout_of(path, tuple(lookup.key)), file)
                yield pa.RecordBatch.from_pydict(
                    {"file": pa.array([number], pa.int32()), "rows": pa.array([rows.tobytes()], pa.binary())}
                )

    return find
