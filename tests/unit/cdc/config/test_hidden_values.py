"""Errors of a file show no secret, also where a secret is in the wrong position."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.cli.main import main
from cdc.config.models import load_config
from cdc.config.serve_models import load_serve_config
from cdc.errors import ConfigError
from cdc.manager.spec import read_spec
from tests.support.job_files import JOB, issues_of, with_change, write_job

SECRET = "hunter2"
DORIS = "{type: doris, username: cdc, "
AVRO = (
    "name: a\nsource: {type: kafka, brokers: ['k:9092'], topics: [t], format: debezium-avro, registry: {url: '%s'}}\n"
)
FILES = {
    "alerts": JOB + "alerts: hunter2\n",
    "status": JOB + "status: hunter2\n",
    "a status of digits and text": JOB + "status: {token: [hunter2]}\n",
    "source": JOB.replace(JOB.splitlines()[1], "source: hunter2"),
    "storage": with_change("path: ./warehouse", "path: 's3://lake', storage: hunter2"),
    "conf": JOB + "spark: {conf: hunter2}\n",
    "channels": JOB[: JOB.index("channels")] + "channels: hunter2\n",
    "properties": JOB.replace(
        JOB.splitlines()[1],
        "source: {type: kafka, brokers: ['k:9092'], topics: [t], format: canal-json, properties: hunter2}",
    ),
    "a frontend with a login": with_change(
        "{type: delta, path: ./warehouse}", DORIS + "fe: ['http://root:hunter2@fe:8030']}"
    ),
    "a frontend with a slash": with_change(
        "{type: delta, path: ./warehouse}", DORIS + "fe: ['http://root:hunter2/@fe:8030']}"
    ),
    "a registry with a login": AVRO % "http://u:hunter2@registry" + JOB[JOB.index("sink") :],
    "a registry with an @ in the password": AVRO % "http://u:hunt@hunter2@registry" + JOB[JOB.index("sink") :],
    "a Spark with a token": JOB + "spark: {master: [], remote: 'sc://a/;token=hunter2', conf: {a: b}}\n",
    "a path with a token": with_change("path: ./warehouse", "path: 'abfs://lake/x;token=hunter2'"),
    "an alias": with_change('"s3cret"', "*hunter2"),
    "an anchor": with_change('"s3cret"', "&hunter2 a") + "alerts: &hunter2 b\n",
    "a tag": with_change('"s3cret"', "!hunter2 "),
    "a tag with a quote": with_change('"s3cret"', "!hunter2'a "),
    "a tag of YAML": with_change('"s3cret"', "!!hunter2 "),
    "a tag with a handle": with_change('"s3cret"', "!hunter2!x"),
    "a value after the quotes": with_change('"s3cret"', '"s3cret" hunter2'),
    "a missing space": with_change('password: "s3cret"', "password:hunter2"),
    "a missing colon": with_change('password: "s3cret"', "password hunter2"),
    "an equals sign": with_change('password: "s3cret"', "password=hunter2"),
    "the type of the sink": with_change("type: delta", "type: ${CDC_TEST_WORD}"),
    "the type of the source": with_change("type: binlog", "type: ${CDC_TEST_WORD}"),
    "a GTID set": with_change("start: latest", "start: {gtid_set: '${CDC_TEST_WORD}'}"),
    "a GTID set with more": with_change("start: latest", "start: {gtid_set: 'x,${CDC_TEST_WORD}'}"),
    "a file": with_change("start: latest", "tls: {mode: verify_ca, ca: '${CDC_TEST_WORD}'}"),
    "a key": with_change("target: ods.orders", "target: ods.orders, key: ['${CDC_TEST_WORD}', '${CDC_TEST_WORD}']"),
}


CANAL = "{type: canal, destination: d, "
KAFKA = "{type: kafka, topics: [t], format: canal-json, "
SOURCE, SINK = JOB.splitlines()[1].removeprefix("source: "), JOB.splitlines()[2].removeprefix("sink: ")
LOGINS = {
    "source.host": with_change("host: 127.0.0.1", "host: 'cdc:hunter2@127.0.0.1'"),
    "source.servers[0]": with_change(SOURCE, CANAL + "servers: ['u:hunter2@canal:11111']}"),
    "source.zookeeper": with_change(SOURCE, CANAL + "zookeeper: 'u:hunter2@zk:2181'}"),
    "source.brokers[0]": with_change(SOURCE, KAFKA + "brokers: ['u:hunter2@k:9092']}"),
    "source.mysql.host": with_change(
        SOURCE, CANAL + "servers: ['c:11111'], mysql: {host: 'u:hunter2@db', username: cdc}}"
    ),
    "sink.path": with_change("./warehouse", "'s3://key:hunter2@lake/x'"),
    "sink.storage.endpoint": with_change("./warehouse", "'s3://lake', storage: {endpoint: 'https://k:hunter2@m'}"),
    "sink.fe[0]": with_change(SINK, DORIS + "fe: ['root:hunter2@fe:8030']}"),
    "sink.be[0]": with_change(SINK, DORIS + "fe: ['fe:8030'], be: ['root:hunter2@be:8040']}"),
}


@pytest.mark.parametrize("key", LOGINS)
def test_address_with_a_login_is_refused_without_it(key: str, tmp_path: Path) -> None:
    (only,) = issues_of(tmp_path, LOGINS[key])
    assert f" {key}: must not contain a user or a password" in only
    assert SECRET not in only and "(got" not in only


@pytest.mark.parametrize("path", ["s3://key:hunt/er2@lake/x", "gs://key@lake", "az://key:hunter2@lake"])
def test_url_of_a_store_with_a_login_is_refused(path: str, tmp_path: Path) -> None:
    (only,) = issues_of(tmp_path, with_change("./warehouse", f"'{path}'"))
    assert "must not contain a user or a password; set `sink.storage`" in only and "er2" not in only


def test_url_of_a_store_may_have_an_at_sign_after_the_bucket(tmp_path: Path) -> None:
    assert load_config(write_job(tmp_path, with_change("./warehouse", "'s3://lake/a@b:c'"))).sink.type == "delta"


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A variable with the secret. A command changes the umask of its process, which other tests need."""
    monkeypatch.setenv("CDC_TEST_WORD", SECRET)
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.mark.parametrize("case", FILES)
def test_error_of_a_job_file_shows_no_secret(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(tmp_path, FILES[case])
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["cdc", "check", str(file), "--output", "json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == ConfigError.exit_code
    assert "shop.yaml:" in json.loads(printed.out)["error"]
    assert SECRET not in printed.out + printed.err


@pytest.mark.parametrize(
    "text",
    [
        "tokens: hunter2\n",
        "alerts: hunter2\n",
        "host: {labels: hunter2}\n",
        "tokens: {admin: [hunter2]}\n",
        "listen: 4711",
    ],
)
def test_error_of_the_serve_file_shows_no_secret(text: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_serve_config(file)
    assert "serve.yaml:1 " in str(refused.value)
    assert SECRET not in str(refused.value) and "4711" not in str(refused.value)


def test_relative_path_with_a_login_is_shown_without_it() -> None:
    with pytest.raises(ConfigError, match="is the relative path") as refused:
        read_spec("name: a\nsink: {path: 'key:hunter2@lake/x'}\n")
    assert SECRET not in str(refused.value)
