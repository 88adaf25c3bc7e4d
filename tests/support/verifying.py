"""Run ``cdc verify`` on a job in a child process, while the source is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdc.demo.local_servers import LocalServer
from cdc.demo.process import JobProcess, is_caught_up

HOT_KEYS = 10


@contextmanager
def writing(server: LocalServer, database: str, *statements: str) -> Iterator[None]:
    """Run ``statements`` again and again, 50 transactions per second at most, with few values of ``key``."""
    ended, failures = threading.Event(), list[Exception]()

    def write() -> None:
        try:
            with server.connect(database) as connection, connection.cursor() as cursor:
                number = 0
                while not ended.wait(0.02):
                    number += 1
                    for statement in statements:
                        cursor.execute(statement.format(key=100 + number % HOT_KEYS, number=number))
                    connection.commit()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        assert not failures, failures


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", *words],
        env={**os.environ, "CDC_HOME": str(home)}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def verified(home: Path, *words: str) -> dict[str, Any]:
    """Run ``cdc verify`` and return its result, with the exit code."""
    done = command(home, "verify", "shop", *words, "--output", "json")
    assert done.returncode in (0, 1), done.stderr
    found = {**json.loads(done.stdout), "code": done.returncode}
    assert (found["code"] == 0) == found["equal"]
    return found


def counts(found: dict[str, Any], table: str) -> tuple[int, int, int]:
    one = found["tables"][table]
    return one["missing"], one["extra"], one["different"]


def caught_up(server: LocalServer, job: JobProcess, channels: int = 0) -> None:
    """Wait until the targets have everything that is committed now."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        end = cursor.fetchone()[:2]
    job.wait_for("caught up", lambda status: len(status["channels"]) >= channels and is_caught_up(status, end), 240)
