"""Every code of every character set, as the servers themselves convert it to utf8mb4."""

from __future__ import annotations

import numpy as np
import pytest

from cdc.binlog import text
from cdc.binlog.charset_tables import UPPER_HALVES
from cdc.binlog.charsets import Charset

DOUBLE = ("big5", "sjis", "cp932", "gbk", "gb2312", "gb18030", "euckr", "ujis", "eucjpms")
# accepted by MySQL alone and shown as ?; no client can write them
UNREACHABLE = {
    "eucjpms": lambda code: (
        (len(code) == 1 and code[0] > 0x7F) or (0x80 <= code[0] < 0xA1 and code[0] not in (0x8E, 0x8F))
    )
}


def _asked(server, database, charset):
    """Well-formed codes of one character and what the server makes of them."""
    shapes = ["a.b", "CONCAT(a.b, b.b)"] if charset in DOUBLE else ["a.b"]
    found = {}
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("CREATE TABLE bytes (n INT, b VARBINARY(1))")
        cursor.executemany("INSERT INTO bytes VALUES (%s, UNHEX(%s))", [(i, f"{i:02x}") for i in range(256)])
        queries = [
            f"SELECT {shape} AS x FROM bytes a{', bytes b WHERE a.n > 127' if 'b.b)' in shape else ''}"
            for shape in shapes
        ]
        if charset in ("ujis", "eucjpms"):
            queries.append("SELECT CONCAT(0x8f, a.b, b.b) AS x FROM bytes a, bytes b WHERE a.n > 127 AND b.n > 127")
        if charset == "gb18030":
            queries.append(
                "SELECT CONCAT(a.b, b.b, c.b, d.b) AS x FROM bytes a, bytes b, bytes c, bytes d WHERE "
                "(a.n BETWEEN 0x81 AND 0x84 OR a.n IN (0x90, 0xe3)) AND b.n BETWEEN 0x30 AND 0x39 "
                "AND c.n BETWEEN 0x81 AND 0xfe AND d.n BETWEEN 0x30 AND 0x39"
            )
        for query in queries:
            cursor.execute(
                f"SELECT HEX(x), HEX(CONVERT(x USING {charset})), HEX(CONVERT(CONVERT(x USING {charset}) USING utf8mb4)) "
                f"FROM ({query}) AS codes"
            )
            for code, kept, told in cursor.fetchall():
                raw, answer = bytes.fromhex(code), bytes.fromhex(told or "").decode()
                single = len(answer) == 1 and (len(raw) == 1 or raw[:1] not in found)
                if kept == code and single and not UNREACHABLE.get(charset, lambda _: False)(raw):
                    found[raw] = answer
    return found


def _check(server, database, charset):
    wanted = _asked(server, database, charset)
    assert len(wanted) >= 128
    lengths = np.array([len(code) for code in wanted], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    told = text.text_array(np.frombuffer(b"".join(wanted), np.uint8), starts, lengths, Charset(charset)).to_pylist()
    wrong = {
        code.hex(): (mine, theirs) for mine, (code, theirs) in zip(told, wanted.items(), strict=True) if mine != theirs
    }
    assert wrong == {}


@pytest.mark.parametrize("charset", [*UPPER_HALVES, *DOUBLE])
def test_every_code_is_what_mysql_makes_of_it(mysql, database, charset):
    _check(mysql, database, charset)


@pytest.mark.parametrize("charset", [*UPPER_HALVES, *(name for name in DOUBLE if name != "gb18030")])
def test_every_code_is_what_mariadb_makes_of_it(mariadb, mariadb_database, charset):
    _check(mariadb, mariadb_database, charset)
