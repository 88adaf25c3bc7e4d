"""Files that a user names and that cannot be read."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.errors import ConfigError
from cdc.files import TEXT_BYTES_MOST, read_limited, read_text_file, read_text_limited, reading_problem
from tests.support.job_files import JOB, issues_of, with_change, write_job

OTHER_USER = 65534
TLS = "tls: {mode: verify_ca, ca: %s}"
KEY = "tls: {mode: off, public_key: %s}"


@contextmanager
def other_user() -> Iterator[None]:
    """Be a user without privileges: root can read every file."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A file in a folder with mode 000, in a folder that all users can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "locked"
        folder.mkdir()
        (folder / "file").write_text("a")
        folder.chmod(0)
        yield folder / "file"
        folder.chmod(0o700)


def test_reading_problem_names_the_reason(locked: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    os.mkfifo(tmp_path / "pipe")
    long = Path("/" + "x" * 300)
    assert reading_problem(tmp_path / "file") is None
    assert reading_problem(tmp_path / "none") == f"there is no file {tmp_path}/none"
    assert reading_problem(Path("a\0b")) == "there is no file a\0b"
    assert reading_problem(tmp_path) == f"{tmp_path} is not a regular file"
    assert reading_problem(tmp_path / "pipe") == f"{tmp_path}/pipe is not a regular file"
    assert reading_problem(tmp_path / "file" / "x") == f"the file {tmp_path}/file/x cannot be read: Not a directory"
    assert reading_problem(long) == f"the file {long} cannot be read: File name too long"
    with other_user():
        assert reading_problem(locked) == f"the file {locked} cannot be read: Permission denied"


def test_read_text_limited_reads_at_most_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\r\nb")
    assert read_text_limited(file, 4) == "a\nb"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_text_limited(file, 3)
    assert read_limited(file, 2) == b"a\r\n"
    assert stat.S_ISCHR(os.stat("/dev/zero").st_mode)
    with pytest.raises(OSError, match="not a regular file"):
        read_limited(Path("/dev/zero"), 3)


@pytest.mark.parametrize(("text", "path"), [(TLS, "source.tls.ca"), (KEY, "source.tls.public_key")])
def test_load_config_file_of_another_user_is_an_error(text: str, path: str, locked: Path, tmp_path: Path) -> None:
    job = write_job(locked.parents[1], with_change("start: latest", text % locked))
    job.chmod(0o644)
    load_config(write_job(tmp_path, JOB))  # imports, which the other user cannot read
    with other_user(), pytest.raises(ConfigError) as refused:
        load_config(job)
    assert f"{path}: the file {locked} cannot be read: Permission denied" in refused.value.message


@pytest.mark.parametrize(("text", "path"), [(TLS, "source.tls.ca"), (KEY, "source.tls.public_key")])
def test_load_config_path_that_is_too_long_is_an_error(text: str, path: str, tmp_path: Path) -> None:
    long = "/" + "x" * 300
    (only,) = issues_of(tmp_path, with_change("start: latest", text % long))
    assert only == f"shop.yaml:2 {path}: the file {long} cannot be read: File name too long"


def test_load_config_schema_file_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    source = f"{{type: binlog_files, path: /x, schema: {{file: /{'x' * 300}}}}}"
    (only,) = issues_of(tmp_path, "name: a\nsource: " + source + JOB[JOB.index("\nsink") :])
    assert "source.schema.file: the file /xxx" in only and only.endswith("cannot be read: File name too long")


def test_read_text_file_omits_the_byte_order_mark(tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfname: caf\xc3\xa9\n")
    assert read_text_file(file) == read_text_file(str(file)) == "name: café\n"


def test_read_text_file_that_cannot_be_read_raises_config_error(tmp_path: Path) -> None:
    (latin := tmp_path / "latin.yaml").write_bytes(b"caf\xe9")
    (large := tmp_path / "large.yaml").write_bytes(b"#" * (TEXT_BYTES_MOST + 1))
    for file, reason in (
        (tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory"),
        (latin, "it is not UTF-8 text"), (large, "it is larger than"), ("a\0b", "the path is not valid"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"The job file cannot be read: {reason}") as refused:
            read_text_file(file, "The job file", "Give another one.")
        assert refused.value.hint == "Give another one." and refused.value.context["file"] == file
