"""Job files: what is read, and how every fault is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc.config import BinlogFilesSource, BinlogSource, CanalSource, DeltaSink, DorisSink, load_config
from cdc.errors import ConfigError

GOOD = """\
name: shop
source: {type: binlog, host: 127.0.0.1, username: cdc, password: "s3cret", start: latest}
sink: {type: delta, path: ./warehouse}
channels:
  - {source: shop.orders, target: ods.orders}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "shop.yaml"
    file.write_text(text)
    return file


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_config(written(folder, text))
    first, *lines = refused.value.message.strip().splitlines()
    assert first.endswith(f"has {len(lines)} fault{'s' if len(lines) > 1 else ''}:")
    assert "cdc check" in refused.value.mend
    return [line.strip() for line in lines]


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_small_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    assert isinstance(config.source, BinlogSource)
    assert (config.source.port, config.source.tls.mode, config.source.server_id) == (3306, "off", None)
    assert isinstance(config.sink, DeltaSink)
    assert (config.sink.create_tables, config.sink.retention) == (True, 3600)
    assert config.sink.path == "./warehouse"
    assert config.sink.location == str(tmp_path / "warehouse")
    assert (config.commit.interval, config.commit.min_rows, config.commit.min_bytes) == (5, 10_000, 15 << 20)
    assert (config.commit.max_bytes, config.commit.max_rows) == (64 << 20, 20_000_000)
    assert (config.tasks.parallel, config.tasks.max_bytes) == (8, 16 << 20)
    assert config.memory.window == 256 << 20
    assert (config.status.host, config.status.port, config.status.token) == ("127.0.0.1", 8470, None)


@pytest.mark.parametrize("name", ["shop.yaml", "files.yaml", "doris.yaml", "starrocks.yaml"])
def test_the_examples_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for sink in ("DORIS", "STARROCKS"):
        monkeypatch.setenv(f"{sink}_PASSWORD", "pw")
    monkeypatch.setenv("CDC_PASSWORD", "x")
    load_config(Path(__file__).parents[2] / "examples" / name)


def test_the_documented_job_file_is_read_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "pw")
    monkeypatch.setenv("CDC_TOKEN", "t0ken")
    (tmp_path / "ca.pem").touch()
    text = """
name: shop                    # a-z 0-9 - _, at most 40
source:
  type: binlog                # binlog | canal | binlog_files
  host: 127.0.0.1
  port: 3306
  username: cdc
  password: ${CDC_PASSWORD}   # environment, or ${file:/run/secrets/pw}; never printed
  server_id: 5401             # default derived from job and host; shown in SHOW REPLICAS
  tls: {mode: verify_identity, ca: ca.pem}      # off | required | verify_ca | verify_identity
  start: snapshot
sink:
  type: delta
  path: ./warehouse           # relative to this file; table ods.orders lies at ./warehouse/ods/orders
  create_tables: true
  retention: 1h               # old versions are vacuumed after this
channels:
  - source: shop.orders
    target: ods.orders
  - source: shop.customers
    target: ods.customers
    key: [id]
    columns:
      id: id
      email: lower(email)
    filter: country = 'DE'
  - source: crm.*
    target: crm.*
commit: {interval: 5s, min_rows: 10000, min_bytes: 15MiB, max_bytes: 64MiB, max_rows: 20000000}
tasks: {parallel: 8, max_bytes: 16MiB}
memory: {window: 256MiB}
spark: {master: "local[*]", conf: {}}
status: {host: 127.0.0.1, port: 8470, token: ${CDC_TOKEN}}
"""
    config = load_config(written(tmp_path, text))
    assert isinstance(config.source, BinlogSource)
    assert config.source.tls.ca_file == str(tmp_path / "ca.pem")
    assert config.status.token is not None
    assert config.status.token.get_secret_value() == "t0ken"
    files = '{type: binlog_files, path: "archive/mysql-bin.*"}'
    source = load_config(written(tmp_path, "name: a\nsource: " + files + GOOD[GOOD.index("\nsink") :])).source
    assert source.location == str(tmp_path / "archive" / "mysql-bin.*")  # type: ignore[union-attr]


def files_job(tmp_path: Path, schema: str) -> Path:
    source = f'{{type: binlog_files, path: "archive/mysql-bin.*", schema: {schema}}}'
    return written(tmp_path, "name: a\nsource: " + source + GOOD[GOOD.index("\nsink") :])


