"""Errors: hints with the job's name, the table of actions, the JSON form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cdc import errors
from cdc.errors import (
    GAP_HINT,
    GAP_SNAPSHOT_HINT,
    CdcError,
    ConfigError,
    DecodeError,
    ErrorAction,
    PreparedLoadLost,
    ReaderConflict,
    SinkBusy,
    action_for,
    error_from_json,
    error_to_json,
    with_job,
)


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (GAP_HINT.split(" omits")[0], "`cdc resume shop --accept-gap`"),
        (GAP_SNAPSHOT_HINT.split("with ")[1], "`cdc snapshot shop TABLE`."),
        ("Run `cdc resume`.", "Run `cdc resume shop`."),
        ("`cdc resume --past-ddl`", "`cdc resume shop --past-ddl`"),
        ("`cdc snapshot ... a.b --context '1 = 1'`", "`cdc snapshot shop a.b --context '1 = 1'`"),
        ("`cdc resume other --past-ddl`, `cdc start JOB.yaml`", "`cdc resume other --past-ddl`, `cdc start JOB.yaml`"),
    ],
)
def test_with_job_inserts_name_into_commands(hint, shown):
    assert with_job(hint, "shop") == shown


def classes():
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CdcError)]


@pytest.mark.parametrize("kind", classes())
def test_actions_have_a_row_for_each_error_class(kind):
    assert kind in errors._ACTIONS


@pytest.mark.parametrize("action", ErrorAction)
def test_actions_are_each_used_outside_errors(action):
    """Code uses an action if it names it, for example in a comparison."""
    root = Path(errors.__file__).parents[1]
    files = [file for top in ("cdc", "channels") for file in (root / top).rglob("*.py")]
    read = re.compile(rf"\b{ErrorAction.__name__}\.{action.name}\b")
    assert [file for file in files if file != Path(errors.__file__) and read.search(file.read_text(encoding="utf-8"))]


def test_decide_subclass_without_row_uses_its_base():
    class Special(PreparedLoadLost):
        pass

    assert action_for(Special("", hint="")) is ErrorAction.REPLAY
    assert action_for(RuntimeError()) is ErrorAction.RETRY


@pytest.mark.parametrize(("kind", "retries"), [(DecodeError, 1), (ReaderConflict, 5), (ConfigError, 0)])
def test_decide_counted_repeats_retries_first(kind, retries):
    error = kind("", hint="")
    found = [action_for(error, repeats) for repeats in range(retries + 2)]
    assert found == [ErrorAction.RETRY] * retries + [ErrorAction.PAUSE] * 2
    assert action_for(error) is ErrorAction.PAUSE


@pytest.mark.parametrize("kind", classes())
def test_error_json_round_trip_keeps_everything(kind):
    extra = {"after_s": 2.5} if kind is SinkBusy else {}
    error = kind("It failed.", hint="Fix it.", labels=["a", "b"], table="shop.orders", path=Path("/tmp/x"), **extra)
    error.exit_code = 7
    found = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert (type(found), str(found), found.exit_code) == (kind, str(error), 7)
    assert found.context["labels"] == ["a", "b"]
    assert getattr(found, "after_s", None) == extra.get("after_s")


def test_error_json_masks_secrets_in_all_fields():
    error = ConfigError("No hunter2.", hint="hunter2", url="http://hunter2", hosts=["hunter2"])
    assert "hunter2" not in json.dumps(error_to_json(error, lambda text: text.replace("hunter2", "[hidden]")))


def test_error_json_unknown_class_becomes_cdc_error():
    found = error_from_json(error_to_json(ValueError("of a library")))
    assert type(found) is CdcError and "ValueError: of a library" in str(found)
    assert type(error_from_json({"class": "Enum", "error": "It failed."})) is CdcError
