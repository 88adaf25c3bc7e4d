"""Chunk bounds as a server evaluates them: every type that a key can have, as parameters of prepared statements."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.errors import DecodeError, SnapshotIncomplete
from cdc.model.snapshot import Chunk, SnapshotState, TableSnapshot
from cdc.mysql.catalog import table_schemas
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.key_lookup import key_lookups
from cdc.mysql.key_order import MARK, KeyColumn, key_order_of
from cdc.mysql.query_stream import Select, configure_session
from cdc.mysql.result_rows import selected
from cdc.mysql.server import Server
from cdc.snapshot.orphan_rows import find_orphan_rows
from cdc.snapshot.planner import Chunker
from cdc.snapshot.row_count import check_rows_read, count_rows
from tests.support.seeds import seed_of

_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
_TIME_ENDS = ("00:00:00", "08:00:00", "09:00:00", "10:00:00", "24:00:00", "-00:00:01", "-08:00:00", "838:59:59",
              "-838:59:59", "100:00:00", "-99:59:59", "00:00:10", "20:24:01", "11:12:13")  # fmt: skip


def _quoted(texts) -> list[str]:
    return [f"'{text}'" for text in texts]


def _integers(bits, unsigned):
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return lambda draw: [
        str(each) for each in (low, high, 0, 1, high - 1, *(draw.randint(low, high) for _ in range(8)))
    ]


def _decimals(draw):
    return [f"{draw.randint(-(10**18), 10**18) / 10**4:.4f}" for _ in range(10)] + [
        "0",
        "-0.0001",
        "999999999999999.9999",
    ]


def _floats(draw):
    return [repr(draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30)) for _ in range(12)] + ["0", "0.1", "-0.1"]


def _dates(draw):
    return _quoted(f"{draw.randint(1000, 9999)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}" for _ in range(12))


def _moments(years, digits):
    def values(draw):
        found = []
        for _ in range(14):
            clock = f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}"
            fraction = f".{draw.randrange(10**digits):0{digits}}" if digits else ""
            day = f"{draw.randint(*years)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
            found.append(f"{day} {clock}{fraction}")
        return _quoted(found)

    return values


def _times(digits):
    def values(draw):
        found = list(_TIME_ENDS)
        for _ in range(40):
            hours = draw.choice([draw.randint(0, 23), draw.randint(24, 837)])
            fraction = f".{draw.randrange(10**digits):0{digits}}" if digits else ""
            found.append(
                f"{draw.choice(['', '-'])}{hours:02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}{fraction}"
            )
        return _quoted(found)

    return values


def _texts(alphabet, length=12):
    return lambda draw: _quoted("".join(draw.choices(alphabet, k=draw.randint(1, length))) for _ in range(16))


def _bytes(least, most):
    return lambda draw: [f"X'{draw.randbytes(draw.randint(least, most)).hex()}'" for _ in range(16)]


def _uuids(draw):
    return _quoted(f"{draw.randbytes(4).hex()}-{draw.randbytes(2).hex()}-4{draw.randbytes(2).hex()[1:]}-"
                   f"8{draw.randbytes(2).hex()[1:]}-{draw.randbytes(6).hex()}" for _ in range(12))  # fmt: skip


KEYS = {
    **{f"{name} {sign}".strip(): (f"{name} {sign}", _integers(bits, bool(sign)))
       for name, bits in _INTEGERS.items() for sign in ("", "UNSIGNED")},
    "decimal": ("DECIMAL(20,4)", _decimals),
    "double": ("DOUBLE", _floats),
    "double(40,20)": ("DOUBLE(40,20)", _floats),
    "float": ("FLOAT", _floats),
    "date": ("DATE", _dates),
    "datetime": ("DATETIME", _moments((1000, 9999), 0)),
    "datetime(6)": ("DATETIME(6)", _moments((1000, 9999), 6)),
    "timestamp": ("TIMESTAMP", _moments((1971, 2037), 0)),
    "timestamp(3)": ("TIMESTAMP(3)", _moments((1971, 2037), 3)),
    "time": ("TIME", _times(0)),
    "time(3)": ("TIME(3)", _times(3)),
    "time(6)": ("TIME(6)", _times(6)),
    "year": ("YEAR", lambda draw: ["1901", "2155", "2000", "0", *(str(draw.randint(1901, 2155)) for _ in range(8))]),
    "bit": ("BIT(40)", lambda draw: [str(draw.getrandbits(40)) for _ in range(12)]),
    "bit(64)": ("BIT(64)", lambda draw: [str(draw.getrandbits(64)) for _ in range(12)]),
    "enum": ("ENUM('z','y','08:00:00','x')", lambda draw: _quoted(["z", "y", "08:00:00", "x"])),
    "set": ("SET('a','b','c','d')", lambda draw: [str(number) for number in range(16)]),
    "binary": ("BINARY(9)", _bytes(9, 9)),
    "varbinary": ("VARBINARY(20)", _bytes(1, 20)),
    "utf8mb4": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", _texts("aAbBäÄßz0123456789:-. 漢😀")),
    "general_ci": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", _texts("abcÄÖxyz0123456789:-.漢")),
    "unicode_ci": ("CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", _texts("abcÄÖxyz0123456789:-.漢")),
    "latin1": ("VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", _texts("abcäöüßxyz0123456789:-.")),
    "ascii": ("CHAR(20) CHARACTER SET ascii COLLATE ascii_bin", _texts("0123456789:-. aZ")),
    "sjis": ("VARCHAR(20) CHARACTER SET sjis", _texts("漢字ｶaz09:")),
}  # fmt: skip
MARIADB = {
    "uuid": ("UUID", _uuids),
    "inet6": ("INET6", lambda draw: _quoted(f"2001:db8::{draw.getrandbits(16):x}:{draw.getrandbits(16):x}" for _ in range(12))),
    "inet4": ("INET4", lambda draw: _quoted(".".join(str(draw.randrange(256)) for _ in range(4)) for _ in range(12))),
}  # fmt: skip


def _tables(server, database, keys, draw) -> dict[str, str]:
    """Create two tables for each type: its values as the key ``a``, and as second and third column of a key."""
    found = {}
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for number, (kind, (type_, values)) in enumerate(keys.items()):
            literals = list(dict.fromkeys(values(draw)))
            for name, columns, rows in (
                (f"k{number}", f"a {type_} NOT NULL PRIMARY KEY", [f"({each})" for each in literals]),
                (
                    f"c{number}",
                    f"n INT NOT NULL, a {type_} NOT NULL, b {type_} NOT NULL, PRIMARY KEY (n, a, b)",
                    [f"({i % 2}, {each}, {literals[i * 7 % len(literals)]})" for i, each in enumerate(literals)],
                ),
            ):
                cursor.execute(f"CREATE TABLE {name} ({columns})")
                cursor.execute(f"INSERT IGNORE INTO {name} VALUES {', '.join(rows)}")
                found[name] = f"{kind} ({type_})"
        connection.commit()
    return found


def _endpoint(server) -> Endpoint:
    return Endpoint("127.0.0.1", server.port, "root", tls=Tls("off"))


def _read(server, schema, order, chunk) -> list[tuple]:
    tail, bounds = order.tail(chunk)
    sql = "SELECT " + ", ".join(selected(column) for column in schema.columns) + tail
    names = [column.name for column in schema.columns]
    with Select(_endpoint(server), sql, bounds, schema.columns) as select:
        return [tuple(row[name] for name in names) for rows in select.rows() for row in rows.batch.to_pylist()]


def _bounds(asked, server, schema, order) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return both texts of every key, in key order: as the server returns it for a plan, and as a reader makes it."""
    told = ", ".join(column.sql_literal for column in order.columns)
    tail, _ = order.tail(Chunk(0, None, None))
    with asked.connection.cursor() as cursor:
        cursor.execute(f"SELECT {told}{tail}")
        planned = [
            tuple(each.decode() if isinstance(each, bytes) else str(each) for each in row) for row in cursor.fetchall()
        ]
    sql = "SELECT " + ", ".join(selected(column) for column in schema.columns) + tail
    names, read = [column.name for column in schema.columns], []
    with Select(_endpoint(server), sql, [], schema.columns) as select:
        for rows in select.rows():
            for row in range(rows.batch.num_rows):
                bound = []
                for column in order.columns:
                    row_index = names.index(column.column.name)
                    bound.append(column.text_of(rows.batch.column(row_index)[row], rows.raw(row_index, row)))
                read.append(tuple(bound))
    if any(column.is_approximate for column in order.columns):
        planned = read  # see ``test_snapshot_last_approximate_key_is_read``
    return list(zip(planned, read, strict=True))


