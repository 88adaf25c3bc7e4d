"""Another user of this machine can reach the ports of a job's Spark, but gets no data from them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from spark.session import SessionHolder

NOBODY = 65534
# Frames of Spark's protocol: 8 bytes of size, type, then the request. Source: org.apache.spark.network.protocol.
_OPEN_BLOCKS = b"\x00" + 2 * struct.pack(">i3s", 3, b"app") + struct.pack(">i", 0)
_FILE = b"/files/rows"


def frame(kind: int, head: bytes, body: bytes) -> bytes:
    return struct.pack(">qb", 9 + len(head) + len(body), kind) + head + body


REQUESTS = [
    frame(3, struct.pack(">qi", 7, len(_OPEN_BLOCKS)), _OPEN_BLOCKS),
    frame(6, struct.pack(">i", len(_FILE)), _FILE),
    b"j\njava.lang.System\ni\n",
]
_CLIENT = """
import errno, json, os, socket, sys
"x".encode("idna")  # imported while its file can be read
os.setgid({user}); os.setuid({user})
answers = []
for port, request in json.loads(sys.argv[1]):
    found = b""
    try:  # a port can be closed meanwhile, and a refusal may come before the request is sent
        with socket.create_connection(("127.0.0.1", port), 30) as line:
            line.settimeout(30)
            line.sendall(bytes.fromhex(request))
            try:
                line.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
                # the server has reset the connection; what it sent before that can still be read
            while piece := line.recv(65536):
                found += piece
    except (ConnectionError, TimeoutError):
        pass
    answers.append(found.hex())
print(json.dumps(answers))
"""


def _gets(session_holder: SessionHolder, folder: Path) -> list[bytes]:
    """Return the replies that another user gets from each port of the driver and its JVM, for each request."""
    context = session_holder.get().sparkContext
    (folder / "rows").write_text("secret rows")
    context.addFile(str(folder / "rows"))
    driver = psutil.Process()
    ports = []
    for process in (driver, *driver.children(recursive=True)):
        for one in process.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN:
                assert one.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1"), f"{process.name()} at {one.laddr}"
                ports.append(one.laddr.port)
    assert len(ports) >= 3, "gateway, RPC, blocks"
    asked = [(port, request.hex()) for port in ports for request in REQUESTS]
    client = _CLIENT.format(user=NOBODY)
    command = [sys.executable, "-c", client, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return [bytes.fromhex(answer) for answer in json.loads(done.stdout)]


def _kind(answer: bytes) -> int | None:
    return answer[8] if len(answer) > 8 else None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_ports_other_user_gets_no_data(tmp_path: Path, sessions: SessionHolder) -> None:
    answers = _gets(sessions, tmp_path)
    assert not [answer for answer in answers if _kind(answer) in (4, 7) or b"secret rows" in answer]
    assert not [answer for answer in answers if answer.startswith(b"!y")]
    folder = Path(sessions.get().conf.get("spark.python.unix.domain.socket.dir"))
    assert folder.stat().st_mode & 0o077 == 0, "sockets of Python workers"


def test_secret_is_not_in_settings_or_command_lines(sessions: SessionHolder) -> None:
    context = sessions.get().sparkContext
    assert context.getConf().get("spark.authenticate") == "true"
    assert context.getConf().get("spark.authenticate.secret") is None
    token = context._gateway.gateway_parameters.auth_token  # type: ignore[union-attr]
    lines = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie has no command line
            lines.append(process.cmdline())
    assert token and any("java" in line[0] for line in lines if line) and token not in str(lines)
    assert not {"PYSPARK_GATEWAY_SECRET", "PYSPARK_GATEWAY_PORT"} & os.environ.keys()
