"""Sums of MD5 digests, compared with hashlib."""

from __future__ import annotations

import hashlib
import random

import pyarrow as pa
import pytest

from cdc.mysql.values.md5 import DIGITS, digest_sums


def expected(texts: list[str]) -> tuple[int, ...]:
    digests = [hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts]
    return tuple(sum(int(one[first : first + DIGITS], 16) for one in digests) for first in (0, 16))


def test_digest_of_each_length_equals_hashlib() -> None:
    draw = random.Random(5)
    texts = ["".join(chr(draw.randrange(32, 127)) for _ in range(length)) for length in range(200)]
    for text in [*texts, "é漢😀" * 100, "x" * 100_000]:
        assert digest_sums(pa.array([text])) == expected([text]), len(text)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_sums_do_not_depend_on_order_or_slice(count: int) -> None:
    texts = [f"row {number}" for number in range(count)]
    array = pa.array(["before", *texts, "after"])
    assert digest_sums(array.slice(1, count)) == expected(texts)
    assert digest_sums(pa.array(texts[::-1], pa.string())) == expected(texts)