def _check(server, database, keys):
    draw = random.Random(seed_of())
    with Server(_endpoint(server)) as asked:
        tables = _tables(server, database, keys, draw)
        configure_session(asked)
        schemas = table_schemas(asked, [(database, name) for name in tables])
        wrong = []
        for name, kind in tables.items():
            schema = schemas[database, name]
            order = key_order_of(asked, schema, schema.key)
            if not order.columns:  # labels that Python cannot compare: read as one chunk
                assert kind.startswith(("enum", "set")), kind
                continue
            keys_ = _read(server, schema, order, Chunk(0, None, None))
            bounds = _bounds(asked, server, schema, order)
            assert len(keys_) == len(bounds) > 3, kind
            picked = draw.sample(range(len(bounds)), min(len(bounds), 24))
            for row_index in picked:
                for bound in dict.fromkeys(bounds[row_index]):
                    head = _read(server, schema, order, Chunk(0, None, bound))
                    rest = _read(server, schema, order, Chunk(0, bound, None))
                    if (head, rest) != (keys_[: row_index + 1], keys_[row_index + 1 :]):
                        wrong.append((kind, name, bound, len(head), len(rest), row_index + 1, len(keys_)))
        assert not wrong, wrong


def test_bounds_of_every_key_type_match_the_index_in_mysql(mysql, database):
    _check(mysql, database, KEYS)