def test_the_schema_of_binlog_files_is_a_file_or_a_server(tmp_path: Path) -> None:
    (tmp_path / "schema.sql").touch()
    source = load_config(files_job(tmp_path, "{file: schema.sql, database: shop}")).source
    assert isinstance(source, BinlogFilesSource) and source.table_schema is not None
    assert (source.table_schema.statements, source.table_schema.database) == (str(tmp_path / "schema.sql"), "shop")
    config = load_config(files_job(tmp_path, "{mysql: {host: db, username: cdc, password: s3cret}}"))
    assert isinstance(config.source, BinlogFilesSource) and config.source.table_schema is not None
    assert config.source.table_schema.mysql is not None and "s3cret" in config.secrets()


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("{}", "source.schema.file: either `file` or `mysql` is required, and not both"),
        ("{file: gone.sql}", "source.schema.file: there is no file"),
        ("{mysql: {host: db, username: a}, database: shop}", "source.schema.database: belongs to `file`"),
        ("{fiel: schema.sql}", "did you mean `file`?"),
    ],
)
def test_a_faulty_schema_of_binlog_files_is_refused(tmp_path: Path, schema: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load_config(files_job(tmp_path, schema))


def test_every_key_of_the_canal_doris_and_starrocks_forms_is_known(tmp_path: Path) -> None:
    text = """
name: shop
source:
  type: canal
  servers: ["127.0.0.1:11111"]
  destination: shop
  client_id: 1001
  username: canal
  password: pw
  batch_size: 8192
  filter: ""
  time_zone: "+08:00"
  buffer: {entries: 16384, unit_bytes: 1024, mode: MEMSIZE}
  mysql: {host: db, port: 3306, username: u, password: p}
sink:
  type: doris
  fe: ["fe1:8030", "fe2:8030"]
  sql_port: 9030
  username: cdc
  password: pw
  two_phase_commit: true
  create_tables: true
  tables: {buckets: auto, replication: 1, properties: {light_schema_change: true}}
  be: ["be1:8040"]
  compression: lz4
  timeouts: {connect: 2s, load: 20m}
  connections: 4
channels:
  - source: shop.orders
    target: ods.orders
    key: [id]
    columns: {id: id, no: "not_null"}
    filter: country = 'DE'
    tables: {buckets: 4, partition: "RANGE(day) ()"}
commit: {interval: 500ms, min_rows: 1, min_bytes: 1 B, max_bytes: 15MB, max_rows: 5}
spark: {remote: "sc://spark:15002", conf: {spark.ui.enabled: false, spark.executor.cores: 2}}
status: {host: 0.0.0.0, port: 0, token: t0ken}
"""
    config = load_config(written(tmp_path, text))
    assert isinstance(config.source, CanalSource) and isinstance(config.sink, DorisSink)
    assert config.sink.tables.properties == {"light_schema_change": "true"}
    assert (config.sink.compression, config.sink.timeouts.load, config.sink.connections) == ("lz4", 1200.0, 4)
    assert config.channels[0].columns == {"id": "id", "no": "not_null"}
    assert (config.commit.interval, config.commit.max_bytes, config.commit.min_bytes) == (0.5, 15_000_000, 1)
    assert config.spark.conf == {"spark.ui.enabled": "false", "spark.executor.cores": "2"}
    starrocks = "{type: starrocks, fe: ['fe:8030'], username: u, multi_table: off}"
    config = load_config(written(tmp_path, changed("{type: delta, path: ./warehouse}", starrocks)))
    assert config.sink.multi_table == "off"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("snapshot", "snapshot"),
        ("earliest", "earliest"),
        ("{file: mysql-bin.000002, offset: 4}", {"file": "mysql-bin.000002", "offset": 4}),
        ("{file: mysql-bin.000002}", {"file": "mysql-bin.000002", "offset": 4}),
        (
            '{gtid_set: "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"}',
            {"gtid_set": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"},
        ),
    ],
)
def test_a_start_is_a_word_a_place_or_a_gtid_set(tmp_path: Path, start: str, expected: object) -> None:
    config = load_config(written(tmp_path, changed("start: latest", f"start: {start}")))
    assert isinstance(config.source, BinlogSource)
    found = config.source.start
    assert (found if isinstance(found, str) else found.model_dump()) == expected


