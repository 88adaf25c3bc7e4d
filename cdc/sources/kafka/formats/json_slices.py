"""Values of JSON objects by name: offsets into the buffer of the messages, found by ``json_kernels``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdc.sources.kafka.formats import group_kernels
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.json_kernels import LISTS, ONE, ONE_OR_ABSENT, STRING

__all__ = ["LISTS", "ONE", "ONE_OR_ABSENT", "Names", "Slices", "Texts", "shown", "slice_objects", "words_of"]

FAULTS = {
    kernels.MALFORMED: "it is not valid JSON",
    kernels.CUT: "its JSON ends too early",
    kernels.NOT_OBJECT: "it is not a JSON object",
    kernels.TRAILING: "more text follows its JSON value",
    kernels.DEEP: "its JSON is nested more than 64 levels deep",
}
_SHOWN = 60  # bytes of a value in a message
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parsed_json(text: bytes) -> Any:
    """Return a JSON text as a Python object.

    Raises: ValueError - it is not valid, it is nested too deeply, or a text in it has half a surrogate pair.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half a surrogate pair, which is not a character") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


class Names:
    """Texts in the form that kernels search: UTF-8 one after the other, and their ends."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self.names = tuple(names)
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        # the kernels load words of 8 bytes
        self.data = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)


@dataclass(frozen=True, slots=True)
class Texts:
    """Values in a buffer. Shape: n of each."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]  # -1: null or absent
    kinds: NDArray[np.uint8]  # of ``json_kernels``: ABSENT, NULL, STRING ...

    def __getitem__(self, rows: Any) -> Texts:
        return Texts(self.data, self.starts[rows], self.lengths[rows], self.kinds[rows])

    def __len__(self) -> int:
        return len(self.starts)

    def bytes(self, row: int) -> bytes:
        """Return the bytes of a value as they are in the message, with escapes; b"" for null."""
        start = int(self.starts[row])
        return self.data[start : start + max(int(self.lengths[row]), 0)].tobytes()

    def value(self, row: int) -> Any:
        """Return one value as a Python object; None for null and absent.

        Raises: ValueError - it is not valid JSON, or a text in it has half a surrogate pair: it cannot be saved.
        """
        if self.lengths[row] < 0:
            return None
        raw = self.bytes(row)
        return parsed_json(b'"' + raw + b'"' if self.kinds[row] in (STRING, kernels.ESCAPED) else raw)


@dataclass(frozen=True, slots=True)
class Slices:
    """The values of the requested names. Shape: ``starts``, ``lengths`` and ``kinds`` are (names, rows)."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    source: NDArray[np.int32]  # number of the text of each row, not decreasing
    faults: NDArray[np.uint8]  # per text: 0, or a key of FAULTS

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, slot: int) -> Texts:
        return Texts(self.data, self.starts[slot], self.lengths[slot], self.kinds[slot])

    def take(self, rows: Any) -> Slices:
        """Return some of the rows."""
        return Slices(
            self.data, self.starts[:, rows], self.lengths[:, rows], self.kinds[:, rows], self.source[rows], self.faults
        )


def stacked(texts: Sequence[Texts], source: NDArray[np.int32], faults: NDArray[np.uint8]) -> Slices:
    """Return ``texts`` of one buffer as the values of slots. ``source``, ``faults``: of their rows, see ``Slices``."""
    return Slices(
        texts[0].data,
        np.stack([one.starts for one in texts]),
        np.stack([one.lengths for one in texts]),
        np.stack([one.kinds for one in texts]),
        source,
        faults,
    )


def slice_objects(
    data: NDArray[np.uint8], at: NDArray[np.int64], sizes: NDArray[Any], names: Names, shape: int = ONE
) -> Slices:
    """Find the values of ``names`` in the JSON texts at ``at``. ``shape``: LISTS, ONE or ONE_OR_ABSENT."""
    faults = np.zeros(len(at), np.uint8)
    at = np.ascontiguousarray(at, np.int64)
    sizes = np.ascontiguousarray(sizes, np.int64)
    room = len(at) + 64
    while True:
        starts = np.empty((len(names.names), room), np.int64)
        lengths = np.empty((len(names.names), room), np.int32)
        kinds = np.empty((len(names.names), room), np.uint8)
        source = np.empty(room, np.int32)
        count = kernels.slice_objects(
            data, at, sizes, shape, names.data, names.ends, starts, lengths, kinds, source, faults
        )
        if count >= 0:
            return Slices(data, starts[:, :count], lengths[:, :count], kinds[:, :count], source[:count], faults)
        room *= 4


def bare_values(data: NDArray[np.uint8], at: NDArray[np.int64], sizes: NDArray[Any]) -> Texts:
    """Return texts that are JSON texts or numbers as these, other texts as they are, and objects as absent."""
    starts, lengths = np.empty(len(at), np.int64), np.empty(len(at), np.int32)
    kinds = np.empty(len(at), np.uint8)
    kernels.bare_values(data, at, sizes, starts, lengths, kinds)
    return Texts(data, starts, lengths, kinds)


def group_rows(slices: Slices, slots: Sequence[int]) -> tuple[NDArray[np.int32], list[int]]:
    """Return the number of each row's group, and the first row of each: rows with the same texts in ``slots``."""
    groups = np.empty(len(slices), np.int32)
    firsts = np.empty(len(slices), np.int64)
    chosen = list(slots)
    count = group_kernels.group_rows(slices.data, slices.starts[chosen], slices.lengths[chosen], groups, firsts)
    return groups, firsts[:count].tolist()


def words_of(texts: Texts, words: Names) -> NDArray[np.int8]:
    """Return the number of the word that each value equals; -1: none of them, -2: null or absent."""
    out = np.empty(len(texts), np.int8)
    group_kernels.words_of(texts.data, texts.starts, texts.lengths, words.data, words.ends, out)
    return out


def shown(raw: bytes) -> str:
    """Return the first bytes of a value for a message."""
    return repr(raw[:_SHOWN].decode("utf-8", "replace"))
