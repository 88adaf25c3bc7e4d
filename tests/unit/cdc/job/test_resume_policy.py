"""The options of a resume: which DDL statement they are about, and which pauses they match."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from cdc.api.models import Resume
from cdc.errors import ConfigError
from cdc.job.resume_policy import ResumePolicy, check_resume
from cdc.model.position import BinlogPosition
from cdc.model.schema_change import SchemaChange
from cdc.state.base import AcknowledgedDdl, JobRecord, JobState, ResumeKind

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


@pytest.mark.parametrize("options", [Resume(replay_bad=True), Resume(replay_bad=True, accept_gap=True)])
def test_replay_of_bad_messages_skips_no_statement(options: Resume) -> None:
    policy, earlier = ResumePolicy(None), (AcknowledgedDdl(BinlogPosition("bin.000001", 40), True),)
    policy.begin(options, HERE, CHANGE)
    assert policy.acknowledged(replace(PAUSED, acknowledged_ddl=earlier), HERE) == earlier


def test_replay_of_bad_messages_keeps_a_requested_pause() -> None:
    running = replace(PAUSED, state=JobState.RUNNING)
    check_resume(running, Resume(replay_bad=True))
    with pytest.raises(ConfigError, match="A pause of the job shop was requested"):
        check_resume(running, Resume(replay_bad=True), pause_requested=True)


FIRST, SECOND = (
    replace(PAUSED, pause=name, resume=ResumeKind.MANUAL, stopped_at_ddl=at) for name, at in (("a", HERE), ("b", THERE))
)
RETRYING = replace(SECOND, resume=ResumeKind.AUTOMATIC, stopped_at_ddl=None)


@pytest.mark.parametrize(
    ("record", "options", "is_refused"),
    [
        (SECOND, Resume(pause="a"), True),
        (SECOND, Resume(past_ddl=True, pause="a"), True),
        (SECOND, Resume(past_ddl=True, pause="b"), False),
        (SECOND, Resume(past_ddl=True), False),  # of a client that does not say it
        (RETRYING, Resume(accept_gap=True, pause="a"), True),
        (RETRYING, Resume(pause="a"), False),  # nothing is decided
        (replace(SECOND, state=JobState.RUNNING, resume=None, pause=None), Resume(past_ddl=True, pause="a"), False),
    ],
)
def test_resume_of_another_pause_is_refused(record: JobRecord, options: Resume, is_refused: bool) -> None:
    with pytest.raises(ConfigError, match="for another reason now: why") if is_refused else nullcontext():
        check_resume(record, options)
    assert ResumePolicy(None).take(options, record) is not is_refused


def test_resume_of_a_pause_that_was_resumed_is_outdated() -> None:
    """Two requests for one pause are accepted at once. The run after the first one may be paused at a later statement."""
    policy, both = ResumePolicy(None), Resume(past_ddl=True, pause="a")
    assert policy.take(both, FIRST)
    policy.begin(both, HERE, None)
    running = replace(FIRST, state=JobState.RUNNING, resume=None, pause=None)
    assert not policy.take(both, running) and not policy.take(both, SECOND)
    assert policy.take(replace(both, pause="b"), SECOND)
