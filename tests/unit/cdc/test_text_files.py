"""Text files that a command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.text_files import read_text_file


def test_read_text_file_omits_the_byte_order_mark(tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfname: caf\xc3\xa9\n")
    assert read_text_file(file) == read_text_file(str(file)) == "name: café\n"


def test_read_text_file_that_cannot_be_read_raises_config_error(tmp_path: Path) -> None:
    (latin := tmp_path / "latin.yaml").write_bytes(b"caf\xe9")
    for file, reason in (
        (tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory"),
        (latin, "it is not UTF-8 text"), ("a\0b", "the path is not valid"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"The job file cannot be read: {reason}") as refused:
            read_text_file(file, "The job file", "Give another one.")
        assert refused.value.hint == "Give another one." and refused.value.context["file"] == file
