"""Statements that only StarRocks has: its version, SHOW PROC, Primary-key tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from sqlglot import exp
from sqlglot.dialects.starrocks import StarRocks
from sqlglot.tokens import TokenType

from tests.servers.olap_faults import Fault
from tests.servers.olap_sql import Context, Rows, SqlRefused, SqlStatements, column_of
from tests.servers.olap_storage import StoredColumn, StoredPartition, StoredTable

if TYPE_CHECKING:
    from tests.servers.starrocks.stand_in import StarrocksStandIn

_RUNNING = (
    "TransactionId", "Label", "Coordinator", "TransactionStatus", "LoadJobSourceType", "PrepareTime", "CommitTime",
    "PublishTime", "FinishTime", "Reason", "ErrorReplicasCount", "ListenerId", "TimeoutMs", "ErrMsg",
)  # fmt: skip
_KEYS = {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "VARCHAR", "DATE", "DATETIME"}
_ADD_PARTITION = re.compile(
    r'ALTER\s+TABLE\s+(\S+)\s+ADD\s+PARTITION\s+`?(\w+)`?\s+VALUES\s*\[\("([^"]*)"\),\s*\("([^"]*)"\)\)', re.IGNORECASE
)
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

    def __init__(self, cluster: StarrocksStandIn) -> None:
        super().__init__(cluster.storage)
        self.cluster = cluster

    def special(self, sql: str, context: Context) -> Rows | None:
        """See SqlStatements."""
        order = self.cluster.faults.take("sql", sql)
        if order is not None and order.fault is Fault.ERROR:
            raise SqlRefused(order.text or "Failed to get scan range, no queryable replica found")
        if match := re.match(r"SELECT\s+current_version\(\)(?:\s+AS\s+(\w+))?", sql, re.IGNORECASE):
            return [match[1] or "current_version()"], [(self.cluster.settings.name,)]
        if match := re.match(r"SHOW\s+PROC\s+'/transactions/(\w+)/running'", sql, re.IGNORECASE):
            return self._running(match[1], context)
        if match := re.match(r"ADMIN\s+SHOW\s+FRONTEND\s+CONFIG\s+LIKE\s+'(\w+)'", sql, re.IGNORECASE):
            known = {"max_running_txn_num_per_db": self.cluster.settings.max_running_txn_num_per_db}
            rows = [(match[1], "", str(known[match[1]]), "int", "true", "")] if match[1] in known else []
            return ["Key", "AliasNames", "Value", "Type", "IsMutable", "Comment"], rows
        if re.match(r"SHOW\s+BACKENDS", sql, re.IGNORECASE):
            self._operates(context)
            return ["BackendId", "Alive"], [(str(b.number), str(b.alive).lower()) for b in self.cluster.backends]
        if match := _ENGINES.match(sql):
            engine = "CLOUD_NATIVE" if self.cluster.settings.shared_data else "OLAP"
            return ["TABLE_ENGINE"], [(engine,)] if any(match[1] == owner for owner, _ in self.storage.tables) else []
        if re.match(r"CREATE\s+TABLE\b", sql, re.IGNORECASE) and (match := _BY_EXPRESSION.search(sql)):
            self._statement(sql.replace(match[0], ""), context)  # sqlglot does not know it
            name = re.match(r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?([^\s(]+)", sql, re.IGNORECASE)
            assert name is not None
            table = self._named(name[1].replace("`", ""), context)
            table.tail = f"{match[0]}\n{table.tail}"
            return [], []
        if match := _ADD_PARTITION.match(sql):
            table = self._named(match[1].replace("`", ""), context)
            table.partitions.append(StoredPartition(match[2], match[3], match[4]))
            return [], []
        return None

    def _operates(self, context: Context) -> None:
        if context.user not in self.cluster.settings.operators:
            raise SqlRefused("Access denied; you need (at least one of) the OPERATE privilege(s) on SYSTEM", 5203)

    def _running(self, database: str, context: Context) -> Rows:
        self._operates(context)
        if database not in self.storage.databases:
            raise SqlRefused(f"Unknown database '{database}'", 1049)
        return _RUNNING, [
            (str(each.id), each.label, "BE: 127.0.0.1", each.status.value, "BACKEND_STREAMING", "", "", "", "",
             each.reason, "0", "[]", str(int(each.timeout_s * 1000)), "")
            for each in self.cluster.transactions.running(database)
        ]  # fmt: skip

    def build(self, create: exp.Create, database: str, name: str) -> StoredTable:
        """See SqlStatements."""
        given = create.args["properties"].expressions if create.args.get("properties") else []
        properties = {each.name: each.args["value"].name for each in given if type(each) is exp.Property}
        parts = create.this.expressions
        columns = tuple(_typed(column_of(node)) for node in parts if isinstance(node, exp.ColumnDef))
        primary = next((node for node in parts if isinstance(node, exp.PrimaryKey)), None)
        comment = next((each.this.name for each in given if isinstance(each, exp.SchemaCommentProperty)), "")
        if primary is not None:
            model, key = "PRIMARY", tuple(node.name for node in primary.expressions)
            options = [option.args.get("comment") for option in primary.args.get("options") or []]
            comment = next((option.name for option in options if option), comment)
        else:
            kinds = {exp.UniqueKeyProperty: "UNIQUE", exp.DuplicateKeyProperty: "DUPLICATE"}
            found = next((each for each in given if type(each) in kinds), None)
            model = kinds[type(found)] if found else "DUPLICATE"
            key = tuple(node.name for node in found.expressions) if found else (columns[0].name,)
        self._check(columns, key, model)
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
        tail = [each.sql(Dialect) for each in given if "Partition" in type(each).__name__]
        tail += [each.sql(Dialect) for each in given if isinstance(each, exp.DistributedByProperty)]
        return StoredTable(
            database, name, columns, key, model, delete_sign=model == "PRIMARY", properties=properties,
            comment=comment, tail="\n".join(tail), **_partitions(given),
        )  # fmt: skip

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


def _partitions(properties: list[exp.Expression]) -> dict[str, object]:
    """Column and ranges of PARTITION BY RANGE with one column and VALUES LESS THAN."""
    for each in properties:
        if isinstance(each, exp.PartitionByRangeProperty):
            parts: list[StoredPartition] = []
            for part in each.args["create_expressions"]:
                (span,) = part.expressions
                parts.append(
                    StoredPartition(span.this.name, parts[-1].high if parts else None, span.expressions[0].name)
                )
            return {"partition_column": each.args["partition_expressions"][0].name, "partitions": parts}
    return {}


def makes_partitions(table: StoredTable) -> bool:
    """Whether a load makes the partitions that its rows want."""
    return _BY_EXPRESSION.search(table.tail) is not None
