"""A real PostgreSQL, and stores on the servers that the tests have."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdc.demo.local_servers import LocalServer, free_port
from cdc.errors import PrerequisiteError
from cdc.state.store_url import PASSWORD, STORE

START_S = 120.0
USER, WORD = "cdc_store", "store-secret"
_LOGINS = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


class PostgresServer:
    """A PostgreSQL on loopback with its own folder. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        programs = [*Path("/usr/lib/postgresql").glob("*/bin"), Path(shutil.which("postgres") or "/none").parent]
        found = next((path for path in programs if (path / "initdb").exists() and (path / "postgres").exists()), None)
        if found is None:
            raise PrerequisiteError("No PostgreSQL server was found.", hint="Install the package postgresql.")
        self._programs, self.port = found, free_port()
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        self._data.parent.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self._data.parent, "postgres")
        options = ["-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale"]
        subprocess.run(self._command("initdb", *options), check=True, capture_output=True)
        (self._data / "pg_hba.conf").write_text(_LOGINS)
        self.launch()
        self.execute(f"CREATE USER {USER} PASSWORD '{WORD}'")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the server. Return when it accepts connections."""
        settings = ("fsync=off", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._data}")
        options = [word for one in settings for word in ("-c", one)]
        command = self._command("postgres", "-D", str(self._data), "-p", str(self.port), *options)
        log = (self._data.parent / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(Exception):
                self.execute("SELECT 1")
                return
            time.sleep(0.05)
        raise PrerequisiteError("PostgreSQL did not start.", hint=f"See {log.name}.")

    def stop(self) -> None:
        """Shut down. A repeated call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)  # ends open connections; SIGTERM would wait for them
            process.wait(60)

    def execute(self, *statements: str) -> None:
        """Run statements as the superuser, each in its own transaction."""
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _command(self, program: str, *options: str) -> list[str]:
        command = [str(self._programs / program), *options]
        if os.geteuid() != 0:
            return command
        user = pwd.getpwnam("postgres")  # PostgreSQL refuses to run as root
        wrapper = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=KILL"]
        return [*wrapper, *command]


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a PostgreSQL in a folder that its user may enter. Raises: PrerequisiteError - there is none."""
    with tempfile.TemporaryDirectory(prefix="cdc-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with PostgresServer(folder / "server") as server:
            yield server


def create_database(server: LocalServer | PostgresServer, name: str) -> dict[str, str]:
    """Create an empty database for a store. Return the environment with which ``open_store`` opens it."""
    if isinstance(server, PostgresServer):
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name} OWNER {USER}")
        kind = "postgresql"
    else:
        statements = [f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}"]
        for host in ("127.0.0.1", "localhost"):
            statements.append(f"CREATE USER IF NOT EXISTS '{USER}'@'{host}' IDENTIFIED BY '{WORD}'")
            statements.append(f"GRANT ALL ON {name}.* TO '{USER}'@'{host}'")
        server.execute(*statements)
        kind = "mysql"
    return {STORE: f"{kind}://{USER}@127.0.0.1:{server.port}/{name}", PASSWORD: WORD}
