"""Every command and statement of the tutorial runs as printed, in order, except the installation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.demo.local_servers import LocalServer, free_port

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|sql|yaml|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WAIT_S = 120


@pytest.fixture
def server(mysql: LocalServer, tmp_path: Path) -> Iterator[LocalServer]:
    """Start a separate server, because the tutorial changes its settings and users."""
    with LocalServer.start(mysql.binaries, tmp_path / "server") as own:
        yield own


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a reader: a home directory whose ``~/cdc/bin`` contains the installed commands."""
    (tmp_path / "cdc").symlink_to(sys.prefix)
    cache = os.environ.get("CDC_CACHE") or str(Path.home() / ".cache" / "spark-binlog-load")
    environment = {**os.environ, "HOME": str(tmp_path), "CDC_HOME": str(tmp_path / ".cdc"), "CDC_CACHE": cache}
    yield environment
    subprocess.run(["bash", "-c", "~/cdc/bin/cdc stop shop --yes"], env=environment, capture_output=True, check=False)


def test_tutorial_commands_run_as_printed(server: LocalServer, shell: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    setup, reader, shown = "", "", 0
    for kind, text in BLOCK.findall(TUTORIAL.read_text()):
        if kind == "sql":
            server.execute(*filter(None, (part.strip() for part in text.split(";"))))
        elif kind == "yaml":
            job = text.replace("port: 3306", f"port: {server.port}") + f"status: {{port: {free_port()}}}\n"
            (folder / "shop.yaml").write_text(job)
        elif kind == "text":
            expect(text, setup + reader, shell, folder)
            shown += 1
        elif "pip install" not in text:
            exports = "".join(line + "\n" for line in text.splitlines() if line.startswith("export"))
            if "deltalake" in text:
                reader = text
            else:
                run(setup + text, shell, folder)
            setup += exports
    assert shown == 2, "both outputs of the tutorial were compared"


def run(script: str, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-ec", script], env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expect(text: str, script: str, environment: dict[str, str], folder: Path) -> None:
    deadline, seen = time.monotonic() + WAIT_S, ""
    while time.monotonic() < deadline:
        if (folder / "warehouse/ods/orders/_delta_log").exists() and (seen := run(script, environment, folder)) == text:
            return
        time.sleep(0.5)
    pytest.fail(f"the tutorial prints\n{text}\nand the table contains\n{seen}")
