"""Models of sources: start positions, sockets, TLS keys, schemas of binlog files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.config.source_models import BinlogFilesSourceConfig, BinlogSourceConfig
from cdc.errors import ConfigError
from tests.support.job_files import JOB, issues_of, with_change, write_job


def files_job(tmp_path: Path, schema: str) -> Path:
    source = f'{{type: binlog_files, path: "archive/mysql-bin.*", schema: {schema}}}'
    return write_job(tmp_path, "name: a\nsource: " + source + JOB[JOB.index("\nsink") :])


def test_binlog_files_schema_is_file_or_server(tmp_path: Path) -> None:
    (tmp_path / "schema.sql").touch()
    source = load_config(files_job(tmp_path, "{file: schema.sql, database: shop}")).source
    assert isinstance(source, BinlogFilesSourceConfig) and source.table_schema is not None
    assert (source.table_schema.statements, source.table_schema.database) == (str(tmp_path / "schema.sql"), "shop")
    config = load_config(files_job(tmp_path, "{mysql: {host: db, username: cdc, password: s3cret}}"))
    assert isinstance(config.source, BinlogFilesSourceConfig) and config.source.table_schema is not None
    assert config.source.table_schema.mysql is not None and "s3cret" in config.secrets()


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("{}", "source.schema.file: either `file` or `mysql` is required, and not both"),
        ("{file: gone.sql}", "source.schema.file: there is no file"),
        (
            "{mysql: {host: db, username: a}, database: shop}",
            "source.schema.database: is used only together with `file`",
        ),
        ("{fiel: schema.sql}", "did you mean `file`?"),
    ],
)
def test_binlog_files_invalid_schema_raises(tmp_path: Path, schema: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load_config(files_job(tmp_path, schema))


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
def test_start_accepts_word_position_and_gtid_set(tmp_path: Path, start: str, expected: object) -> None:
    config = load_config(write_job(tmp_path, with_change("start: latest", f"start: {start}")))
    assert isinstance(config.source, BinlogSourceConfig)
    found = config.source.start
    assert (found if isinstance(found, str) else found.model_dump()) == expected


def test_socket_replaces_host_and_port(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(with_change("host: 127.0.0.1", "socket: run/mysqld.sock"))
    source = load_config(file).source
    assert isinstance(source, BinlogSourceConfig) and source.server == str(tmp_path / "run/mysqld.sock")
    both = issues_of(tmp_path, with_change("host: 127.0.0.1", "host: 127.0.0.1, socket: s"))
    assert both == ["shop.yaml:2 source.socket: cannot be combined with `host` and `port`: remove one or the other"]
    neither = issues_of(tmp_path, with_change("host: 127.0.0.1", "port: 3306"))
    assert neither == ["shop.yaml:2 source.host: is required, or `socket` (the path of a Unix socket)"]


def test_public_key_requires_mode_off(tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    (fault,) = issues_of(tmp_path, with_change("host: 127.0.0.1", "host: db, tls: {public_key: key.pem}"))
    assert "source.tls.public_key: works only without TLS: set `mode: off`" in fault
    file = tmp_path / "shop.yaml"
    file.write_text(with_change("host: 127.0.0.1", "host: db, tls: {mode: off, public_key: key.pem}"))
    source = load_config(file).source
    assert isinstance(source, BinlogSourceConfig) and source.tls.public_key_file == str(tmp_path / "key.pem")
