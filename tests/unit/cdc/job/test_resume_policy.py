"""The options of a resume: which DDL statement they are about, and which pauses they match."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.api.models import Resume
from cdc.errors import ConfigError
from cdc.job.resume_policy import ResumePolicy, check_resume
from cdc.model.position import BinlogPosition
from cdc.model.schema_change import SchemaChange
from cdc.state.base import AcknowledgedDdl, JobRecord, JobState

HERE, THERE = BinlogPosition("bin.000001", 90), BinlogPosition("bin.000001", 180)
CHANGE = SchemaChange("ALTER TABLE shop.orders ADD b INT", HERE, THERE, ())
PAUSED = JobRecord(
    "shop", "0badcafe", 1, JobState.PAUSED, "shop.yaml", "why", stopped_at_ddl=HERE, pending_change=CHANGE
)


def test_applied_statement_is_not_skipped_and_expires_with_the_position() -> None:
    policy = ResumePolicy(None)
    policy.begin(Resume(apply_ddl=True), HERE, CHANGE)
    assert policy.applies is CHANGE and policy.acknowledged(PAUSED, HERE) == ()
    assert not policy.expire(HERE) and policy.applies is CHANGE
    assert policy.expire(THERE) and policy.applies is None
    policy.begin(Resume(), HERE, CHANGE)
    assert policy.applies is None and policy.acknowledged(PAUSED, HERE) == (AcknowledgedDdl(HERE),)


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        (replace(PAUSED, stopped_at_ddl=None), Resume(apply_ddl=True), "is not paused at a DDL statement"),
        (replace(PAUSED, pending_change=None), Resume(apply_ddl=True), "cannot follow the statement"),
        (PAUSED, Resume(apply_ddl=True, past_ddl=True), "without a change of the targets"),
    ],
)
def test_resume_that_does_not_match_the_pause_raises(record: JobRecord, options: Resume, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_resume(record, options)
    check_resume(record, Resume())
    check_resume(PAUSED, Resume(apply_ddl=True))
