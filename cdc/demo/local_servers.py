"""Find or download MySQL and MariaDB servers, and run them in a folder.

The demonstration, the tests and the benchmarks use these servers. A program is searched in this order: the environment
variable (``CDC_MYSQLD``, ``CDC_MARIADBD``), PATH, the package archive of the machine. The last works on Debian and
distributions derived from it: packages are unpacked into a cache folder and run with their own loader. Nothing is
installed, and root is not needed.

Source: apt-get(8), apt.conf(5); MySQL manual, "Initializing the Data Directory"; mariadb-install-db(1).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import secrets
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

from cdc.errors import PrerequisiteError
from cdc.paths import cache_folder

Kind = Literal["mysql", "mariadb"]

START_TIMEOUT_S = 240.0  # the first start takes up to a minute on a cold disk and two busy cores
_PORTS = range(10_000, 32_000)  # Linux gives those from 32,768 on to connections
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NAMES = {"mysql": ("CDC_MYSQLD", "mysqld"), "mariadb": ("CDC_MARIADBD", "mariadbd")}


@dataclass(frozen=True, slots=True)
class Binaries:
    """A server program that can be started."""

    kind: Kind
    command: tuple[str, ...]  # loader and program, or the program alone
    version: str  # output of --version
    share: Path | None  # folder with error messages, charsets and system tables; None: those of the program
    plugins: Path | None


def obtain(kind: Kind, report: Callable[[str], None] = lambda _: None) -> Binaries:
    """Find or download a server program. ``report`` is called before a download of about 60 MB.

    Raises: PrerequisiteError - there is no program and none can be downloaded; the hint says what to install.
    """
    variable, program = _NAMES[kind]
    named = os.environ.get(variable)
    if named and not os.access(named, os.X_OK):
        raise PrerequisiteError(
            f"{variable} is not the path of a program.", hint=f"Set {variable} to the path of {program}.", path=named
        )
    for candidate in filter(None, (named, shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin"))):
        version = _version((candidate,))
        if ("MariaDB" in version) == (kind == "mariadb"):
            return Binaries(kind, (candidate,), version, None, None)
    return _unpacked(kind, report)


def _version(command: Sequence[str]) -> str:
    done = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PrerequisiteError(
            f"{command[-1]} does not start: {done.stderr.strip()[-300:]}",
            hint="Install a MySQL or MariaDB server and put it on the path.",
        )
    return done.stdout.strip()


def _unpacked(kind: Kind, report: Callable[[str], None]) -> Binaries:
    folder = cache_folder() / "servers" / kind
    with _locked(folder.parent / f"{kind}.lock"):
        if not folder.exists():
            _fetch(kind, folder, report)
    # depending on the age of the package, its libraries are in /lib or in /usr/lib
    loader = next(folder.glob("**/*-linux-gnu*/ld-linux*.so*"))
    libraries = [path for pattern in ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*") for path in folder.glob(pattern)]
    share, plugins = folder / "usr/share/mysql", folder / "usr/lib/mysql/plugin"
    program = folder / "usr/sbin" / _NAMES[kind][1]
    command = (str(loader), "--library-path", ":".join(map(str, libraries)), str(program))
    return Binaries(kind, command, _version(command), share, plugins)


def _fetch(kind: Kind, folder: Path, report: Callable[[str], None]) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise PrerequisiteError(
            f"No {_NAMES[kind][1]} was found, and this system has no apt to download one.",
            hint=f"Install a {'MySQL 8 or 9' if kind == 'mysql' else 'MariaDB'} server, "
            f"or set {_NAMES[kind][0]} to the path of its program.",
        )
    package = f"{kind}-server-core"
    report(f"Downloading {package} from the package archive of this system (once, about 60 MB)")
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
    """Return options with which apt uses the mirrors and keyrings of the machine, but writes only below ``state``."""
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
    """Return an apt source for Debian's unstable suite on the mirror of this machine."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    mirror = next((uri for uri in listed if "security" not in uri and uri.rstrip("/").endswith("/debian")), None)
    if mirror is None or not _DEBIAN_KEYRING.exists():
        raise PrerequisiteError(
            "No mysqld was found, and the package archive of this system is not Debian's.",
            hint="Install a MySQL 8 or 9 server, or set CDC_MYSQLD to the path of its program.",
        )
    return f"Types: deb\nURIs: {mirror}\nSuites: unstable\nComponents: main\nSigned-By: {_DEBIAN_KEYRING}\n"


