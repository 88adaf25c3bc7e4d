"""Types of values in a job file (durations, sizes, addresses) and the base class of its models."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema

from cdc.config.loader import NO_HOME, NUL_INSIDE, HiddenValueError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)")
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")
_NO_LOGIN = "must not contain a user or a password"
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SECONDS_MOST = 10 * 366 * 86400  # larger ones are mistakes, and would overflow in a clock of the system
_BYTES_MOST = 1 << 60
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration with its unit, such as 500ms, 5s, 10m or 1h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _SECONDS_MOST:
        raise ValueError("must not be longer than 10 years")
    return seconds


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a size with its unit, such as 64MiB or 15MB")
    number = float(match[1]) * _BYTES[match[2]]
    if number > _BYTES_MOST:
        raise ValueError("must not be larger than 1 EiB")
    return int(number)


def switch(value: object) -> object:
    """Return a boolean as "on" or "off", because YAML 1.1 reads a bare `on` or `off` as a boolean."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _address(value: object) -> object:
    if isinstance(value, str):
        without_login(value)
        host, colon, port = value.rpartition(":")
        if not host or not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError("must be host:port, in quotes")
        if "/" in host:
            raise ValueError("must be host:port, without http:// and without a path")
    return value


def without_login(value: str) -> str:
    """Refuse an address with a user or a password, because addresses are shown in the status and in messages."""
    if "@" in value:
        raise HiddenValueError(f"{_NO_LOGIN}: they have their own keys")
    return value


def _host(value: str) -> str:
    if "@" in value:
        raise HiddenValueError(f"{_NO_LOGIN}; set `username` and `password`")
    if "/" in value:
        raise ValueError("must be a host name or an address, without a protocol and without a path")
    if re.fullmatch(r"[^:\[\]]+:\d+|\[.*\]:\d+", value):
        raise ValueError("must not contain the port; set `port`")
    return value


def filled(value: object) -> object:
    """Refuse a list or a mapping without entries."""
    # pydantic's `min_length` counts only the valid entries
    if isinstance(value, list | dict) and not value:
        raise ValueError("must have at least one entry")
    return value


def setting(value: object) -> object:
    """Return a setting of another program as text."""
    if isinstance(value, bool):
        return str(value).lower()  # Spark's spelling
    return str(value) if isinstance(value, int | float) else value


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError(NUL_INSIDE)
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(NO_HOME) from None
    if "://" in value:
        raise ValueError(
            "must be a path on a disk or a mounted file system of this machine: addresses are not supported"
        )
    return value


_STORE = re.compile(r"(s3|gs|az)://[^/]+(/.*)?", re.DOTALL)
_STORE_LOGIN = re.compile(r"[^/]*://[^/]*[:@]")  # a password may contain a slash, but no bucket has a colon


def is_url(path: str) -> bool:
    """Return whether ``path`` is a URL and not a path on this machine."""
    return "://" in path


def _path_or_url(value: str) -> str:
    if not is_url(value):
        return _path(value)
    if "\0" in value:
        raise ValueError(NUL_INSIDE)
    if _STORE_LOGIN.match(value):
        raise HiddenValueError(f"{_NO_LOGIN}; set `sink.storage`")
    if not _STORE.fullmatch(value):
        raise ValueError("must be a path, or the URL of an object store: s3://, gs:// or az:// with a bucket")
    return value


# editors use the JSON Schema, so it describes the text that a user writes
_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$", "examples": ["500ms", "5s"]})
_SIZE_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{_SIZE.pattern}$", "examples": ["64MiB"]})
Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0), _DURATION_SCHEMA]
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0), _SIZE_SCHEMA]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, BeforeValidator(_address)]
Text = Annotated[str, Field(min_length=1)]
PlainAddress = Annotated[Text, AfterValidator(without_login)]
Host = Annotated[Text, AfterValidator(_host)]
PathText = Annotated[Text, AfterValidator(_path)]  # an argument of ``Model.located``
WidePath = Annotated[Text, AfterValidator(_path_or_url)]


class Model(BaseModel):
    """A mapping of the job file: frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any) -> None:
        """Save the folder of the job file, from which relative paths start."""
        if context is not None:
            self._folder = context["file"].parent

    def located(self, path: str) -> str:
        """Return ``path`` as an absolute path, relative to the folder of the job file."""
        return str(self._folder / Path(path).expanduser())


def fixed_offset(value: str) -> str:
    """Return a UTC offset. Raises: ValueError - it has another form."""
    if not _OFFSET.fullmatch(value):
        raise ValueError('must be a fixed offset in quotes, such as "+08:00"')
    return value


def zone_us(offset: str) -> int:
    """Return a UTC offset in microseconds ahead of UTC."""
    minutes = int(offset[1:3]) * 60 + int(offset[4:6])
    return (-minutes if offset[0] == "-" else minutes) * 60_000_000


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an endpoint at ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
