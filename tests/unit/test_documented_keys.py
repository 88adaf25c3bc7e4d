"""Every key of a job file and every key of the status is explained in docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cdc.api.models import ChannelStatus, JobStatus, SnapshotStatus
from cdc.config.models import Config

DOCS = Path(__file__).parents[2] / "docs"
PLAIN = {"name", "type", "source", "sink", "target", "channels", "job", "username", "password", "host", "port"}


def keys(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field
        yield from inner(field.annotation)


def inner(kind: Any) -> Iterator[tuple[str, FieldInfo]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from keys(kind)
    for part in get_args(kind):
        yield from inner(part)


def explained(*pages: Path) -> set[str]:
    lines = [line for path in pages for line in path.read_text().splitlines()]
    return {word for line in lines for code in re.findall(r"`([^`]+)`", line) for word in re.findall(r"\w+", code)}


def test_job_file_every_key_is_documented() -> None:
    assert sorted({name for name, _ in keys(Config)} - PLAIN - explained(*DOCS.rglob("*.md"))) == []


def test_job_file_every_key_has_a_description() -> None:
    assert sorted({name for name, field in keys(Config) if not field.description}) == []


def test_status_every_key_is_explained_by_hand() -> None:
    names = {each.name for kind in (JobStatus, ChannelStatus, SnapshotStatus) for each in fields(kind)}
    assert sorted(names - PLAIN - explained(DOCS / "how-to" / "monitor.md")) == []
