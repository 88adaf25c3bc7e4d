"""Advice of ``cdc check`` that depends on the server: its version, or Amazon RDS."""

from __future__ import annotations

import pytest

from cdc.checks.mysql import _advice, _settings
from cdc.errors import SourceUnavailable

GOOD = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}


class StubServer:
    mariadb = False
    gtids = True
    log_bin_hint = ""

    def __init__(self, version=(8, 0, 36), hours=None, **settings):
        self.settings = {**GOOD, **settings}
        self.version_numbers = version
        self.rds = hours is not None
        self.hours = hours

    def ask(self, sql):
        assert "mysql.rds_configuration" in sql
        if isinstance(self.hours, Exception):
            raise self.hours
        return [{"value": self.hours}] if self.hours else [{"value": None}]


@pytest.mark.parametrize(
    ("version", "setting", "wanted"),
    [
        ((5, 7, 44), {"expire_logs_days": "0.5"}, "SET GLOBAL expire_logs_days = 7"),
        (
            (8, 0, 36),
            {"binlog_expire_logs_seconds": "60", "expire_logs_days": "0"},
            "binlog_expire_logs_seconds = 604800",
        ),
    ],
)
def test_retention_hint_names_setting_of_server_version(version, setting, wanted):
    (finding,) = _advice(StubServer(version, **setting))
    assert wanted in finding.hint


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        ("", "no longer than Amazon itself needs them"),
        ("4", "for 4 h only"),
        (SourceUnavailable("no", hint="no"), "cannot see"),
    ],
)
def test_retention_on_rds_uses_rds_configuration(hours, told):
    (finding,) = _advice(StubServer(hours=hours, binlog_expire_logs_seconds="2592000"))
    assert told in finding.problem and not finding.fatal
    assert "CALL mysql.rds_set_configuration('binlog retention hours', 168)" in finding.hint


def test_retention_on_rds_of_a_week_has_no_finding():
    assert list(_advice(StubServer(hours="168", binlog_expire_logs_seconds="60"))) == []


def test_settings_on_rds_hint_names_parameter_group():
    (finding,) = _settings(StubServer(hours="168", binlog_format="MIXED"))
    assert finding.hint.startswith("Set binlog_format = 'ROW' in the instance's parameter group")
