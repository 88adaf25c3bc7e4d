"""A reader of Delta tables by the protocol, in a folder or a bucket, that shares no code with the product or deltalake.

It reads entries of the log from version 0 on, so nothing may have deleted them.

Source: the Delta protocol, "Add File and Remove File", "Action Reconciliation", "Deletion Vectors".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.object_stores import Bucket

Row = dict[str, Any]
File = tuple[str, Any]  # its path, and the identity of its deletion vector
_ENTRY = re.compile(r"_delta_log/(\d{20})\.json", re.ASCII)
_VECTORS = re.compile(r"deletion_vector_([0-9a-f-]{36})\.bin", re.ASCII)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class Files(Protocol):
    """The files of a table, by their path in it."""

    def listed(self) -> Mapping[str, object]:
        """Return each file with a value that changes if it is replaced."""

    def contents(self, names: list[str]) -> Iterator[bytes]:
        """Yield the content of each of ``names``."""


@dataclass(frozen=True)
class FolderFiles:
    """See ``Files``."""

    folder: Path

    def listed(self) -> Mapping[str, object]:
        found = {}
        for path in (*self.folder.glob("*"), *self.folder.glob("_delta_log/*")):
            if path.is_file():
                status = path.stat()
                found[path.relative_to(self.folder).as_posix()] = status.st_ino, status.st_size, status.st_mtime_ns
        return found

    def contents(self, names: list[str]) -> Iterator[bytes]:
        return ((self.folder / name).read_bytes() for name in names)


@dataclass(frozen=True)
class BucketFiles:
    """See ``Files``. Requests are plain HTTP."""

    bucket: Bucket
    folder: str

    def listed(self) -> Mapping[str, object]:
        found = self.bucket.objects(f"{self.folder}/")
        return {key.removeprefix(f"{self.folder}/"): tag for key, tag in found.items()}

    def contents(self, names: list[str]) -> Iterator[bytes]:
        return self.bucket.contents([f"{self.folder}/{name}" for name in names])


@dataclass
class ProtocolReader:
    """A reader of one table. It keeps what it has read, and reads a file again only if it was replaced."""

    files: Files
    _read: dict[tuple[str, object], Any] = field(default_factory=dict)
    _entries: dict[str, object] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Return the rows of the newest version. Fail if one of its files does not exist, or is another one."""
        listed = self.files.listed()
        live = self._live(listed)
        missing = [path for path, _ in live if path not in listed]
        assert not missing, f"files of the newest version do not exist: {missing}"
        data = self._parsed([path for path, _ in live], listed, _rows)
        names = {_encoded(match[1]): name for name in listed if (match := _VECTORS.fullmatch(name))}
        marked = {
            file: names[vector["pathOrInlineDv"]] for file, add in live.items() if (vector := add.get("deletionVector"))
        }
        vectors = self._parsed([*marked.values()], listed, bytes)
        rows = []
        for file, add in live.items():
            deleted = _deleted(add, vectors[marked[file]]) if file in marked else BitMap64()
            rows += [row for number, row in enumerate(data[file[0]]) if number not in deleted]
        return rows

    def marked(self) -> int:
        """Return how many files of the newest version have deleted rows."""
        return sum(identity is not None for _, identity in self._live(self.files.listed()))

    def committed_twice(self) -> list[str]:
        """Return the application transactions that the log has more than once; see ``transactions``."""
        return [f"{name} {version}" for (name, version), count in self.transactions().items() if count > 1]

    def transactions(self) -> Counter[tuple[str, int]]:
        """Return how often the log has each application transaction: of a checkpoint, or of a fence."""
        log = self._log(self.files.listed())
        found = (action["txn"] for actions in log for action in actions if "txn" in action)
        return Counter((one["appId"], one["version"]) for one in found)

    def missing(self) -> list[str]:
        """Return the files of all versions that do not exist."""
        listed = self.files.listed()
        adds = [action["add"] for actions in self._log(listed) for action in actions if "add" in action]
        names = {_encoded(match[1]): name for name in listed if (match := _VECTORS.fullmatch(name))}
        found = [name for add in adds if (name := unquote(add["path"])) not in listed]
        vectors = [add["deletionVector"]["pathOrInlineDv"] for add in adds if add.get("deletionVector")]
        return sorted({*found, *(name for name in vectors if name not in names)})

    def _live(self, listed: Mapping[str, object]) -> dict[File, Row]:
        """Return the files of the newest version."""
        live: dict[File, Row] = {}
        for actions in self._log(listed):
            for action in (action["remove"] for action in actions if "remove" in action):
                live.pop(_file(action), None)
            live |= {_file(one["add"]): one["add"] for one in actions if "add" in one}
        return live

    def _log(self, listed: Mapping[str, object]) -> Iterator[list[Row]]:
        """Yield the actions of each version. Fail if one is missing, or was replaced since the last call."""
        entries = sorted(name for name in listed if _ENTRY.fullmatch(name))
        numbers = [int(name.partition("/")[2].partition(".")[0]) for name in entries]
        assert numbers == [*range(len(entries))], f"versions {numbers}"
        now = {name: listed[name] for name in entries}
        replaced = [name for name, known in self._entries.items() if now.get(name) != known]
        assert not replaced, f"entries of the log were replaced: {replaced}"
        self._entries = now
        parsed = self._parsed(entries, listed, _actions)
        return (parsed[name] for name in entries)

    def _parsed(
        self, names: list[str], listed: Mapping[str, object], parse: Callable[[bytes], Any]
    ) -> Mapping[str, Any]:
        new = [name for name in dict.fromkeys(names) if (name, listed[name]) not in self._read]
        for name, content in zip(new, self.files.contents(new), strict=True):
            self._read[name, listed[name]] = parse(content)
        return {name: self._read[name, listed[name]] for name in names}


def _actions(content: bytes) -> list[Row]:
    return [json.loads(line) for line in content.split(b"\n") if line]


def _rows(content: bytes) -> list[Row]:
    return list(pq.read_table(pa.BufferReader(content), partitioning=None).to_pylist())


def _file(action: Row) -> File:
    vector = action.get("deletionVector")
    return unquote(action["path"]), vector and (vector["pathOrInlineDv"], vector["offset"])


def _deleted(add: Row, content: bytes) -> Iterable[int] | Any:
    """Return the deleted rows of the file ``add``, from the file of its vector."""
    assert json.loads(add["stats"])["tightBounds"] is False
    vector = add["deletionVector"]
    assert len(content) > vector["offset"]
    deleted = BitMap64.deserialize(content[vector["offset"] :][8 : 4 + vector["sizeInBytes"]])
    assert len(deleted) == vector["cardinality"] < json.loads(add["stats"])["numRecords"]
    return deleted


def _encoded(name: str) -> str:
    """Return the UUID of a file of vectors as the log has it."""
    data = bytes.fromhex(name.replace("-", ""))
    words = [int.from_bytes(data[first : first + 4], "big") for first in range(0, 16, 4)]
    return "".join(_DIGITS[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
