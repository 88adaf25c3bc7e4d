"""The contract ``PartitionReader``: read one range of a source on a Spark executor.

A snapshot chunk is such a range (``channels/chunk_reader.py``), and so are offsets of Kafka partitions
(``cdc/sources/kafka/range_reader.py``). ``channels/partition_read.py`` runs the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """Rows of a range, and the position up to which the range is read with them."""

    rows: pa.RecordBatch | None  # None: no more rows, but a new position or the end
    position: Any  # everything up to here is read; a JSON value. None: the range can be read again only as a whole
    byte_count: int = 0  # of the rows, as the source counts them
    is_last: bool = False  # the range is read to its end
    table: int = 0  # the number of the rows' table, if the range has rows of several tables


class PartitionReader(Protocol):
    """Read one range of a source on an executor, for example a chunk of a table.

    Picklable: the driver creates it, an executor unpickles it and calls ``batches``.
    """

    @property
    def start(self) -> Any:
        """Return the position before the first row: a JSON value, or None for the beginning of the source."""

    def batches(self, is_over: Callable[[], bool]) -> Iterator[PartitionBatch]:
        """Open the source, yield the range in the source's order, and close the source.

        Shape: all batches of a table have one schema, with ``__deleted`` and ``__sequence`` as the last columns. Each
        position is at or after the one before it. Reading a range again from a yielded position gives exactly the rows
        that follow.
        A range that is read to its end yields ``is_last`` exactly once, in the last batch, even if it has no rows.
        ``is_over``: True stops the reader after a batch, without ``is_last``. A reader that cannot resume inside its
        range ignores it.
        Calls: once. Blocks while the source sends nothing.
        Never: yields a row without a position at or after it.
        Raises: SourceError.
        """
