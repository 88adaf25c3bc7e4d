"""Private MySQL and MariaDB servers: found or fetched, started in a folder, stopped again.

The demonstration, the tests and the benchmarks all take their servers from here. A server is looked for in this
order: the environment variable (``CDC_MYSQLD``, ``CDC_MARIADBD``), the path, the package archive of the machine
(Debian and its children: packages are unpacked into a cache folder and run through their own loader; nothing is
installed and nobody needs to be root).

Source: apt-get(8), apt.conf(5); MySQL manual, "Initializing the Data Directory"; mariadb-install-db(1).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pymysql

from cdc.cache import cache_folder
from cdc.errors import SurroundingsError

Kind = Literal["mysql", "mariadb"]

START_TIMEOUT_S = 240.0  # a cold disk and two busy cores need most of a minute for a first start
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NAMES = {"mysql": ("CDC_MYSQLD", "mysqld"), "mariadb": ("CDC_MARIADBD", "mariadbd")}


@dataclass(frozen=True, slots=True)
class Binaries:
    """A server program that can be started."""

    kind: Kind
    command: tuple[str, ...]  # loader and program, or the program alone
    version: str  # as the program prints it
    share: Path | None  # folder with error messages, charsets and system tables; None: the program's own
    plugins: Path | None


def obtain(kind: Kind, say: Callable[[str], None] = lambda _: None) -> Binaries:
    """Find or fetch a server program. The first call may download 60 MB; ``say`` is told then.

    Raises: SurroundingsError - there is none and none can be fetched; the mend says what to install.
    """
    variable, program = _NAMES[kind]
    named = os.environ.get(variable)
    if named and not os.access(named, os.X_OK):
        raise SurroundingsError(f"{variable} names no program.", mend=f"Set {variable} to a {program}.", path=named)
    for candidate in filter(None, (named, shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin"))):
        version = _version((candidate,))
        if ("MariaDB" in version) == (kind == "mariadb"):
            return Binaries(kind, (candidate,), version, None, None)
    return _unpacked(kind, say)


def _version(command: Sequence[str]) -> str:
    done = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SurroundingsError(
            f"{command[-1]} does not start: {done.stderr.strip()[-300:]}",
            mend="Install a MySQL or MariaDB server and put it on the path.",
        )
    return done.stdout.strip()


def _unpacked(kind: Kind, say: Callable[[str], None]) -> Binaries:
    folder = cache_folder() / "servers" / kind
    with _locked(folder.parent / f"{kind}.lock"):
        if not folder.exists():
            _fetch(kind, folder, say)
    # packages from before and after the merge of /lib into /usr/lib keep their libraries in either
    loader = next(folder.glob("**/*-linux-gnu*/ld-linux*.so*"))
    libraries = [path for pattern in ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*") for path in folder.glob(pattern)]
    share, plugins = folder / "usr/share/mysql", folder / "usr/lib/mysql/plugin"
    program = folder / "usr/sbin" / _NAMES[kind][1]
    command = (str(loader), "--library-path", ":".join(map(str, libraries)), str(program))
    return Binaries(kind, command, _version(command), share, plugins)


def _fetch(kind: Kind, folder: Path, say: Callable[[str], None]) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise SurroundingsError(
            f"No {_NAMES[kind][1]} was found, and this system has no apt to fetch one with.",
            mend=f"Install a {'MySQL 8 or 9' if kind == 'mysql' else 'MariaDB'} server, "
            f"or set {_NAMES[kind][0]} to its program.",
        )
    package = f"{kind}-server-core"
    say(f"Fetching {package} from the package archive of this system (once, about 60 MB)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{kind}-") as name:
        apt, unpacked = Path(name) / "apt", Path(name) / "unpacked"
        options = _private_apt(apt, _debian_unstable() if kind == "mysql" else None)
        _run(["apt-get", *options, "-qq", "update"], package)
        install = ["install", "-y", "-qq", "--no-install-recommends", "--download-only", package]
        _run(["apt-get", *options, *install], package)
        unpacked.mkdir()
        for archive in sorted((apt / "archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(unpacked)], package)
        unpacked.rename(folder)


def _private_apt(state: Path, source: str | None) -> list[str]:
    """Options for an apt that reads the machine's mirrors and keyrings but writes only below ``state``."""
    for part in ("lists/partial", "archives/partial", "sources"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "APT::Get::AllowUnauthenticated": "false",
    }
    if source is not None:
        (state / "sources/private.sources").write_text(source)
        settings |= {"Dir::Etc::SourceList": "/dev/null", "Dir::Etc::SourceParts": state / "sources"}
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _debian_unstable() -> str:
    """A source entry for Debian's unstable suite on the mirror that this machine uses."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    mirror = next((uri for uri in listed if "security" not in uri and uri.rstrip("/").endswith("/debian")), None)
    if mirror is None or not _DEBIAN_KEYRING.exists():
        raise SurroundingsError(
            "No mysqld was found, and this system's package archive is not Debian's.",
            mend="Install a MySQL 8 or 9 server, or set CDC_MYSQLD to its program.",
        )
    return f"Types: deb\nURIs: {mirror}\nSuites: unstable\nComponents: main\nSigned-By: {_DEBIAN_KEYRING}\n"


def _run(command: Sequence[str], package: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        raise SurroundingsError(
            f"{command[0]} could not fetch {package}: {done.stderr.strip()[-500:]}",
            mend="Check the network and the package mirror of this machine, "
            "or install a server and put it on the path.",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class LocalServer:
    """A server of our own on loopback: a folder, a port, a socket. Use as a context manager, or call ``stop``.

    The server ends with the process that started it, so that a killed test leaves nothing behind.
    """

    def __init__(self, binaries: Binaries, folder: Path, options: Sequence[str], port: int) -> None:
        self.binaries = binaries
        self.folder = folder
        self.host = "127.0.0.1"
        self.port = port
        self._options = tuple(options)
        # a socket's path may have 107 bytes at most, and a test's folder is longer than that
        self._run_folder = Path(tempfile.mkdtemp(prefix="cdc-server-"))
        self.socket = self._run_folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._remove)

    @classmethod
    def start(
        cls, binaries: Binaries, folder: Path, *, options: Sequence[str] = (), port: int | None = None
    ) -> LocalServer:
        """Start a server whose data lie in ``folder`` (made if missing; an existing one is gone on with).

        ``options`` come last on its command line, so they win over ours: binary log on, GTIDs on (MySQL), small
        buffers, no waiting for the disk (a killed server loses nothing then, a lost machine might).
        Raises: SurroundingsError - it does not come up; the end of its log is in the message.
        """
        server = cls(binaries, folder, options, port or free_port())
        if not (folder / "data").exists():
            _new_data(binaries, folder / "data")
        server._launch()
        return server

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        """The data folder; binlog files lie there as ``mysql-bin.NNNNNN``."""
        return self.folder / "data"

    def connect(self, database: str | None = None, **arguments: Any) -> pymysql.connections.Connection[Any]:
        """A connection as root, over the socket, with autocommit."""
        # with TLS, PyMySQL would read all certificates of the system for each connection
        settings: dict[str, Any] = {"unix_socket": str(self.socket), "ssl_disabled": True, "user": "root"}
        return pymysql.connect(
            **{**settings, "autocommit": True, "database": database, "charset": "utf8mb4", **arguments}
        )

    def execute(self, *statements: str) -> None:
        """Run statements as root, each in its own transaction."""
        connection = self.connect()
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def create_user(self, name: str, password: str, privileges: str = "ALL") -> None:
        """A user who may log in over TCP from this machine, with ``privileges`` on everything."""
        for host in ("127.0.0.1", "localhost"):
            self.execute(f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{password}'")
            self.execute(f"GRANT {privileges} ON *.* TO '{name}'@'{host}'")

    def stop(self) -> None:
        """Shut down cleanly. Harmless when repeated."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self._end(lambda process: process.kill())

    def restart(self) -> None:
        """Stop and start again on the same port and data."""
        self.stop()
        self._launch()

    def launch(self) -> None:
        """Start again after ``stop`` or ``kill``."""
        self._launch()

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            how(process)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self._run_folder, ignore_errors=True)

    def _launch(self) -> None:
        self._run_folder.mkdir(exist_ok=True)
        log = self.folder / "server.log"
        options = [
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.socket}",
            f"--pid-file={self._run_folder / 'pid'}",
            f"--log-error={log}",
            "--server-id=1",
            "--log-bin=mysql-bin",
            "--innodb-buffer-pool-size=128M",
            "--innodb-flush-log-at-trx-commit=2",
            "--sync-binlog=0",
            "--max-connections=200",
        ]
        if self.binaries.kind == "mysql":
            options += ["--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF"]
            options += ["--innodb-redo-log-capacity=256M"]
        else:
            options += ["--binlog-format=ROW", "--innodb-log-file-size=128M"]
        wrapper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*wrapper, *_base(self.binaries, self.data), *options, *self._options]
        with (self.folder / "server.out").open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._await(log)

    def _await(self, log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            # PyMySQL drops a socket that cannot connect without closing it, so a plain one asks first
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError, pymysql.err.OperationalError):
                probe.connect(str(self.socket))
                self.connect().close()
                return
            time.sleep(0.05)
        self.kill()
        parts = [
            path.read_text(errors="replace")[-1500:] for path in (log, self.folder / "server.out") if path.exists()
        ]
        raise SurroundingsError(
            f"{self.binaries.version} did not start. Its log ends: {''.join(parts)}", mend=f"See {log}.", port=self.port
        )


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _base(binaries: Binaries, data: Path) -> list[str]:
    options = [*binaries.command, "--no-defaults", f"--datadir={data}", "--secure-file-priv="]
    if os.geteuid() == 0:
        options.append("--user=root")
    if binaries.share is not None:
        options += [f"--lc-messages-dir={binaries.share}", f"--character-sets-dir={binaries.share / 'charsets'}"]
    if binaries.plugins is not None:
        options.append(f"--plugin-dir={binaries.plugins}")
    return options