BAD_NAME = "must be made of a-z, 0-9, - and _, at most 40 of them, not starting with -"
BROKEN = {
    "a misspelt key": (
        changed("sink: {type", "snik: {type"),
        ["shop.yaml:1 sink: is required", "shop.yaml:3 snik: is not a known key; did you mean `sink`?"],
    ),
    "a misspelt key deep inside": (
        changed("password:", "pasword:"),
        ["shop.yaml:2 source.pasword: is not a known key; did you mean `password`?"],
    ),
    "a key like no other": (
        GOOD + "tasks: {zzz: 1}\n",
        ["shop.yaml:6 tasks.zzz: is not a known key; known here: parallel, max_bytes"],
    ),
    "wrong types": (
        changed("host: 127.0.0.1", "host: 12, port: abc, server_id: 1.5"),
        [
            "shop.yaml:2 source.host: must be text; put it in quotes (got 12)",
            "shop.yaml:2 source.port: must be a whole number (got 'abc')",
            "shop.yaml:2 source.server_id: must be a whole number (got 1.5)",
        ],
    ),
    "numbers out of range": (
        GOOD + "tasks: {parallel: 0}\nstatus: {port: 70000}\ncommit: {min_rows: -1}\n",
        [
            "shop.yaml:6 tasks.parallel: must be >= 1 (got 0)",
            "shop.yaml:7 status.port: must be <= 65535 (got 70000)",
            "shop.yaml:8 commit.min_rows: must be > 0 (got -1)",
        ],
    ),
    "an unknown source type": (
        changed("type: binlog,", "type: binlgo,"),
        ["shop.yaml:2 source.type: must be one of binlog, canal, binlog_files (got 'binlgo')"],
    ),
    "no source type": (changed("type: binlog, ", ""), ["shop.yaml:2 source.type: is required"]),
    "an unknown start": (
        changed("start: latest", "start: newest"),
        ["shop.yaml:2 source.start: must be one of snapshot, latest or earliest (got 'newest')"],
    ),
    "a start that is no place": (
        changed("start: latest", "start: {offset: 4}"),
        ["shop.yaml:2 source.start.file: is required"],
    ),
    "a broken GTID set": (
        changed("start: latest", "start: {gtid_set: nonsense}"),
        ["shop.yaml:2 source.start.gtid_set: not a GTID set: 'nonsense' (got 'nonsense')"],
    ),
    "durations and sizes without a unit": (
        GOOD + "commit: {interval: 5, max_bytes: 64 megs}\n",
        [
            "shop.yaml:6 commit.interval: must be a duration with its unit, such as 500ms, 5s, 10m or 1h (got 5)",
            "shop.yaml:6 commit.max_bytes: must be a size with its unit, such as 64MiB or 15MB (got '64 megs')",
        ],
    ),
    "a duration of nothing": (
        GOOD + "commit: {interval: 0s}\n",
        ["shop.yaml:6 commit.interval: must be > 0 (got '0s')"],
    ),
    "limits the wrong way round": (
        GOOD + "commit: {min_bytes: 2MiB, max_bytes: 1MiB}\nmemory:\n  window: 1MiB\n",
        ["shop.yaml:6 commit.max_bytes: must not be below min_bytes (2097152 bytes)"],
    ),
    "a window smaller than a Task": (
        GOOD + "memory:\n  window: 1MiB\n",
        ["shop.yaml:7 memory.window: must hold at least one Task: tasks.max_bytes is 16777216 bytes"],
    ),
    "a source mapped twice and a target used twice": (
        GOOD + "  - source: shop.orders\n    target: ODS.orders\n",
        [
            (
                "shop.yaml:6 channels[1].source: shop.orders is mapped already by channels[0] (line 5); "
                "one source table goes to one target table"
            ),
            (
                "shop.yaml:7 channels[1].target: ODS.orders is used already by channels[0] (line 5); "
                "one source table goes to one target table"
            ),
        ],
    ),
    "a pattern over a pattern": (
        GOOD + "  - {source: shop.*, target: ods.*}\n  - {source: shop.o*, target: dw.*}\n",
        ["shop.yaml:7 channels[2].source: shop.o* overlaps with shop.*, mapped by channels[1] (line 6)"],
    ),
    "a star on one side": (
        GOOD + "  - {source: crm.*, target: ods.all}\n",
        ["shop.yaml:6 channels[1].target: source and target both take one *, or neither does"],
    ),
    "names that are no tables": (
        changed("shop.orders", "orders"),
        [
            (
                "shop.yaml:5 channels[0].source: must be database.table, or database.* for all tables of a database; "
                "write a name that holds a space, a dot or a * in backticks: `my db`.`odd.table` (got 'orders')"
            )
        ],
    ),
    "an empty key and a key column twice": (
        GOOD + "  - {source: a.b, target: a.b, key: []}\n  - {source: a.c, target: a.c, key: [id, id]}\n",
        [
            "shop.yaml:6 channels[1].key: must have at least one entry",
            "shop.yaml:7 channels[2].key: names id twice",
        ],
    ),
    "an expression that is no text": (
        changed("target: ods.orders", "target: ods.orders, columns: {id: id, active: on}"),
        ["shop.yaml:5 channels[0].columns.active: must be text; put it in quotes (got true)"],
    ),
    "layout of tables for Delta": (
        changed("target: ods.orders", "target: ods.orders, tables: {buckets: 3}"),
        ["shop.yaml:5 channels[0].tables: is for the sinks doris and starrocks; Delta tables have none of it"],
    ),
    "copies of Spark's tasks": (
        GOOD + "spark:\n  conf:\n    spark.speculation: true\n",
        [
            "shop.yaml:8 spark.conf.spark.speculation: must stay off: a task and its copy would load the same rows side by side"
        ],
    ),
    "no channels": (
        GOOD.replace("  - {source: shop.orders, target: ods.orders}\n", "").replace("channels:", "channels: []"),
        ["shop.yaml:4 channels: must have at least one entry"],
    ),
    "a bad name": (
        changed("name: shop", "name: My Shop"),
        [f"shop.yaml:1 name: {BAD_NAME} (got 'My Shop')"],
    ),
    "a name that is too long": (
        changed("name: shop", "name: " + "a" * 41),
        [f"shop.yaml:1 name: {BAD_NAME} (got '{'a' * 41}')"],
    ),
    "a key given twice": (
        GOOD + "name: other\n",
        ["shop.yaml:6 name: is given twice, first in line 1; keep one of them"],
    ),
    "an unset variable": (
        changed('"s3cret"', "${CDC_NO_SUCH}"),
        [
            (
                "shop.yaml:2 source.password: the environment variable CDC_NO_SUCH is not set; "
                "run `export CDC_NO_SUCH=...` first, or write $${CDC_NO_SUCH} if the text ${CDC_NO_SUCH} itself is meant"
            )
        ],
    ),
    "a missing secret file": (
        changed('"s3cret"', "${file:no-such-file}"),
        ["shop.yaml:2 source.password: the file of ${file:no-such-file} cannot be read: No such file or directory"],
    ),
    "another form of substitution": (
        changed('"s3cret"', '"${A:-b} ${open"'),
        [
            (
                "shop.yaml:2 source.password: ${A:-b} is not known; write ${NAME} for a variable of the environment, "
                "${file:/path} for a file's text, $${ for a plain ${"
            ),
            (
                "shop.yaml:2 source.password: ${ is not known; write ${NAME} for a variable of the environment, "
                "${file:/path} for a file's text, $${ for a plain ${"
            ),
        ],
    ),
    "scalars that are not what YAML takes them for": (
        changed("start: latest", "port: 0x_, server_id: !!int abc, tls: {mode: 0b_}")
        + "tasks: {parallel: !!float abc}\nstatus: {port: &odd !!int '', host: *odd}\n"
        + "spark: !!bool abc\ncommit: {interval: !!timestamp abc}\n"
        + f"memory: {{window: 0x{'f' * 5000}}}\nsnapshot: {{readers: {'9' * 5000}}}\n",
        [
            "shop.yaml:2 source.port: must be a whole number (got '0x_')",
            "shop.yaml:2 source.tls.mode: must be one of off, required, verify_ca or verify_identity (got '0b_')",
            "shop.yaml:2 source.server_id: must be a whole number (got 'abc')",
            "shop.yaml:6 tasks.parallel: must be a whole number (got 'abc')",
            "shop.yaml:7 status.host: must not be empty",
            "shop.yaml:7 status.port: must be a whole number (got '')",
            "shop.yaml:8 spark: must be a mapping (key: value) (got 'abc')",
            ("shop.yaml:9 commit.interval: must be a duration with its unit, such as 500ms, 5s, 10m or 1h (got 'abc')"),
            (
                "shop.yaml:10 memory.window: must be a size with its unit, such as 64MiB or 15MB "
                f"(got '0x{'f' * 58}...')"
            ),
            f"shop.yaml:11 snapshot.readers: must be a smaller number (got '{'9' * 60}...')",
        ],
    ),
    "secrets at places that no file can have": (
        changed("username: cdc", 'username: "${file:a\\0b}"').replace('"s3cret"', "${file:~no-such-user/x}"),
        [
            "shop.yaml:2 source.username: the file of ${file:a\0b} cannot be read: no path has a NUL character in it",
            (
                "shop.yaml:2 source.password: the file of ${file:~no-such-user/x} cannot be read: "
                "its ~ names no home folder of this machine"
            ),
        ],
    ),
    "paths that no file can have": (
        changed("./warehouse", "~no-such-user/x").replace("start: latest", 'tls: {mode: verify_ca, ca: "a\\0b"}'),
        [
            "shop.yaml:2 source.tls.ca: no path has a NUL character in it (got 'a\\x00b')",
            "shop.yaml:3 sink.path: its ~ names no home folder of this machine (got '~no-such-user/x')",
        ],
    ),
    "a target that is an address": (
        changed("path: ./warehouse", "path: 's3://bucket/warehouse'"),
        [
            "shop.yaml:3 sink.path: must be a path that this machine sees, on a disk or mounted: addresses are not "
            "supported (got 's3://bucket/warehouse')",
        ],
    ),
    "TLS with a file that is not there": (
        changed("start: latest", "tls: {mode: verify_ca, ca: /no/such.pem}"),
        ["shop.yaml:2 source.tls.ca: there is no file /no/such.pem"],
    ),
    "two Sparks": (
        GOOD + "spark: {master: local, remote: 'sc://x'}\n",
        ["shop.yaml:6 spark.remote: cannot stand beside `master`: a job runs on one Spark"],
    ),
    "an open status endpoint": (
        GOOD + "status: {host: 0.0.0.0}\n",
        [
            (
                "shop.yaml:6 status.host: is not a loopback address, so `token` is required: "
                "anybody who reaches it could stop the job"
            )
        ],
    ),
    "sections that are not mappings": (
        GOOD + "tasks: [1]\nmemory:\nspark: yes\n",
        [
            "shop.yaml:6 tasks: must be a mapping (key: value) (got a list)",
            "shop.yaml:7 memory: must be a mapping (key: value) (got nothing)",
            "shop.yaml:8 spark: must be a mapping (key: value) (got true)",
        ],
    ),
    "no YAML": (
        GOOD + "x: [1\n",
        ["shop.yaml:7 is not valid YAML: expected ',' or ']', but got '<stream end>' while parsing a flow sequence"],
    ),
    "a tab": (
        "name: shop\n\tsource: x\n",
        [
            (
                "shop.yaml:2 is not valid YAML: found character '\\t' that cannot start any token "
                "while scanning for the next token"
            )
        ],
    ),
    "a list": (
        "- a\n",
        ["shop.yaml:1 must be a mapping (key: value) with name, source, sink and channels"],
    ),
    "nothing": ("", ["shop.yaml:1 is empty; see examples/ for job files to start from"]),
    "an alias of itself": (
        GOOD + "x: &a [*a]\n",
        ["shop.yaml:6 is not valid YAML: an alias makes it endless"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_told_with_line_and_path(case: str, tmp_path: Path) -> None:
    text, expected = BROKEN[case]
    assert faults(tmp_path, text) == expected


@pytest.mark.parametrize("name", ["2024-13-45", "!!int a-b", "!!timestamp abc", "0b_"])
def test_a_name_that_looks_like_something_else_is_a_name(name: str, tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed("name: shop", f"name: {name}")))
    assert config.name == name.split()[-1]


def test_a_job_file_in_the_home_of_nobody_is_told() -> None:
    with pytest.raises(ConfigError, match="its ~ names no home folder"):
        load_config(Path("~no-such-user/shop.yaml"))


def test_aliases_of_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (only,) = faults(tmp_path, "\n".join(lines))
    assert "an alias makes it endless" in only


def test_deep_nesting_is_refused_and_does_not_crash(tmp_path: Path) -> None:
    (only,) = faults(tmp_path, "a: " + "[" * 2000)
    assert only == "shop.yaml:1 is nested too deeply"


def test_all_faults_of_all_sections_come_together_in_order_of_lines(tmp_path: Path) -> None:
    text = changed("name: shop", "name: Shop!") + "commit: {interval: soon}\nstatus: {prot: 1}\nxyz: 1\n"
    told = faults(tmp_path, text.replace("shop.orders", "orders"))
    assert [line.split()[0] for line in told] == [f"shop.yaml:{n}" for n in (1, 5, 6, 7, 8)]


def test_aliases_and_merge_keys_work(tmp_path: Path) -> None:
    text = (
        GOOD
        + "  - &more {source: shop.a, target: ods.a, filter: x > 1}\n  - {<<: *more, source: shop.b, target: ods.b}\n"
    )
    config = load_config(written(tmp_path, text))
    assert [(one.source, one.filter) for one in config.channels[1:]] == [("shop.a", "x > 1"), ("shop.b", "x > 1")]


def test_secrets_come_from_environment_and_files_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "hush-hush")
    (tmp_path / "pw").write_text("from-a-file\n")
    text = changed('"s3cret"', "${CDC_TEST_SECRET}") + (
        "status: {token: '${file:pw}'}\nspark: {conf: {spark.hadoop.fs.s3a.secret.key: '${CDC_TEST_SECRET}!'}}\n"
    )
    config = load_config(written(tmp_path, text))
    assert isinstance(config.source, BinlogSource)
    assert config.source.password.get_secret_value() == "hush-hush"
    assert set(config.secrets()) == {"hush-hush", "from-a-file", "hush-hush!"}
    assert not re.search("hush-hush(?!!)|from-a-file", repr(config))


def test_a_password_that_is_the_user_s_name_hides_no_names(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed('"s3cret"', "cdc")))
    assert isinstance(config.source, BinlogSource)
    assert config.source.username == config.source.password.get_secret_value() == "cdc" and config.secrets() == ()


