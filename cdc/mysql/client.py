"""A MySQL client that does not trust the server: protected logins, and limits of time and memory for replies.

PyMySQL implements the protocol. But it sends the password to every server that requests it, its time limit is per read
only, and it keeps all bytes that a server sends in memory. ``GuardedConnection`` changes these three points.

Source: MySQL manual, "Connection Phase" and "Pluggable Authentication"; MariaDB knowledge base, "Connection Process".
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql import _auth, err
from pymysql.charset import charset_by_name
from pymysql.constants import CLIENT, CR
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from cdc.keepalive import keep_alive

UNSAFE_LOGIN = 2061  # CR_AUTH_PLUGIN_ERR: this client stopped the login
TOO_LARGE = CR.CR_OUT_OF_MEMORY
MALFORMED = CR.CR_MALFORMED_PACKET
TOO_SLOW = 2013  # CR_SERVER_LOST
SILENT = "the server does not answer in time"
_FULL_PACKET = 0xFFFFFF
_READ_BYTES = 256 << 10  # per read, so that no memory is allocated for bytes that have not arrived
_COLUMNS_MOST = 4096  # of a table and of a result, in MySQL and MariaDB
_PACKET_COST = 128  # bytes of Python objects for a row, in addition to its text
_VALUE_COST = 96  # the same for each value
_LOGIN_BYTES = 1 << 20  # limit of all packets of a login; a normal login has a few hundred bytes
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_TEXT_MOST = 400  # characters of a server's message that are shown


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of time and memory for one server. The defaults are far above the needs of a slow server."""

    login_s: float = 20.0  # from the connected socket to the end of the login
    answer_s: float = 60.0  # a busy server answers a query about itself within this time
    answer_bytes: int = 1 << 30  # memory of one result: enough for the descriptions of about 600,000 columns


def shown(text: str, password: str | bytes = "") -> str:
    """Return a server's text for a message: without control characters and password, at most 400 characters."""
    secret = password.decode("utf-8", "replace") if isinstance(password, bytes) else password
    clean = text.replace(secret, "***") if secret else text
    clean = _CONTROL.sub(" ", clean).strip()
    return clean if len(clean) <= _TEXT_MOST else clean[:_TEXT_MOST] + "..."


_Connection: Any = pymysql.connections.Connection  # the stubs lack the methods that are overridden here


