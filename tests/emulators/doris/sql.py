"""Statements that only Doris has: SHOW TRANSACTION, features, Unique-key tables with their hidden columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot import exp

from tests.emulators.doris.transactions import Status
from tests.emulators.names import IDENTIFIER, TABLE, DorisNames
from tests.emulators.sql import (
    Context,
    Dialect,
    Rows,
    SqlRefused,
    SqlStatements,
    column_of,
    comment_of,
    model_of,
    partitions_of,
    properties_of,
    tail_of,
)
from tests.emulators.storage import SEQUENCE, SIGN, StoredColumn, StoredTable

if TYPE_CHECKING:
    from tests.emulators.doris.emulator import DorisEmulator

_TRANSACTION = (
    "TransactionId", "Label", "Coordinator", "TransactionStatus", "LoadJobSourceType", "PrepareTime", "PreCommitTime",
    "CommitTime", "PublishTime", "FinishTime", "Reason", "ErrorReplicasCount", "ListenerId", "TimeoutMs", "ErrMsg",
)  # fmt: skip
_FEATURE = re.compile(
    rf'ALTER\s+TABLE\s+({TABLE})\s+ENABLE\s+FEATURE\s+"(\w+)"(?:.*sequence_type"\s*=\s*"(\w+)")?', re.IGNORECASE
)
_SHOW_TRANSACTION = re.compile(
    rf"SHOW\s+TRANSACTION\s+(?:FROM\s+({IDENTIFIER})\s+)?WHERE\s+(\w+)\s*(=|LIKE)\s*'?([^']*)'?", re.IGNORECASE
)
_SEQUENCE_TYPES = {"TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "DATE", "DATETIME"}
_NO_KEY = {"STRING", "TEXT", "FLOAT", "DOUBLE", "JSON", "JSONB", "ARRAY"}


class DorisStatements(SqlStatements):
    """What the FE's SQL port understands."""

    node_statement = r"SHOW\s+(FRONTENDS|BACKENDS)"
    light_property, rename_to = "light_schema_change", False

    def __init__(self, cluster: DorisEmulator) -> None:
        names = DorisNames(cluster.settings.version, unicode_names=cluster.settings.unicode_names)
        super().__init__(cluster, names)
        cluster.storage.lower_case_table_names = cluster.settings.lower_case_table_names

    def special(self, sql: str, context: Context) -> Rows | None:
        """See SqlStatements."""
        if match := _SHOW_TRANSACTION.fullmatch(sql):
            database = self.unquote(match[1]) if match[1] else context.database or ""
            if (context.user, database) in self.cluster.settings.denied:
                raise SqlRefused(f"Access denied for user '{context.user}'@'%' to database '{database}'", 1044)
            if not self._administers(context) and self.cluster.settings.has("transactions_for_administrators"):
                raise SqlRefused("Access denied; you need (at least one of) the (ADMIN) privilege(s)", 1227)
            return self._transactions(database, match[2].lower(), match[3].upper(), match[4])
        if re.match(r"SELECT\s+@@(GLOBAL\.)?version_comment", sql, re.IGNORECASE):
            name = self.cluster.settings.name
            return ["@@version_comment"], [(f"Doris version {name}-0000000",)]
        if re.fullmatch(r"SHOW\s+PROC\s+'/dbs'", sql, re.IGNORECASE):
            if not self._administers(context):
                raise SqlRefused("Access denied; you need (at least one of) the (ADMIN) privilege(s)", 1227)
            head = "default_cluster:" if self.cluster.settings.version < (2, 1) else ""
            quota = self.cluster.transactions.quota
            found = [(f"{head}{name}", str(quota(name))) for name in sorted(self.storage.databases)]
            return ["DbName", "TransactionQuota"], found
        if match := re.fullmatch(r"SHOW\s+(?:GLOBAL\s+)?VARIABLES\s+LIKE\s+'(\w+)'", sql, re.IGNORECASE):
            return self._variable(match[1])
        if match := _FEATURE.match(sql):
            table = self.named(match[1], context)
            if match[2] == "BATCH_DELETE":
                table.delete_sign = True
            else:
                table.sequence_type = match[3]
                table.properties["function_column.sequence_type"] = match[3]
            return [], []
        return None

    def hidden(self, table: StoredTable, context: Context) -> tuple[StoredColumn, ...]:
        """See SqlStatements."""
        if context.variables.get("show_hidden_columns") not in ("true", "1"):
            return ()
        sign = (StoredColumn(SIGN, "TINYINT", False, "0"),) if table.delete_sign else ()
        return sign + ((StoredColumn(SEQUENCE, table.sequence_type.upper()),) if table.sequence_type else ())

    def insert(self, tree: exp.Insert, context: Context) -> Rows:
        """See SqlStatements. A table with a sequence column requires it in the statement."""
        schema = tree.this
        table = self.table(schema.this if isinstance(schema, exp.Schema) else schema, context)
        named = {node.name for node in schema.expressions} if isinstance(schema, exp.Schema) else set()
        if (table.sequence_type and SEQUENCE not in named) or (named and table.sequence_column not in {None, *named}):
            raise SqlRefused(f"Table {table.name} has sequence column, need to specify the sequence column")
        return super().insert(tree, context)

    def may_administer(self, context: Context) -> None:
        """See SqlStatements."""
        if not self._administers(context):
            raise SqlRefused("Access denied; you need (at least one of) the (ADMIN/OPERATOR) privilege(s)", 1227)

    def _administers(self, context: Context) -> bool:
        return context.user in self.cluster.settings.administrators

    def _variable(self, name: str) -> Rows:
        settings = self.cluster.settings
        known = {"lower_case_table_names": str(settings.lower_case_table_names)}
        if settings.version >= (2, 0):
            known["enable_unicode_name_support"] = str(settings.unicode_names).lower()
        return ["Variable_name", "Value"], [(name, known[name])] if name in known else []

    def config(self, name: str) -> Rows:
        """See SqlStatements."""
        settings = self.cluster.settings
        known = {
            "max_running_txn_num_per_db": settings.max_running_txn_num_per_db,
            "stream_load_default_precommit_timeout_second": int(settings.precommit_timeout_s),
            "streaming_label_keep_max_second": int(settings.label_keep_s),
            "label_num_threshold": settings.label_num_threshold,
        }
        rows = [(name, str(known[name]), "int", "true", "false", "")] if name in known else []
        return ["Key", "Value", "Type", "IsMutable", "MasterOnly", "Comment"], rows

    def _transactions(self, database: str, by: str, how: str, value: str) -> Rows:
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        if how == "LIKE" and self.cluster.settings.version < (2, 0):
            raise SqlRefused("Where clause should looks like one of them: id = 123 or label = 'label'")
        known = self.cluster.transactions.listed(database)
        match by, how:
            case "id", "=":
                found = [each for each in known if each.id == int(value)]
            case "label", "=":
                found = [each for each in known if each.label == value]
            case "label", "LIKE":
                pattern = re.escape(value).replace("%", ".*").replace("_", ".")
                found = [each for each in known if re.fullmatch(pattern, each.label)]
            case "status", "=" if not self.cluster.settings.has("transactions_for_administrators"):
                found = [each for each in known if each.status is Status(value.upper())]
            case _:
                raise SqlRefused("Where clause should looks like one of them: id = 123 or label = 'label'")
        if by in ("id", "label") and how == "=" and not found:
            text = f"label {value}" if by == "label" else f"id {value}"
            raise SqlRefused(f"transaction with {text} does not exist")
        found.sort(key=lambda each: each.id, reverse=True)
        return _TRANSACTION, [
            (str(each.id), each.label, "BE: 127.0.0.1", each.status.value, "BACKEND_STREAMING", "", "", "", "", "",
             each.reason, "0", "0", str(int(each.timeout_s * 1000)), "")
            for each in found
        ]  # fmt: skip

    def build(self, create: exp.Create, database: str, name: str) -> StoredTable:
        """See SqlStatements."""
        settings = self.cluster.settings
        given, properties = properties_of(create)
        columns = tuple(column_of(node) for node in create.this.expressions)
        model, key = model_of(given, columns[0].name)
        if tuple(column.name for column in columns[: len(key)]) != key:
            raise SqlRefused("Key columns should be a ordered prefix of the schema. KeyColumns[" + ", ".join(key) + "]")
        for column in columns:
            if column.name.startswith("__DORIS_"):
                raise SqlRefused(f"Incorrect column name '{column.name}'")
            if column.name in key and column.base in _NO_KEY:
                raise SqlRefused(f"{column.base} type should not be used in key column[{column.name}].")
            if column.base in ("VARCHAR", "CHAR") and column.parameters and column.parameters[0] > 65533:
                raise SqlRefused("Varchar size must be <= 65533")
        sequence = properties.get("function_column.sequence_type")
        if sequence and sequence.upper() not in _SEQUENCE_TYPES:
            raise SqlRefused("Sequence type only support integer types and date types")
        replicas = int(
            properties.get("replication_num") or properties.get("replication_allocation", "3").rpartition(" ")[2]
        )
        alive = sum(backend.alive for backend in self.cluster.backends)
        if replicas > alive:
            raise SqlRefused(
                "Failed to find enough backend, please check the replication num,replication tag and storage medium. "
                f"Create failed replications: replication num: {replicas}, alive {alive}"
            )
        if model == "UNIQUE":
            default = str(settings.has("merge_on_write_by_default")).lower()
            properties.setdefault("enable_unique_key_merge_on_write", default)
        properties.setdefault("light_schema_change", str(settings.has("light_schema_change_by_default")).lower())
        return StoredTable(
            database, name, columns, key, model, sequence, properties.get("function_column.sequence_col"),
            model == "UNIQUE", properties, comment_of(given), tail_of(given, Dialect), **partitions_of(given),
        )  # fmt: skip