def test_a_token_in_the_address_of_a_spark_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "hush%20hush")
    remote = "sc://host:443/;use_ssl=true;token=${CDC_TEST_SECRET};user_id=cdc;x-Secret=too"
    text = changed('"s3cret"', '""') + f"spark: {{remote: '{remote}'}}\n"
    assert set(load_config(written(tmp_path, text)).secrets()) == {"hush%20hush", "hush hush", "too"}


@pytest.mark.parametrize(
    "text",
    [
        changed('"s3cret"', "5550123"),
        changed("host: 127.0.0.1", "host: 127.0.0.1, port: '${CDC_TEST_SECRET}'"),
        changed("start: latest", "start: '${CDC_TEST_SECRET}'"),
        changed("name: shop", "name: ${CDC_TEST_SECRET}"),
        GOOD + "status: {token: 5550123}\n",
    ],
)
def test_a_fault_in_a_secret_does_not_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "5550123 X")
    (only,) = faults(tmp_path, text)
    assert "5550123" not in only


def test_lower_limits_follow_an_upper_one_that_is_set_below_them(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD + "commit: {max_bytes: 1MiB, max_rows: 100}\n"))
    assert (config.commit.min_bytes, config.commit.min_rows) == (1 << 20, 100)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory\. \(file .*nothing\.yaml\)"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_dollar_dollar_brace_is_the_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "value")
    for written, meant in (
        ("$${CDC_TEST_SECRET}", "${CDC_TEST_SECRET}"),
        ('"a$${b}c-${CDC_TEST_SECRET}"', "a${b}c-value"),
        ('"a$${b"', "a${b"),
        ('"$$ $5 $$5"', "$$ $5 $$5"),
        ("'$$${x}'", "$${x}"),
    ):
        file = tmp_path / "shop.yaml"
        file.write_text(changed('"s3cret"', written))
        source = load_config(file).source
        assert isinstance(source, BinlogSource) and source.password.get_secret_value() == meant


def test_socket_stands_in_place_of_host_and_port(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(changed("host: 127.0.0.1", "socket: run/mysqld.sock"))
    source = load_config(file).source
    assert isinstance(source, BinlogSource) and source.server == str(tmp_path / "run/mysqld.sock")
    both = faults(tmp_path, changed("host: 127.0.0.1", "host: 127.0.0.1, socket: s"))
    assert both == ["shop.yaml:2 source.socket: is given in place of `host` and `port`: remove them or it"]
    neither = faults(tmp_path, changed("host: 127.0.0.1", "port: 3306"))
    assert neither == ["shop.yaml:2 source.host: is required, or `socket`, the path of a Unix socket"]


def test_public_key_goes_without_tls_only(tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (fault,) = faults(tmp_path, changed("host: 127.0.0.1", "host: db, tls: {public_key: key.pem}"))
    assert "source.tls.public_key: is used without TLS only: set `mode: off`" in fault
    file = tmp_path / "shop.yaml"
    file.write_text(changed("host: 127.0.0.1", "host: db, tls: {mode: off, public_key: key.pem}"))
    source = load_config(file).source
    assert isinstance(source, BinlogSource) and source.tls.public_key_file == str(tmp_path / "key.pem")
