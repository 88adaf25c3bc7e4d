"""The Delta table of a mapping: schema, CREATE TABLE, and the differences of an existing table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import ArrayType, DataType, Field
from deltalake.schema import Schema as DeltaSchema

from cdc.errors import TargetMismatch
from cdc.model.arrow_types import widens
from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.delta.entries import ENABLED, has_vectors, writes_vectors
from channels.sinks.delta.storage import StorePath

CHECKPOINT_EVERY = 50  # versions of a table's log
_SHORTEST_LOG_S = 60.0  # a reader that has listed the log must be able to read it
_LONG_LOG_S = 2 * 86400.0
_LOG_RETENTION = "delta.logRetentionDuration"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_LOAD_AGAIN = (
    "load the table again: move its folder away, then run `cdc resume NAME --reload-missing` (`cdc start` for a new "
    "job), which creates the table with its new columns."
)
VECTORS_REQUESTED = {"cdc.merge": "deletion_vectors"}  # property of a table that a sink creates for them
_READ_FEATURES = {"timestampNtz", "deletionVectors"}
_WRITE_FEATURES = {*_READ_FEATURES, "appendOnly", "invariants"}


def properties(table: TargetTable, retention_s: float) -> dict[str, str]:
    """Return table properties by name. Those of the job file override the others."""
    return {
        "cdc.key": json.dumps(list(table.key)),
        "delta.deletedFileRetentionDuration": f"interval {int(retention_s)} seconds",
        _LOG_RETENTION: f"interval {int(max(retention_s, _SHORTEST_LOG_S))} seconds",
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        **{name: str(value) for name, value in table.options.get("properties", {}).items()},
    }


def create_table(table: TargetTable, folder: StorePath, retention_s: float, options: Mapping[str, str]) -> str:
    """Return the Spark SQL statement for a table in ``folder``. ``options``: further properties."""
    lines = []
    for field, column in zip(delta_schema(table).fields, table.columns, strict=True):
        null = "" if field.nullable else " NOT NULL"
        comment = f" COMMENT {_quoted(column.comment)}" if column.comment else ""
        lines.append(f"  `{column.name}` {_type_text(field.type).upper()}{null}{comment}")
    comment = f"\nCOMMENT {_quoted(table.comment)}" if table.comment else ""
    database, _, name = table.name.partition(".")
    return (
        f"CREATE TABLE `{database}`.`{name}` (\n" + ",\n".join(lines) + f"\n)\nUSING delta{comment}\n"
        f"LOCATION {_quoted(str(folder))}\n"
        "TBLPROPERTIES (\n"
        + ",\n".join(
            f"  {_quoted(name)} = {_quoted(value)}"
            for name, value in {**properties(table, retention_s), **options}.items()
        )
        + "\n);"
    )


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Return the Arrow schema of a Delta table."""
    return plain_schema(pa.schema(table.schema().to_arrow()))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema of deltalake with the types that the rows of a job have."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind


def delta_schema(table: TargetTable) -> DeltaSchema:
    """Return the Delta schema of a target."""
    return DeltaSchema([delta_field(column) for column in table.columns])


def delta_field(column: TargetColumn) -> Field:
    """Return the Delta field of a target column."""
    kind = DeltaSchema.from_arrow(pa.schema([pa.field(column.name, column.arrow)])).fields[0].type
    metadata = {"comment": column.comment} if column.comment else {}
    return Field(column.name, kind, nullable=column.nullable, metadata=metadata)


def with_stored_types(found: DeltaTable, table: TargetTable) -> TargetTable:
    """Return ``table`` with the types that ``found`` has: a column can be wider than the mapping needs."""
    stored = arrow_schema(found)
    kinds = {field.name: field.type for field in stored}
    columns = tuple(
        replace(column, arrow=kinds[column.name]) if _is_wider(kinds.get(column.name), column, table) else column
        for column in table.columns
    )
    return replace(table, columns=columns)


def _is_wider(stored: pa.DataType | None, column: TargetColumn, table: TargetTable) -> bool:
    """Return whether the type of a stored column has every value of ``column``, unchanged. A key has its exact type."""
    return stored is not None and column.name not in table.key and widens(column.arrow, stored)


def lacks_invariants(table: DeltaTable) -> bool:
    """Return whether the table's protocol lists features, but not the one that NOT NULL needs.

    Source: the Delta protocol, "Writer Version Requirements" and "Column Invariants".
    """
    features = table.protocol().writer_features
    return features is not None and "invariants" not in features


def expiring(found: DeltaTable) -> Iterator[Finding]:
    """Yield a finding if application transactions of the table expire: readers hide older ones.

    They have the checkpoints and the fences of the job, without which a checkpoint could be committed twice.
    Source: the Delta protocol, "Transaction Identifiers".
    """
    metadata = found.metadata()
    for name in metadata.configuration:
        if name.casefold() == _TRANSACTION_RETENTION.casefold():
            yield Finding(
                f"The table forgets committed checkpoints: it has the property {name}.",
                f"ALTER TABLE {metadata.name or '...'} UNSET TBLPROPERTIES ('{name}').",
            )


def refuse_expiring(found: DeltaTable, table: str, folder: StorePath) -> None:
    """Raise TargetMismatch if application transactions of the table expire, see ``expiring``.

    Calls: before they are compared with the state of the job. Otherwise the table looks as if it was replaced.
    """
    for finding in expiring(found):
        raise TargetMismatch(finding.problem, hint=finding.hint, table=table, path=folder)


