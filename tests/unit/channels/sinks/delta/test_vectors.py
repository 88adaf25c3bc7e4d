"""Deletion vectors against a Python set, and damaged ones."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.errors import SinkUnavailable, TargetMismatch
from channels.sinks.delta.vectors import _TO_Z85, Vector, read_vector, write_vectors

# an example of the Delta protocol
PROTOCOL = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)


def rows(*numbers: int) -> np.ndarray:
    return np.array(sorted(numbers), np.uint64)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**20), st.integers(0, 2**40))),
        min_size=1,
        max_size=4,
    )
)
def test_vector_read_back_equals_the_set(tmp_path: Path, found: dict[str, set[int]]) -> None:
    vectors = write_vectors(tmp_path, {name: rows(*numbers) for name, numbers in found.items()})
    assert len({vector.location for vector in vectors.values()}) == 1
    for name, vector in vectors.items():
        assert vector == Vector.from_json(vector.to_json())
        assert vector.cardinality == len(found[name])
        assert read_vector(tmp_path, vector).tolist() == sorted(found[name])


@pytest.mark.parametrize("count", [1, 4096, 4097, 200_000])
def test_vector_of_a_full_range_is_small(tmp_path: Path, count: int) -> None:
    vector = write_vectors(tmp_path, {"f": np.arange(count, dtype=np.uint64)})["f"]
    assert vector.size < 100
    assert (read_vector(tmp_path, vector) == np.arange(count)).all()


def test_vector_path_is_that_of_the_protocol(tmp_path: Path) -> None:
    assert PROTOCOL.file(tmp_path) == tmp_path / "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_vector_within_the_descriptor_is_read(tmp_path: Path) -> None:
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"  # written by Spark
    assert read_vector(tmp_path, Vector("i", text, None, 44, 6)).tolist() == [3, 4, 7, 11, 18, 29]


def test_vector_in_the_old_format_raises(tmp_path: Path) -> None:
    text = (
        "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"  # Spark does not read this example of the protocol either
    )
    with pytest.raises(TargetMismatch, match="portable"):
        read_vector(tmp_path, Vector("i", text, None, 40, 6))


def _file(folder: Path, content: bytes) -> Vector:
    vector = write_vectors(folder, {"f": rows(1, 2, 70_000)})["f"]
    path = vector.file(folder)
    assert path is not None
    path.write_bytes(content or path.read_bytes())
    return vector


def test_vector_that_is_damaged_raises(tmp_path: Path) -> None:
    vector = _file(tmp_path, b"")
    path = vector.file(tmp_path)
    assert path is not None
    whole = path.read_bytes()
    for at in range(5, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(TargetMismatch, match="checksum"):
            read_vector(tmp_path, vector)
    for content, problem in (
        (whole[:-1], "size"),
        (whole[:1] + b"\0" + whole[2:-1], "size"),
        (b"\2" + whole[1:], "version"),
    ):
        path.write_bytes(content)
        with pytest.raises(TargetMismatch, match=problem):
            read_vector(tmp_path, vector)
    path.write_bytes(whole)
    for wrong in (replace(vector, size=vector.size + 1), replace(vector, offset=2)):
        with pytest.raises(TargetMismatch, match="size"):
            read_vector(tmp_path, wrong)
    with pytest.raises(TargetMismatch, match="number of rows"):
        read_vector(tmp_path, replace(vector, cardinality=2))
    path.unlink()
    with pytest.raises(SinkUnavailable):
        read_vector(tmp_path, vector)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", struct.pack("<I", 1681511377), struct.pack("<Iq", 1681511377, 9)])
def test_vector_that_is_not_a_bitmap_raises(tmp_path: Path, data: bytes) -> None:
    vector = _file(tmp_path, b"\1" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data)))
    with pytest.raises(TargetMismatch, match="portable"):
        read_vector(tmp_path, replace(vector, size=len(data), cardinality=0))


@pytest.mark.parametrize(
    ("storage", "location"),
    [
        ("u", "../" + "0" * 20),
        ("u", "/etc/" + "0" * 20),
        ("p", "file:///etc/passwd"),
        ("p", "file://{}/../other/x.bin"),
        ("x", "0" * 20),
        ("u", "\u00e9" * 10),
        ("u", "0" * 19 + " "),
        ("u", "#" * 20),
        ("i", "123"),
        ("u", "0" * 15),
    ],
)
def test_vector_outside_the_table_raises(tmp_path: Path, storage: str, location: str) -> None:
    vector = Vector(storage, location.format(tmp_path), 1, 4, 1)
    with pytest.raises(TargetMismatch, match=r"outside the table|base 85"):
        read_vector(tmp_path, vector)


def test_vector_at_an_absolute_path_within_the_table_is_read(tmp_path: Path) -> None:
    vector = write_vectors(tmp_path, {"f": rows(5)})["f"]
    path = vector.file(tmp_path)
    assert path is not None
    assert read_vector(tmp_path, replace(vector, storage="p", location=path.as_uri())).tolist() == [5]


def test_base_85_is_that_of_zeromq() -> None:
    text = base64.b85encode(bytes.fromhex("864FD26FB559F75B")).translate(_TO_Z85)
    assert text == b"HelloWorld"
