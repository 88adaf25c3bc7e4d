"""Keys for messages about jobs to another program: of one job in its file, of all jobs in the file of `cdc serve`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, WithJsonSchema, field_validator

from cdc.config.fields import Model, Seconds


class AlertEvent(StrEnum):
    """What a message is about."""

    PAUSED = "paused"  # the job is PAUSED
    LAG = "lag"  # the lag is above ``lag_threshold``
    MOVED = "moved"  # another host runs the job; `cdc serve` only


OF_JOB = (AlertEvent.PAUSED, AlertEvent.LAG)
# an editor offers only these; the message for the other one comes from the validator, which knows where it belongs
_OfJob = Annotated[AlertEvent, WithJsonSchema({"enum": [one.value for one in OF_JOB], "type": "string"})]


class HostAlerts(Model):
    """Messages about all jobs of the hosts to another program."""

    webhook: SecretStr | None = Field(
        default=None,
        description=(
            "URL (`http://` or `https://`) to which each event is posted as JSON. It is a secret: many services put "
            "a token into it. Default: none."
        ),
    )
    events: tuple[AlertEvent, ...] = Field(
        default=tuple(AlertEvent),
        description="Events to post: `paused`, `lag`, `moved`. The first two are posted again when they are over.",
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


class Alerts(HostAlerts):
    """Messages about the job to another program."""

    events: tuple[_OfJob, ...] = Field(
        default=OF_JOB, description="Events to post: `paused`, `lag`. Each is posted again when it is over."
    )

    @field_validator("events")
    @classmethod
    def _of_a_job(cls, value: tuple[AlertEvent, ...]) -> tuple[AlertEvent, ...]:
        if AlertEvent.MOVED in value:
            raise ValueError("must be of `paused` and `lag`: only the file of `cdc serve` may have `moved`")
        return value
