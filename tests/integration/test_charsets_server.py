"""Every code of every character set, compared with the conversion to utf8mb4 by the servers."""

from __future__ import annotations

import numpy as np
import pytest

from cdc.mysql.charset_tables import UPPER_HALVES
from cdc.mysql.charsets import Charset
from cdc.mysql.values import text

DOUBLE = ("big5", "sjis", "cp932", "gbk", "gb2312", "gb18030", "euckr", "ujis", "eucjpms")
# Only MySQL accepts these and shows them as ?. No client can write them.
UNREACHABLE = {
    "eucjpms": lambda code: (
        (len(code) == 1 and code[0] > 0x7F) or (0x80 <= code[0] < 0xA1 and code[0] not in (0x8E, 0x8F))
    )
}


def _server_conversions(server, database, charset):
    """Return the well-formed codes of one character and the text into which the server converts each one."""
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
            for code, kept, server_text in cursor.fetchall():
                raw, answer = bytes.fromhex(code), bytes.fromhex(server_text or "").decode()
                single = len(answer) == 1 and (len(raw) == 1 or raw[:1] not in found)
                if kept == code and single and not UNREACHABLE.get(charset, lambda _: False)(raw):
                    found[raw] = answer
    return found


def _check(server, database, charset):
    wanted = _server_conversions(server, database, charset)
    assert len(wanted) >= 128
    lengths = np.array([len(code) for code in wanted], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    server_text = text.text_array(
        np.frombuffer(b"".join(wanted), np.uint8), starts, lengths, Charset(charset)
    ).to_pylist()
    wrong = {
        code.hex(): (mine, theirs)
        for mine, (code, theirs) in zip(server_text, wanted.items(), strict=True)
        if mine != theirs
    }
    assert wrong == {}


@pytest.mark.parametrize("charset", [*UPPER_HALVES, *DOUBLE])
def test_text_every_code_equals_the_conversion_by_mysql(mysql, database, charset):
    _check(mysql, database, charset)


@pytest.mark.parametrize("charset", [*UPPER_HALVES, *(name for name in DOUBLE if name != "gb18030")])
def test_text_every_code_equals_the_conversion_by_mariadb(mariadb, mariadb_database, charset):
    _check(mariadb, mariadb_database, charset)
