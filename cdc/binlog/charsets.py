"""Stand-in until the values branch lands."""
from __future__ import annotations
import numpy as np
import pyarrow as pa

_NAMES = {8: "latin1", 63: "binary", 33: "utf8mb3", 45: "utf8mb4", 46: "utf8mb4", 255: "utf8mb4", 28: "gbk"}

def charset_of(collation: int, flavor: str) -> str:
    return _NAMES.get(collation, "utf8mb4")

class Charset:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_utf8 = name in ("utf8mb4", "utf8mb3", "ascii")
    def decode(self, raw: bytes) -> str:
        return raw.decode("utf-8" if self.is_utf8 else self.name)

def transcoded(data, starts, lengths, charset):
    return pa.array([None if l < 0 else charset.decode(bytes(data[s:s+l])) for s, l in zip(starts.tolist(), lengths.tolist())], pa.string())
