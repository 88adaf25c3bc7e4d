import time
from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.manager.spec import read_spec

JOB = "name: shop\nsource: {type: binlog, password: '${NOT_SET}'}\nsink: {type: delta, path: /data}\n"


def test_read_spec_returns_what_placement_needs_without_the_secrets():
    spec = read_spec(JOB + "resources: {memory: 2GiB}\nhost_selector: {zone: eu}\n")
    assert (spec.name, spec.memory, spec.selector) == ("shop", 2 << 30, {"zone": "eu"})
    assert "${NOT_SET}" in spec.text
    assert read_spec(JOB).memory == 1 << 30


def test_read_spec_accepts_a_binlog_file_of_the_server():
    started = JOB.replace("type: binlog", "type: binlog, start: {file: mysql-bin.000007, offset: 4}")
    assert read_spec(started).name == "shop"


def test_read_spec_accepts_the_example_of_an_object_store():
    text = (Path(__file__).parents[4] / "examples" / "s3.yaml").read_text(encoding="utf-8")
    assert read_spec(text).name == "shop-s3"


@pytest.mark.parametrize("path", ["s3://lake/cdc", "gs://lake/cdc", "az://lake/cdc", "~/lake", "/data"])
def test_read_spec_accepts_paths_that_all_hosts_have(path):
    assert read_spec(JOB.replace("/data", f"'{path}'")).name == "shop"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("name: [", "not valid YAML"),
        ("source: {type: binlog}\n", "no valid name"),
        ("name: ../x\n", "no valid name"),
        (JOB + "resources: {memory: lots}\n", "must be a size"),
        (JOB.replace("'${NOT_SET}'", "word"), "source.password is written out"),
        (JOB.replace("'${NOT_SET}'", "12345678"), "source.password is written out"),
        (JOB + """spark: {conf: {x.options: '-Da.password="u3"'}}\n""", "spark.conf.x.options is written out"),
        (JOB + "alerts: {webhook: 'https://hooks.example/T0/xyz'}\n", "alerts.webhook is written out"),
        (JOB + "spark: {remote: 'sc://spark:15002/;token=xyz'}\n", "spark.remote is written out"),
        (JOB + "spark: {remote: 'sc://spark:15002/;x-api-key=xyz'}\n", "spark.remote is written out"),
        (JOB + "spark: {conf: {spark.hadoop.fs.azure.account.key.lake: xyz}}\n", "account.key.lake is written out"),
        (JOB.replace("/data", "/data, storage: {properties: {azure_storage_sas_key: xyz}}"), "sas_key is written out"),
        (
            JOB.replace("/data", "/data, storage: {properties: {google_service_account_key: x}}"),
            "account_key is written",
        ),
        (JOB.replace("binlog", "kafka, properties: {a.private.key.passphrase: x}"), "passphrase is written out"),
        (JOB.replace("/data", "./data"), "sink.path is the relative path './data'"),
        (JOB.replace("/data", "'s3://key:word@lake/x'"), "sink.path is written out"),
        (JOB.replace("/data", "x/y"), "sink.path is the relative path 'x/y'"),
        (JOB.replace("type: binlog", "type: binlog, tls: {ca: ca.pem}"), "source.tls.ca"),
    ],
)
def test_read_spec_of_a_text_that_hosts_cannot_use_is_refused(text, says):
    with pytest.raises(ConfigError) as refused:
        read_spec(text, "shop.yaml")
    assert says in str(refused.value) and refused.value.hint


@pytest.mark.parametrize("text", ["a-" * 300_000, "//" + ":" * 600_000, "a" * 600_000 + "token"])
def test_read_spec_of_a_long_text_needs_linear_time(text):
    began = time.process_time()
    assert read_spec(JOB + f"x: '{text}'\n").name == "shop"
    assert time.process_time() - began < 20  # quadratic time: hours
