"""The events that a job file may name, in its loader and in its JSON Schema."""

from __future__ import annotations

import pytest

from cdc.config.alert_models import Alerts, HostAlerts


def offered(model):
    text = str(model.model_json_schema())
    return {name for name in ("paused", "lag", "moved") if f"'{name}'" in text}


def test_schema_of_job_offers_what_its_loader_accepts():
    for event in offered(Alerts):
        assert Alerts(events=(event,)).events == (event,)
    with pytest.raises(ValueError, match="only the file of `cdc serve`"):
        Alerts(events=("moved",))
    assert offered(Alerts) == {"paused", "lag"}


def test_schema_of_hosts_offers_all_events():
    assert offered(HostAlerts) == {"paused", "lag", "moved"}
