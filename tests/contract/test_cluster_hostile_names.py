"""Names are untrusted: rows arrive in exactly the table and column of their name, or the name is rejected.

Each name is used as a database, a table, a column and a key, on emulators that parse names as the servers do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from cdc.errors import SinkLimitExceeded, TargetMismatch
from cdc.model.batch import FENCE_STEP, LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.stream_load.name_rules import CHECKPOINTS
from tests.emulators.doris import cases as doris
from tests.emulators.names import column_entries, doubled, dropped, is_ambiguous, normal_segments, routed_segments
from tests.emulators.sql import SqlRefused
from tests.emulators.starrocks import cases as starrocks
from tests.support.hostile_names import HOSTILE

FIXED = {"", *["api", "backends", "transaction", "begin", "load", "prepare", "commit", "rollback", "get_load_state"]}
FIXED |= {"_stream_load", "_stream_load_2pc", "ods"}  # all segments of paths that are not names
NUMBERS = itertools.count(1)
FOREIGN = ("evil", "backtick", "a", "ab", "x", "id", "t")


class NamedCluster:
    """A cluster with tables that no test may change."""

    def __init__(self, product: str) -> None:
        self.name, _, self.variant = product.partition("-")
        if self.name == "doris":
            self.cluster: Any = doris.emulator(unicode_names=self.variant == "unicode")
        else:
            self.cluster = starrocks.emulator(backends=1)
        storage = self.cluster.storage
        for database in ("ods", "evil", "backtick", "etc"):
            storage.create_database(database)
        model = "UNIQUE KEY (id)" if self.name == "doris" else "PRIMARY KEY (id)"
        for name in FOREIGN:
            self.cluster.execute(
                f"CREATE TABLE ods.{name} (id BIGINT NOT NULL, name VARCHAR(160)) {model} DISTRIBUTED BY HASH (id) "
                'BUCKETS 1 PROPERTIES ("replication_num" = "1")'
            )
            self.cluster.execute(f"INSERT INTO ods.{name} (id, name) VALUES (7, 'foreign')")

    def sink(self, *databases: str) -> Any:
        if self.name == "doris":
            return doris.sink_on(self.cluster)
        return starrocks.sink_on(self.cluster, self.variant, databases=databases or ["ods"])

    def content(self) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
        """Return all tables except those of checkpoints, as base rows with the names of the columns."""
        storage = self.cluster.storage
        found = {}
        for key, table in storage.tables.items():
            if key[1] != CHECKPOINTS:
                names, _, rows = storage.query(f"SELECT * FROM {table.base}")
                found[key] = [tuple(names), *sorted(rows, key=repr)]
        return found

    def paths(self) -> list[str]:
        servers = [*self.cluster.frontends, *self.cluster.backends]
        return [path for server in servers for path in server.paths]

    def forget_paths(self) -> None:
        for server in (*self.cluster.frontends, *self.cluster.backends):
            server.paths.clear()

    def read(self, table: TargetTable) -> list[tuple[Any, ...]]:
        """Return the rows of ``table`` by SQL."""
        columns = ", ".join(quoted(column.name) for column in table.columns)
        return list(self.cluster.rows(f"SELECT {columns} FROM {'.'.join(map(quoted, table.name.split('.', 1)))}"))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


PRODUCTS = ("doris", "doris-unicode", "starrocks-single", "starrocks-multi")


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, NamedCluster]]:
    found = {product: NamedCluster(product) for product in PRODUCTS}
    yield found
    for subject in found.values():
        subject.cluster.stop()


@pytest.fixture(params=PRODUCTS)
def subject(request: pytest.FixtureRequest, clusters: dict[str, NamedCluster]) -> NamedCluster:
    return clusters[request.param]


def table_of(name: str, role: str) -> TargetTable:
    number = next(NUMBERS)
    database, table, key, column = "ods", f"table_{number}", "id", "name"
    match role:
        case "database":
            database = name
        case "table":
            table = name
        case "column":
            column = name
        case "key":
            key = name
    columns = (TargetColumn(key, pa.int64(), False, "bigint"), TargetColumn(column, pa.string(), True, "varchar(40)"))
    return TargetTable(f"{database}.{table}", columns, (key,))


def load(sink: Any, table: TargetTable) -> None:
    number = next(NUMBERS)
    batch = pa.record_batch(
        [pa.array([1, 2], pa.int64()), pa.array(["a", "b"]), pa.array([False] * 2), pa.array([number] * 2, pa.int64())],
        names=[*(column.name for column in table.columns), DELETED, SEQUENCE],
    )
    written = sink.part_writer(table)(LoadName("shop", "0a1b2c3d", 1, number, table.name, 0), iter([batch]))
    at = BinlogPosition("mysql-bin.000001", 4 + number)
    sink.commit([written], SinkCheckpoint("shop", "0a1b2c3d", 1, number, at, at, FENCE_STEP + number))


def is_named(name: str, text: str) -> bool:
    return name[:40] in text or repr(name[:40])[:-1] in text


def is_loaded(subject: NamedCluster, table: TargetTable, name: str) -> bool:
    """Return whether the rows of ``table`` arrived."""
    database = table.name.partition(".")[0]
    sink, before, databases = subject.sink(database), subject.content(), set(subject.cluster.storage.databases)
    subject.forget_paths()
    try:
        fatal = [finding for finding in sink.check([table]) if finding.fatal]
        try:
            sink.ensure_table(table)
        except (TargetMismatch, SinkLimitExceeded) as error:
            assert fatal, f"check does not find {name!r}, but ensure_table rejects it: {error}"
            assert any(is_named(name, finding.problem) for finding in fatal), (name, fatal)
            assert is_named(name, error.message) and error.hint and all(finding.hint for finding in fatal)
            assert subject.content() == before and set(subject.cluster.storage.databases) == databases
            return False
        assert not fatal, f"check rejects {name!r}, but ensure_table creates it: {fatal}"
        load(sink, table)
    finally:
        sink.close()
        expected = FIXED | {quote(part, safe="") for part in table.name.split(".", 1)}
        assert not [path for path in subject.paths() if set(path.split("/")) - expected]
    key = (database, table.name.partition(".")[2])
    after = subject.content()
    assert {known: rows for known, rows in after.items() if known != key} == before, "no other table has changed"
    assert subject.read(table) == [(1, "a"), (2, "b")]
    assert after[key][0][:2] == tuple(column.name for column in table.columns)
    assert set(subject.cluster.storage.databases) <= databases | {database}
    return True


@pytest.mark.drawn(300)
@pytest.mark.parametrize("role", ["database", "table", "column", "key"])
@pytest.mark.parametrize("name", HOSTILE)
def test_cluster_rows_arrive_under_hostile_names_or_raise(subject: NamedCluster, name: str, role: str) -> None:
    if role == "database" and "." in name:
        pytest.skip("the job file accepts no target with a dot in its database")
    if role == "table" and ("ods", name) in subject.cluster.storage.tables:
        pytest.skip("the table exists")
    is_loaded(subject, table_of(name, role), name)


def test_cluster_plain_names_are_loaded(subject: NamedCluster) -> None:
    for role, name in (
        ("database", "dwd"),
        ("table", "T0-x" if subject.name == "doris" else "T 0;x"),
        ("column", "a b"),
    ):
        if (subject.variant, role) != ("unicode", "column"):
            assert is_loaded(subject, table_of(name, role), name)


def test_cluster_names_that_differ_in_case_are_separate_tables(subject: NamedCluster) -> None:
    for name in ("Case", "case", "CASE"):
        assert is_loaded(subject, table_of(name, "table"), name)


@pytest.mark.parametrize("mode", [1, 2])
def test_doris_lower_case_table_names_mix_no_tables(mode: int) -> None:
    """lower_case_table_names is 1 (stored in lower case) or 2 (compared in lower case)."""
    with doris.emulator(lower_case_table_names=mode) as cluster:
        sink = doris.sink_on(cluster)
        lower, upper = table_of("case", "table"), table_of("CASE", "table")
        sink.ensure_table(lower)
        load(sink, lower)
        with pytest.raises(TargetMismatch, match="CASE"):
            sink.ensure_table(upper)
        assert [finding for finding in sink.check([upper]) if finding.fatal] or mode == 2
        sink.close()
        assert {key[1] for key in cluster.storage.tables} == {"case", CHECKPOINTS}
        assert cluster.rows("SELECT id, name FROM ods.`case`") == [(1, "a"), (2, "b")]


def test_starrocks_emulator_drops_backticks_in_identifiers() -> None:
    """StarRocks drops backticks within an identifier, so a statement on back`tick is one on backtick."""
    with starrocks.emulator(backends=1) as cluster:
        cluster.execute("CREATE DATABASE ods")
        ddl = "(`i``d` BIGINT NOT NULL) PRIMARY KEY (`i``d`) DISTRIBUTED BY HASH (`i``d`) BUCKETS 1"
        cluster.execute(f"CREATE TABLE ods.`back``tick` {ddl} PROPERTIES ('replication_num' = '1')")
        (table,) = cluster.storage.tables.values()
        assert (table.name, table.columns[0].name) == ("backtick", "id")


@pytest.mark.parametrize("column", ["__DORIS_DELETE_SIGN__", "__DORIS_SEQUENCE_COL__"])
def test_doris_hidden_column_name_raises(column: str) -> None:
    with doris.emulator() as cluster:
        sink = doris.sink_on(cluster)
        with pytest.raises(TargetMismatch, match=column):
            sink.ensure_table(table_of(column, "column"))
        assert not cluster.storage.tables
        sink.close()


def test_starrocks_converted_field_has_a_separate_name() -> None:
    """StarRocks converts a document from a field with another name, which a column of the table may also have."""
    with starrocks.emulator(backends=1) as cluster:
        sink = starrocks.sink_on(cluster, "single")
        plain = TargetColumn("_cdc_doc", pa.string(), True, "varchar(40)")
        columns = (
            TargetColumn("id", pa.int64(), False, "bigint"), plain, TargetColumn("doc", pa.string(), True, "json")
        )  # fmt: skip
        table = TargetTable("ods.documents", columns, ("id",))
        sink.ensure_table(table)
        number = next(NUMBERS)
        values = {"id": [1], "_cdc_doc": ["plain"], "doc": ['{"a": 1}'], DELETED: [False], SEQUENCE: [number]}
        written = sink.part_writer(table)(
            LoadName("shop", "0a1b2c3d", 1, number, table.name, 0), iter([pa.RecordBatch.from_pydict(values)])
        )
        at = BinlogPosition("mysql-bin.000001", 4)
        sink.commit([written], SinkCheckpoint("shop", "0a1b2c3d", 1, number, at, at, FENCE_STEP + number))
        assert cluster.rows("SELECT id, `_cdc_doc`, doc FROM ods.documents") == [(1, "plain", '{"a": 1}')]
        sink.close()


def test_cluster_names_that_differ_in_normalisation_are_not_mixed(subject: NamedCluster) -> None:
    """Both servers compare bytes."""
    done = [is_loaded(subject, table_of(name, "table"), name) for name in ("n\u00fc", "nu\u0308")]
    assert done == {
        "doris": [False, False], "doris-unicode": [True, False], "starrocks-single": [True, True],
        "starrocks-multi": [False, False],
    }[f"{subject.name}-{subject.variant}".rstrip("-")]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "frontend", "backend", "is_refused"),
    [
        ("/api/ods/t/_stream_load", ["api", "ods", "t", "_stream_load"], None, False),
        ("/api/ods/../evil/t", ["api", "evil", "t"], ["api", "ods", "..", "evil", "t"], True),
        ("/api/ods/%2e%2e/evil", ["api", "evil"], ["api", "ods", "..", "evil"], True),
        ("/api/ods/a%2Fb", ["api", "ods", "a", "b"], ["api", "ods", "a/b"], True),
        ("/api//ods/t", ["api", "ods", "t"], None, True),
        ("/api/ods;x=1/t", ["api", "ods", "t"], ["api", "ods;x=1", "t"], True),
        ("/api/ods/a%20b", ["api", "ods", "a b"], None, False),
    ],
)
def test_emulators_resolve_paths_as_the_servers_do(
    path: str, frontend: list[str], backend: list[str] | None, is_refused: bool
) -> None:
    assert normal_segments(path) == frontend
    assert routed_segments(path) == (backend or frontend)
    assert is_ambiguous(path) is is_refused


def test_emulators_parse_the_columns_header_as_sql() -> None:
    header = (
        "`a,b`, plain,`x``,(`,`y`=parse_json(`a,)b`), z=cast(`t` as array<int>), d=json_query(parse_json(`(u`), '$[0]')"
    )
    assert column_entries(header) == [
        "`a,b`",
        "plain",
        "`x``,(`",
        "`y`=parse_json(`a,)b`)",
        "z=cast(`t` as array<int>)",
        "d=json_query(parse_json(`(u`), '$[0]')",
    ]
    assert [doubled("`x``,(`"), dropped("`x``,(`"), doubled("plain")] == ["x`,(", "x,(", "plain"]


@pytest.mark.parametrize("statement", ["SHOW CREATE TABLE ods.{}", "DESC ods.{}", "SELECT * FROM ods.{}"])
def test_emulators_parse_quoted_names_in_statements(statement: str) -> None:
    columns = "(`i d` BIGINT NOT NULL) UNIQUE KEY (`i d`) DISTRIBUTED BY HASH (`i d`) BUCKETS 1"
    with doris.emulator() as cluster:
        cluster.execute("CREATE DATABASE ods")
        cluster.execute(f"CREATE TABLE ods.`a-b` {columns} PROPERTIES ('replication_num' = '1')")
        cluster.execute(statement.format("`a-b`"))
        for other in ("`a``-b`", "`A-b`", "`a-b `"):
            with pytest.raises(SqlRefused, match="does not exist"):
                cluster.execute(statement.format(other))
        with pytest.raises(SqlRefused, match="Incorrect table name"):
            cluster.execute(f"CREATE TABLE ods._t {columns} PROPERTIES ('replication_num' = '1')")
