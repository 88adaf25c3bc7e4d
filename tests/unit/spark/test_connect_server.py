"""The address file of a shared Spark Connect server, and the checks of its process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.errors import PrerequisiteError
from cdc.process_start import start_of
from spark.code_version import code_version
from spark.connect_server import (
    _MAIN,
    ADDRESS_FILE,
    SPARK_CONNECT,
    ConnectServer,
    address_of,
    is_shared_server,
    is_used,
    known_server,
    ready,
    save_server,
    tokens_of,
    wait_for_address,
)

# PySpark whose first job fails
PYSPARK = """
class SparkSession:
    class builder:
        getOrCreate = staticmethod(lambda: SparkSession())
    def range(self, count):
        raise RuntimeError("no worker")
"""
ADDRESS = "sc://127.0.0.1:4711/;token=t0ken-of-the-server"


def this_process(port: int = 4711) -> ConnectServer:
    return ConnectServer(os.getpid(), start_of(os.getpid()), port, ADDRESS)


def test_address_is_known_when_the_server_is_ready(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert is_shared_server(folder) and not is_shared_server(ADDRESS)
    assert (address_of(ADDRESS), address_of(folder)) == (ADDRESS, None)
    save_server(tmp_path, this_process())
    assert address_of(folder) is None and known_server(tmp_path) == this_process()
    save_server(tmp_path, ready(this_process()))
    assert wait_for_address(folder, 0.0, lambda: False) == ADDRESS
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
    assert tokens_of(f"{ADDRESS};user_id=me") == ("t0ken-of-the-server",) and tokens_of("sc://spark:15002") == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "null"])
def test_damaged_address_file_is_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / ADDRESS_FILE).write_text(text)
    assert known_server(tmp_path) is None and address_of(str(tmp_path)) is None


def test_process_with_a_reused_id_is_no_server(tmp_path: Path) -> None:
    save_server(tmp_path, ready(replace(this_process(), start="1-0badcafe")))
    assert known_server(tmp_path) is None
    child = subprocess.Popen([sys.executable, "-c", ""])
    start = start_of(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert not ConnectServer(child.pid, start, 1, ADDRESS).is_alive
    child.wait()


def test_server_saved_by_an_earlier_version_is_known(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        saved = {"pid": child.pid, "created_at": 1.0, "port": 4711, "address": ADDRESS, "is_ready": True}
        (tmp_path / ADDRESS_FILE).write_text(json.dumps(saved))
        assert known_server(tmp_path) == ConnectServer(child.pid, start_of(child.pid), 4711, ADDRESS, is_ready=True)
        (tmp_path / ADDRESS_FILE).write_text(json.dumps({**saved, "pid": os.getpid()}))
        assert known_server(tmp_path) is None


def test_wait_for_an_address_ends_with_the_job_and_by_time(tmp_path: Path) -> None:
    for limit_s, is_over in ((60.0, True), (0.0, False)):
        with pytest.raises(PrerequisiteError, match="is not ready") as late:
            wait_for_address(str(tmp_path), limit_s, lambda is_over=is_over: is_over)  # type: ignore[misc]
        assert "cdc serve" in late.value.hint


def test_only_an_answer_of_the_process_itself_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not this_process(port).answers(0.05), "it is silent"
        assert not replace(this_process(port), pid=os.getppid()).answers(0.05), "another process listens"
    assert not this_process(port).answers(0.05), "nothing listens"


def test_folder_is_used_while_a_driver_names_it(tmp_path: Path) -> None:
    assert not is_used(tmp_path)
    environment = {**os.environ, SPARK_CONNECT: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as child:
        assert is_used(tmp_path) and not is_used(tmp_path / "other")
        child.communicate(b"\n")
    assert not is_used(tmp_path)


def test_version_of_the_code_is_a_plain_name() -> None:
    assert code_version() == code_version() and code_version().isalnum()


def test_server_continues_after_a_failed_first_job(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "sql.py").write_text(PYSPARK)
    (tmp_path / "main.py").write_text(_MAIN)
    with subprocess.Popen([sys.executable, str(tmp_path / "main.py")], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any("RuntimeError: no worker" in line for line in server.stderr)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(1.0)
        server.kill()