class GuardedConnection(_Connection):  # type: ignore[misc]
    """A connection that sends the password only to trusted servers.

    A server is trusted if its certificate was verified, or if it is on loopback or a Unix socket. Only such a server
    gets the password itself (``mysql_clear_password``, the full exchange of ``caching_sha2_password`` and
    ``sha256_password``). ``mysql_clear_password`` always needs a verified certificate. Without TLS, the password can
    also be sent to any server if it is encrypted with ``public_key``, the user's copy of the server's RSA key. A key
    that the server itself sends is used on loopback only. Other plugins must be in ``_PLUGINS``.

    Calls: one thread. Raises: pymysql.err.MySQLError from every call, even for answers that break the protocol.
    """

    _sock: Any
    _rfile: Any

    def __init__(
        self,
        *,
        public_key: bytes | None = None,
        limits: Limits = Limits(),
        until: float | None = None,
        **arguments: Any,
    ) -> None:
        """Set the limits. ``until``: no call lasts longer than until this time of ``time.monotonic``."""
        self._limits = limits
        self._until = until
        self._public_key = public_key
        self._left = _LOGIN_BYTES
        self._column_count = 0
        self._logging_in = True
        self._deadline = time.monotonic() + limits.login_s
        self._is_verified = False
        super().__init__(**arguments, auth_plugin_map=None, local_infile=False)

    def connect(self, sock: socket.socket | None = None) -> None:
        """Connect and log in. See ``pymysql.connections.Connection``."""
        self._logging_in = True
        with self._protocol():
            super().connect(sock)
        keep_alive(self._sock)
        self._logging_in = False

    # limits

    def _start(self, seconds: float, size: int) -> None:
        now = time.monotonic()
        self._deadline = now + seconds if self._until is None else min(now + seconds, self._until)
        self._left = size
        self._column_count = 0

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if not self._logging_in:  # the statements that PyMySQL runs at the end of a login share its limits
            self._start(self._limits.answer_s, self._limits.answer_bytes)
        super()._execute_command(command, sql)

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        if packet_type is FieldDescriptorPacket:
            self._column_count += 1
            if self._column_count > _COLUMNS_MOST:
                self._force_close()
                raise err.OperationalError(MALFORMED, f"a result of more than {_COLUMNS_MOST} columns")
        self._left -= _PACKET_COST + _VALUE_COST * self._column_count
        with self._protocol():
            return super()._read_packet(packet_type)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        self._column_count = 0
        with self._protocol():
            return super()._read_query_result(unbuffered)

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._left -= num_bytes
        if self._left < 0:
            self._force_close()
            raise err.OperationalError(TOO_LARGE, "the server sends more bytes than the limit of a result")
        pieces, missing = [], num_bytes
        sock, stream = self._sock, self._rfile
        if sock is None or stream is None:
            raise err.InterfaceError(0, "the connection is closed")
        try:
            while missing:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                sock.settimeout(left)
                piece = stream.read1(min(missing, _READ_BYTES))
                if not piece:
                    raise err.OperationalError(TOO_SLOW, "the server closed the connection")
                pieces.append(piece)
                missing -= len(piece)
        except TimeoutError:
            self._force_close()
            raise err.OperationalError(TOO_SLOW, SILENT) from None
        except OSError as error:
            self._force_close()
            raise err.OperationalError(TOO_SLOW, f"the connection broke ({error})") from error
        except err.MySQLError:
            self._force_close()
            raise
        self._current_timeout = None  # PyMySQL sets its own timeout again before it writes
        return b"".join(pieces)

    @contextmanager
    def _protocol(self) -> Iterator[None]:
        """Translate exceptions of PyMySQL's parsers for invalid bytes into an error with a number."""
        try:
            yield
        except err.InternalError as error:
            if error.args and isinstance(error.args[0], int):
                raise
            self._force_close()
            raise err.OperationalError(MALFORMED, str(error)) from error
        except (err.MySQLError, OSError):
            raise
        except Exception as error:
            self._force_close()
            what = "it asks for a local file" if "LOAD_LOCAL" in str(error) else f"{type(error).__name__}: {error}"
            raise err.OperationalError(MALFORMED, what) from error

    # login

    def _get_server_information(self) -> None:
        self._start(self._limits.login_s, _LOGIN_BYTES)  # the socket is connected now
        super()._get_server_information()

    def _request_authentication(self) -> None:
        if self.protocol_version != 10 or len(self.salt) < 20:
            raise err.OperationalError(MALFORMED, "this is not the greeting of a MySQL server")
        offered = self.server_capabilities
        if not offered & CLIENT.PROTOCOL_41 or not offered & CLIENT.SECURE_CONNECTION:
            raise err.OperationalError(UNSAFE_LOGIN, "the server offers only the login of MySQL 4.0")
        self.client_flag |= CLIENT.MULTI_RESULTS
        flags = self.client_flag
        encrypt = bool(self.ssl and offered & CLIENT.SSL)
        if self._ssl_required and not encrypt:
            raise err.OperationalError(CR.CR_SSL_CONNECTION_ERROR, "the server offers no TLS")
        if encrypt:
            flags |= CLIENT.SSL
        head = struct.pack("<iIB23s", flags, _FULL_PACKET, self._charset_number(), b"")
        if encrypt:
            self._encrypt(head)
        plugin = self._auth_plugin_name.encode() or b"mysql_native_password"
        if plugin not in _PLUGINS or plugin == b"mysql_clear_password":
            plugin = b"mysql_native_password"  # the server asks for the account's own plugin afterwards
        self._send_login(head, plugin, self._first_answer(plugin, self.salt))
        self._finish(plugin)

    def _charset_number(self) -> int:
        charset: Any = charset_by_name(self.charset)
        return int(charset.id)

    def _encrypt(self, head: bytes) -> None:
        self.write_packet(head)
        self._sock.settimeout(max(0.001, self._deadline - time.monotonic()))
        self._current_timeout = None
        self._sock = self.ctx.wrap_socket(self._sock, server_hostname=self.host)
        self._rfile = self._sock.makefile("rb")
        self._secure = True
        self._is_verified = self.ctx.verify_mode == ssl.CERT_REQUIRED

    def _send_login(self, head: bytes, plugin: bytes, answer: bytes) -> None:
        offered = self.server_capabilities
        user = self.user if isinstance(self.user, bytes) else str(self.user).encode()
        attributes = b"".join(
            bytes([len(part)]) + part for pair in self._connect_attrs.items() for part in map(str.encode, pair)
        )
        size = bytes([len(answer)]) if len(answer) < 0xFB else struct.pack("<BH", 0xFC, len(answer))
        data = head + user + b"\0" + size + answer
        if offered & CLIENT.PLUGIN_AUTH:
            data += plugin + b"\0"
        if offered & CLIENT.CONNECT_ATTRS:
            data += struct.pack("<BH", 0xFC, len(attributes)) + attributes
        self.write_packet(data)

    def _finish(self, plugin: bytes) -> None:
        """Answer the server until it accepts the login. It may ask for another plugin once."""
        switched = False
        packet = self._read_packet()
        while not packet.is_ok_packet():
            if packet.is_auth_switch_request():
                if switched:
                    raise err.OperationalError(MALFORMED, "the server changes the plugin twice")
                switched = True
                packet.read_uint8()
                plugin = packet.read_string() or b"mysql_old_password"
                if plugin not in _PLUGINS:
                    name = shown(plugin.decode("ascii", "replace"))[:60]
                    raise err.OperationalError(UNSAFE_LOGIN, f"the server asks for the plugin {name}")
                salt = packet.read_all()
                self.salt = salt[:-1] if salt.endswith(b"\0") else salt
                packet = self._answer(self._first_answer(plugin, self.salt))
            elif packet.is_extra_auth_data() and plugin in _SHA2:
                packet = self._continue(plugin, packet.get_all_data()[1:])
            else:
                raise err.OperationalError(MALFORMED, "an unexpected packet during the login")

    def _first_answer(self, plugin: bytes, salt: bytes) -> bytes:
        if plugin == b"mysql_clear_password":
            if not self._is_verified:
                raise err.OperationalError(UNSAFE_LOGIN, "the server asks for the password in clear text")
            return bytes(self.password) + b"\0"
        if not self.password:
            return b"\0" if plugin == b"sha256_password" else b""
        if plugin == b"mysql_native_password":
            return _auth.scramble_native_password(self.password, salt)
        if plugin == b"client_ed25519":
            return _auth.ed25519_password(self.password, salt)
        if plugin == b"caching_sha2_password":
            return _auth.scramble_caching_sha2(self.password, salt)
        if self._secure:
            return self._password()
        return self._encrypted(self._public_key) if self._public_key else self._key_request(b"\1")

    def _continue(self, plugin: bytes, data: bytes) -> Any:
        """Answer the further packets of the two SHA-256 plugins."""
        if plugin == b"caching_sha2_password" and data == b"\3":
            return self._read_packet()  # the server knows the account's hash
        if plugin == b"caching_sha2_password" and data == b"\4":
            if self._secure:
                return self._answer(self._password())
            if self._public_key:
                return self._answer(self._encrypted(self._public_key))
            return self._answer(self._key_request(b"\2"))
        if not data.startswith(b"-----BEGIN"):
            raise err.OperationalError(MALFORMED, "an unexpected packet during the login")
        self._key_request(b"")
        return self._answer(self._encrypted(data))

    def _password(self) -> bytes:
        """Return the password, for a connection that is verified or local."""
        if not (self._is_verified or self._is_local()):
            raise err.OperationalError(UNSAFE_LOGIN, "it asks for the password, and its certificate is not verified")
        return bytes(self.password) + b"\0"

    def _key_request(self, request: bytes) -> bytes:
        """Return ``request``, which asks for the server's own key. Only a local server may be asked."""
        if self._secure or self._public_key or not self._is_local():
            raise err.OperationalError(UNSAFE_LOGIN, "the server asks for the password encrypted with a key of its own")
        return request

    def _encrypted(self, key: bytes) -> bytes:
        return _auth.sha2_rsa_encrypt(self.password, self.salt, key)

    def _answer(self, data: bytes) -> Any:
        self.write_packet(data)
        return self._read_packet()

    def _is_local(self) -> bool:
        """Return whether the server is on a Unix socket or on loopback, by its address and not by its name."""
        plain = self._sock
        if plain.family == socket.AF_UNIX:
            return True
        address = ipaddress.ip_address(plain.getpeername()[0].partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


_SHA2 = frozenset((b"caching_sha2_password", b"sha256_password"))
_PLUGINS = _SHA2 | {b"mysql_native_password", b"client_ed25519", b"mysql_clear_password"}