def _new_data(binaries: Binaries, data: Path) -> None:
    """Initialise a data folder, by copying one that was initialised before: 1 s instead of 5 to 20."""
    version = hashlib.sha256(binaries.version.encode()).hexdigest()[:12]
    template = cache_folder() / "servers" / f"data-{binaries.kind}-{version}"
    with _locked(template.with_name(template.name + ".lock")):
        if not template.exists():
            with tempfile.TemporaryDirectory(dir=template.parent, prefix="data-") as folder:
                fresh = Path(folder) / "data"
                _initialise(binaries, fresh)
                (fresh / "auto.cnf").unlink(missing_ok=True)  # each copy draws a server_uuid of its own
                fresh.rename(template)
    data.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(template, data)


def _initialise(binaries: Binaries, data: Path) -> None:
    if binaries.kind == "mysql":
        command = [*_base(binaries, data), "--initialize-insecure", "--innodb-redo-log-capacity=32M"]
        script = ""
    else:
        data.mkdir()
        command = [*_base(binaries, data), "--bootstrap", "--innodb-log-file-size=16M"]
        script = _mariadb_system_tables(binaries)
    done = subprocess.run(command, input=script.encode(), capture_output=True, check=False)
    if done.returncode:
        raise SurroundingsError(
            f"{binaries.version} could not make a data folder: {done.stderr.decode(errors='replace')[-1500:]}",
            mend="Check the free disk space and the rights on the cache folder.",
            folder=data,
        )


def _mariadb_system_tables(binaries: Binaries) -> str:
    share = binaries.share or next(
        path for path in map(Path, ("/usr/share/mysql", "/usr/share/mariadb")) if path.exists()
    )
    names = (
        ("mariadb_system_tables.sql", "mysql_system_tables.sql"),
        ("mariadb_system_tables_data.sql", "mysql_system_tables_data.sql"),
    )
    files = [next(path for path in (share / name for name in pair) if path.exists()) for pair in names]
    script = "".join(path.read_text(encoding="utf-8") for path in files)
    # the script that ships with the server fills these two in
    root = "SET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
    return f"CREATE DATABASE mysql;\nUSE mysql;\n{root}{script}"
