"""Types of Arrow and Spark. ``cdc.model.schema.Column.arrow`` has the Arrow types of MySQL columns.

==================== ================ =========================================
Arrow                Spark            of MySQL
==================== ================ =========================================
int8 ... int64       tinyint..bigint  integers, YEAR, BIT up to 63
decimal128(p, s)     decimal(p, s)    DECIMAL; BIGINT UNSIGNED and BIT(64) as (20, 0)
float, double        float, double    FLOAT, DOUBLE
date32               date             DATE
timestamp[us]        timestamp_ntz    DATETIME
timestamp[us, UTC]   timestamp        TIMESTAMP
string               string           text of all kinds, ENUM, SET, JSON, TIME, UUID, INET
binary               binary           BINARY, VARBINARY, BLOB, GEOMETRY
list<float>          array<float>     VECTOR
bool                 boolean          of expressions only
==================== ================ =========================================
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

_PLAIN: tuple[tuple[pa.DataType, spark.DataType], ...] = (
    (pa.bool_(), spark.BooleanType()),
    (pa.int8(), spark.ByteType()),
    (pa.int16(), spark.ShortType()),
    (pa.int32(), spark.IntegerType()),
    (pa.int64(), spark.LongType()),
    (pa.float32(), spark.FloatType()),
    (pa.float64(), spark.DoubleType()),
    (pa.date32(), spark.DateType()),
    (pa.timestamp("us"), spark.TimestampNTZType()),
    (pa.timestamp("us", "UTC"), spark.TimestampType()),
    (pa.string(), spark.StringType()),
    (pa.binary(), spark.BinaryType()),
)


def spark_type(arrow: pa.DataType) -> spark.DataType:
    """Return the Spark type of an Arrow type. Raises: TypeError - there is none."""
    for known, found in _PLAIN:
        if arrow == known:
            return found
    if pa.types.is_decimal128(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return spark.ArrayType(spark_type(arrow.value_type))
    raise TypeError(f"the Arrow type {arrow} has no Spark type")


def arrow_type(found: spark.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises: TypeError - no column of a target can have it."""
    for arrow, known in _PLAIN:
        if type(found) is type(known):
            return arrow
    if isinstance(found, spark.DecimalType):
        return pa.decimal128(found.precision, found.scale)
    if isinstance(found, spark.ArrayType):
        return pa.list_(arrow_type(found.elementType))
    raise TypeError(f"no column of a target can have Spark's type {found.simpleString()}")


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark schema of an Arrow schema."""
    return spark.StructType([spark.StructField(field.name, spark_type(field.type), field.nullable) for field in schema])
