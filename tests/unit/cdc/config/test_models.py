"""Values of job files: defaults, all keys, secrets."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.config.sink_models import DeltaSinkConfig, DorisSinkConfig
from cdc.config.source_models import BinlogSourceConfig, CanalSourceConfig
from cdc.errors import ConfigError
from tests.support.job_files import JOB, with_change, write_job


def test_load_config_small_file_gets_documented_defaults(tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, JOB))
    assert isinstance(config.source, BinlogSourceConfig)
    assert (config.source.port, config.source.tls.mode, config.source.server_id) == (3306, "off", None)
    assert isinstance(config.sink, DeltaSinkConfig)
    assert (config.sink.create_tables, config.sink.retention) == (True, 3600)
    assert config.sink.path == "./warehouse"
    assert config.sink.location == str(tmp_path / "warehouse")
    assert (config.commit.interval, config.commit.min_rows, config.commit.min_bytes) == (5, 10_000, 15 << 20)
    assert (config.commit.max_bytes, config.commit.max_rows) == (64 << 20, 20_000_000)
    assert (config.tasks.parallel, config.tasks.max_bytes) == (8, 32 << 20)
    assert config.memory.window == 256 << 20
    assert (config.status.host, config.status.port, config.status.token) == ("127.0.0.1", 8470, None)


@pytest.mark.parametrize(
    ("settings", "mib"),
    [
        ("", 32),
        ("memory: {window: 1GiB}", 32),
        ("memory: {window: 64MiB}", 16),
        ("memory: {window: 64MiB}\ntasks: {parallel: 2}", 16),
        ("memory: {window: 64MiB}\ntasks: {max_bytes: 64MiB}", 64),
    ],
)
def test_size_of_tasks_fits_into_the_window(tmp_path: Path, settings: str, mib: int) -> None:
    """Files with a small window were valid when Tasks were smaller."""
    assert load_config(write_job(tmp_path, f"{JOB}{settings}\n")).task_bytes == mib << 20


@pytest.mark.parametrize(
    "name",
    [
        "shop.yaml",
        "files.yaml",
        "doris.yaml",
        "starrocks.yaml",
        "kafka-canal-json.yaml",
        "kafka-debezium.yaml",
        "kafka-json.yaml",
    ],
)
def test_load_config_examples_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for sink in ("DORIS", "STARROCKS", "KAFKA"):
        monkeypatch.setenv(f"{sink}_PASSWORD", "pw")
    monkeypatch.setenv("CDC_PASSWORD", "x")
    load_config(Path(__file__).parents[4] / "examples" / name)


def test_load_config_reads_complete_binlog_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
  path: ./warehouse           # relative to this file; table ods.orders is in ./warehouse/ods/orders
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
    config = load_config(write_job(tmp_path, text))
    assert isinstance(config.source, BinlogSourceConfig)
    assert config.source.tls.ca_file == str(tmp_path / "ca.pem")
    assert config.status.token is not None
    assert config.status.token.get_secret_value() == "t0ken"
    files = '{type: binlog_files, path: "archive/mysql-bin.*"}'
    source = load_config(write_job(tmp_path, "name: a\nsource: " + files + JOB[JOB.index("\nsink") :])).source
    assert source.location == str(tmp_path / "archive" / "mysql-bin.*")  # type: ignore[union-attr]


def test_load_config_reads_canal_doris_and_starrocks_keys(tmp_path: Path) -> None:
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
    config = load_config(write_job(tmp_path, text))
    assert isinstance(config.source, CanalSourceConfig) and isinstance(config.sink, DorisSinkConfig)
    assert config.sink.tables.properties == {"light_schema_change": "true"}
    assert (config.sink.compression, config.sink.timeouts.load, config.sink.connections) == ("lz4", 1200.0, 4)
    assert config.channels[0].columns == {"id": "id", "no": "not_null"}
    assert (config.commit.interval, config.commit.max_bytes, config.commit.min_bytes) == (0.5, 15_000_000, 1)
    assert config.spark.conf == {"spark.ui.enabled": "false", "spark.executor.cores": "2"}
    starrocks = "{type: starrocks, fe: ['fe:8030'], username: u, multi_table: off}"
    config = load_config(write_job(tmp_path, with_change("{type: delta, path: ./warehouse}", starrocks)))
    assert config.sink.multi_table == "off"  # type: ignore[union-attr]


def test_secrets_from_environment_and_files_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "hush-hush")
    (tmp_path / "pw").write_text("from-a-file\n")
    text = with_change('"s3cret"', "${CDC_TEST_SECRET}") + (
        "status: {token: '${file:pw}'}\nspark: {conf: {spark.hadoop.fs.s3a.secret.key: '${CDC_TEST_SECRET}!'}}\n"
    )
    config = load_config(write_job(tmp_path, text))
    assert isinstance(config.source, BinlogSourceConfig)
    assert config.source.password.get_secret_value() == "hush-hush"
    assert set(config.secrets()) == {"hush-hush", "from-a-file", "hush-hush!"}
    assert not re.search("hush-hush(?!!)|from-a-file", repr(config))


def test_secrets_equal_to_user_name_are_left_out(tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, with_change('"s3cret"', "cdc")))
    assert isinstance(config.source, BinlogSourceConfig)
    assert config.source.username == config.source.password.get_secret_value() == "cdc" and config.secrets() == ()


def test_secrets_contain_basic_token_of_cluster_sink(tmp_path: Path) -> None:
    doris = "{type: doris, fe: ['fe:8030'], username: cdc, password: hush-hush}"
    config = load_config(write_job(tmp_path, with_change("{type: delta, path: ./warehouse}", doris)))
    token = base64.b64encode(b"cdc:hush-hush").decode()
    assert {"hush-hush", token} <= set(config.secrets())


def test_secrets_contain_token_of_spark_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", "hush%20hush")
    remote = "sc://host:443/;use_ssl=true;token=${CDC_TEST_SECRET};user_id=cdc;x-Secret=too"
    text = with_change('"s3cret"', '""') + f"spark: {{remote: '{remote}'}}\n"
    assert set(load_config(write_job(tmp_path, text)).secrets()) == {"hush%20hush", "hush hush", "too"}


def test_commit_minimum_defaults_follow_lower_maximum(tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, JOB + "commit: {max_bytes: 1MiB, max_rows: 100}\n"))
    assert (config.commit.min_bytes, config.commit.min_rows) == (1 << 20, 100)


@pytest.mark.parametrize("line", ["{drop.table: apply}", "{drop.database: apply}", "{rename.table: ignore}"])
def test_load_config_refuses_actions_that_lose_or_mix_rows(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot have (drop|rename)") as caught:
        load_config(write_job(tmp_path, JOB + f"schema_changes: {{mode: lenient, kinds: {line}}}\n"))
    assert "use" in str(caught.value)
    for valid in ("{drop: apply, drop.table: pause}", "{rename.table: pause, drop.database: ignore}"):
        load_config(write_job(tmp_path, JOB + f"schema_changes: {{kinds: {valid}}}\n"))


def test_load_config_object_store_gives_options_and_hides_its_secrets(tmp_path: Path) -> None:
    storage = (
        "{endpoint: 'https://minio:9000', region: eu-1, access_key_id: id, secret_access_key: hush, session_token: tick, "
        "path_style: false, properties: {aws_sse_kms_key_id: kms-id, google_service_account_key: psst}}"
    )
    config = load_config(write_job(tmp_path, with_change("./warehouse", f"'s3://lake/a', storage: {storage}")))
    assert isinstance(config.sink, DeltaSinkConfig)
    assert config.sink.location == "s3://lake/a"
    assert config.sink.storage_options == {
        "aws_endpoint": "https://minio:9000",
        "aws_region": "eu-1",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "hush",
        "aws_session_token": "tick",
        "aws_virtual_hosted_style_request": "true",
        "aws_sse_kms_key_id": "kms-id",
        "google_service_account_key": "psst",
    }
    assert {"hush", "tick", "psst"} <= set(config.secrets())
    assert not {"hush", "tick"} & set(re.findall(r"\w+", repr(config.sink)))


def test_load_config_object_store_without_storage_uses_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-9")
    config = load_config(write_job(tmp_path, with_change("./warehouse", "s3://lake")))
    assert isinstance(config.sink, DeltaSinkConfig)
    assert config.sink.storage_options == {"aws_region": "eu-9"}
    assert load_config(write_job(tmp_path, JOB)).sink.storage_options == {}  # type: ignore[union-attr]