def test_bounds_of_every_key_type_match_the_index_in_mariadb(mariadb, mariadb_database):
    _check(mariadb, mariadb_database, {**KEYS, **MARIADB})


@pytest.mark.parametrize("least", [1, 10_000])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_orphan_rows_never_contain_a_key_of_the_source(kind, least, request, monkeypatch):
    """Keys are compared with a range of the source from one key on (1), or looked up (10,000)."""
    monkeypatch.setattr("cdc.mysql.key_lookup.LEAST_RANGE", least)
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    draw, looked_up = random.Random(seed_of()), set()
    with Server(_endpoint(server)) as asked:
        tables = _tables(server, database, KEYS if kind == "mysql" else {**KEYS, **MARIADB}, draw)
        schemas = table_schemas(asked, [(database, name) for name in tables])
        for name, type_ in tables.items():
            schema = schemas[database, name]
            order = key_order_of(asked, schema, schema.key)
            columns = [schema.column(each) for each in schema.key]

            def keys_of(columns=columns, table=order.table):
                sql = f"SELECT {', '.join(selected(column) for column in columns)} FROM {table}"
                with Select(_endpoint(server), sql, [], columns) as select:
                    batches = [rows.batch for rows in select.rows()]
                schema_ = pa.schema([pa.field(column.name, column.arrow) for column in columns])
                return pa.Table.from_batches(batches) if batches else schema_.empty_table()

            before = keys_of()
            if any(column.null_count for column in before.columns):
                continue  # zero dates, which a snapshot rejects
            if key_lookups(order, columns, before, columns) is not None:
                looked_up.add(type_.partition(" ")[0])
            assert find_orphan_rows(_endpoint(server), order, columns, before).num_rows == 0, type_
            server.execute(f"DELETE FROM {order.table} LIMIT {before.num_rows // 2}")
            left = {tuple(row.values()) for row in keys_of().to_pylist()}
            orphans = find_orphan_rows(_endpoint(server), order, columns, before)
            expected = [row for row in before.to_pylist() if tuple(row.values()) not in left]
            assert orphans.to_pylist() == expected and expected, type_
    print(sorted(looked_up))
    assert looked_up


@pytest.mark.parametrize("type_", ["FLOAT", "DOUBLE(40,20)"])
def test_snapshot_last_approximate_key_is_read(mysql, database, type_):
    mysql.execute(
        f"CREATE TABLE `{database}`.t (id {type_} PRIMARY KEY)",
        f"INSERT INTO `{database}`.t VALUES (-1.0), (-1.6476751705369035e-15)",
    )
    with Server(_endpoint(mysql)) as asked:
        configure_session(asked)
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        order = key_order_of(asked, schema, schema.key)
        chunks = Chunker(asked, order).plan().chunks
    rows = [row for chunk in chunks for row in _read(mysql, schema, order, chunk)]
    assert len(rows) == 2, "the last key's text has fewer digits than its value"


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_snapshot_missing_most_rows_raises_incomplete(kind, request):
    """A count with a literal finds rows that a wrong comparison of bound values misses."""
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE `a``b` (a TIME NOT NULL, b VARCHAR(20) NOT NULL, n INT, PRIMARY KEY (a, b))")
        cursor.execute("INSERT INTO `a``b` VALUES ('08:00:00', 'x?', 1), ('09:00:00', '''', 2), ('10:00:00', '?', 3)")
        cursor.execute("INSERT INTO `a``b` VALUES ('10:00:00', '??', 4), ('11:00:00', 'later', 5)")
        connection.commit()
    with Server(_endpoint(server)) as asked:
        schema = table_schemas(asked, [(database, "a`b")])[database, "a`b"]
        order = key_order_of(asked, schema, schema.key)
        planned = TableSnapshot(SnapshotState.READING, last_key=("10:00:00.000000", b"??".hex()))
        assert count_rows(asked, order, planned) == 4
        assert count_rows(asked, order, replace(planned, where="b <> '?'")) == 3
        assert count_rows(asked, order, replace(planned, last_key=None)) == 5
        counted = replace(planned, counted_rows=4, estimated_rows=4)
        check_rows_read("shop.t", replace(counted, rows=2), 4)
        check_rows_read("shop.t", replace(counted, rows=0), 2)
        for rows in (0, 1):
            with pytest.raises(SnapshotIncomplete, match=f"has read {rows} rows"):
                check_rows_read("shop.t", replace(counted, rows=rows), 4)
        assert count_rows(asked, order, replace(planned, where="SLEEP(2) = 0"), limit_s=0.2) is None
        assert count_rows(asked, order, planned) is not None, "the connection can be used again"


