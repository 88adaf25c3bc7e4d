"""Bodies of the transaction interface to checked rows: the headers of a table's first load say how to read all."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.emulators.names import IDENTIFIER, column_entries, dropped
from tests.emulators.rows import csv_fields, json_fields, separator
from tests.emulators.starrocks.documents import stored_document
from tests.emulators.starrocks.settings import StarrocksSettings
from tests.emulators.starrocks.transactions import Refused
from tests.emulators.storage import SIGN, Checked, Storage, StoredTable

OPERATION = "__op"
FORWARDED = (
    "format", "columns", "where", "column_separator", "row_delimiter", "partitions", "strict_mode", "timezone",
    "jsonpaths", "json_root", "strip_outer_array", "ignore_json_size", "partial_update", "merge_condition",
    "max_filter_ratio", "compression",
)  # fmt: skip
_MADE = re.compile(
    rf"({IDENTIFIER})\s*=\s*(to_binary|parse_json|cast|json_query\(\s*parse_json)\("
    rf"\s*({IDENTIFIER})\s*(?:,\s*'hex'\s*|as\s+[\w<>]+|\)\s*,\s*'\$\[0\]'\s*)?\)",
    re.I,
)
_OPERATIONS = {None: "0", "0": "0", "upsert": "0", "1": "1", "delete": "1"}


class Plan:
    """What headers ask for, checked against the table before a byte of the body is read."""

    def __init__(self, headers: dict[str, str], table: StoredTable) -> None:
        self.table, self.headers = table, headers
        self.format = headers.get("format", "csv").lower()
        if self.format not in ("csv", "json"):
            raise Refused(f"unknown data format, format={headers['format']}", "INTERNAL_ERROR")
        self.column_separator = separator(headers.get("column_separator"), "\t")
        self.row_delimiter = separator(headers.get("row_delimiter"), "\n")
        self.strip_array = headers.get("strip_outer_array") == "true"
        self.strict = headers.get("strict_mode") == "true"
        self.max_filter_ratio = float(headers.get("max_filter_ratio", "0"))
        self.elements: set[str] = set()  # columns that get the first element of a document
        self.fields, self.made = self._columns(headers.get("columns", ""))
        self._check()

    def _columns(self, listed: str) -> tuple[list[str], dict[str, str]]:
        fields, made = [], {}
        for entry in column_entries(listed):
            if re.fullmatch(IDENTIFIER, entry):
                fields.append(dropped(entry))
                continue
            found = _MADE.fullmatch(entry)
            if found is None:
                raise Refused(f"the emulator cannot parse the expression: {entry}", "INTERNAL_ERROR")
            made[dropped(found[1])] = dropped(found[3])
            if found[2].lower().startswith("json_query"):
                self.elements.add(dropped(found[1]))
        if not fields:
            fields = [column.name for column in self.table.columns] + [OPERATION] * (self.format == "json")
        return fields, made

    def _check(self) -> None:
        if self.table.model != "PRIMARY" and OPERATION in self.fields:
            raise Refused(f"__op is not supported: table {self.table.name} is not primary key table")
        names = {column.name for column in self.table.columns}
        unknown = [name for name in self.made if name not in names]
        if unknown:
            raise Refused(f"Column '{unknown[0]}' cannot be resolved")
        # a field that is no column is taken for one that expressions may use, and is read and let go
        for column in self.table.columns:
            if not column.nullable and column.default is None and column.name not in {*self.fields, *self.made}:
                raise Refused(f"Column has no default value. column: {column.name}")

    def check(self, bodies: list[bytes], storage: Storage, settings: StarrocksSettings) -> Checked:
        """Parse and check all bodies, in the order in which they came."""
        tables, bad = [], []
        for body in bodies:
            if self.format == "json":
                fields, wrong = json_fields(
                    body, self.fields, by_line=not self.strip_array, strip_array=self.strip_array, through_double=False
                )
            else:
                if not body.endswith(self.row_delimiter.encode()):
                    raise Refused("CSV body does not end with the row delimiter", "INTERNAL_ERROR")
                fields, wrong = csv_fields(body, self.fields, self.column_separator, self.row_delimiter)
                fields, long = _long_fields(fields, settings.csv_field_bytes)
                wrong += long
            tables.append(fields)
            bad += wrong
        fields = self._in_table(pa.concat_tables(tables), settings.json_bytes)
        bad += self._long_keys(fields, settings.key_bytes)
        checked = storage.check(self.table, fields, strict=self.strict, zone_hours=0)
        return Checked(checked.rows, checked.total + len(bad), (*bad, *checked.bad))

    def _in_table(self, fields: pa.Table, json_bytes: int) -> pa.Table:
        """Columns of the table, conversions made, what becomes of a row as a sign.

        A document that is invalid or too long becomes NULL, because strict mode checks only StarRocks' own casts.
        """
        columns: dict[str, Any] = {}
        for column in self.table.columns:
            source = self.made.get(column.name, column.name)
            if source not in fields.column_names:
                continue
            values = fields[source]
            if column.name not in self.made and self.format == "json":
                if column.base == "VARBINARY":
                    raise Refused(f"Not support load JSON into VARBINARY column {column.name}", "INTERNAL_ERROR")
                if column.base == "JSON":  # a text becomes a JSON string, whatever stands in it
                    values = pa.chunked_array([[None if v is None else json.dumps(v) for v in values.to_pylist()]])
            if column.name in self.made and column.base == "JSON":
                first = column.name in self.elements
                documents = [stored_document(v, json_bytes, first_element=first) for v in values.to_pylist()]
                values = pa.chunked_array([documents], pa.string())
            columns[column.name] = values
        if OPERATION in fields.column_names:
            signs = [_OPERATIONS[value] for value in fields[OPERATION].to_pylist()]
            columns[SIGN] = pa.array(signs, pa.string())
        return pa.table(columns)

    def _long_keys(self, fields: pa.Table, limit: int) -> list[str]:
        keys = zip(*(fields[name].to_pylist() for name in self.table.key), strict=True)
        return [
            "Reason: primary key size exceed the limit."
            for key in keys
            if sum(len(part.encode()) if isinstance(part, str) else 0 for part in key) > limit
        ]


def _long_fields(fields: pa.Table, limit: int) -> tuple[pa.Table, list[str]]:
    """Rows without a field over ``limit`` bytes, and a line for each of the others."""
    bad = []
    for name in fields.column_names:
        is_long = pc.fill_null(pc.greater(pc.binary_length(fields[name]), limit), fill_value=False)
        bad += ["Reason: Value length exceeds 1048576."] * pc.sum(is_long).as_py() if fields.num_rows else []
        fields = fields.filter(pc.invert(is_long))
    return fields, bad


def forwarded(headers: Any) -> dict[str, str]:
    """What of a request's headers takes part in a plan, as an FE reads it: a character for a byte."""
    return {name: headers[name] for name in FORWARDED if headers.get(name) is not None}


def as_utf8(value: str) -> str:
    """A header as a BE reads it."""
    return value.encode("latin-1").decode()
