"""Keys of a job file: messages about the job to another program."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from cdc.config.fields import Model, Seconds


class AlertEvent(StrEnum):
    """What a message is about."""

    PAUSED = "paused"  # the job is PAUSED
    LAG = "lag"  # the lag is above ``lag_threshold``


class Alerts(Model):
    """Messages about the job to another program."""

    webhook: SecretStr | None = Field(
        default=None,
        description=(
            "URL (`http://` or `https://`) to which each event is posted as JSON. It is a secret: many services put "
            "a token into it. Default: none."
        ),
    )
    events: tuple[AlertEvent, ...] = Field(
        default=tuple(AlertEvent), description="Events to post: `paused`, `lag`. Each is posted again when it is over."
    )
    lag_threshold: Seconds = Field(
        default=60.0, description="The event `lag` begins above this lag, and is over below half of it."
    )

    @field_validator("webhook")
    @classmethod
    def _usable_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value()
        try:
            url = urlsplit(text)
            is_usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and url.username is None
        except ValueError:
            is_usable = False
        if not is_usable or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be a URL such as https://host/path, without a user name") from None
        return value
