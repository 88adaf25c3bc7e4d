"""Arrow rows as DataFrames: packed without conversion, or typed and mapped by Spark SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from cdc.model.schema import DELETED, SEQUENCE
from spark.types import arrow_type, spark_schema, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOAD = "load"  # number of the load within a Spark job
_PIECE = "piece"  # some of its rows as an Arrow IPC stream
_ALIGNMENT = 64  # of IPC streams within a buffer, so that executors read them without a copy

Pieces = Sequence[tuple[int, Sequence[pa.RecordBatch]]]  # number of the load, rows of one shape


def packed_frame(spark_session: SparkSession, partitions: Sequence[Pieces]) -> DataFrame:
    """Return a DataFrame with the packed rows of many loads, which may have different schemas.

    Shape: one Spark partition per item of ``partitions``, with the rows in the same order.
    """
    batches = [_packed(pieces) for pieces in partitions]
    return spark_session.createDataFrame(pa.Table.from_batches(batches))


def unpacked(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
    """Yield (load number, rows) from a packed batch, without copying."""
    for load, piece in zip(batch.column(LOAD).to_pylist(), batch.column(_PIECE), strict=True):
        yield load, pa.ipc.open_stream(piece.as_buffer()).read_all()


def typed_frame(spark_session: SparkSession, rows: Sequence[pa.RecordBatch]) -> DataFrame:
    """Return the rows of one load as a typed DataFrame. From a million rows on, it has more than one partition."""
    table = pa.Table.from_batches(rows).combine_chunks()
    return spark_session.createDataFrame(table, schema=spark_schema(table.schema))


def mapped_frame(
    frame: DataFrame, expressions: Mapping[str, str], schema: pa.Schema, kept: Collection[str], row_filter: str | None
) -> DataFrame:
    """Return ``frame`` with the target's columns, computed by ``expressions``, then ``__deleted`` and ``__sequence``.

    A row whose ``row_filter`` is false or NULL becomes a delete. For deletes only the columns in ``kept`` are computed;
    the others are NULL. ``schema``: types of the target.
    """
    deleted = sql.col(DELETED)
    if row_filter is not None:
        # do not evaluate the filter for deletes: they may lack columns that it reads
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
    """Return Arrow type and nullability of Spark SQL ``expressions`` over the columns of ``schema``.

    Raises: ValueError - Spark does not accept an expression, or no column can have its type; the message has its name.
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
