"""The root of all tables of a sink: a folder, or a prefix in an object store."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cdc.errors import ConfigError, TargetMismatch
from channels.sinks.base import Finding
from channels.sinks.delta.files import STAGING, folder_missing, unavailable
from channels.sinks.delta.marker import MARKER
from channels.sinks.delta.object_path import ObjectPath, ObjectStore
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_paths import check_root

_URL = re.compile(r"((?:s3|gs|az)://[^/]+)(?:/(.*))?", re.DOTALL)


def root_of(location: str | Path, options: Mapping[str, str]) -> StorePath:
    """Return the root at ``location``, a path or a URL. ``options``: of the object store.

    Raises: ConfigError - the Delta library cannot address tables there.
    """
    match = _URL.fullmatch(str(location))
    if match is None:
        folder = Path(location).resolve()
        check_root(folder)
        return folder
    key = (match[2] or "").strip("/")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(
            f"sink.path {location!r} has an empty part, or the part . or .., which is not a folder in a store.",
            hint="Write the path without // and without the parts . and ..",
        )
    root = ObjectPath(ObjectStore(match[1], tuple(sorted(options.items()))), key)
    check_root(root)
    return root


def refuse_missing(root: StorePath, *, has_marker: bool) -> None:
    """Raise SinkUnavailable if ``root`` does not exist or, by its missing marker, is not mounted.

    ``has_marker``: whether it had one at the last read.
    """
    if isinstance(root, Path) and not root.is_dir():
        raise folder_missing(root)
    try:
        is_missing = has_marker and not (root / MARKER).exists()
    except OSError as error:
        raise unavailable(error, root / MARKER) from error
    if is_missing:
        raise folder_missing(root)


def writable(root: StorePath) -> Iterator[Finding]:
    """Check write access by a temporary file in the root or its parent, because permissions alone prove nothing."""
    if isinstance(root, ObjectPath):
        if not root.store.url.startswith("s3://"):
            yield Finding(
                f"The object store of {root} is not tested with this program.",
                "Compare source and target with `cdc verify`, or use a store with the protocol of S3.",
                fatal=False,
            )
        yield from _has_conditional_puts(root)
        return
    folder = root
    while not os.path.exists(folder):  # noqa: PTH110 - Path.exists raises without permission
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        yield Finding(
            f"Delta tables cannot be written below {root}: {folder}: {error.strerror}.",
            "Correct `sink.path`, or give this user write permission there.",
        )


def _has_conditional_puts(root: ObjectPath) -> Iterator[Finding]:
    """Check write access, and that the store refuses to create an object a second time: commits need it."""
    try:
        if not _refuses_second(root):
            yield Finding(*_unsafe(root))
    except OSError as error:
        yield Finding(
            f"Delta tables cannot be written below {root}: {error.strerror}.",
            "Correct `sink.path` and `sink.storage`, and the rights of this key or role.",
        )


def refuse_unsafe(root: StorePath) -> None:
    """Raise TargetMismatch if the store of ``root`` does not support conditional writes; SinkUnavailable."""
    if not isinstance(root, ObjectPath):
        return
    try:
        is_safe = _refuses_second(root)
    except OSError as error:
        raise unavailable(error, root) from error
    if not is_safe:
        problem, hint = _unsafe(root)
        raise TargetMismatch(problem, hint=hint, path=root)


def _refuses_second(root: ObjectPath) -> bool:
    path = root / STAGING / f"probe-{uuid.uuid4().hex}"
    try:
        path.create(b"first")
        path.create(b"second")
    except FileExistsError:
        return True
    finally:
        with suppress(OSError):
            path.unlink()
    return False


def _unsafe(root: StorePath) -> tuple[str, str]:
    problem = (
        f"The object store of {root} does not support conditional writes (If-None-Match): two writers could replace "
        "each other's commits."
    )
    return problem, "Use a store, or a version of it, that supports them."


def has_foreign_files(folder: StorePath, log: str) -> bool:
    """Return whether ``folder`` has files but no ``log``. False if it cannot be listed: its creation raises that."""
    try:
        return not (folder / log).is_dir() and any(True for _ in folder.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError:
        return False