def _run(command: Sequence[str], package: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if done.returncode:
        raise PrerequisiteError(
            f"{command[0]} could not download {package}: {done.stderr.strip()[-500:]}",
            hint="Check the network and the package mirror of this machine, "
            "or install a server and put it on the path.",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class LocalServer:
    """A server on loopback with its own folder, port and socket. Use it as a context manager, or call ``stop``.

    The server ends with the process that started it, even if that process is killed.
    """

    def __init__(self, binaries: Binaries, folder: Path, options: Sequence[str], port: int) -> None:
        self.binaries = binaries
        self.folder = folder
        self.host = "127.0.0.1"
        self.port = port
        self._options = tuple(options)
        # the path of a socket has at most 107 bytes; the folder of a test is longer
        self._run_folder = Path(tempfile.mkdtemp(prefix="cdc-server-"))
        self.socket = self._run_folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._remove)

    @classmethod
    def start(
        cls, binaries: Binaries, folder: Path, *, options: Sequence[str] = (), port: int | None = None
    ) -> LocalServer:
        """Start a server with its data in ``folder``. A missing folder is created; existing data is used again.

        Defaults: binary log and GTIDs (MySQL) on, small buffers, no sync to disk: a killed server loses nothing, but a
        power failure may. ``options`` follow the defaults and override them.
        Raises: PrerequisiteError - the server does not start; the message has the end of its log.
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
        """Return the data folder, which also has the binlog files ``mysql-bin.NNNNNN``."""
        return self.folder / "data"

    def connect(self, database: str | None = None, **arguments: Any) -> pymysql.connections.Connection[Any]:
        """Return a connection as root, over the socket, with autocommit."""
        # without this, PyMySQL reads all certificates of the system for each connection
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
        """Create a user for TCP connections from this machine, with ``privileges`` on ``*.*``."""
        for host in ("127.0.0.1", "localhost"):
            self.execute(f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{password}'")
            self.execute(f"GRANT {privileges} ON *.* TO '{name}'@'{host}'")

    def stop(self) -> None:
        """Shut down cleanly. A repeated call does nothing."""
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
            # PyMySQL does not close a socket that cannot connect, so try with a plain socket first
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError, pymysql.err.OperationalError):
                probe.connect(str(self.socket))
                self.connect().close()
                return
            time.sleep(0.05)
        self.kill()
        parts = [
            path.read_text(errors="replace")[-1500:] for path in (log, self.folder / "server.out") if path.exists()
        ]
        raise PrerequisiteError(
            f"{self.binaries.version} did not start. Its log ends: {''.join(parts)}", hint=f"See {log}.", port=self.port
        )


def free_port() -> int:
    """Return a free TCP port on loopback.

    It is drawn from ports that the system gives to no connection: one that the system chooses could belong to an
    outgoing connection, or be chosen by another process, until a server listens on it. Raises: PrerequisiteError.
    """
    for port in secrets.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PrerequisiteError(
        "None of 100 TCP ports that were tried is free.", hint="End other servers on this machine.", host="127.0.0.1"
    )


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
    """Copy an initialised data folder, which takes 1 s; initialising one takes 5 to 20 s."""
    version = hashlib.sha256(binaries.version.encode()).hexdigest()[:12]
    template = cache_folder() / "servers" / f"data-{binaries.kind}-{version}"
    with _locked(template.with_name(template.name + ".lock")):
        if not template.exists():
            with tempfile.TemporaryDirectory(dir=template.parent, prefix="data-") as folder:
                fresh = Path(folder) / "data"
                _initialise(binaries, fresh)
                (fresh / "auto.cnf").unlink(missing_ok=True)  # each copy creates its own server_uuid
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
        raise PrerequisiteError(
            f"{binaries.version} could not create a data folder: {done.stderr.decode(errors='replace')[-1500:]}",
            hint="Check the free disk space and the permissions of the cache folder.",
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
    # mariadb-install-db sets these two variables
    root = "SET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
    return f"CREATE DATABASE mysql;\nUSE mysql;\n{root}{script}"
