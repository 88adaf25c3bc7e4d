"""Statements that change tables: some written by hand, most combined from lists."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "(id INT PRIMARY KEY, a INT, b VARCHAR(10), c DECIMAL(8,2) NOT NULL)"
PLAIN_ROW = "(1, 5, 'x', 1.5)"


@dataclass(frozen=True)
class Case:
    """A table with one or more rows, and a statement on it; ``{t}`` is the table's name."""

    statement: str
    table: str = PLAIN
    rows: str = PLAIN_ROW
    only: str = ""  # the one server that has this syntax
    loose: bool = False  # sql_mode without strict checks


INTEGERS = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
DEFAULTS = {
    **dict.fromkeys(("TINYINT", "BIGINT"), ("'007'", "-3", "1.5", "'2.4'", "b'101'", "TRUE", "'-1.5'", "1e1", "+4")),
    **dict.fromkeys(("SMALLINT", "MEDIUMINT", "INT"), ("7", "'-1.5'", "x'41'", "x'31'", "0x31")),
    "BIGINT UNSIGNED": ("18446744073709551615", "0x7fffffffffffffff"),
    "INT(5) ZEROFILL": ("42",),
    "BOOL": ("TRUE", "FALSE"),
    "DECIMAL(5,2)": ("x'31'", "1.005", "'1.005'", "-1.995", "0", "-0.001", "1e2", ".5", "'3.'", "x'05'", "999.994"),
    "DECIMAL(40,3) UNSIGNED": ("12345678901234567890.5",),
    "FLOAT": ("1.5", "'2.25'", "0", "123456", "1.234567", "1e10", "-0.5"),
    "FLOAT(7,3)": ("1.5", "2.25"),
    "DOUBLE": ("1.5", "0.1", "12345678901234", "1e20", "1.23456789012345678", "-7.25", "0.0001"),
    "DOUBLE(10,2)": ("3.5", "'7'"),
    "BIT": ("b'1'", "1", "0"),
    "BIT(10)": ("b'1010101010'", "5", "x'0102'"),
    "BIT(64)": ("b'1111'",),
    "YEAR": ("2024", "'1999'", "0", "'99'", "70"),
    "DATE": ("'2024-02-29'", "'2024-01-01 00:00:00'", "20240105", "DATE '2024-03-01'", "'2024-1-5'"),
    "DATETIME": ("'2024-02-29 12:34:56'", "'2024-02-29'", "'2024-02-29T01:02:03'", "CURRENT_TIMESTAMP", "NOW()"),
    "DATETIME(3)": ("'2024-02-29 12:34:56.7'", "CURRENT_TIMESTAMP(3)", "'2024-02-29 12:34:56.7899'", "NOW(3)"),
    "DATETIME(6)": ("CURRENT_TIMESTAMP(6)", "LOCALTIME(6)", "LOCALTIMESTAMP(6)"),
    "TIMESTAMP": ("'2024-02-29 12:34:56'", "CURRENT_TIMESTAMP", "NOW() ON UPDATE NOW()"),
    "TIMESTAMP(6)": ("'2024-02-29 12:34:56.123'", "CURRENT_TIMESTAMP(6)"),
    "TIME": ("'12:34:56'", "'-838:59:59'", "'1:2:3'", "0", "'100:00:00'"),
    "TIME(2)": ("'12:34:56.7'", "'01:00:00'"),
    "CHAR(5)": ("'ab'", "'ab  '", "''", "5", "'é'"),
    "VARCHAR(20)": (
        "'it''s'", "'a\\\\b'", "'tab\\t'", "' x '", "''", "-5", "1.50", "x'4142'", "_utf8mb4'ab'", "'ü€😀'", "N'x'",
        "'AFTER id'", "'a, b'", "TRUE", "\"double\"", "007",
        "-0", "_utf16'ab'", "_latin1'ab'", "_ucs2'ab'",
    ),
    "VARCHAR(20) CHARACTER SET latin1": ("'ü€'", "'x'", "x'41'"),
    "VARCHAR(20) CHARACTER SET utf16": ("'ü€'", "'x'"),
    "VARCHAR(20) CHARACTER SET ascii": ("'x'",),
    "VARCHAR(20) COLLATE utf8mb4_bin": ("'x'",),
    "BINARY(4)": ("'ab'", "x'0001'", "0x41"),
    "VARBINARY(6)": ("'ab'", "x'00ff'", "b'01000001'", "5"),
    "ENUM('S','m','it''s','')": ("'S'", "'M'", "'it''s'", "''"),
    "SET('x','y','z')": ("'z,x'", "''", "'Y'"),
}  # fmt: skip
MYSQL_DEFAULTS = {
    "JSON": ("(JSON_OBJECT())", "('[]')", "('{\"a\": 1}')", "(JSON_ARRAY(1))", "('7')"),
    "TEXT": ("('abc')", "(CONCAT('a', 'b'))", "('ü')"),
    "BLOB": ("('abc')",),
    "INT": ("(1 + 1)", "('007')", "((5))", "(a + 1)", "(RAND() * 10)"),
    "VARCHAR(40)": ("(UUID())", "('x')", "(5)"),
    "DATE": ("(CURRENT_DATE)", "(CURDATE())"),
    "DATETIME": ("(NOW())", "(NOW() + INTERVAL 1 DAY)"),
    "DATETIME(6)": ("(NOW())", "(NOW(6))"),
    "TIME": ("(CURRENT_TIME)",),
    "DECIMAL(6,2)": ("(1.005)",),
}
MARIADB_DEFAULTS = {
    "JSON": ("'{\"a\": 1}'", "'[]'"),
    "TEXT": ("'abc'", "''", "(CONCAT('a', b))"),
    "BLOB": ("'abc'", "x'00'"),
    "INT": ("(1 + 1)", "('007')", "(a + 1)", "(RAND() * 10)"),
    "VARCHAR(40)": ("UUID()", "(UUID())", "('x')", "CURRENT_TIMESTAMP"),
    "DATETIME(6)": ("NOW()", "NOW(6)"),
    "DATETIME": ("NOW(6)",),
    "DATE": ("CURRENT_DATE", "(CURDATE())", "NOW()"),
    "UUID": ("UUID()",),
    "INET4": ("'10.0.0.1'",),
    "INET6": ("'::1'",),
}
# types of an added column without a default, NULL and NOT NULL
BARE = (
    *INTEGERS, "INT UNSIGNED", "INT ZEROFILL", "INTEGER", "DEC(9,3)", "NUMERIC(5)", "FIXED(6,1)", "DECIMAL", "REAL", "FLOAT(30)",
    "FLOAT", "FLOAT(7,3)", "FLOAT4", "DOUBLE PRECISION", "DOUBLE", "BIT", "BIT(12)", "BOOLEAN", "YEAR", "TIME", "TIME(3)", "CHAR",
    "CHAR(7)", "CHARACTER VARYING(9)", "NCHAR(4)", "NVARCHAR(9)", "NATIONAL VARCHAR(8)", "NATIONAL CHAR(3)", "CHAR(5) BYTE",
    "VARCHAR(9) BINARY", "CHAR(3) ASCII", "CHAR(3) UNICODE", "LONG", "LONG VARCHAR", "LONG VARBINARY", "TINYTEXT", "TEXT",
    "MEDIUMTEXT", "LONGTEXT", "TEXT(30)", "TEXT(70)", "TEXT(20000)", "TEXT CHARACTER SET latin1", "TEXT CHARACTER SET utf16",
    "BINARY(3)", "BINARY", "VARBINARY(9)", "TINYBLOB", "BLOB", "BLOB(99)", "BLOB(70000)", "LONGBLOB", "JSON",
    "ENUM('first','second')", "SET('a','b')", "ENUM('a ','b') CHARACTER SET latin1", "VARCHAR(5) CHARSET utf8",
    "DATETIME", "DATE", "TIMESTAMP", "TIMESTAMP(3)", "INT1", "INT8", "MIDDLEINT", "VARCHARACTER(5)",
)  # fmt: skip
VALUES = {
    "TINYINT": "(1,-5),(2,127)", "SMALLINT UNSIGNED": "(1,0),(2,65535)", "INT": "(1,0),(2,-7)", "BIGINT": "(1,4)", "BIGINT UNSIGNED": "(1,4),(2,70000)",
    "DECIMAL(6,2)": "(1,1.55),(2,-3)", "FLOAT": "(1,1.1),(2,3.3333333)", "DOUBLE": "(1,1.123456789)",
    "VARCHAR(10)": "(1,'7'),(2,'8 ')", "CHAR(4)": "(1,'5')", "TEXT": "(1,'9 ')",
    "VARCHAR(10) CHARACTER SET latin1": "(1,'ü'),(2,'€')", "TEXT CHARACTER SET utf8mb3": "(1,'ü')",
    "VARBINARY(4)": "(1,x'3100')", "BINARY(3)": "(1,'1')", "DATETIME(3)": "(1,'2024-01-02 03:04:05.678')",
    "DATETIME": "(1,'2024-01-02 03:04:05')", "TIME": "(1,'01:02:03')", "DATE": "(1,'2024-01-02')",
    "ENUM('a','b')": "(1,'a'),(2,'b')", "SET('a','b')": "(1,'a,b')", "TIMESTAMP": "(1,'2024-01-02 03:04:05')",
}  # fmt: skip
TARGETS = {
    "TINYINT": ("INT", "BIGINT UNSIGNED", "VARCHAR(9)", "DECIMAL(9,1)", "TINYINT NOT NULL", "BIT(8)", "BOOL"),
    "SMALLINT UNSIGNED": ("INT", "INT UNSIGNED", "MEDIUMINT UNSIGNED", "DOUBLE"),
    "INT": ("BIGINT", "BIGINT NOT NULL", "SMALLINT", "VARCHAR(20)", "INT COMMENT 'new'", "INT UNIQUE", "INT DEFAULT 9", "INT ZEROFILL"),
    "BIGINT": ("INT", "SMALLINT", "DECIMAL(20)", "DECIMAL(9,3)", "BIGINT INVISIBLE"),
    "BIGINT UNSIGNED": ("BIGINT", "INT UNSIGNED", "INT", "DECIMAL(20)"),
    "DECIMAL(6,2)": ("DECIMAL(8,2)", "DECIMAL(8,4)", "DECIMAL(6,3)", "DECIMAL(6,1)", "DECIMAL(5,1)", "DOUBLE", "INT", "DECIMAL(42,3)"),
    "FLOAT": ("DOUBLE", "FLOAT(7,2)", "DECIMAL(10,3)", "FLOAT NOT NULL"),
    "DOUBLE": ("FLOAT", "DOUBLE(12,3)"),
    "VARCHAR(10)": ("VARCHAR(20)", "VARCHAR(300)", "TEXT", "TINYTEXT", "CHAR(10)", "INT", "VARCHAR(10) CHARACTER SET latin1",
                    "VARCHAR(10) NOT NULL", "VARBINARY(40)", "MEDIUMTEXT", "VARCHAR(10) COLLATE utf8mb4_bin"),
    "CHAR(4)": ("CHAR(8)", "VARCHAR(8)", "TEXT", "BINARY(16)"),
    "TEXT": ("LONGTEXT", "VARCHAR(50)", "TEXT CHARACTER SET latin1", "MEDIUMTEXT", "BLOB"),
    "VARCHAR(10) CHARACTER SET latin1": ("VARCHAR(10) CHARACTER SET utf8mb4", "VARCHAR(10)", "TEXT"),
    "TEXT CHARACTER SET utf8mb3": ("TEXT CHARACTER SET utf8mb4", "MEDIUMTEXT CHARACTER SET utf8mb4"),
    "VARBINARY(4)": ("VARBINARY(9)", "BLOB", "BINARY(4)", "VARCHAR(4) CHARACTER SET latin1"),
    "BINARY(3)": ("BINARY(5)", "VARBINARY(3)"),
    "DATETIME(3)": ("DATETIME(6)", "DATETIME", "DATE", "DATETIME(1)", "TIMESTAMP(3) NULL"),
    "DATETIME": ("DATETIME(6)", "VARCHAR(30)", "TIMESTAMP NULL"),
    "TIME": ("TIME(3)", "VARCHAR(20)"),
    "DATE": ("DATETIME", "VARCHAR(20)"),
    "ENUM('a','b')": ("ENUM('b','a')", "ENUM('a','b','c')", "VARCHAR(5)", "SET('a','b')", "ENUM('b','a','x') CHARACTER SET latin1"),
    "SET('a','b')": ("SET('b','a')", "SET('a','b','c')", "SET('a','c','b')", "TEXT"),
    "TIMESTAMP": ("TIMESTAMP(3) NULL", "DATETIME", "BIGINT"),
}  # fmt: skip
TEXTS = (
    "(id INT PRIMARY KEY, v VARCHAR(10), t TINYTEXT, x TEXT, m MEDIUMTEXT, e ENUM('a','b'), n INT, y BLOB, s SET('p'))"
)
TEXT_ROW = "(1, 'v', 't', 'x', 'm', 'a', 5, 'y', 'p')"
ALTERS = (
    # lists and positions
    "ADD x INT", "ADD COLUMN x INT FIRST", "ADD x INT AFTER id", "ADD (x INT, y VARCHAR(5) DEFAULT 'q')",
    "ADD x INT FIRST, ADD y INT FIRST", "ADD x INT AFTER a, ADD y INT AFTER x, ADD z INT AFTER a",
    "ADD x INT AFTER y, ADD y INT", "ADD y INT, ADD x INT AFTER y", "MODIFY c DECIMAL(9,2) NOT NULL FIRST",
    "MODIFY a BIGINT AFTER c", "MODIFY a BIGINT AFTER b, MODIFY b VARCHAR(20) AFTER c", "CHANGE a q INT AFTER c, ADD r INT AFTER q",
    "CHANGE a q INT, ADD r INT AFTER q", "CHANGE a q INT, ADD r INT AFTER a", "MODIFY b VARCHAR(20) FIRST, MODIFY a INT FIRST",
    "DROP a, ADD x INT AFTER b", "DROP a, ADD x INT AFTER a", "ADD x INT, MODIFY a BIGINT AFTER x",
    "MODIFY a INT AFTER a", "ADD id2 INT AFTER id, DROP b", "ADD x INT DEFAULT 3 FIRST, DROP COLUMN c, MODIFY a INT AFTER x",
    # pairs
    "DROP a, ADD a VARCHAR(5) DEFAULT 'n'", "RENAME COLUMN a TO q, ADD a INT DEFAULT 4", "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "CHANGE a b INT, CHANGE b a VARCHAR(10)", "RENAME COLUMN a TO b, DROP b", "CHANGE a b BIGINT, DROP b",
    "RENAME COLUMN a TO b, RENAME COLUMN b TO q", "CHANGE a b BIGINT, CHANGE b q VARCHAR(30), ADD a INT DEFAULT 1",
    "RENAME COLUMN a TO A", "CHANGE a A BIGINT", "DROP a, DROP b", "DROP a, DROP COLUMN b, DROP c", "RENAME COLUMN id TO key_id",
    "CHANGE id k BIGINT NOT NULL", "CHANGE id k BIGINT", "MODIFY id BIGINT", "MODIFY id INT NOT NULL AUTO_INCREMENT",
    "RENAME COLUMN a TO q, MODIFY b TEXT", "CHANGE COLUMN a q INT COMMENT 'it''s, a DROP'", "RENAME COLUMN a TO b", "DROP id, ADD x INT",
    "RENAME COLUMN a TO q, ALTER COLUMN q SET DEFAULT 5", "RENAME COLUMN a TO q, RENAME COLUMN b TO a, RENAME COLUMN c TO b",
    # keys
    "DROP PRIMARY KEY", "DROP PRIMARY KEY, ADD PRIMARY KEY (c, id)", "DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "ADD UNIQUE (a)",
    "ADD UNIQUE KEY u (c)", "DROP PRIMARY KEY, ADD UNIQUE (c)", "ADD INDEX i (a), ADD KEY (b)", "DROP PRIMARY KEY, ADD n INT NOT NULL PRIMARY KEY",
    "ADD x INT UNIQUE", "ADD x INT NOT NULL UNIQUE", "DROP PRIMARY KEY, ADD x SERIAL", "ADD x SERIAL", "ADD FULLTEXT (b)",
    "ADD CONSTRAINT cc CHECK (a > 0)", "ADD x INT CHECK (x > 0)", "ADD CONSTRAINT uq UNIQUE (a, b)", "DROP id", "ADD PRIMARY KEY (a)",
    "DROP PRIMARY KEY, ADD COLUMN n INT AUTO_INCREMENT, ADD PRIMARY KEY (n)", "ADD x INT, ADD PRIMARY KEY (x)", "ADD (x INT, KEY (x))",
    "DROP PRIMARY KEY, MODIFY id INT NULL", "ADD x INT REFERENCES {t} (id)", "DROP PRIMARY KEY, ADD PRIMARY KEY (b(3))",
    # options
    "COMMENT = 'drop column price, x'", "ENGINE=InnoDB", "AUTO_INCREMENT=100, ADD x INT", "ORDER BY a, b", "FORCE",
    "ALGORITHM=COPY, ADD x INT", "ADD x INT, ALGORITHM=INPLACE, LOCK=NONE", "ROW_FORMAT=DYNAMIC COMMENT 'two words'",
    "CHARACTER SET latin1", "CHARACTER SET latin1, ADD x VARCHAR(5)", "ADD x VARCHAR(5), CHARACTER SET latin1", "DEFAULT CHARSET=utf16, ADD x TEXT",
    "COLLATE latin1_swedish_ci, MODIFY b VARCHAR(10)", "DEFAULT COLLATE utf8mb4_bin, ADD x ENUM('a')", "ADD x INT COMMENT 'AFTER a'",
    "PARTITION BY HASH (id) PARTITIONS 3", "ADD x INT PARTITION BY HASH (id) PARTITIONS 2", "ALTER a SET DEFAULT 7", "ALTER COLUMN c DROP DEFAULT",
    "MODIFY b VARCHAR(10), MODIFY a INT", "ADD `weird``name, (x` INT DEFAULT 5", "ADD `select` INT, ADD `first` INT AFTER `select`",
    "ADD `a b` VARCHAR(5) DEFAULT 'y' AFTER a", "ADD `drop` INT COMMENT '; DROP TABLE x -- '", "ADD x INT /* , DROP a */ DEFAULT 3",
    "ADD x INT /*!50000 DEFAULT 3 */", "ADD x INT /*M! , DROP a */", "ADD x INT -- , DROP a\n DEFAULT 6",
    "ADD x INT # why\n, DROP a", "ADD x VARCHAR(30) DEFAULT '/*!80000 a */'", "ADD x VARCHAR(9) DEFAULT 'a' COMMENT '--'",
    # generated
    "ADD g INT AS (a + 1)", "ADD g INT GENERATED ALWAYS AS (a * 2) STORED", "ADD g VARCHAR(20) AS (CONCAT(b, ',(')) VIRTUAL AFTER id",
    "ADD x INT INVISIBLE", "ADD x INT NOT NULL DEFAULT 5 INVISIBLE", "ADD x DATE, ADD y DATETIME(3), ADD z TIME(1)",
)  # fmt: skip
CONVERSIONS = (
    "CONVERT TO CHARACTER SET latin1", "CONVERT TO CHARACTER SET utf8mb4", "CONVERT TO CHARSET utf8 COLLATE utf8_bin",
    "CONVERT TO CHARACTER SET utf16", "CONVERT TO CHARACTER SET utf8mb4, ADD z VARCHAR(5)", "CONVERT TO CHARACTER SET latin1, ADD z TEXT FIRST",
    "CONVERT TO CHARACTER SET gbk", "CONVERT TO CHARACTER SET latin1, MODIFY v VARCHAR(20)", "ADD z TEXT, CONVERT TO CHARACTER SET utf8mb4",
    "CONVERT TO CHARACTER SET utf8mb4, COMMENT 'x'", "CONVERT TO CHARACTER SET utf8mb4, DROP x, RENAME COLUMN m TO mm",
)  # fmt: skip
MYSQL_ALTERS = (
    "ALTER COLUMN a SET INVISIBLE", "ALTER a SET DEFAULT (1 + 1)", "ADD x INT NOT SECONDARY", "ADD x INT DEFAULT 3, ALGORITHM=INSTANT",
    "DROP a, ALGORITHM=INSTANT", "RENAME INDEX `PRIMARY` TO p", "ALTER CHECK x ENFORCED", "ADD x INT ENGINE_ATTRIBUTE '{{}}'",
    "ADD x INT CONSTRAINT pos CHECK (x > 0) NOT ENFORCED", "ADD p POINT SRID 4326", "ADD v VECTOR(3)", "ADD UNIQUE ((a + 1))",
)  # fmt: skip
MARIADB_ALTERS = (
    "ADD COLUMN IF NOT EXISTS a INT", "ADD COLUMN IF NOT EXISTS x INT DEFAULT 2", "DROP COLUMN IF EXISTS x", "DROP COLUMN IF EXISTS a",
    "MODIFY COLUMN IF EXISTS x BIGINT, MODIFY COLUMN IF EXISTS a BIGINT", "CHANGE COLUMN IF EXISTS x y INT", "NOWAIT ADD x INT",
    "WAIT 5 DROP a", "ADD x VARCHAR(99) COMPRESSED", "RENAME COLUMN IF EXISTS x TO y", "ADD INDEX IF NOT EXISTS (a)",
    "DROP CONSTRAINT IF EXISTS nope", "DROP INDEX IF EXISTS nope, ADD x INT", "ADD x INET6 NOT NULL", "ADD x UUID NOT NULL", "ADD x INET4",
    "ADD x INT /*M!100100 DEFAULT 8 */", "DROP a CASCADE", "DROP a, ADD COLUMN IF NOT EXISTS a INT", "ADD x TEXT DEFAULT 'q'",
    "ALTER COLUMN IF EXISTS a SET DEFAULT 4", "ADD x INT DEFAULT 1, ALTER x SET DEFAULT 2", "ADD x TIMESTAMP NULL DEFAULT '2024-01-01 00:00:00'", "ADD UNIQUE IF NOT EXISTS uq (a)",
)  # fmt: skip
KEYLESS = "(a INT NOT NULL, b INT NOT NULL, c INT, UNIQUE u (a), KEY (b))"
KEYLESS_ALTERS = (
    "ADD UNIQUE (b)", "DROP INDEX u", "DROP INDEX u, ADD UNIQUE (b)", "ADD PRIMARY KEY (b)", "MODIFY a INT", "MODIFY a BIGINT NOT NULL",
    "DROP a", "RENAME COLUMN a TO q", "MODIFY c INT NOT NULL", "ADD x SERIAL", "ADD UNIQUE (c)", "MODIFY a INT NULL",
)  # fmt: skip

