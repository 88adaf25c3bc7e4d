"""Delta tables as a mapping wants them: schema, CREATE TABLE, and every way in which a table does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import ArrayType, DataType, Field
from deltalake.schema import Schema as DeltaSchema

from channels.sinks.base import Finding, TargetTable

CHECKPOINT_EVERY = 50  # versions of a table's log
_SHORTEST_LOG_S = 60.0  # a reader that has listed the log still has to read it
_LONG_LOG_S = 2 * 86400.0
_LOG_RETENTION = "delta.logRetentionDuration"
_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_READ_FEATURES = {"timestampNtz"}
_WRITE_FEATURES = {"timestampNtz", "appendOnly", "invariants"}


def properties(table: TargetTable, retention_s: float) -> dict[str, str]:
    """Table properties by name; those that the job file sets win."""
    return {
        "cdc.key": json.dumps(list(table.key)),
        "delta.deletedFileRetentionDuration": f"interval {int(retention_s)} seconds",
        _LOG_RETENTION: f"interval {int(max(retention_s, _SHORTEST_LOG_S))} seconds",
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        **{name: str(value) for name, value in table.options.get("properties", {}).items()},
    }


def create_table(table: TargetTable, folder: Path, retention_s: float) -> str:
    """The statement, Spark SQL, for a table at ``folder``."""
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
        + ",\n".join(f"  {_quoted(name)} = {_quoted(value)}" for name, value in properties(table, retention_s).items())
        + "\n);"
    )


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The columns as Arrow has them."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind


def delta_schema(table: TargetTable) -> DeltaSchema:
    """The columns as Delta has them."""
    fields = []
    for column in table.columns:
        kind = DeltaSchema.from_arrow(pa.schema([pa.field(column.name, column.arrow)])).fields[0].type
        metadata = {"comment": column.comment} if column.comment else {}
        fields.append(Field(column.name, kind, nullable=column.nullable, metadata=metadata))
    return DeltaSchema(fields)


def lacks_invariants(table: DeltaTable) -> bool:
    """Whether the table's protocol lists its features, and not the one that NOT NULL needs.

    Source: the Delta protocol, "Writer Version Requirements" and "Column Invariants".
    """
    features = table.protocol().writer_features
    return features is not None and "invariants" not in features


def unwritable(found: DeltaTable) -> Iterator[Finding]:
    """What no merge of ours keeps as it is; asked before each, since anybody may set it at any time."""
    protocol, metadata = found.protocol(), found.metadata()
    alien = (set(protocol.reader_features or ()) - _READ_FEATURES) | (
        set(protocol.writer_features or ()) - _WRITE_FEATURES
    )
    if alien:
        yield Finding(
            f"The table uses Delta features that this sink does not write: {', '.join(sorted(alien))}.",
            "Load into a table of its own, or drop the features from the table.",
        )
    if protocol.writer_features is None and (protocol.min_writer_version > 2 or protocol.min_reader_version > 1):
        yield Finding(
            f"The table's protocol is ({protocol.min_reader_version}, {protocol.min_writer_version}): its constraints, "
            "generated columns, change data feed or column mapping would not be kept.",
            "Load into a table of its own.",
        )
    if metadata.partition_columns:
        yield Finding(
            f"The table is partitioned by {', '.join(metadata.partition_columns)}.",
            "Load into an unpartitioned table; this sink keeps files apart by key.",
        )
    if metadata.configuration.get("delta.appendOnly", "false").lower() == "true":
        yield Finding(
            "The table takes no changes of rows: its property delta.appendOnly is true.",
            f"ALTER TABLE {metadata.name or '...'} SET TBLPROPERTIES ('delta.appendOnly' = 'false').",
        )


def log_findings(found: DeltaTable, table: TargetTable, retention_s: float) -> Iterator[Finding]:
    """Whether the log keeps what ``sink.retention`` wants, and not much more."""
    kept_s = _seconds(found.metadata().configuration.get(_LOG_RETENTION, "interval 30 days"))
    wanted = properties(table, retention_s)[_LOG_RETENTION]
    mend = f"ALTER TABLE {table.name} SET TBLPROPERTIES ('{_LOG_RETENTION}' = '{wanted}')."
    if kept_s is not None and kept_s < retention_s:
        problem = f"The table's log keeps {kept_s / 3600:.1f} hours, less than sink.retention: older versions are lost."
        yield Finding(problem, mend, fatal=False)
    if kept_s is not None and kept_s > max(_LONG_LOG_S, retention_s):
        problem = f"The table's log keeps {kept_s / 86400:.0f} days, and commits take time by its length."
        yield Finding(problem, mend, fatal=False)


def differences(found: DeltaTable, table: TargetTable) -> Iterator[Finding]:
    """Every way in which ``found`` does not fit ``table``."""
    yield from unwritable(found)
    metadata = found.metadata()
    key = json.loads(metadata.configuration.get("cdc.key", "null"))
    if key is None or [name.casefold() for name in key] != [name.casefold() for name in table.key]:
        has = f"has the key ({', '.join(key)})" if key else "was not made by this program"
        yield Finding(
            f"The table {has}, and the mapping wants ({', '.join(table.key)}).",
            "Choose another target, or remove the table and load it anew.",
        )
    fields = {field.name: field for field in found.schema().fields}
    spelt = {name.casefold(): name for name in fields}
    wanted = {field.name: field for field in delta_schema(table).fields}
    for name, field in wanted.items():
        if name not in fields and name.casefold() in spelt:
            there = spelt[name.casefold()]
            yield Finding(
                f"Column {name} is spelt {there} in the table.",
                f"Spell it so under columns: of the channel, beside all others: {{{there}: {name}}}.",
            )
        elif name not in fields:
            yield Finding(
                f"The table lacks column {name}.",
                f"Add it (ALTER TABLE ... ADD COLUMN {name}), or leave it out by `columns:`.",
            )
        elif fields[name].type != field.type:
            yield Finding(
                f"Column {name} is {_type_text(fields[name].type)} in the table, and the mapping gives "
                f"{_type_text(field.type)}.",
                "Cast it in `columns:`, or load the table anew.",
            )
        elif field.nullable and not fields[name].nullable:
            yield Finding(
                f"Column {name} is NOT NULL in the table, and the mapping may give NULL.",
                "Use coalesce in `columns:`, or drop NOT NULL from the table.",
            )
    given = {name.casefold() for name in wanted}
    for name in (name for name in fields if name.casefold() not in given):
        yield Finding(
            f"The table has column {name}, which the mapping does not give.",
            "It stays NULL for new rows; add it to `columns:` to fill it.",
            fatal=not fields[name].nullable,
        )


def _seconds(interval: str) -> float | None:
    """Of ``interval 30 days``; None where it is of another form."""
    words = interval.lower().split()
    if len(words) != 3 or words[0] != "interval" or not words[1].isdecimal():
        return None
    unit = _UNITS_S.get(words[2].removesuffix("s"))
    return float(int(words[1]) * unit) if unit is not None else None


def _type_text(kind: DataType) -> str:
    return f"array<{_type_text(kind.element_type)}>" if isinstance(kind, ArrayType) else kind.type


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
