"""Log lines: their form, UTC, masked secrets; rotation and following of a log."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc.job.supervisor import LOG_BYTES, rotate
from cdc.logging_setup import FOLLOW_S, LineFormatter, follow_log, last_lines
from tests.support.limits import HANG_S


def line(message: str, *arguments: object, secrets: tuple[str, ...] = (), **extra: object) -> str:
    record = logging.LogRecord("cdc.x", logging.INFO, __file__, 1, message, arguments, None)
    record.created, record.msecs = 1_767_225_600.25, 250.0
    vars(record).update(extra)
    return LineFormatter("shop", secrets).format(record)


def test_log_line_has_time_level_job_message_and_extra() -> None:
    assert line("Committed %s.", "it", rows=120, position="bin.2:4", note="two words") == (
        '2026-01-01T00:00:00.250Z INFO shop Committed it. rows=120 position=bin.2:4 note="two words"'
    )


def test_log_line_escapes_line_breaks() -> None:
    assert "\n" not in line("a\nb", context="c\nd")


def test_log_line_masks_secrets_but_not_short_words() -> None:
    text = line("password hunter22 of cdc", secrets=("hunter2", "hunter22", "cdc"), url="mysql://u:hunter2@h")
    assert "hunter" not in text
    assert text.count("[hidden]") == 2
    assert "of cdc" in text


def test_log_traceback_masks_secrets() -> None:
    try:
        raise ValueError("hunter2")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    text = LineFormatter("shop", ("hunter2",)).format(record)
    assert "ValueError: [hidden]" in text


@pytest.mark.parametrize(
    "secret", ['pa"ss\\word', "it's\ta pä\"ss", '-----BEGIN KEY-----\nKEY"DATA\r\n-----END KEY-----\n']
)
def test_log_line_masks_secrets_with_escaped_characters(secret: str) -> None:
    try:
        raise ValueError(f"{secret} {secret!r}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "a %s b", ({"key": secret},), sys.exc_info())
    # a text, a mapping, JSON, and a mapping as text
    vars(record).update(text=f"x {secret} y", value={"key": secret}, body=json.dumps([secret]), count=1)
    formatter = LineFormatter("shop", (secret,))
    text = "\n".join((formatter.format(record), line("%s and %r", secret, secret, secrets=(secret,))))
    assert text.count("[hidden]") == 8
    assert not [part for part in ("word", "it's", "BEGIN", "DATA") if part in text]
    assert " count=1\n" in text


def test_set_up_logs_omits_information_of_libraries() -> None:
    program = (
        "import logging; from cdc.logging_setup import set_up_logs; set_up_logs('shop');"
        "logging.info('py4j'); logging.getLogger('cdc.x').info('own'); logging.getLogger('__main__').info('main');"
        "logging.warning('careful')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert [text.split()[-1] for text in done.stderr.splitlines()] == ["own", "main", "careful"]


def test_rotate_large_log_is_moved_and_writer_continues(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with log.open("a", buffering=1) as writer:
        for number in range(5):
            writer.write(f"line {number}\n")
            rotate(log)
            assert last_lines(log, 1) == [f"line {number}"]
            writer.truncate(LOG_BYTES)
            rotate(log)
            assert log.stat().st_size == 0
        writer.write("after\n")
    assert log.read_text() == "after\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["driver.log", *(f"driver.log.{n}" for n in (1, 2, 3))]
    assert (tmp_path / "driver.log.1").read_bytes().startswith(b"line 4\n")


def test_rotate_on_full_disk_keeps_older_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    log = tmp_path / "driver.log"
    for number in (1, 2, 3):
        log.with_name(f"driver.log.{number}").write_text(f"old {number}")
    log.write_bytes(b"now")
    os.truncate(log, LOG_BYTES)
    monkeypatch.setattr(shutil, "copy2", no_room)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            rotate(log)
    assert [log.with_name(f"driver.log.{n}").read_text() for n in (1, 2, 3)] == ["old 1", "old 2", "old 3"]
    assert log.stat().st_size == LOG_BYTES and len(list(tmp_path.iterdir())) == 4


def test_follow_log_survives_rotation_and_ends_at_deletion(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("before\n")
    followed = follow_log(log)
    with ThreadPoolExecutor(1) as thread, log.open("a", buffering=1) as writer:
        found = thread.submit(next, followed)
        while not found.done():
            writer.write("after\n")
            time.sleep(0.05)
        assert found.result() == "after"
        writer.truncate(0)
        found = thread.submit(lambda: [line for line in followed if line == "rotated"])
        time.sleep(2 * FOLLOW_S)
        writer.write("rotated\n")
        time.sleep(2 * FOLLOW_S)
        log.unlink()
        assert found.result(timeout=30) == ["rotated"]
