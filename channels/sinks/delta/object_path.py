"""Paths in an object store (S3, and by the same library GCS and Azure), with the methods of pathlib that the sink uses.

A folder exists if an object has a key below it. An object is complete or does not exist, and it is durable when the
store has answered. A conditional put creates an object that does not exist, or replaces one that has not changed.

After an error of a put it is not known whether the object was written: the answer can be lost, and a repeated request
of the HTTP client is refused because of the first one. Therefore each conditional put reads the object before it fails.

Source: RFC 9110, "If-Match", "If-None-Match"; Amazon S3 User Guide, "Conditional writes".
"""

from __future__ import annotations

import errno
import functools
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError
from obstore.exceptions import UnauthenticatedError as NotAuthenticatedError
from obstore.store import from_url

from cdc.retry import Backoff

_REQUEST_S, _CONNECT_S = 60, 10
_RETRIES, _RETRY_S = 4, 20  # of the HTTP client; after them the job repeats its commit
_PUTS = 4  # tries of a conditional put that was neither done nor refused
_PUT_DELAY_S = 0.1
_DATA_FILES = ("part-", "cdc-")  # starts of the names of data files and of prepared parts
_TAIL_BYTES = 64 << 10  # the end of a Parquet file, where its footer is


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket, and how it is reached. Pickled for executors. ``repr`` has no options: some of them are secret."""

    url: str  # s3://bucket
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # names of the library object_store

    @property
    def client(self) -> Any:
        """Return the client of this process, with its connections."""
        return _client(self)

    @property
    def delta_options(self) -> dict[str, str]:
        """Return the options for deltalake."""
        limits = {"timeout": f"{_REQUEST_S}s", "connect_timeout": f"{_CONNECT_S}s", "max_retries": str(_RETRIES)}
        return {**limits, "retry_timeout": f"{_RETRY_S}s", **dict(self.options)}


@functools.lru_cache(maxsize=16)
def _client(store: ObjectStore) -> Any:
    options = dict(store.options)
    allow_http = options.pop("allow_http", "false") == "true"
    return from_url(
        store.url,
        config=options,  # type: ignore[call-overload] # the names depend on the scheme of the URL
        client_options={"allow_http": allow_http, "timeout": f"{_REQUEST_S}s", "connect_timeout": f"{_CONNECT_S}s"},
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
    )


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """Size and time of an object, with the names of ``os.stat_result``."""

    st_size: int
    st_mtime: float  # seconds since 1970, of the store's clock
    version: Mapping[str, str | None]  # for ``ObjectPath.replace``

    @property
    def st_ctime(self) -> float:
        """Return the time of the last change."""
        return self.st_mtime


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """The path of an object or of a folder of objects. See ``pathlib.Path`` for the methods without a docstring.

    Raises: FileNotFoundError, PermissionError; OSError - the store does not answer, or refuses the request.
    """

    store: ObjectStore
    key: str  # without a slash at either end; "" for the bucket
    _status: ObjectStatus | None = field(default=None, compare=False, repr=False)  # of an object that was listed

    def __str__(self) -> str:
        return f"{self.store.url}/{self.key}"

    def __truediv__(self, part: str) -> ObjectPath:
        return ObjectPath(self.store, f"{self.key}/{part}".strip("/"))

    def joinpath(self, *parts: str) -> ObjectPath:  # noqa: D102
        return functools.reduce(ObjectPath.__truediv__, parts, self)

    @property
    def name(self) -> str:  # noqa: D102
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:  # noqa: D102
        stem, dot, end = self.name.rpartition(".")
        return dot + end if stem else ""

    @property
    def parent(self) -> ObjectPath:  # noqa: D102
        return ObjectPath(self.store, self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> ObjectPath:  # noqa: D102
        return ObjectPath(self.store, self.key.removesuffix(self.suffix) + suffix)

    def is_relative_to(self, folder: Any) -> bool:  # noqa: D102
        return self.store == folder.store and f"{self.key}/".startswith(f"{folder.key}/".lstrip("/"))

    def relative_to(self, folder: Any) -> str:  # noqa: D102
        if not self.is_relative_to(folder):
            raise ValueError(f"{self} is not below {folder}")
        return self.key[len(folder.key) :].lstrip("/")

    def as_uri(self) -> str:
        """Return the URL, percent-encoded."""
        return f"{self.store.url}/{quote(self.key)}"

    def exists(self) -> bool:
        """Return whether an object has this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether an object has a key below this one."""
        with _errors(self):
            return any(len(page) for page in obstore.list(self.store.client, self._prefix))

    def stat(self) -> ObjectStatus:  # noqa: D102
        if self._status is not None:
            return self._status
        with _errors(self):
            return _status(obstore.head(self.store.client, self.key))

    lstat = stat

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects, and the folders, whose name matches ``pattern``, a single component."""
        with _errors(self):
            found = obstore.list_with_delimiter(self.store.client, self._prefix)
        paths = [ObjectPath(self.store, one["path"], _status(one)) for one in found["objects"]]
        paths += [ObjectPath(self.store, key.strip("/")) for key in found["common_prefixes"]]
        yield from (path for path in paths if fnmatchcase(path.name, pattern))

    def iterdir(self) -> Iterator[ObjectPath]:  # noqa: D102
        return self.glob("*")

    def read_bytes(self) -> bytes:  # noqa: D102
        return self.read()[0]

    def read(self) -> tuple[bytes, ObjectStatus]:
        """Return the content with its version."""
        with _errors(self):
            found = obstore.get(self.store.client, self.key)
            return bytes(found.bytes()), _status(found.meta)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each range (start, length)."""
        starts, lengths = zip(*ranges, strict=True)
        with _errors(self):
            found = obstore.get_ranges(self.store.client, self.key, starts=starts, lengths=lengths)
            return [bytes(one) for one in found]

    def put(self, content: Any) -> None:
        """Write an object with the bytes ``content``; an existing one is replaced."""
        with _errors(self):
            obstore.put(self.store.client, self.key, content, chunk_size=16 << 20)

    def create(self, content: bytes) -> None:
        """Create the object. No other ``create`` may have the same ``content``.

        Raises: FileExistsError - the object has another content; OSError - it is not known whether it was created.
        """
        self._put_if(content, "create", None)

    def replace_version(self, content: bytes, old: ObjectStatus) -> None:
        """Replace the object if it still is as in ``old``; see ``create``."""
        self._put_if(content, {name: value for name, value in old.version.items() if value is not None}, old)

    def _put_if(self, content: bytes, mode: Any, old: ObjectStatus | None) -> None:
        backoff = Backoff(_PUT_DELAY_S)
        for left in range(_PUTS - 1, -1, -1):
            try:
                with _errors(self):
                    obstore.put(self.store.client, self.key, content, mode=mode, use_multipart=False)
                return
            except PermissionError:
                raise
            except OSError as error:
                try:
                    found, status = self.read()
                except FileNotFoundError:
                    unchanged = old is None
                else:
                    if found == content:
                        return
                    unchanged = old is not None and status.version == old.version
                if not unchanged:
                    text = "another process has written the object"
                    raise FileExistsError(errno.EEXIST, text, str(self)) from error
                if not left:
                    raise OSError(errno.EIO, f"the object was not written: {error.strerror}", str(self)) from error
            backoff.wait()

    def copy_from(self, source: ObjectPath) -> None:
        """Copy an object of the same store. The store does it without this process."""
        with _errors(source):
            obstore.copy(self.store.client, source.key, self.key)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object, if it exists."""
        with _errors(self), suppress(FileNotFoundError):
            obstore.delete(self.store.client, self.key)

    def delete_all(self) -> None:
        """Delete all objects below this key."""
        with _errors(self):
            for page in obstore.list(self.store.client, self._prefix, chunk_size=1000):
                obstore.delete(self.store.client, [one["path"] for one in page])

    def open(self) -> ObjectFile:
        """Return the object as a file that reads ranges."""
        return ObjectFile(self)

    @property
    def _prefix(self) -> str | None:
        return f"{self.key}/" if self.key else None