NUMBERED = "(id INT AUTO_INCREMENT PRIMARY KEY, a INT)"
NUMBERED_ALTERS = (
    "MODIFY id BIGINT NOT NULL AUTO_INCREMENT", "MODIFY id BIGINT AUTO_INCREMENT", "CHANGE id k BIGINT NOT NULL AUTO_INCREMENT",
    "MODIFY id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT", "MODIFY id BIGINT NOT NULL", "MODIFY id SMALLINT NOT NULL AUTO_INCREMENT",
    "MODIFY id BIGINT NOT NULL AUTO_INCREMENT, ADD x INT DEFAULT 3 FIRST", "AUTO_INCREMENT = 100",
)  # fmt: skip


def cases() -> list[Case]:
    """Return all statements."""
    found = [Case(f"ALTER TABLE {{t}} {each}") for each in ALTERS]
    found += [Case(f"ALTER TABLE {{t}} {each}", only="mysql") for each in MYSQL_ALTERS]
    found += [Case(f"ALTER TABLE {{t}} {each}", only="mariadb") for each in MARIADB_ALTERS]
    found += [Case(f"ALTER TABLE {{t}} {each}", KEYLESS, "(1, 2, 3)") for each in KEYLESS_ALTERS]
    found += [Case(f"ALTER TABLE {{t}} {each}", NUMBERED, "(1, 5), (7, 6)") for each in NUMBERED_ALTERS]
    for charset, number in (("utf8mb4", 4), ("latin1", 99), ("utf8mb3", 4)):
        some = CONVERSIONS[:number]
        found += [Case(f"ALTER TABLE {{t}} {each}", f"{TEXTS} CHARSET {charset}", TEXT_ROW) for each in some]
    for server, defaults in (("", DEFAULTS), ("mysql", MYSQL_DEFAULTS), ("mariadb", MARIADB_DEFAULTS)):
        for kind, values in defaults.items():
            for value in values:
                null = " NULL" if kind.startswith("TIMESTAMP") else ""
                found.append(Case(f"ALTER TABLE {{t}} ADD n {kind}{null} DEFAULT {value}", only=server))
    for first in range(0, len(BARE), 8):
        columns = ", ".join(f"n{number} {kind}" for number, kind in enumerate(BARE[first : first + 8]))
        found.append(Case(f"ALTER TABLE {{t}} ADD ({columns})"))
        columns = ", ".join(f"n{number} {kind} NOT NULL" for number, kind in enumerate(BARE[first : first + 8]))
        found.append(Case(f"ALTER TABLE {{t}} ADD ({columns})", loose=True))
    for old, values in VALUES.items():
        for new in TARGETS[old]:
            table = f"(id INT PRIMARY KEY, v {old} NULL)"
            found.append(Case(f"ALTER TABLE {{t}} MODIFY v {new}", table, values, loose="NOT NULL" not in new))
    return found
