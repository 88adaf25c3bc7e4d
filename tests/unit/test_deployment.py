"""The files of deploy/ are correct: rules and dashboards name metrics that exist, and each tool accepts its files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cdc.api.metrics import JobCollector
from tests.conftest import unavailable
from tests.support.reference import Sample

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bcdc_[a-z_]+")
# exported by `cdc serve`, which has several jobs and knows other hosts; a driver does not have them
OF_HOSTS = {"cdc_host_up", "cdc_host_memory_free_bytes", "cdc_job_takeovers_total"}


@pytest.fixture(scope="session")
def promtool() -> str:
    return shutil.which("promtool") or unavailable("promtool: apt-get install prometheus")


def exported() -> set[str]:
    """The names of all series that a driver exports."""
    families = list(JobCollector(Sample()).collect())  # type: ignore[arg-type]
    assert all(family.samples for family in families if not family.name.startswith("cdc_kafka"))
    return {sample.name for family in families for sample in family.samples} | {one.name for one in families}


def rules() -> list[dict[str, object]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_their_tests(promtool: str) -> None:
    run(promtool, "check", "rules", DEPLOY / "prometheus/rules.yaml")
    run(promtool, "test", "rules", DEPLOY / "prometheus/rules_test.yaml")


def test_rules_name_only_metrics_that_are_exported() -> None:
    named = {name for rule in rules() for name in METRIC.findall(str(rule["expr"]))}
    assert named - exported() - OF_HOSTS == set()
    assert named >= OF_HOSTS, "OF_HOSTS names a metric that no rule uses"


def test_each_alert_has_severity_summary_hint_and_a_test() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus/rules_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "warn"}, rule  # type: ignore[index]
        assert set(rule["annotations"]) == {"summary", "hint"}, rule  # type: ignore[call-overload]
        assert rule["alert"] in fired, f"no test fires {rule['alert']}"
