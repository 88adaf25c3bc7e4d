"""Print the rows of a Delta table as JSON, with a reader of this interpreter: ``python read.py duckdb|spark PATH``.

The project is not installed for this interpreter. ``$CDC_TEST_DELTA_JARS`` is the folder of the jars for Spark.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def by_duckdb(path: str) -> list[Any]:
    import duckdb
    from duckdb_extensions import import_extension

    import_extension("delta")
    with duckdb.connect() as connection:
        connection.execute("LOAD delta")
        return connection.execute("SELECT id, n FROM delta_scan(?)", [path]).fetchall()


def by_spark(path: str) -> list[Any]:
    from pyspark.sql import SparkSession

    jars = ",".join(map(str, Path(os.environ["CDC_TEST_DELTA_JARS"]).glob("delta-s*.jar")))  # Spark has the others
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")  # the log of a small table
        .getOrCreate()
    )
    rows = session.read.format("delta").load(path).select("id", "n").collect()
    session.stop()
    return [[row.id, row.n] for row in rows]


if __name__ == "__main__":
    print(json.dumps({"duckdb": by_duckdb, "spark": by_spark}[sys.argv[1]](sys.argv[2])))
