"""Kinds of values that a job file has: durations, sizes, addresses; and what all its models have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from cdc.jobfile import NO_HOME, NUL_INSIDE

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration with its unit, such as 500ms, 5s, 10m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a size with its unit, such as 64MiB or 15MB")
    return int(float(match[1]) * _BYTES[match[2]])


def switch(value: object) -> object:
    """``on`` and ``off`` as words."""
    # YAML 1.1 reads a bare `on` and `off` as booleans
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _address(value: object) -> object:
    if isinstance(value, str):
        host, colon, port = value.rpartition(":")
        if not host or not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError("must be host:port, in quotes")
    return value


def filled(value: object) -> object:
    """Refuse a list or a mapping without entries."""
    # pydantic's own limit would count the entries that have no fault
    if isinstance(value, list | dict) and not value:
        raise ValueError("must have at least one entry")
    return value


def setting(value: object) -> object:
    """A setting of another program, as text."""
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
        raise ValueError("must be a path that this machine sees, on a disk or mounted: addresses are not supported")
    return value


Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, BeforeValidator(_address)]
Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[Text, AfterValidator(_path)]  # as ``Model.located`` takes it


class Model(BaseModel):
    """One mapping of the job file: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any) -> None:
        """Keep the job file's folder, which relative paths start from."""
        if context is not None:
            self._folder = context["file"].parent

    def located(self, path: str) -> str:
        """``path`` made absolute from the job file's folder."""
        return str(self._folder / Path(path).expanduser())
