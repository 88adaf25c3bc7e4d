"""A table with every type that Canal delivers completely, and rows to compare with the binlog."""

from __future__ import annotations

ALL_TYPES = {
    "ti": ("TINYINT", "-5", "127", "NULL"),
    "tu": ("TINYINT UNSIGNED", "200", "255", "0"),
    "si": ("SMALLINT", "-32768", "1", "0"),
    "su": ("SMALLINT UNSIGNED", "65535", "1", "0"),
    "mi": ("MEDIUMINT", "-8388608", "1", "0"),
    "mu": ("MEDIUMINT UNSIGNED", "16777215", "1", "0"),
    "ii": ("INT", "-2147483648", "1", "0"),
    "iu": ("INT UNSIGNED", "4294967295", "1", "0"),
    "bi": ("BIGINT", "-9223372036854775808", "1", "0"),
    "bu": ("BIGINT UNSIGNED", "18446744073709551615", "1", "0"),
    "bo": ("BOOLEAN", "1", "0", "NULL"),
    "de": ("DECIMAL(12,4)", "-12345.6", "0", "5"),
    "dw": ("DECIMAL(38,10)", "-9999999999999999999999999999.9999999999", "0.0000000001", "0"),
    "dx": ("DECIMAL(65,30)", "-1.5", "0", "12345678901234567890123456789012345.000000000000000000000000000001"),
    "d0": ("DECIMAL(20,0)", "-12345678901234567890", "0", "7"),
    "fl": ("FLOAT", "1e10", "-0.1", "3.14159"),
    "db": ("DOUBLE", "1e300", "-0.1", "2.2250738585072014e-308"),
    "b1": ("BIT(1)", "b'1'", "b'0'", "NULL"),
    "b33": ("BIT(33)", "b'100000000000000000000000000000001'", "0", "1"),
    "b64": ("BIT(64)", "18446744073709551615", "0", "1"),
    "yr": ("YEAR", "2024", "1901", "0"),
    "dt": ("DATE", "'2024-02-29'", "'0001-01-01'", "'9999-12-31'"),
    "t0": ("TIME", "'-838:59:59'", "'00:00:00'", "'23:59:59'"),
    "t3": ("TIME(3)", "'-00:00:00.123'", "'100:00:00.5'", "'00:00:00'"),
    "t6": ("TIME(6)", "'100:01:02.000003'", "'-00:00:00.000001'", "'00:00:00'"),
    "m0": ("DATETIME", "'2024-01-02 03:04:05'", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
    "m3": ("DATETIME(3)", "'2024-01-02 03:04:05.070'", "'1582-10-10 00:00:00'", "NULL"),
    "m6": ("DATETIME(6)", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'", "NULL"),
    "s0": ("TIMESTAMP NULL", "'2024-07-01 00:00:00'", "'1970-01-02 00:00:01'", "NULL"),
    "s6": ("TIMESTAMP(6) NULL", "'2024-07-01 12:34:56.000001'", "'2024-03-31 02:30:00'", "NULL"),
    "ch": ("CHAR(6) CHARACTER SET utf8mb4", "'ab  '", "''", "'日本'"),
    "vc": ("VARCHAR(20) CHARACTER SET utf8mb4", "'hé\"\\\\\\''", "''", "'😀'"),
    "tx": ("TEXT CHARACTER SET utf8mb4", "'té中😀'", "''", "'x\\ny'"),
    "lt": ("LONGTEXT CHARACTER SET utf8mb4", "REPEAT('é', 5000)", "''", "NULL"),
    "tn": ("TEXT(1000) CHARACTER SET utf8mb4", "'té中😀'", "''", "NULL"),
    "bn": ("BINARY(4)", "x'61620000'", "x'00'", "x'ff'"),
    "vb": ("VARBINARY(8)", "x'00ff80'", "''", "x'c3a9'"),
    "bl": ("BLOB", "x'00ff80c2'", "''", "NULL"),
    "en": ("ENUM('a','b','it''s','ü') CHARACTER SET utf8mb4", "'it''s'", "'ü'", "NULL"),
    "st": ("SET('x','y','z') CHARACTER SET utf8mb4", "'x,z'", "''", "NULL"),
    "ge": ("POINT", "POINT(1, 2)", "POINT(0, 0)", "NULL"),
    "la": ("VARCHAR(20) CHARACTER SET latin1", "'plain'", "''", "NULL"),
}
ALL_TYPES |= {"js": ("JSON", """'{"a": [1, null, "x\\\\n", 1.5, true], "é": {}}'""", "'[]'", "'null'")}


def create_every_type(shop):
    columns = ", ".join(f"{name} {spec[0]}" for name, spec in ALL_TYPES.items())
    shop.write(f"CREATE TABLE {{db}}.types (id INT PRIMARY KEY, {columns})")


def write_every_type(shop):
    """Write eleven row changes."""
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for row in (1, 2, 3):
            cursor.execute(f"INSERT INTO types VALUES ({row}, {', '.join(spec[row] for spec in ALL_TYPES.values())})")
        cursor.execute("INSERT INTO types (id) VALUES (4)")
        cursor.execute("INSERT INTO types (id, dt, m0, s0, en) VALUES (5, 0, '2024-00-00', 0, 'nope')")
        cursor.execute("UPDATE types SET ti = 1, tx = 'changed'")
        cursor.execute("DELETE FROM types WHERE id = 2")
