"""The specification of a job in the state store: the text of its job file, and what a host must know to place it.

The text is stored as it was written: ``${NAME}`` and ``${file:...}`` are resolved on the host that runs the job, so no
secret is in the store. A relative path would mean another folder on each host, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cdc.config.fields import Bytes, is_url
from cdc.config.issues import value_text
from cdc.config.loader import Location, Node, parse_job, shown
from cdc.config.models import job_name
from cdc.config.serve_models import JOB_MEMORY_BYTES
from cdc.errors import ConfigError
from cdc.logging_setup import SECRET_PARAMETER, SECRET_SETTING

_PATH_KEYS = frozenset({"path", "ca", "public_key", "socket", "file"})  # the keys of ``PathText`` in the job file
_LOGIN = re.compile(r"//[^/@:\s]*:[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a host must know of a job before it loads the job file."""

    name: str
    text: str
    memory: int = JOB_MEMORY_BYTES  # bytes
    selector: Mapping[str, str] = field(default_factory=dict)  # labels that the host must have


def read_spec(text: str, origin: str = "the job file") -> JobSpec:
    """Return the specification in the text of a job file. Its other keys are checked on the host that runs the job.

    ``origin``: for messages. Raises: ConfigError - no valid YAML, no valid name, a relative path, or a secret.
    """
    root, issues = parse_job(text.encode(), Path("/job.yaml"))
    if root is None:
        raise ConfigError(f"{origin} {issues[0].message}.", hint="Correct the file.", line=issues[0].line)
    problems = [
        f"{origin}: {shown(path)} is the relative path {value_text(value)}" for path, value in _relative_paths(root)
    ]
    if problems:
        raise ConfigError(
            "\n".join([*problems, "A relative path means another folder on each host."]),
            hint="Write absolute paths, which all hosts have.",
        )
    if secrets := [f"{origin}: {shown(path)} is written out" for path in _secrets(root)]:
        raise ConfigError(
            "\n".join([*secrets, "The state store must not contain secrets."]),
            hint="Write ${NAME} or ${file:/path}, which is read on the host that runs the job.",
        )
    named, resources = root.get("name"), root.get("resources")
    memory = resources.get("memory") if resources is not None else None
    selector = root.get("host_selector")
    try:
        return JobSpec(
            job_name(named.value if named is not None else None),
            text,
            TypeAdapter(Bytes).validate_python(memory.value) if memory is not None else JOB_MEMORY_BYTES,
            {str(key): str(value) for key, value in selector.plain().items()} if selector is not None else {},
        )
    except (ValueError, AttributeError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"{origin} has no valid name, resources.memory or host_selector: {what}.",
            hint="Run `cdc check` on the file.",
        ) from None


def _secrets(node: Node, path: Location = ()) -> Iterator[Location]:
    if path == ("channels",):
        return  # a column may have the name `token`
    if isinstance(node.value, dict):
        for key, below in node.value.items():
            is_scalar = not isinstance(below.value, dict | list | bool | None)
            is_written = is_scalar and below.value != "" and not below.substituted
            text = str(below.value)
            if is_written and (SECRET_SETTING.search(key) or SECRET_PARAMETER.search(text) or _LOGIN.search(text)):
                yield (*path, key)
            yield from _secrets(below, (*path, key))
    elif isinstance(node.value, list):
        for index, below in enumerate(node.value):
            yield from _secrets(below, (*path, index))


def _relative_paths(node: Node, path: Location = ()) -> Iterator[tuple[Location, str]]:
    if isinstance(node.value, dict):
        for key, below in node.value.items():
            is_path = key in _PATH_KEYS and isinstance(below.value, str) and not below.substituted
            is_name = path[:1] == ("channels",) or path == ("source", "start")  # a column; a file of the server
            if is_path and not is_name and not is_url(below.value) and not below.value.startswith(("/", "~")):
                yield (*path, key), below.value
            yield from _relative_paths(below, (*path, key))
    elif isinstance(node.value, list):
        for index, below in enumerate(node.value):
            yield from _relative_paths(below, (*path, index))
