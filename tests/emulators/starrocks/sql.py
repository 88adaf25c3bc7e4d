"""Statements that only StarRocks has: its version, SHOW PROC, Primary-key tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from sqlglot import exp
from sqlglot.dialects.starrocks import StarRocks
from sqlglot.tokens import TokenType

from tests.emulators.names import TABLE, StarrocksNames, dropped, without_inner_backticks
from tests.emulators.sql import (
    Context,
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
from tests.emulators.storage import StoredColumn, StoredTable

if TYPE_CHECKING:
    from tests.emulators.starrocks.emulator import StarrocksEmulator

_RUNNING = (
    "TransactionId", "Label", "Coordinator", "TransactionStatus", "LoadJobSourceType", "PrepareTime", "CommitTime",
    "PublishTime", "FinishTime", "Reason", "ErrorReplicasCount", "ListenerId", "TimeoutMs", "ErrMsg",
)  # fmt: skip
_KEYS = {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "VARCHAR", "DATE", "DATETIME"}
_ENGINES = re.compile(
    r"SELECT\s+DISTINCT\s+TABLE_ENGINE\s+FROM\s+information_schema\.tables_config\s+WHERE\s+TABLE_SCHEMA\s*=\s*'(.+)'",
    re.IGNORECASE,
)
_BY_EXPRESSION = re.compile(r"\bPARTITION\s+BY\s+(?!RANGE\b|LIST\b).+", re.IGNORECASE)


class Dialect(StarRocks):
    """StarRocks', with LARGEINT, which sqlglot's own does not know."""

    class Tokenizer(StarRocks.Tokenizer):
        KEYWORDS: ClassVar = {**StarRocks.Tokenizer.KEYWORDS, "LARGEINT": TokenType.INT128}


class StarrocksStatements(SqlStatements):
    """What the FE's SQL port understands."""

    dialect = Dialect
    unquote = staticmethod(dropped)
    node_statement = r"SHOW\s+(FRONTENDS|BACKENDS|COMPUTE NODES)"
    light_property, rename_to = "fast_schema_evolution", True

    def __init__(self, cluster: StarrocksEmulator) -> None:
        super().__init__(cluster, StarrocksNames(shared_data=cluster.settings.shared_data))

    def typed(self, column: StoredColumn) -> StoredColumn:
        """See SqlStatements."""
        return _typed(column)

    def rename(self, name: str, old: str, new: str, context: Context) -> Rows:
        """See SqlStatements."""
        if self.cluster.settings.version < (3, 3, 2):
            raise SqlRefused("Getting syntax error. Detail message: Unexpected input 'COLUMN'")
        return super().rename(name, old, new, context)

    def parsed(self, sql: str) -> exp.Expression:
        """See SqlStatements."""
        return super().parsed(without_inner_backticks(sql))

    def special(self, sql: str, context: Context) -> Rows | None:
        """See SqlStatements."""
        if match := re.match(r"SELECT\s+current_version\(\)(?:\s+AS\s+(\w+))?", sql, re.IGNORECASE):
            return [match[1] or "current_version()"], [(self.cluster.settings.name,)]
        if match := re.match(r"SHOW\s+PROC\s+'/transactions/([^/']+)/running'", sql, re.IGNORECASE):
            return self._running(match[1], context)
        if match := _ENGINES.match(sql):
            engine = "CLOUD_NATIVE" if self.cluster.settings.shared_data else "OLAP"
            return ["TABLE_ENGINE"], [(engine,)] if any(match[1] == owner for owner, _ in self.storage.tables) else []
        if re.match(r"CREATE\s+TABLE\b", sql, re.IGNORECASE) and (match := _BY_EXPRESSION.search(sql)):
            self._statement(sql.replace(match[0], ""), context)  # sqlglot does not know it
            name = re.match(rf"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({TABLE})", sql, re.IGNORECASE)
            assert name is not None
            table = self.named(name[1], context)
            table.tail = f"{match[0]}\n{table.tail}"
            return [], []
        return None

    def config(self, name: str) -> Rows:
        """See SqlStatements."""
        known = {"max_running_txn_num_per_db": self.cluster.settings.max_running_txn_num_per_db}
        rows = [(name, "", str(known[name]), "int", "true", "")] if name in known else []
        return ["Key", "AliasNames", "Value", "Type", "IsMutable", "Comment"], rows

    def may_administer(self, context: Context) -> None:
        """See SqlStatements."""
        if context.user not in self.cluster.settings.operators:
            raise SqlRefused("Access denied; you need (at least one of) the OPERATE privilege(s) on SYSTEM", 5203)

    def _running(self, database: str, context: Context) -> Rows:
        self.may_administer(context)
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        return _RUNNING, [
            (str(each.id), each.label, "BE: 127.0.0.1", each.status.value, "BACKEND_STREAMING", "", "", "", "",
             each.reason, "0", "[]", str(int(each.timeout_s * 1000)), "")
            for each in self.cluster.transactions.running(database)
        ]  # fmt: skip

    def build(self, create: exp.Create, database: str, name: str) -> StoredTable:
        """See SqlStatements."""
        given, properties = properties_of(create)
        parts = create.this.expressions
        columns = tuple(_typed(column_of(node)) for node in parts if isinstance(node, exp.ColumnDef))
        primary = next((node for node in parts if isinstance(node, exp.PrimaryKey)), None)
        comment = comment_of(given)
        if primary is not None:
            model, key = "PRIMARY", tuple(node.name for node in primary.expressions)
            options = [option.args.get("comment") for option in primary.args.get("options") or []]
            comment = next((option.name for option in options if option), comment)
        else:
            model, key = model_of(given, columns[0].name)
        self._check(columns, key, model)
        self._check_properties(properties)
        distributed = next((each for each in given if isinstance(each, exp.DistributedByProperty)), None)
        if self.cluster.settings.version < (2, 5, 7) and (distributed is None or not distributed.args.get("buckets")):
            raise SqlRefused(
                "Getting syntax error. Detail message: Unexpected input, the most similar input is BUCKETS"
            )
        replicas, alive = int(properties.get("replication_num", "3")), sum(b.alive for b in self.cluster.backends)
        if replicas > alive:
            raise SqlRefused(f"Table replication num should be less than or equal to the number of available BE nodes. "
                             f"You can change this default by setting the replication_num table properties. Current "
                             f"alive backend is {alive}, replication num {replicas}")  # fmt: skip
        return StoredTable(
            database, name, columns, key, model, delete_sign=model == "PRIMARY", properties=properties,
            comment=comment, tail=tail_of(given, Dialect), **partitions_of(given),
        )  # fmt: skip

    def _check_properties(self, properties: dict[str, str]) -> None:
        version = self.cluster.settings.version
        if version < (3, 2, 0) and "fast_schema_evolution" in properties:
            raise SqlRefused(f"Unknown properties: {{fast_schema_evolution={properties['fast_schema_evolution']}}}")
        if version >= (3, 3, 0):
            properties.setdefault("fast_schema_evolution", "true")

    def _check(self, columns: tuple[StoredColumn, ...], key: tuple[str, ...], model: str) -> None:
        if tuple(column.name for column in columns[: len(key)]) != key:
            raise SqlRefused("Key columns should be a ordered prefix of the schema.")
        for column in columns:
            if column.name == "__op":
                raise SqlRefused("Column name [__op] is a system reserved name")
            if column.base == "VARCHAR" and (column.parameters or (1,))[0] > 1048576:
                raise SqlRefused("Varchar size must be <= 1048576")
            if model != "PRIMARY" or column.name not in key:
                continue
            if column.base not in _KEYS:
                raise SqlRefused(f"Invalid data type of primary key column: {column.name}: {column.base}")
            if column.nullable:
                raise SqlRefused(f"primary key column[{column.name}] cannot be nullable")


def _typed(column: StoredColumn) -> StoredColumn:
    """STRING is a short VARCHAR, and a DATETIME always has microseconds."""
    known = {"STRING": "VARCHAR(65533)", "TEXT": "VARCHAR(65533)", "DATETIME": "DATETIME(6)"}
    return replace(column, type=known.get(column.type, column.type))


def makes_partitions(table: StoredTable) -> bool:
    """Return True if loads create the partitions of their rows."""
    return _BY_EXPRESSION.search(table.tail) is not None
