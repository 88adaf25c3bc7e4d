"""Alerts: what a job reports to the webhook of its job file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class AlertKind(StrEnum):
    """The kinds of alerts."""

    PAUSED = "paused"  # detail: resume (automatic, manual)
    LAG = "lag"  # detail: lag_seconds, threshold_seconds
    MOVED = "moved"  # another host runs the job; detail: from, to


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. Its fields are the JSON that a webhook receives."""

    event: AlertKind
    job: str
    at: str  # ISO 8601, UTC
    message: str  # one sentence
    hint: str | None = None  # a command or a setting
    host: str | None = None  # that runs the job
    detail: Mapping[str, Any] = field(default_factory=dict)
