"""Mappings and routes: columns read, target tables, and refused names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.errors import SchemaMismatch, TargetMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ColumnMap
from channels.mapping import Mapping
from channels.sinks.base import TargetColumn

ID = Column("ID", Kind.BIGINT, "bigint", nullable=False)
EMAIL = Column("email", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4", comment="where to")
DAY = Column("day", Kind.DATE, "date", nullable=False)
SCHEMA = TableSchema("shop", "orders", (ID, EMAIL, DAY), ("ID",), "all orders")


def test_target_table_without_columns_copies_source() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.name for column in target.columns] == ["ID", "email", "day"]
    assert (target.key, target.comment, target.columns[1].comment) == (("ID",), "all orders", "where to")


@pytest.mark.parametrize(
    ("text", "source_type", "comment"),
    [
        ("nullif(doc, 'null')", "json", "documents"),
        ("NULLIF(`DOC`, concat('nu', 'll'))", "json", "documents"),
        ("nullif(trim(doc), 'null')", "", ""),
        ("coalesce(doc, '{}')", "", ""),
        ("cast(nullif(doc, 'null') as string)", "", ""),
        ("nullif(email, '')", "", ""),
    ],
)
def test_target_table_nullif_of_a_json_column_is_json(text: str, source_type: str, comment: str) -> None:
    doc = Column("doc", Kind.JSON, "json", nullable=False, comment="documents")
    schema = TableSchema("shop", "orders", (ID, EMAIL, doc), ("ID",))
    target = Mapping("shop.orders", "ods.orders", columns={"id": "id", "d": text}).target_table(
        schema, lambda *of: {"d": (pa.string(), True)}
    )
    assert target.columns[1] == TargetColumn("d", pa.string(), True, source_type, comment)


def test_target_table_not_null_date_is_nullable() -> None:
    target = Mapping("shop.orders", "ods.orders").target_table(SCHEMA)
    assert [column.nullable for column in target.columns] == [False, True, True]


def test_reads_ignores_case_of_columns_in_expressions() -> None:
    mapping = Mapping(
        "shop.orders", "ods.o", columns={"number": "id", "m": "lower(`EMAIL`)"}, filter="Day > '2020-01-01'"
    )
    reads = mapping.reads(SCHEMA)
    assert (reads.columns, reads.key) == ({"ID", "email", "day"}, {"ID"})
    assert mapping.key_of(SCHEMA) == ("number",)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("trunc(day, Unit)", {"day", "unit"}),
        ("date_trunc(`unit`, day)", {"day", "unit"}),
        ("dateadd(unit, 1, day)", {"day", "unit"}),
        ("current_date", {"current_date"}),
        ("lower(`Current_Date`)", {"current_date"}),
        ("unit(day)", {"day"}),
        ("cast(day AS date)", {"day"}),
        ("concat(day, 'unit')", {"day"}),
        ('concat(day, "unit", 1) -- unit', {"day"}),
    ],
)
def test_names_finds_columns_that_are_units_or_functions(text: str, read: set[str]) -> None:
    others = [Column(name, Kind.DATE, "date") for name in ("unit", "current_date", "date", "1")]
    schema = TableSchema("shop", "orders", (ID, DAY, *others), ("ID",))
    mapping = Mapping("shop.orders", "ods.o", columns={"x": text}, filter="id > 0")
    assert {column.name for column in schema.columns if mapping.names(schema, column.name)} == {"ID", *read}


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (Mapping("shop.orders", "ods.o", columns={"m": "email"}), "ID"),
        (Mapping("shop.orders", "ods.o", key=("email",)), "lacks ID"),
        (Mapping("shop.orders", "ods.o", key=("nope",)), "nope"),
    ],
)
def test_reads_key_without_source_key_raises(mapping: Mapping, said: str) -> None:
    with pytest.raises(TargetMismatch, match=said):
        mapping.reads(SCHEMA)


def test_reads_table_without_key_needs_not_null_key() -> None:
    keyless = TableSchema("shop", "orders", SCHEMA.columns, ())
    with pytest.raises(
        TargetMismatch, match=r"no primary key.*Add a primary key to it, or set `key`.*NOT NULL columns"
    ):
        Mapping("shop.orders", "ods.o").reads(keyless)
    with pytest.raises(TargetMismatch, match="email"):
        Mapping("shop.orders", "ods.o", key=("email",)).reads(keyless)
    assert Mapping("shop.orders", "ods.o", key=("id",)).reads(keyless).key == {"ID"}


@pytest.mark.parametrize("text", ["missing", "lower(missing)", "orders.id"])
def test_reads_missing_column_raises(text: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"missing|orders\.id"):
        Mapping("shop.orders", "ods.o", columns={"id": "id", "x": text}).reads(SCHEMA)


def test_reads_reserved_column_name_raises_unless_omitted():
    schema = TableSchema("shop", "orders", (ID, Column("__Deleted", Kind.TINYINT, "tinyint")), ("id",))
    with pytest.raises(SchemaMismatch, match="column name __Deleted is reserved"):
        Mapping("shop.orders", "ods.orders").reads(schema)
    assert Mapping("shop.orders", "ods.orders", columns={"id": "id"}).reads(schema).columns == {"ID"}


@pytest.mark.parametrize("name", ["email", "Email"])
def test_two_source_columns_with_one_target_column_raise(name: str) -> None:
    """A rename of ``email`` was ignored, and a column of this name was added again."""
    columns = (ID, Column("mail", Kind.INT, "int"), Column(name, Kind.INT, "int"))
    schema = TableSchema("shop", "orders", columns, ("ID",))
    mapping = Mapping("shop.orders", "ods.orders", column_map=ColumnMap({"mail": "email"}))
    for call in (mapping.reads, mapping.target_table, mapping.copied):
        with pytest.raises(TargetMismatch, match=f"columns mail and {name} have one target column.*reload-missing"):
            call(schema)
    assert mapping.copied(TableSchema("shop", "orders", columns[:2], ("ID",))) == {"ID": "ID", "email": "mail"}