class ObjectFile(io.RawIOBase):
    """An object as a file for pyarrow. Calls: one thread at a time."""

    def __init__(self, path: ObjectPath) -> None:
        """Raise: see ``ObjectPath.stat``."""
        super().__init__()
        self._path = path
        self._size = _data_size(path) if path.name.startswith(_DATA_FILES) else path.stat().st_size
        self._position = 0
        self._tail: tuple[int, bytes] | None = None  # its start, and its bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; see ``io.IOBase``."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return ``size`` bytes; fewer at the end."""
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        start, first = self._position, max(0, self._size - _TAIL_BYTES)
        self._position += length
        if start < first:
            return self._path.read_ranges([(start, length)])[0]
        if self._tail is None:
            self._tail = first, self._path.read_ranges([(first, self._size - first)])[0]
        return self._tail[1][start - first : start - first + length]


@functools.lru_cache(maxsize=1 << 16)
def _data_size(path: ObjectPath) -> int:
    """Return the size of a data file, which never changes: its name is used once."""
    return path.stat().st_size


def _status(meta: Any) -> ObjectStatus:
    version = {"e_tag": meta["e_tag"], "version": meta["version"]}
    return ObjectStatus(meta["size"], meta["last_modified"].timestamp(), version)


@contextmanager
def _errors(path: ObjectPath) -> Iterator[None]:
    """Raise errors of the store as OSError."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the object does not exist", str(path)) from None
    except (AlreadyExistsError, PreconditionError):
        raise FileExistsError(errno.EEXIST, "the object exists", str(path)) from None
    except (PermissionDeniedError, NotAuthenticatedError) as error:
        raise PermissionError(errno.EACCES, first_line(error), str(path)) from None
    except BaseError as error:
        raise OSError(errno.EIO, first_line(error), str(path)) from None


def first_line(error: Exception) -> str:
    """Return the first line of an error of a library; the others are details of its code."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
