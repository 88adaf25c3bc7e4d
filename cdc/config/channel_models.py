"""Channels of a job file: which source table goes to which target table, and how."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cdc.config.change_models import SchemaChangesOrMode
from cdc.config.fields import Model, Text, filled
from cdc.config.loader import CrossFieldError
from cdc.config.sink_models import ChannelTable
from cdc.model.table_names import parse_excluded, parse_table


class ChannelConfig(Model):
    """Map one source table to one target table or, with one ``*`` on each side, all tables that match.

    ``cdc.model.table_names`` defines the syntax of names. A channel that names a table takes precedence over a pattern.
    """

    source: str = Field(
        description="Source table, as `database.table`. One `*` in the table name maps all tables that match."
    )
    target: str = Field(
        description="Target table, as `database.table`. With a `*` in `source`, its `*` stands for the same text."
    )
    key: Annotated[tuple[Text, ...] | None, BeforeValidator(filled)] = Field(
        default=None,
        description="Columns that identify a row. Default: the primary key, else the first NOT NULL unique key.",
    )
    columns: Annotated[dict[Text, Text] | None, BeforeValidator(filled)] = Field(
        default=None,
        description=(
            "Target columns: name and Spark SQL expression over the source columns. Default: all columns "
            "under their own names."
        ),
    )
    filter: Text | None = Field(
        default=None, description="Spark SQL condition. Rows that do not match are deleted from the target."
    )
    tables: ChannelTable | None = Field(default=None, description="How the job creates this table (Doris, StarRocks).")
    exclude: Annotated[tuple[Text, ...] | None, BeforeValidator(filled)] = Field(
        default=None,
        description="Tables that the wildcard in `source` does not match: names, in which `*` stands for any text.",
    )
    schema_changes: SchemaChangesOrMode | None = Field(
        default=None, description="What the job does when these tables change. Default: as for the job."
    )
    topic: Text | None = Field(
        default=None,
        description="Topic with the rows of this table (`format: json` or `csv`). Default: the name in `source`.",
    )
    fields: Annotated[dict[Text, Text] | None, BeforeValidator(filled)] = Field(
        default=None,
        description="Source columns and their types, where messages have none. Spark SQL types for `format: json` and "
        "`csv`, there in the order of the values; MySQL types for `debezium-json`. `NOT NULL` may follow.",
    )
    paths: Annotated[dict[Text, Text] | None, BeforeValidator(filled)] = Field(
        default=None,
        description='Paths of fields in the JSON of `format: json`, such as `city: "$.address.city"`. Default: the '
        "name at the top level.",
    )
    delete_when: Text | None = Field(
        default=None,
        description="Spark SQL condition over `fields` (`format: json` or `csv`). Rows that match it are deleted "
        "from the target. Default: only a message without a value deletes the row of its key.",
    )

    @field_validator("source")
    @classmethod
    def _source_name(cls, value: str) -> str:
        return str(parse_table(value))

    @field_validator("target")
    @classmethod
    def _target_name(cls, value: str) -> str:
        name = parse_table(value)
        if "." in name.database or "*" in name.database or (name.plain.count("*") > (name.tail is not None)):
            raise ValueError("must have no dot in its database and no * in backticks: no sink accepts such a name")
        return str(name)

    @field_validator("exclude")
    @classmethod
    def _excluded_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for one in value or ():
            parse_excluded(one)
        return value

    @model_validator(mode="after")
    def _excludes_from_a_pattern(self) -> ChannelConfig:
        if self.exclude and not parse_table(self.source).is_pattern:
            raise CrossFieldError("exclude", "needs a * in the source of the channel")
        return self

    @field_validator("key")
    @classmethod
    def _once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value and len(set(value)) < len(value):
            raise ValueError(f"names {Counter(value).most_common(1)[0][0]} twice")
        return value
