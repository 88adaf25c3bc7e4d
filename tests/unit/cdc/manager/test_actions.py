"""Requests that the REST API refuses before it saves the desired state."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.api.models import Resume
from cdc.errors import ConfigError
from cdc.manager.rest.actions import JobActions
from cdc.state.base import JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.sqlite import SqliteStore
from tests.support.manager import add_job


@pytest.mark.parametrize(
    ("state", "resume", "options", "is_refused"),
    [
        (JobState.RUNNING, None, Resume(pause="a"), True),
        (JobState.RUNNING, None, Resume(), False),  # it cancels the pause that is requested
        (JobState.PAUSED, ResumeKind.AUTOMATIC, Resume(pause="b"), True),
        (JobState.PAUSED, ResumeKind.MANUAL, Resume(pause="b"), False),
    ],
)
def test_requested_pause_stays_desired_after_a_resume_of_another_one(
    tmp_path: Path, state: JobState, resume: ResumeKind | None, options: Resume, is_refused: bool
) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        add_job(store, "shop", state, "why", "", resume)
        store.save_job(replace(store.acquire("shop", "/jobs/shop.yaml"), pause="b" if resume else None))
        store.release()
        store.deployments.declare("shop", desired=DesiredState.PAUSED)
        before = store.deployments.get("shop")
        assert before is not None
        if is_refused:
            with pytest.raises(ConfigError, match="A pause of the job shop was requested"):
                JobActions(store).request(before, "resume", options, "someone")
        else:
            JobActions(store).request(before, "resume", options, "someone")
        after = store.deployments.get("shop")
        assert after is not None and after.desired is (DesiredState.PAUSED if is_refused else DesiredState.RUNNING)
