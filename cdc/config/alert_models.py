"""The key ``alerts`` of a job file."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from cdc.config.fields import Model, Seconds, filled
from cdc.model.alert import AlertKind

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
