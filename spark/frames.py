"""From rows in Arrow to DataFrames: packed as they are, or typed and mapped by Spark SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from cdc.schema import DELETED, SEQUENCE
from spark.shared import SharedRows, shared_rows
from spark.types import arrow_type, spark_schema, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOAD = "load"  # number of the load within a Spark job
_PIECE = "piece"  # an Arrow IPC stream of some of its rows
_PATH, _OFFSET, _SIZE = "path", "offset", "size"  # or where such a stream lies in shared memory
_ALIGNMENT = 64  # of IPC streams within one buffer, so that executors read them in place

Pieces = Sequence[tuple[int, Sequence[pa.RecordBatch]]]  # number of the load, rows of one shape


def packed_frame(spark_session: SparkSession, partitions: Sequence[Pieces]) -> DataFrame:
    """Rows of many loads, of any shape, as one DataFrame that carries them packed.

    Shape: one Spark partition per item of ``partitions``, rows in the order given.
    """
    batches = [_packed(pieces) for pieces in partitions]
    return spark_session.createDataFrame(pa.Table.from_batches(batches))


def shared_frame(spark_session: SparkSession, partitions: Sequence[Pieces], memory: SharedRows) -> DataFrame:
    """As ``packed_frame``, with the rows in ``memory``: the DataFrame tells where they lie."""
    batches = []
    for pieces in partitions:
        places = [memory.put(rows) for _, rows in pieces]
        columns = {
            LOAD: pa.array([load for load, _ in pieces], pa.int32()),
            _PATH: [memory.path] * len(pieces),
            _OFFSET: [offset for offset, _ in places],
            _SIZE: [size for _, size in places],
        }
        batches.append(pa.RecordBatch.from_pydict(columns))
    return spark_session.createDataFrame(pa.Table.from_batches(batches))


def unpacked(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
    """Loads and their rows, of a batch of a packed or shared frame; the rows lie where they lay."""
    loads = batch.column(LOAD).to_pylist()
    if _PATH in batch.schema.names:
        places = (batch.column(name).to_pylist() for name in (_PATH, _OFFSET, _SIZE))
        yield from ((load, shared_rows(*place)) for load, *place in zip(loads, *places, strict=True))
    else:
        for load, piece in zip(loads, batch.column(_PIECE), strict=True):
            yield load, pa.ipc.open_stream(piece.as_buffer()).read_all()


def typed_frame(spark_session: SparkSession, rows: Sequence[pa.RecordBatch]) -> DataFrame:
    """Rows of one load as a DataFrame with their own types; of more than one partition from a million rows on."""
    table = pa.Table.from_batches(rows).combine_chunks()
    return spark_session.createDataFrame(table, schema=spark_schema(table.schema))


def mapped_frame(
    frame: DataFrame, expressions: Mapping[str, str], schema: pa.Schema, kept: Collection[str], row_filter: str | None
) -> DataFrame:
    """``frame`` with the target's columns, as ``expressions`` over its own, then ``__deleted`` and ``__sequence``.

    A row whose ``row_filter`` is false or NULL becomes a delete. On deletes only the columns in ``kept`` are
    evaluated, the others are NULL; ``schema`` has the target's types.
    """
    deleted = sql.col(DELETED)
    if row_filter is not None:
        # the filter is not evaluated on deletes: it may read what a delete of old rows no longer carries
        passes = sql.coalesce(sql.expr(f"({row_filter})"), sql.lit(False))
        deleted = sql.when(deleted, sql.lit(True)).otherwise(~passes)
    columns = []
    for name, text in expressions.items():
        column = sql.expr(f"({text})")
        if name not in kept:
            column = sql.when(~deleted, column)
        columns.append(column.cast(spark_type(schema.field(name).type)).alias(name))
    return frame.select(*columns, deleted.alias(DELETED), sql.col(SEQUENCE))


def expression_types(
    spark_session: SparkSession, schema: pa.Schema, expressions: Mapping[str, str]
) -> dict[str, tuple[pa.DataType, bool]]:
    """Arrow type and nullability of Spark SQL ``expressions`` over columns of ``schema``.

    Raises: ValueError - Spark's analyzer refuses one, or no column can have its type; the message names it.
    """
    empty = spark_session.createDataFrame([], schema=spark_schema(schema))
    found = {}
    for name, text in expressions.items():
        try:
            field = empty.select(sql.expr(f"({text})").alias(name)).schema.fields[0]
            found[name] = (arrow_type(field.dataType), field.nullable)
        except (PySparkException, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{name}: {text!r}: {reason}") from error
    return found


def _packed(pieces: Pieces) -> pa.RecordBatch:
    stream = pa.BufferOutputStream()
    offsets = np.zeros(len(pieces) + 1, np.int32)
    for number, (_, rows) in enumerate(pieces):
        with pa.ipc.new_stream(stream, rows[0].schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        stream.write(bytes(-stream.tell() % _ALIGNMENT))
        offsets[number + 1] = stream.tell()
    column = pa.BinaryArray.from_buffers(
        pa.binary(), len(pieces), [None, pa.py_buffer(offsets.tobytes()), stream.getvalue()]
    )
    loads = pa.array([load for load, _ in pieces], pa.int32())
    return pa.RecordBatch.from_arrays([loads, column], [LOAD, _PIECE])
