"""Text of job files: YAML, substitution, and errors with line and path."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.config.source_models import BinlogSourceConfig
from cdc.errors import ConfigError
from tests.support.job_files import JOB, issues_of, with_change, write_job

BAD_NAME = "must consist of 1 to 40 characters a-z, 0-9, - and _, and not start with -"
BROKEN = {
    "a misspelt key": (
        with_change("sink: {type", "snik: {type"),
        ["shop.yaml:1 sink: is required", "shop.yaml:3 snik: is not a known key; did you mean `sink`?"],
    ),
    "a misspelt key deep inside": (
        with_change("password:", "pasword:"),
        ["shop.yaml:2 source.pasword: is not a known key; did you mean `password`?"],
    ),
    "an unknown key without a similar one": (
        JOB + "tasks: {zzz: 1}\n",
        ["shop.yaml:6 tasks.zzz: is not a known key; known here: parallel, max_bytes"],
    ),
    "wrong types": (
        with_change("host: 127.0.0.1", "host: 12, port: abc, server_id: 1.5"),
        [
            "shop.yaml:2 source.host: must be text; put it in quotes (got 12)",
            "shop.yaml:2 source.port: must be a whole number (got 'abc')",
            "shop.yaml:2 source.server_id: must be a whole number (got 1.5)",
        ],
    ),
    "numbers out of range": (
        JOB + "tasks: {parallel: 0}\nstatus: {port: 70000}\ncommit: {min_rows: -1}\n",
        [
            "shop.yaml:6 tasks.parallel: must be >= 1 (got 0)",
            "shop.yaml:7 status.port: must be <= 65535 (got 70000)",
            "shop.yaml:8 commit.min_rows: must be > 0 (got -1)",
        ],
    ),
    "an unknown source type": (
        with_change("type: binlog,", "type: binlgo,"),
        ["shop.yaml:2 source.type: must be one of binlog, canal, binlog_files, kafka (got 'binlgo')"],
    ),
    "no source type": (with_change("type: binlog, ", ""), ["shop.yaml:2 source.type: is required"]),
    "an unknown start": (
        with_change("start: latest", "start: newest"),
        ["shop.yaml:2 source.start: must be one of snapshot, latest or earliest (got 'newest')"],
    ),
    "a start without a file": (
        with_change("start: latest", "start: {offset: 4}"),
        ["shop.yaml:2 source.start.file: is required"],
    ),
    "a broken GTID set": (
        with_change("start: latest", "start: {gtid_set: nonsense}"),
        [
            (
                "shop.yaml:2 source.start.gtid_set: must be a GTID set in quotes, such as "
                '"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", or "0-1-10" of MariaDB (got \'nonsense\')'
            )
        ],
    ),
    "durations and sizes without a unit": (
        JOB + "commit: {interval: 5, max_bytes: 64 megs}\n",
        [
            "shop.yaml:6 commit.interval: must be a duration with its unit, such as 500ms, 5s, 10m or 1h (got 5)",
            "shop.yaml:6 commit.max_bytes: must be a size with its unit, such as 64MiB or 15MB (got '64 megs')",
        ],
    ),
    "durations and sizes that are absurd": (
        JOB + f"commit: {{interval: {'9' * 50}d, max_bytes: 2000000000GiB}}\nmemory: {{window: {'9' * 400}GiB}}\n"
        f"verify: {{every: {'9' * 400}d}}\n",
        [
            f"shop.yaml:6 commit.interval: must not be longer than 10 years (got '{'9' * 50}d')",
            "shop.yaml:6 commit.max_bytes: must not be larger than 1 EiB (got '2000000000GiB')",
            f"shop.yaml:7 memory.window: must not be larger than 1 EiB (got '{'9' * 60}...')",
            f"shop.yaml:8 verify.every: must not be longer than 10 years (got '{'9' * 60}...')",
        ],
    ),
    "a duration of zero": (
        JOB + "commit: {interval: 0s}\n",
        ["shop.yaml:6 commit.interval: must be > 0 (got '0s')"],
    ),
    "a maximum below its minimum": (
        JOB + "commit: {min_bytes: 2MiB, max_bytes: 1MiB}\nmemory:\n  window: 1MiB\n",
        ["shop.yaml:6 commit.max_bytes: must not be below min_bytes (2097152 bytes)"],
    ),
    "a window smaller than a Task": (
        JOB + "tasks:\n  max_bytes: 2MiB\nmemory:\n  window: 1MiB\n",
        ["shop.yaml:9 memory.window: must hold at least one Task: tasks.max_bytes is 2097152 bytes"],
    ),
    "a source mapped twice and a target used twice": (
        JOB + "  - source: shop.orders\n    target: ODS.orders\n",
        [
            (
                "shop.yaml:6 channels[1].source: shop.orders is mapped already by channels[0] (line 5); "
                "each source table needs its own target table"
            ),
            (
                "shop.yaml:7 channels[1].target: ODS.orders is used already by channels[0] (line 5); "
                "each source table needs its own target table"
            ),
        ],
    ),
    "overlapping patterns": (
        JOB + "  - {source: shop.*, target: ods.*}\n  - {source: shop.o*, target: dw.*}\n",
        ["shop.yaml:7 channels[2].source: shop.o* overlaps with shop.*, mapped by channels[1] (line 6)"],
    ),
    "a star on one side": (
        JOB + "  - {source: crm.*, target: ods.all}\n",
        ["shop.yaml:6 channels[1].target: source and target must both have one *, or neither of them"],
    ),
    "a source that is not a table name": (
        with_change("shop.orders", "orders"),
        [
            (
                "shop.yaml:5 channels[0].source: must be database.table, or database.* for all tables of a database; "
                "write a name with a space, a dot or a * in backticks: `my db`.`odd.table` (got 'orders')"
            )
        ],
    ),
    "an empty key and a key column twice": (
        JOB + "  - {source: a.b, target: a.b, key: []}\n  - {source: a.c, target: a.c, key: [id, id]}\n",
        [
            "shop.yaml:6 channels[1].key: must have at least one entry",
            "shop.yaml:7 channels[2].key: names id twice",
        ],
    ),
    "an expression that is not text": (
        with_change("target: ods.orders", "target: ods.orders, columns: {id: id, active: on}"),
        ["shop.yaml:5 channels[0].columns.active: must be text; put it in quotes (got true)"],
    ),
    "table layout for Delta": (
        with_change("target: ods.orders", "target: ods.orders, tables: {buckets: 3}"),
        ["shop.yaml:5 channels[0].tables: applies to the sinks doris and starrocks only; remove it"],
    ),
    "speculative Spark tasks": (
        JOB + "spark:\n  conf:\n    spark.speculation: true\n",
        [
            "shop.yaml:8 spark.conf.spark.speculation: must stay off: "
            "a task and its copy would load the same rows at the same time"
        ],
    ),
    "executors that would show rows at once": (
        "name: shop\nsource: {type: kafka, brokers: ['a:9092'], topics: [o], format: canal-json, read: executors}\n"
        "sink: {type: doris, fe: ['a:8030'], username: cdc, password: word,\n  two_phase_commit: off}\n"
        "channels: [{source: shop.orders, target: ods.orders}]\n",
        [
            "shop.yaml:4 sink.two_phase_commit: must be true with `source.read: executors`: a range that is read again needs loads "
            "that are not visible"
        ],
    ),
    "executors that would show rows at once, in another word": (
        "name: shop\nsource: {type: kafka, brokers: ['a:9092'], topics: [o], format: canal-json, read: executors}\n"
        "sink: {type: doris, fe: ['a:8030'], username: cdc, password: word,\n  two_phase_commit: n}\n"
        "channels: [{source: shop.orders, target: ods.orders}]\n",
        [
            "shop.yaml:4 sink.two_phase_commit: must be true with `source.read: executors`: a range that is read again needs loads "
            "that are not visible"
        ],
    ),
    "no channels": (
        JOB.replace("  - {source: shop.orders, target: ods.orders}\n", "").replace("channels:", "channels: []"),
        ["shop.yaml:4 channels: must have at least one entry"],
    ),
    "a bad name": (
        with_change("name: shop", "name: My Shop"),
        [f"shop.yaml:1 name: {BAD_NAME} (got 'My Shop')"],
    ),
    "a name that is too long": (
        with_change("name: shop", "name: " + "a" * 41),
        [f"shop.yaml:1 name: {BAD_NAME} (got '{'a' * 41}')"],
    ),
    "a key given twice": (
        JOB + "name: other\n",
        ["shop.yaml:6 name: is given twice, first in line 1; keep one of them"],
    ),
    "an unset variable": (
        with_change('"s3cret"', "${CDC_NO_SUCH}"),
        [
            (
                "shop.yaml:2 source.password: the environment variable CDC_NO_SUCH is not set; "
                "run `export CDC_NO_SUCH=...` first, or write $${CDC_NO_SUCH} for the text ${CDC_NO_SUCH} itself"
            )
        ],
    ),
    "a host with a port": (
        with_change("host: 127.0.0.1", 'host: "db:3307"'),
        ["shop.yaml:2 source.host: must not contain the port; set `port` (got 'db:3307')"],
    ),
    "a host that is a URL": (
        with_change("host: 127.0.0.1", "host: mysql://db"),
        [
            (
                "shop.yaml:2 source.host: must be a host name or an address, without a protocol and without a path "
                "(got 'mysql://db')"
            )
        ],
    ),
    "a frontend that is a URL": (
        with_change("{type: delta, path: ./warehouse}", "{type: doris, fe: ['http://fe1:8030'], username: cdc}"),
        [("shop.yaml:3 sink.fe[0]: must be host:port, without http:// and without a path (got 'http://fe1:8030')")],
    ),
    "a missing secret file": (
        with_change('"s3cret"', "${file:no-such-file}"),
        ["shop.yaml:2 source.password: the file of ${file:no-such-file} cannot be read: No such file or directory"],
    ),
    "an invalid substitution": (
        with_change('"s3cret"', '"${A:-b} ${open"'),
        [
            (
                "shop.yaml:2 source.password: ${A:-b} is not valid; write ${NAME} for an environment variable, "
                "${file:/path} for the text of a file, $${ for the text ${"
            ),
            (
                "shop.yaml:2 source.password: ${ is not valid; write ${NAME} for an environment variable, "
                "${file:/path} for the text of a file, $${ for the text ${"
            ),
        ],
    ),
    "scalars that YAML cannot convert": (
        with_change("start: latest", "port: 0x_, server_id: !!int abc, tls: {mode: 0b_}")
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
            "shop.yaml:8 spark: must be a mapping (key: value) (got text)",
            ("shop.yaml:9 commit.interval: must be a duration with its unit, such as 500ms, 5s, 10m or 1h (got 'abc')"),
            (
                "shop.yaml:10 memory.window: must be a size with its unit, such as 64MiB or 15MB "
                f"(got '0x{'f' * 58}...')"
            ),
            f"shop.yaml:11 snapshot.readers: must be a smaller number (got '{'9' * 60}...')",
        ],
    ),
    "secret files with impossible paths": (
        with_change("username: cdc", 'username: "${file:a\\0b}"').replace('"s3cret"', "${file:~no-such-user/x}"),
        [
            "shop.yaml:2 source.username: the file of ${file:a\0b} cannot be read: a path cannot contain a NUL character",
            (
                "shop.yaml:2 source.password: the file of ${file:~no-such-user/x} cannot be read: "
                "~ stands for a home folder that does not exist"
            ),
        ],
    ),
    "impossible paths": (
        with_change("./warehouse", "~no-such-user/x").replace("start: latest", 'tls: {mode: verify_ca, ca: "a\\0b"}'),
        [
            "shop.yaml:2 source.tls.ca: a path cannot contain a NUL character (got 'a\\x00b')",
            "shop.yaml:3 sink.path: ~ stands for a home folder that does not exist (got '~no-such-user/x')",
        ],
    ),
    "a target in an unknown store": (
        with_change("path: ./warehouse", "path: 'hdfs://bucket/warehouse'"),
        [
            "shop.yaml:3 sink.path: must be a path, or the URL of an object store: s3://, gs:// or az:// with a bucket "
            "(got 'hdfs://bucket/warehouse')",
        ],
    ),
    "a source that is an address": (
        JOB.replace(
            '{type: binlog, host: 127.0.0.1, username: cdc, password: "s3cret", start: latest}',
            "{type: binlog_files, path: 's3://bucket/files/*'}",
        ),
        [
            "shop.yaml:2 source.path: must be a path on a disk or a mounted file system of this machine: "
            "addresses are not supported (got 's3://bucket/files/*')",
        ],
    ),
    "a store of a folder": (
        with_change("path: ./warehouse", "path: ./warehouse, storage: {region: eu-central-1}"),
        ["shop.yaml:3 sink.storage: applies only if `path` is the URL of an object store, such as s3://..."],
    ),
    "a store without encryption": (
        with_change("path: ./warehouse", "path: 's3://lake', storage: {endpoint: 'http://minio:9000'}"),
        ["shop.yaml:3 sink.storage.endpoint: is not encrypted: write https://, or set `allow_http: true`"],
    ),
    "half an access key": (
        with_change("path: ./warehouse", "path: 's3://lake', storage: {secret_access_key: hush}"),
        ["shop.yaml:3 sink.storage.access_key_id: needs `secret_access_key`, and that needs `access_key_id`"],
    ),
    "TLS with a missing file": (
        with_change("start: latest", "tls: {mode: verify_ca, ca: /no/such.pem}"),
        ["shop.yaml:2 source.tls.ca: there is no file /no/such.pem"],
    ),
    "master and remote": (
        JOB + "spark: {master: local, remote: 'sc://x'}\n",
        ["shop.yaml:6 spark.remote: cannot be combined with `master`: a job uses one Spark"],
    ),
    "a public status endpoint without a token": (
        JOB + "status: {host: 0.0.0.0}\n",
        [
            (
                "shop.yaml:6 status.host: is not a loopback address, so `token` is required: "
                "without one, any client could stop the job"
            )
        ],
    ),
    "sections that are not mappings": (
        JOB + "tasks: [1]\nmemory:\nspark: yes\n",
        [
            "shop.yaml:6 tasks: must be a mapping (key: value) (got a list)",
            "shop.yaml:7 memory: must be a mapping (key: value) (got nothing)",
            "shop.yaml:8 spark: must be a mapping (key: value) (got true)",
        ],
    ),
    "invalid YAML": (
        JOB + "x: [1\n",
        ["shop.yaml:7 is not valid YAML: expected ',' or ']', but got '<stream end>' while parsing a flow sequence"],
    ),
    "a line that is indented too far": (
        "name: shop\n  source: {}\n",
        [
            (
                "shop.yaml:2 is not valid YAML: mapping values are not allowed here; check the indentation of this "
                "line and of the lines above it, and the colon after each key"
            )
        ],
    ),
    "a pattern without quotes": (
        "name: shop\nsource: *.*\n",
        [
            (
                "shop.yaml:2 is not valid YAML: expected alphabetic or numeric character, but found '.' while "
                "scanning an alias; put the value in quotes if it begins with *"
            )
        ],
    ),
    "a backtick without quotes": (
        "name: `a b`\n",
        [
            (
                "shop.yaml:1 is not valid YAML: found character '`' that cannot start any token while scanning for "
                "the next token; put the value in quotes"
            )
        ],
    ),
    "a tab": (
        "name: shop\n\tsource: x\n",
        [
            (
                "shop.yaml:2 is not valid YAML: found character '\\t' that cannot start any token "
                "while scanning for the next token; indent with spaces instead of tabs"
            )
        ],
    ),
    "a list": (
        "- a\n",
        ["shop.yaml:1 must be a mapping (key: value) with name, source, sink and channels"],
    ),
    "an empty file": ("", ["shop.yaml:1 is empty; see examples/ for job files to start from"]),
    "an alias of itself": (
        JOB + "x: &a [*a]\n",
        ["shop.yaml:6 is not valid YAML: aliases make it too large or endless"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_load_config_error_has_line_and_path(case: str, tmp_path: Path) -> None:
    text, expected = BROKEN[case]
    assert issues_of(tmp_path, text) == expected


@pytest.mark.parametrize("name", ["2024-13-45", "!!int a-b", "!!timestamp abc", "0b_"])
def test_name_that_looks_like_other_type_stays_text(name: str, tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, with_change("name: shop", f"name: {name}")))
    assert config.name == name.split()[-1]


def test_load_config_unknown_home_folder_raises() -> None:
    with pytest.raises(ConfigError, match="home folder that does not exist"):
        load_config(Path("~no-such-user/shop.yaml"))


def test_load_config_nested_aliases_raise(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (only,) = issues_of(tmp_path, "\n".join(lines))
    assert "aliases make it too large or endless" in only


def test_load_config_deep_nesting_raises(tmp_path: Path) -> None:
    (only,) = issues_of(tmp_path, "a: " + "[" * 2000)
    assert only == "shop.yaml:1 is nested too deeply"


def test_load_config_reports_all_errors_in_line_order(tmp_path: Path) -> None:
    text = with_change("name: shop", "name: Shop!") + "commit: {interval: soon}\nstatus: {prot: 1}\nxyz: 1\n"
    told = issues_of(tmp_path, text.replace("shop.orders", "orders"))
    assert [line.split()[0] for line in told] == [f"shop.yaml:{n}" for n in (1, 5, 6, 7, 8)]


def test_load_config_resolves_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = (
        JOB
        + "  - &more {source: shop.a, target: ods.a, filter: x > 1}\n  - {<<: *more, source: shop.b, target: ods.b}\n"
    )
    config = load_config(write_job(tmp_path, text))
    assert [(one.source, one.filter) for one in config.channels[1:]] == [("shop.a", "x > 1"), ("shop.b", "x > 1")]


@pytest.mark.parametrize(
    "text",
    [
        with_change('"s3cret"', "5550123"),
        with_change("host: 127.0.0.1", "host: 127.0.0.1, port: '${CDC_TEST_SECRET}'"),
        with_change("start: latest", "start: '${CDC_TEST_SECRET}'"),
        with_change("name: shop", "name: ${CDC_TEST_SECRET}"),
        JOB + "status: {token: 5550123}\n",
    ],
)
def test_error_in_secret_hides_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "5550123 X")
    (only,) = issues_of(tmp_path, text)
    assert "5550123" not in only


def test_load_config_unreadable_file_raises_with_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory\. \(file .*nothing\.yaml\)"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_dollar_dollar_brace_is_literal_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "value")
    for value, meant in (
        ("$${CDC_TEST_SECRET}", "${CDC_TEST_SECRET}"),
        ('"a$${b}c-${CDC_TEST_SECRET}"', "a${b}c-value"),
        ('"a$${b"', "a${b"),
        ('"$$ $5 $$5"', "$$ $5 $$5"),
        ("'$$${x}'", "$${x}"),
    ):
        file = tmp_path / "shop.yaml"
        file.write_text(with_change('"s3cret"', value))
        source = load_config(file).source
        assert isinstance(source, BinlogSourceConfig) and source.password.get_secret_value() == meant
