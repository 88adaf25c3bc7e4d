"""The key ``alerts`` of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError

from cdc.config.fields import Model, Seconds, filled
from cdc.errors import ConfigError
from cdc.logging_setup import hide
from cdc.model.alert import AlertKind

DEFAULT = "CDC_ALERTS"  # environment variable: JSON of ``Alerts``; `cdc serve` sets it for its drivers
LAG_S = 60.0

_NOT_IN_A_URL = re.compile(r"[\s\x00-\x1f\x7f\\]")


def _webhook(value: SecretStr) -> SecretStr:
    url = value.get_secret_value()
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or _NOT_IN_A_URL.search(url):
        raise ValueError("must be a URL with http:// or https:// and a host")
    return value


class Alerts(Model):
    """Alerts that the job sends itself, for users without Prometheus."""

    webhook: Annotated[SecretStr, AfterValidator(_webhook)] = Field(
        description="URL that gets each alert as JSON by POST, `http` or `https`. It is secret: no log shows it."
    )
    events: Annotated[tuple[AlertKind, ...], BeforeValidator(filled)] = Field(
        default=tuple(AlertKind), description="Which alerts are sent: `paused`, `lag`, `moved`. Default: all."
    )
    lag_threshold: Seconds = Field(default=LAG_S, description="Send `lag` when the lag is above this.")


def default_alerts(environment: Mapping[str, str]) -> Alerts | None:
    """Return the alerts of jobs without their own, from ``$CDC_ALERTS``. Raises: ConfigError - they are not valid."""
    text = environment.get(DEFAULT, "").strip()
    if not text:
        return None
    try:
        found = Alerts.model_validate_json(text)
    except ValidationError as error:
        issues = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors())
        raise ConfigError(
            f"{DEFAULT} is not valid: {issues}.", hint=f'Its form is {{"webhook": "https://..."}}. Or remove {DEFAULT}.'
        ) from None
    hide([found.webhook.get_secret_value()])
    return found
