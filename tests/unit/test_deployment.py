"""The files of deploy/ are correct: rules and dashboards name metrics that exist, and each tool accepts its files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.api.metrics import JobCollector
from cdc.config.models import load_config
from cdc.config.serve_models import load_serve_config
from tests.conftest import unavailable
from tests.support.reference import Sample

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bcdc_[a-z_]+")
# exported by `cdc serve`, which has several jobs and knows other hosts; a driver does not have them
OF_HOSTS = {"cdc_store_up", "cdc_host_up", "cdc_host_memory_free_bytes", "cdc_job_takeovers_total"}


@pytest.fixture(scope="session")
def promtool() -> str:
    return shutil.which("promtool") or unavailable("promtool: apt-get install prometheus")


def exported() -> set[str]:
    """The names of all series that a driver exports."""
    families = list(JobCollector(Sample()).collect())  # type: ignore[arg-type]
    assert all(family.samples for family in families if not family.name.startswith("cdc_kafka"))
    return {sample.name for family in families for sample in family.samples} | {one.name for one in families}


def rules() -> list[dict[str, Any]]:
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
        assert rule["labels"]["severity"] in {"page", "warn"}, rule
        assert set(rule["annotations"]) == {"summary", "hint"}, rule
        assert rule["alert"] in fired, f"no test fires {rule['alert']}"


# Grafana


def dashboard() -> dict[str, str]:
    """Each expression of the dashboard by its panel, for all jobs."""
    board = json.loads((DEPLOY / "grafana/cdc.json").read_text())
    variables = {one["name"] for one in board["templating"]["list"]}
    found = {}
    for panel in board["panels"]:
        assert panel["title"] and panel["targets"], panel
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) | {panel["datasource"]["uid"].strip("${}")}
            assert used <= variables, f"{panel['title']} uses an unknown variable"
            found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$job_name", ".*")
    return found


def test_promtool_accepts_each_expression_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    panels = dashboard()
    recorded = [{"record": f"panel_{number}", "expr": expr} for number, expr in enumerate(panels.values())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    run(promtool, "check", "rules", file)


def test_dashboard_names_only_metrics_that_are_exported() -> None:
    named = {name for expr in dashboard().values() for name in METRIC.findall(expr)}
    assert named - exported() - OF_HOSTS == set()


# systemd


def test_systemd_accepts_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = shutil.which("systemd-analyze") or unavailable("systemd-analyze: apt-get install systemd")
    text = (DEPLOY / "systemd/cdc.service").read_text()
    assert text.count("ExecStart=/opt/cdc/bin/cdc serve /etc/cdc/serve.yaml\n") == 1
    monkeypatch.setenv("CDC_ADMIN_TOKEN", "word")
    assert load_serve_config(DEPLOY / "systemd/serve.yaml").tokens.admin is not None
    unit = tmp_path / "cdc.service"
    unit.write_text(text.replace("/opt/cdc/bin/cdc", shutil.which("true") or "/bin/true"))
    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    # 100 is a unit without hardening
    run(tool, "security", "--offline=true", "--threshold=25", unit)


# Kubernetes

KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def workload(name: str) -> dict[str, Any]:
    return next(one for one in documents(KUBERNETES / name) if "template" in one["spec"])


@pytest.mark.parametrize("file", KUSTOMIZATIONS, ids=lambda file: file.parent.name)
def test_kubernetes_schema_accepts_the_manifests_of_a_kustomization(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    paths = [file.parent / name for name in content["resources"]]
    assert {path.name for path in paths} >= {"deployment.yaml"} or len(paths) == 4
    for one in content["configMapGenerator"]:
        assert all((file.parent / name).is_file() for name in one["files"]), one
    run(Path(sys.executable).with_name("kubernetes-validate"), "--strict", *paths)


def test_kubernetes_schema_refuses_a_misspelt_probe(tmp_path: Path) -> None:
    wrong = tmp_path / "statefulset.yaml"
    wrong.write_text((KUBERNETES / "statefulset.yaml").read_text().replace("livenessProbe", "livenesProbe"))
    command = [Path(sys.executable).with_name("kubernetes-validate"), "--strict", wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0 and "livenesProbe" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["statefulset.yaml", "one-job/deployment.yaml"])
def test_each_pod_has_what_the_restricted_profile_and_the_driver_need(name: str) -> None:
    pod = workload(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["terminationGracePeriodSeconds"] == 60
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    volumes = {one["name"] for one in pod["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    assert {"/data", "/tmp", "/dev/shm"} <= {one["mountPath"] for one in container["volumeMounts"]}
    assert f"--uid {pod['securityContext']['runAsUser']}" in (ROOT / "Dockerfile").read_text()


def test_services_and_budget_select_the_pods_of_the_stateful_set() -> None:
    hosts = workload("statefulset.yaml")
    labels = hosts["spec"]["template"]["metadata"]["labels"]
    services = {one["metadata"]["name"]: one["spec"] for one in documents(KUBERNETES / "service.yaml")}
    assert services[hosts["spec"]["serviceName"]]["clusterIP"] == "None"
    assert all(one["selector"] == labels for one in services.values())
    assert documents(KUBERNETES / "budget.yaml")[0]["spec"]["selector"]["matchLabels"] == labels
    probes = hosts["spec"]["template"]["spec"]["containers"][0]
    assert probes["livenessProbe"]["httpGet"]["path"] == "/live"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"


@pytest.mark.parametrize("name", ["jobs/shop.yaml", "one-job/job.yaml"])
def test_job_files_of_the_manifests_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("CDC_PASSWORD", "DORIS_PASSWORD", "CDC_TOKEN"):
        monkeypatch.setenv(secret, "secret")
    load_config(KUBERNETES / name)
