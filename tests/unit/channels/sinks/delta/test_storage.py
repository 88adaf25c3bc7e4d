"""Files of the Delta sink in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from channels.sinks.delta.storage import adopt


@pytest.mark.parametrize("refused", ["link", "utime"])
def test_adopt_copies_a_file_that_cannot_be_linked_or_dated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A link works for a file of another user that this user may write, but its time cannot be changed."""
    source, path = tmp_path / "staged", tmp_path / "data"
    source.write_bytes(b"rows")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, refused, refuse)
    adopt(source, path)
    assert path.read_bytes() == b"rows" and not path.samefile(source)
    adopt(source, path)  # a repeat of the same merge
    assert path.read_bytes() == b"rows" == source.read_bytes()