def unwritable(found: DeltaTable) -> Iterator[Finding]:
    """Yield properties that a merge would violate. Checked before each merge, because they can be set at any time."""
    yield from expiring(found)
    protocol, metadata = found.protocol(), found.metadata()
    alien = (set(protocol.reader_features or ()) - _READ_FEATURES) | (
        set(protocol.writer_features or ()) - _WRITE_FEATURES
    )
    if alien:
        yield Finding(
            f"The table uses Delta features that this sink does not write: {', '.join(sorted(alien))}.",
            "Use a separate target table, or drop the features from the table.",
        )
    if protocol.writer_features is None and (protocol.min_writer_version > 2 or protocol.min_reader_version > 1):
        yield Finding(
            f"The table's protocol is ({protocol.min_reader_version}, {protocol.min_writer_version}): a merge would "
            "not maintain its constraints, generated columns, change data feed or column mapping.",
            "Use a separate target table.",
        )
    if metadata.partition_columns:
        yield Finding(
            f"The table is partitioned by {', '.join(metadata.partition_columns)}.",
            "Use an unpartitioned table; this sink divides files by key.",
        )
    if metadata.configuration.get("delta.appendOnly", "false").lower() == "true":
        yield Finding(
            "The table does not accept changes of rows: its property delta.appendOnly is true.",
            f"ALTER TABLE {metadata.name or '...'} SET TBLPROPERTIES ('delta.appendOnly' = 'false').",
        )


def awaits_vectors(table: DeltaTable) -> bool:
    """Return whether a sink created the table for deletion vectors, and has not yet allowed them."""
    requested = VECTORS_REQUESTED.items() <= table.metadata().configuration.items()
    return requested and table.version() == 0 and not has_vectors(table)


def merge_findings(found: DeltaTable, table: TargetTable) -> Iterator[Finding]:
    """Yield a finding if the table does not allow deletion vectors, which the job file requests."""
    if not writes_vectors(found) and not awaits_vectors(found):
        yield Finding(
            f"The table {table.name} does not allow deletion vectors: commits rewrite its files.",
            f"ALTER TABLE {table.name} SET TBLPROPERTIES ('{ENABLED}' = 'true') in Spark, if all readers of the table "
            "support deletion vectors.",
            fatal=False,
        )


def log_findings(found: DeltaTable, table: TargetTable, retention_s: float) -> Iterator[Finding]:
    """Yield a finding if the log is kept shorter than ``sink.retention``, or much longer."""
    kept_s = _seconds(found.metadata().configuration.get(_LOG_RETENTION, "interval 30 days"))
    requested = properties(table, retention_s)[_LOG_RETENTION]
    hint = f"ALTER TABLE {table.name} SET TBLPROPERTIES ('{_LOG_RETENTION}' = '{requested}')."
    if kept_s is not None and kept_s < retention_s:
        problem = f"The table's log is kept for {kept_s / 3600:.1f} hours, less than `sink.retention`."
        yield Finding(problem, hint, fatal=False)
    if kept_s is not None and kept_s > max(_LONG_LOG_S, retention_s):
        problem = f"The table's log is kept for {kept_s / 86400:.0f} days; commits take longer with a long log."
        yield Finding(problem, hint, fatal=False)


def differences(found: DeltaTable, table: TargetTable) -> Iterator[Finding]:
    """Yield all differences between ``found`` and ``table``."""
    yield from unwritable(found)
    metadata = found.metadata()
    key = json.loads(metadata.configuration.get("cdc.key", "null"))
    if key is None or [name.casefold() for name in key] != [name.casefold() for name in table.key]:
        has = f"has the key ({', '.join(key)})" if key else "was not created by this program"
        yield Finding(
            f"The table {has}, but the mapping has the key ({', '.join(table.key)}).",
            f"Choose another target, or {_LOAD_AGAIN}",
        )
    fields = {field.name: field for field in found.schema().fields}
    table = with_stored_types(found, table)
    spelt = {name.casefold(): name for name in fields}
    requested = {field.name: field for field in delta_schema(table).fields}
    for name, field in requested.items():
        if name not in fields and name.casefold() in spelt:
            there = spelt[name.casefold()]
            yield Finding(
                f"Column {name} has the spelling {there} in the table.",
                f"Set `columns` of the channel to all columns, with {{{there}: {name}}}.",
            )
        elif name not in fields:
            yield Finding(
                f"The table does not have the column {name}.",
                f"Add it (ALTER TABLE ... ADD COLUMN {name}), or leave it out with `columns`.",
            )
        elif fields[name].type != field.type:
            yield Finding(
                f"Column {name} is {_type_text(fields[name].type)} in the table, but {_type_text(field.type)} in the "
                "mapping.",
                f"Cast it in `columns`, or {_LOAD_AGAIN}",
            )
        elif field.nullable and not fields[name].nullable:
            yield Finding(
                f"Column {name} is NOT NULL in the table, but can be NULL in the mapping.",
                f"Use coalesce in `columns`, or {_LOAD_AGAIN}",
            )
    requested_names = {name.casefold() for name in requested}
    for name in (name for name in fields if name.casefold() not in requested_names):
        yield Finding(
            f"The table has the column {name}, which the mapping does not have.",
            "It is NULL in new rows; add it to `columns` to fill it.",
            fatal=not fields[name].nullable,
        )


def _seconds(interval: str) -> float | None:
    """Return the seconds of a text such as ``interval 30 days``; None for another form."""
    words = interval.lower().split()
    if len(words) != 3 or words[0] != "interval" or not words[1].isdecimal():
        return None
    unit = _UNITS_S.get(words[2].removesuffix("s"))
    return float(int(words[1]) * unit) if unit is not None else None


def _type_text(kind: DataType) -> str:
    return f"array<{_type_text(kind.element_type)}>" if isinstance(kind, ArrayType) else kind.type


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
