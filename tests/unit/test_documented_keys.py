"""Every key of a job file and every key of the status is explained in docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from cdc.config import Config
from cdc.status import ChannelStatus, JobStatus, SnapshotStatus

DOCS = Path(__file__).parents[2] / "docs"
PLAIN = {"name", "type", "source", "sink", "target", "channels", "job", "username", "password", "host", "port"}


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        yield from inner(field.annotation)


def inner(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from keys(kind)
    for part in get_args(kind):
        yield from inner(part)


def explained() -> set[str]:
    lines = [line for path in DOCS.glob("*.md") for line in path.read_text().splitlines()]
    return {word for line in lines for code in re.findall(r"`([^`]+)`", line) for word in re.findall(r"\w+", code)}


def test_every_key_of_a_job_file_is_explained() -> None:
    assert sorted(set(keys(Config)) - PLAIN - explained()) == []


def test_every_key_of_the_status_is_explained() -> None:
    names = {each.name for kind in (JobStatus, ChannelStatus, SnapshotStatus) for each in fields(kind)}
    assert sorted(names - PLAIN - explained()) == []
