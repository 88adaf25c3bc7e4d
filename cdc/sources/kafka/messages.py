"""Messages of Kafka in one buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDING = 64  # bytes after the last message, so that no scan of a decoder runs off the buffer


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Messages of one topic in order of arrival, which within a partition is the order of offsets.

    Shape: n messages; ``data`` is one buffer that ends with ``PADDING`` bytes of zeros after the last message.
    """

    topic: str
    data: NDArray[np.uint8]
    value_at: NDArray[np.int64]  # where the value begins in ``data``
    value_size: NDArray[np.int64]  # -1: null (a tombstone)
    key_at: NDArray[np.int64]
    key_size: NDArray[np.int64]  # -1: null
    partition: NDArray[np.int32]
    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]  # of the message, since 1970, UTC; -1: unknown
