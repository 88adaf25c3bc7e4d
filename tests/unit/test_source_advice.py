"""Advice of ``cdc check`` that depends on what the server is: its version, or Amazon's."""

from __future__ import annotations

import pytest

from cdc.errors import SourceUnavailable
from cdc.preflight import _advice, _settings

GOOD = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}


class StubServer:
    mariadb = False
    gtids = True
    log_bin_mend = ""

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
def test_retention_is_advised_by_a_setting_that_the_version_has(version, setting, wanted):
    (finding,) = _advice(StubServer(version, **setting))
    assert wanted in finding.mend


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        ("", "no longer than Amazon itself needs them"),
        ("4", "for 4 h only"),
        (SourceUnavailable("no", mend="no"), "may not see"),
    ],
)
def test_amazons_own_retention_counts_and_not_the_variable(hours, told):
    (finding,) = _advice(StubServer(hours=hours, binlog_expire_logs_seconds="2592000"))
    assert told in finding.problem and not finding.fatal
    assert "CALL mysql.rds_set_configuration('binlog retention hours', 168)" in finding.mend


def test_a_week_at_amazons_is_enough():
    assert list(_advice(StubServer(hours="168", binlog_expire_logs_seconds="60"))) == []


def test_amazons_settings_are_set_in_the_parameter_group():
    (finding,) = _settings(StubServer(hours="168", binlog_format="MIXED"))
    assert finding.mend.startswith("Set binlog_format = 'ROW' in the instance's parameter group")
