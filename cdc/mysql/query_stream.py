"""Results of SELECT as Arrow: prepare a statement, bind its bounds, and read its rows from the socket in bulk.

PyMySQL logs in and prepares the statement. The rows are read without it, because it creates a Python object per value.

Source: MySQL manual, "Prepared Statements" of the client/server protocol.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
from pymysql.constants import COMMAND

from cdc.errors import CdcError, ConfigError, SchemaMismatch, SourceUnavailable
from cdc.model.schema import Column
from cdc.mysql import result_rows
from cdc.mysql.catalog import Name, quoted
from cdc.mysql.connection import NET_WRITE_TIMEOUT_S, Endpoint, connect, translated
from cdc.mysql.key_order import MARK
from cdc.mysql.result_rows import AT, Make, ResultColumn
from cdc.mysql.server import Server
from cdc.mysql.values.kernels import SLACK_BYTES

_BUFFER_BYTES = 2 << 20  # fits into the caches of a core, and holds about ten thousand ordinary rows
_ROWS = 16384  # of one RecordBatch
_WAIT_S = 1.0  # interval at which ``is_over`` is checked while no bytes arrive
# Limit for a server that is alive and does not answer. While it searches for rows of a WHERE it sends nothing, but a
# chunk has at most some million rows. A dead server is detected by TCP keepalive within a minute.
_SILENCE_S = 600.0
_LARGEST_PACKET = 0xFFFFFF
_LARGEST_ROW = (1 << 30) + (1 << 25)  # max_allowed_packet is 1 GiB at most
_UNSIGNED = 32
_TEXT = 253  # VAR_STRING
_UNKNOWN_COLUMN = 1054
_CHANGED = {
    _UNKNOWN_COLUMN,
    1146,
    1049,
    1091,
    1176,
    1412,
    1347,
}  # tables, columns or indexes that were dropped or altered
_SESSION = (
    # an invalid date in a key is then a bound like any other, else it is NULL, and a range with it has no rows
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
    f"SET SESSION net_write_timeout = {NET_WRITE_TIMEOUT_S}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)


def check_condition(server: Server, table: Name, condition: str) -> None:
    """Raise ConfigError if the server refuses ``condition`` for ``table``. Raises: SourceUnavailable."""
    configure_session(server)
    try:
        with server.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN SELECT 1 FROM {quoted(table)} WHERE ({condition})")
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if not code or 2000 <= code < 3000:  # errors of the client: the connection failed
            raise translated(error, server.endpoint) from error
        raise ConfigError(
            f"The server refuses the condition {condition!r}: {error.args[-1]}.",
            hint="Write it as after WHERE in MySQL, for example `id > 1000 AND status = 'new'`.",
        ) from error


def lacks_columns(server: Server, table: Name, condition: str) -> bool:
    """Return whether ``condition`` has a column that ``table`` does not have any more. Raises: SourceUnavailable."""
    try:
        check_condition(server, table, condition)
    except ConfigError as error:
        # the query itself reports every other fault
        return isinstance(error.__cause__, pymysql.err.MySQLError) and error.__cause__.args[0] == _UNKNOWN_COLUMN
    return False


def configure_session(server: Server) -> None:
    """Set session variables, so that values and comparisons do not depend on the server's settings.

    Raises: SourceUnavailable.
    """
    try:
        _configure(server.connection)
    except (pymysql.err.MySQLError, OSError) as error:
        raise translated(error, server.endpoint) from error


def _configure(connection: pymysql.connections.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        for statement in _SESSION:
            cursor.execute(statement)


@dataclass(slots=True)
class ResultRows:
    """Rows of a result, and the offsets of their values in the buffer. Valid until the next rows are read."""

    batch: pa.RecordBatch
    data: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]  # by column and row
    lengths: np.ndarray[Any, Any]
    size: int  # number of bytes that the server sent for them

    def raw(self, column: int, row: int) -> bytes:
        """Return the bytes of a value as the server sent them."""
        start, length = int(self.starts[column, row]), int(self.lengths[column, row])
        return bytes(self.data[start : start + length].tobytes())


class ReadCancelled(Exception):
    """The caller has ended a read before the last row, so it has no result."""


def refuse_part(select: Select) -> None:
    """Raise ReadCancelled if ``select`` has not returned all rows: a row that it lacks would count as deleted."""
    if not select.ended:
        raise ReadCancelled


class Select:
    """One SELECT on its own connection. Calls: one thread. Never: holds more than a few MiB or one large row."""

    def __init__(self, endpoint: Endpoint, sql: str, bounds: Sequence[str], columns: Sequence[Column]) -> None:
        """Run ``sql`` with the parameters ``bounds``. ``columns`` are those of ``sql``, in order.

        Raises: SourceUnavailable; SchemaMismatch - the table was changed.
        """
        self.ended = False  # whether all rows were returned
        self._endpoint = endpoint
        self._columns = columns
        self._table = sql.partition(" FROM ")[2].partition(" ")[0]
        self._connection = connect(endpoint)
        self._data = np.zeros(_BUFFER_BYTES + SLACK_BYTES, np.uint8)
        self._end = 0
        self._state = np.zeros(result_rows.STATE_SIZE, np.int64)
        self._makers: list[Make] = []  # of the columns, after the head of the result was read
        try:
            _configure(self._connection)
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION character_set_results = NULL")  # send text in its own charset
            statement = self._prepare(sql, len(bounds))
            self._execute(statement, bounds)
        except (pymysql.err.MySQLError, OSError) as error:
            self.close()
            raise self._translated(error) from error
        except (IndexError, struct.error, OverflowError) as error:
            self.close()
            raise self._garbled() from error
        except BaseException:
            self.close()
            raise
        self._starts = np.zeros((len(columns), _ROWS), np.int64)
        self._lengths = np.zeros((len(columns), _ROWS), np.int32)

    def close(self) -> None:
        """Close the socket, even while the server sends rows. May be repeated."""
        self._connection._force_close()  # type: ignore[attr-defined]

    def __enter__(self) -> Select:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, is_over: Callable[[], bool] = lambda: False, *, needs_row: bool = False) -> Iterator[ResultRows]:
        """Yield all rows in order, or until ``is_over`` returns True, which is checked after each read.

        ``needs_row``: continue until the first row in any case.
        Raises: SourceUnavailable; SchemaMismatch - the table differs from ``columns``; DecodeError.
        """
        if not self._makers:
            self._receive(
                _never if needs_row else is_over
            )  # a server sends the head with 16 KiB of rows, or at the end
            if not self._end:
                return
            self._makers = self._read_head()
        count, first, whole_until = 0, int(self._state[AT]), 0
        while True:
            count, ended = result_rows.find_rows(
                self._data, self._end, self._sizes, self._starts, self._lengths, count, whole_until, self._state
            )
            whole_until = 0
            if ended == result_rows.ENDED or ended == result_rows.FULL:
                if count:
                    yield self._made(count, int(self._state[AT]) - first)
                if ended == result_rows.ENDED:
                    self.ended = True
                    return
                count, first, needs_row = 0, self._move(), False
            elif ended == result_rows.LARGE:
                if count:  # the caller must get the rows before the buffer is changed
                    yield self._made(count, int(self._state[AT]) - first)
                    count = 0
                first = self._move()
                whole_until = self._join()
            elif ended == result_rows.WHOLE:
                if self._end + (_BUFFER_BYTES >> 3) > len(self._data) - SLACK_BYTES:
                    if count:
                        yield self._made(count, int(self._state[AT]) - first)
                        count = 0
                    first = self._move()
                needs_row = needs_row and not count
                self._receive(_never if needs_row else is_over)
            elif ended == result_rows.REFUSED:
                at = int(self._state[AT])
                raise self._refused(bytes(self._data[at + 4 : self._end]))
            else:
                raise self._garbled()
            if not (needs_row or whole_until) and is_over():
                if count:
                    yield self._made(count, int(self._state[AT]) - first)
                return

    # the statement

    def _prepare(self, sql: str, parameters: int) -> int:
        connection = self._connection
        connection._execute_command(COMMAND.COM_STMT_PREPARE, sql.replace(MARK, "?"))  # type: ignore[attr-defined]
        head = connection._read_packet().get_all_data()  # type: ignore[no-untyped-call]
        statement, columns, required = struct.unpack_from("<IHH", head, 1)
        for count in (required, columns):
            if count:
                for _ in range(count + 1):  # definitions, and a packet that ends them
                    connection._read_packet()  # type: ignore[no-untyped-call]
        if required != parameters:
            raise ValueError(f"the statement has {required} parameters, but got {parameters}")
        return int(statement)

    def _execute(self, statement: int, bounds: Sequence[str]) -> None:
        body = struct.pack("<IBI", statement, 0, 1)
        if bounds:
            body += bytes((len(bounds) + 7) // 8) + b"\1" + struct.pack("<BB", _TEXT, 0) * len(bounds)
            body += b"".join(_length_coded(bound.encode()) for bound in bounds)
        self._connection._execute_command(COMMAND.COM_STMT_EXECUTE, body)  # type: ignore[attr-defined]

    def _read_head(self) -> list[Make]:
        first = self._packet()
        if first[:1] == b"\xff":
            raise self._refused(first)
        try:
            count = first[0]
            if first[0] > 0xFA:  # 0xFC: two bytes follow
                count = int.from_bytes(first[1:3], "little")
            results = [_result_column(self._packet()) for _ in range(count)]
        except (IndexError, struct.error, OverflowError) as error:
            raise self._garbled() from error
        self._packet()
        if count != len(self._columns):
            raise self._garbled()
        self._sizes = np.array([result.size for result in results], np.int64)
        makers = []
        for column, result in zip(self._columns, results, strict=True):
            make = result_rows.maker(column, result)
            if make is None:
                raise self._mismatch(f"the server sends {column.name} as type {result.type}, expected {column.type}")
            makers.append(make)
        return makers

    def _packet(self) -> bytes:
        while True:
            at = int(self._state[AT])
            if self._end >= at + 4:
                size = int.from_bytes(self._data[at : at + 3].tobytes(), "little")
                if self._end >= at + 4 + size:
                    self._state[AT] = at + 4 + size
                    return bytes(self._data[at + 4 : at + 4 + size].tobytes())
            self._receive(lambda: False)

    # the buffer

    def _made(self, count: int, size: int) -> ResultRows:
        starts, lengths = self._starts[:, :count], self._lengths[:, :count]
        arrays = [make(self._data, starts[i], lengths[i]) for i, make in enumerate(self._makers)]
        batch = pa.RecordBatch.from_arrays(arrays, [column.name for column in self._columns])
        return ResultRows(batch, self._data, starts, lengths, size)

    def _move(self) -> int:
        """Move the unread bytes to the start of the buffer. Enlarge the buffer if they fill it."""
        at = int(self._state[AT])
        rest = self._end - at
        if at == 0 and rest + (_BUFFER_BYTES >> 3) > len(self._data) - SLACK_BYTES:
            larger = np.zeros(2 * len(self._data), np.uint8)
            larger[:rest] = self._data[:rest]
            self._data = larger
        elif rest < _BUFFER_BYTES < len(self._data) - SLACK_BYTES:
            smaller = np.zeros(_BUFFER_BYTES + SLACK_BYTES, np.uint8)  # the large row that needed the buffer is read
            smaller[:rest] = self._data[at : self._end]
            self._data = smaller
            if rest + (_BUFFER_BYTES >> 3) > _BUFFER_BYTES:
                self._end, self._state[AT] = rest, 0
                return self._move()
        else:
            self._data[:rest] = self._data[at : self._end].copy()
        self._end, self._state[AT] = rest, 0
        return 0

    def _join(self) -> int:
        """Join the packets of a row of 16 MiB or more at the start of the buffer. Return the end of the row."""
        until = 4  # end of the joined payload
        head = 0
        while True:
            while self._end < head + 4:
                self._more()
            size = int.from_bytes(self._data[head : head + 3].tobytes(), "little")
            while self._end < head + 4 + size:
                self._more()
            if head:
                after = head + 4
                self._data[until : self._end - (after - until)] = self._data[after : self._end].copy()
                self._end -= after - until
            until += size
            head = until
            if until > _LARGEST_ROW:
                raise self._garbled()
            if size < _LARGEST_PACKET:
                return until

    def _more(self) -> None:
        if self._end + (_BUFFER_BYTES >> 3) > len(self._data) - SLACK_BYTES:
            larger = np.zeros(2 * len(self._data), np.uint8)
            larger[: self._end] = self._data[: self._end]
            self._data = larger
        self._receive(lambda: False)

    def _receive(self, is_over: Callable[[], bool]) -> None:
        sock = self._connection._sock  # type: ignore[attr-defined]
        began = time.monotonic()
        free = self._data[self._end : len(self._data) - SLACK_BYTES].data
        while True:
            try:
                sock.settimeout(_WAIT_S)
                count = sock.recv_into(free)
            except TimeoutError:
                if is_over():
                    return
                if time.monotonic() - began > _SILENCE_S:
                    raise SourceUnavailable(
                        f"The server sent nothing for {_SILENCE_S:.0f} s while a table was read.",
                        hint="Look for a lock on the table (SHOW PROCESSLIST); the job retries automatically.",
                        server=self._endpoint,
                        table=self._table,
                    ) from None
                continue
            except (OSError, AttributeError) as error:
                raise translated(error, self._endpoint) from error
            if count == 0:
                raise SourceUnavailable(
                    "The server closed the connection while a table was read.",
                    hint="See the server's error log for the cause; the job retries automatically.",
                    server=self._endpoint,
                    table=self._table,
                )
            self._end += count
            return

    # errors

    def _refused(self, packet: bytes) -> CdcError:
        code = int.from_bytes(packet[1:3], "little")
        return self._translated(pymysql.err.OperationalError(code, packet[9:].decode("utf-8", "replace")))

    def _translated(self, error: Exception) -> CdcError:
        code = error.args[0] if error.args else None
        if code in _CHANGED:
            return self._mismatch(str(error.args[-1]))
        return translated(error, self._endpoint)

    def _mismatch(self, why: str) -> SchemaMismatch:
        return SchemaMismatch(
            f"The table was changed while its rows were read: {why}.",
            hint="The job reads the table again after the stream has passed the DDL statement, or pauses there.",
            table=self._table,
        )

    def _garbled(self) -> SourceUnavailable:
        return SourceUnavailable(
            "The server's reply does not follow the protocol.",
            hint="The job retries automatically. If the error remains, check the network.",
            server=self._endpoint,
            table=self._table,
        )


def _never() -> bool:
    return False


def _length_coded(value: bytes) -> bytes:
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value


def _result_column(definition: bytes) -> ResultColumn:
    at = 0
    for _ in range(6):  # catalog, database, table, original table, name, original name
        size, at = definition[at], at + 1
        if size == 0xFC:
            size, at = int.from_bytes(definition[at : at + 2], "little"), at + 2
        at += size
    # length of the rest (1), charset (2), display length (4), type (1), flags (2)
    kind, flags = definition[at + 7], int.from_bytes(definition[at + 8 : at + 10], "little")
    return ResultColumn(kind, bool(flags & _UNSIGNED))