def test_snapshot_without_a_count_is_compared_with_the_estimate():
    unknown = TableSnapshot(SnapshotState.READING, estimated_rows=1_000_000)
    check_rows_read("shop.t", replace(unknown, rows=200_000), None)
    check_rows_read("shop.t", replace(unknown, rows=0, where="id > 5"), None)
    with pytest.raises(SnapshotIncomplete) as caught:
        check_rows_read("shop.t", replace(unknown, rows=50_000), 1_000_000)
    assert "`cdc snapshot NAME shop.t`" in caught.value.hint, "a resume alone counts the rows again, and reads none"


@pytest.mark.parametrize(
    ("keys", "is_looked_up"), [([-3, *range(1, 901)], False), ([1, *range(-900, 0)], False), ([-3, 1, 500, 990], True)]
)
def test_many_other_keys_in_the_range_of_the_target_are_not_read(mysql, database, monkeypatch, keys, is_looked_up):
    mysql.execute(
        f"CREATE TABLE `{database}`.t (id INT UNSIGNED PRIMARY KEY)",
        f"INSERT INTO `{database}`.t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        "SELECT i FROM n",
    )
    looked_up = []
    monkeypatch.setattr("cdc.mysql.key_lookup.LEAST_RANGE", 1)
    monkeypatch.setattr(
        "cdc.snapshot.orphan_rows.key_lookups", lambda *args: looked_up.append(args) or key_lookups(*args)
    )
    with Server(_endpoint(mysql)) as asked:
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        order = key_order_of(asked, schema, schema.key)
    columns = [schema.column("id")]
    orphans = find_orphan_rows(_endpoint(mysql), order, columns, pa.table({"id": pa.array(keys, pa.int64())}))
    assert orphans.column("id").to_pylist() == [key for key in keys if key < 0]
    assert bool(looked_up) is is_looked_up


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("position", ["first", "middle", "last"])
@pytest.mark.parametrize("type_", ["DATE", "DATETIME"])
def test_invalid_date_in_a_key_loses_no_rows(kind, position, type_, request):
    """ALLOW_INVALID_DATES permits it. In other modes a bound of it is NULL, and no row is below or above NULL."""
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    days = {"first": "2019-02-30", "middle": "2020-02-30", "last": "2021-02-30"}
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"CREATE TABLE t (d {type_} NOT NULL PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES ('2019-03-05'), ('2020-02-28'), ('2020-03-01'), ('2021-02-03'), (%s)", (days[position],))  # fmt: skip
        connection.commit()
    with Server(_endpoint(server)) as asked:
        configure_session(asked)
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        order = key_order_of(asked, schema, schema.key)
        plan = Chunker(asked, order, chunk_rows=1).plan()
        counted = count_rows(asked, order, TableSnapshot(last_key=plan.chunks[-1].upto))
    assert sum(len(_read(server, schema, order, chunk)) for chunk in plan.chunks) == counted == 5


def test_key_that_is_no_bound_stops_the_plan(mysql, database, monkeypatch):
    mysql.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)", f"INSERT INTO `{database}`.t VALUES (1), (2)")
    with Server(_endpoint(mysql)) as asked:
        configure_session(asked)
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        order = key_order_of(asked, schema, schema.key)
        for bound in ("NULLIF(CONCAT({0}), {0})", "CONCAT({0}) + 1"):
            monkeypatch.setattr(KeyColumn, "bound", bound.format(MARK))
            with pytest.raises(DecodeError, match="end of a range"):
                Chunker(asked, order).plan()
