"""Changes, one table each: every row of the tables in docs/explanation/schema-changes.md.

Each table has rows before the statements, and rows that are inserted, changed and deleted after them; row 1 is never
changed again. The statements have the names of the columns that a sink then has: added, dropped, renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.model.schema_change import ChangeAction, ChangeKind, ChangeMode, ChangePolicy

ADD, DROP, RENAME = ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN
TYPE, KEY = ChangeKind.ALTER_TYPE, ChangeKind.ALTER_KEY
TRUNCATE, PARTITION = ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION
CREATE_TABLE, DROP_TABLE, RENAME_TABLE = ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE, ChangeKind.RENAME_TABLE
SERVERS = ("mysql", "mariadb")


@dataclass(frozen=True)
class Case:
    """One table, ``(id INT PRIMARY KEY, n INT, ...)``, and what happens to its columns."""

    name: str
    statements: tuple[str, ...]  # whole ones with {t} and {away}, or the clauses of ALTER TABLE
    columns: str = ""  # further columns
    values: str = ""  # of the rows before: an expression for each of ``columns``, with i for the number of the row
    kinds: tuple[ChangeKind, ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)  # old name -> new name
    is_loaded: bool = False  # if it is applied, a snapshot has to bring the values of existing rows
    is_refused: bool = False  # no job can follow it yet
    refused_by: tuple[str, ...] = ()  # sinks that cannot make this change
    refused_from: tuple[str, ...] = ()  # sources that do not tell enough
    has_rows_between: bool = True  # between two statements
    is_longer: bool = False  # a text becomes longer, which changes the type of a cluster's column
    keeps_type: bool = False  # the new type is narrower, and the target keeps its own
    options: str = ""  # of the table
    others: tuple[str, ...] = ()  # statements before, about other tables
    servers: tuple[str, ...] = SERVERS
    removed: tuple[int, ...] = ()  # rows that the statement removes without row events
    arrived: tuple[int, ...] = ()  # rows that it brings without row events
    is_gone: bool = False  # the table does not exist after the last statement
    tool: str = ""  # "gh-ost", "pt-osc", or "drop_swap" of pt-osc, whose ALTER TABLE has these clauses

    def pauses(self, policy: ChangePolicy, source: str, sink: str) -> bool:
        """Return whether a job has to pause before a statement."""
        # Canal does not send the triggers, without which a copy of pt-online-schema-change is another table
        is_swap = source == "canal" and self.tool in ("pt-osc", "drop_swap")
        kinds = (*self.kinds, RENAME_TABLE) if is_swap else self.kinds
        actions, product = [policy.action(kind) for kind in kinds], sink.partition("-")[0]
        if self.is_refused or source in self.refused_from or ChangeAction.PAUSE in actions:
            return True
        if self.arrived and source == "files":  # these rows are loaded even if the removed ones stay
            return True
        is_refused = product in self.refused_by or (product == "starrocks" and self.reuses_name(policy))
        if self.is_longer and product != "delta" and policy.action(TYPE) is not ChangeAction.APPLY:
            return True
        return ChangeAction.APPLY in actions and ((self.is_loaded and source == "files") or is_refused)

    def reuses_name(self, policy: ChangePolicy) -> bool:
        """Return whether the name of a dropped column is added again, which the target still has."""
        is_kept = policy.action(DROP) is ChangeAction.IGNORE and policy.action(ADD) is ChangeAction.APPLY
        return is_kept and bool({*self.dropped} & {*self.added}) and not self.name.endswith("then_drop")


def _add(name, *definitions, **more):
    """Return the addition of columns c0, c1 .. in one statement."""
    names = tuple(f"c{number}" for number in range(len(definitions)))
    clauses = ", ".join(f"ADD COLUMN {one} {text}" for one, text in zip(names, definitions, strict=True))
    return Case(f"add_{name}", (clauses,), kinds=(ADD,), added=names, **more)


def _modify(name, old, new, values, **more):
    return Case(f"type_{name}", (f"MODIFY a {new}",), f"a {old}", values, **more)


PARTITIONS = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN MAXVALUE)"
OTHER = "CREATE TABLE {away}.{t} (id INT NOT NULL PRIMARY KEY, n INT NOT NULL) CHARSET utf8mb4"

CASES = (
    # added columns
    _add("null", "INT", "VARCHAR(9)", "DECIMAL(9,2)"),
    Case("add_list_first", ("ADD (c INT, d DATE), ADD e INT FIRST, ADD f INT AFTER id",), kinds=(ADD,),
         added=("c", "d", "e", "f")),
    _add("text_of_number", "INT DEFAULT '007'", "BIGINT NOT NULL DEFAULT -5", "SMALLINT DEFAULT 0x10"),
    _add("rounded", "DECIMAL(5,2) DEFAULT 1.005", "DECIMAL(5,2) NOT NULL DEFAULT '-2.5'", "DOUBLE DEFAULT 1.5e3"),
    _add("text", "VARCHAR(9) DEFAULT 'it''s'", "CHAR(4) NOT NULL DEFAULT ''", "VARCHAR(9) CHARSET latin1 DEFAULT 'é'"),
    _add("number_not_null", "INT NOT NULL", "DECIMAL(6,2) NOT NULL", "FLOAT NOT NULL", "BIGINT UNSIGNED NOT NULL"),
    _add("text_not_null", "VARCHAR(9) NOT NULL", "TEXT NOT NULL", "ENUM('x', 'y') NOT NULL", "SET('x', 'y') NOT NULL"),
    _add("time_not_null", "TIME NOT NULL", "YEAR NOT NULL"),
    _add("label", "ENUM('x', 'y') DEFAULT 'y'", "SET('x', 'y') NOT NULL DEFAULT 'y,x'"),
    _add("bits", "BIT(4) DEFAULT b'101'", "TINYINT(1) DEFAULT TRUE"),
    _add("date", "DATE DEFAULT '2024-02-29'", "DATETIME(3) NOT NULL DEFAULT '2024-02-29 10:20:30.456'",
         "TIMESTAMP NULL DEFAULT '2024-02-29 10:20:30'"),
    _add("statement_time", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    _add("current_time", "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)", "DATETIME NOT NULL DEFAULT NOW()",
         "DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)", "TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6)"),
    _add("current_date", "DATE DEFAULT (CURRENT_DATE)"),
    _add("stored", "INT AS (n * 2) STORED", is_loaded=True),
    _add("virtual", "INT AS (n * 2) VIRTUAL", is_loaded=True),
    _add("expression", "INT DEFAULT (n + 1)", is_loaded=True),
    _add("auto_increment", "INT NOT NULL AUTO_INCREMENT UNIQUE", is_loaded=True, refused_from=("files",)),
    _add("invisible", "INT INVISIBLE DEFAULT 5"),
    _add("document", "JSON", "BLOB"),
    # dropped and renamed ones
    Case("drop_null", ("DROP COLUMN a",), "a INT", "i * 10", kinds=(DROP,), dropped=("a",)),
    Case("drop_not_null", ("DROP COLUMN a, DROP COLUMN b",), "a VARCHAR(9) NOT NULL DEFAULT 'v', b INT NOT NULL DEFAULT 3",
         "CONCAT('v', i), i", kinds=(DROP,), dropped=("a", "b")),
    Case("renamed", ("RENAME COLUMN a TO b",), "a INT", "i * 10", kinds=(RENAME,), renamed={"a": "b"}),
    Case("rename_change", ("CHANGE a b VARCHAR(30)",), "a VARCHAR(9)", "CONCAT('v', i)", kinds=(RENAME,),
         renamed={"a": "b"}, is_longer=True),
    Case("rename_and_widen", ("CHANGE a b BIGINT",), "a INT", "i * 10", kinds=(RENAME, TYPE), renamed={"a": "b"}),
    Case("exchange", ("RENAME COLUMN a TO b, RENAME COLUMN b TO a",), "a INT, b INT", "i * 10, i * -1",
         kinds=(RENAME,), renamed={"a": "b", "b": "a"}),
    Case("circle", ("RENAME COLUMN a TO b, RENAME COLUMN b TO c, RENAME COLUMN c TO a",), "a INT, b INT, c INT",
         "i * 10, i * -1, i * 7", kinds=(RENAME,), renamed={"a": "b", "b": "c", "c": "a"}),
    Case("chain", ("RENAME COLUMN a TO b, RENAME COLUMN b TO c",), "a INT, b INT", "i * 10, i * -1",
         kinds=(RENAME,), renamed={"a": "b", "b": "c"}),
    # several together
    Case("drop_and_add", ("DROP COLUMN a, ADD COLUMN a VARCHAR(5) DEFAULT 'new'",), "a INT", "i",
         kinds=(DROP, ADD), dropped=("a",), added=("a",)),
    Case("add_after_drop", ("DROP COLUMN a", "ADD COLUMN a INT DEFAULT 9"), "a INT", "i",
         kinds=(DROP, ADD), dropped=("a",), added=("a",)),
    Case("rename_and_add", ("RENAME COLUMN a TO b, ADD COLUMN a INT DEFAULT 4",), "a INT", "i * 10",
         kinds=(RENAME, ADD), renamed={"a": "b"}, added=("a",), refused_by=("starrocks",)),
    Case("rename_after_drop", ("DROP COLUMN b", "RENAME COLUMN a TO b"), "a INT, b INT", "i * 10, i * -1",
         kinds=(DROP, RENAME), dropped=("b",), renamed={"a": "b"}),
    Case("add_then_drop", ("ADD COLUMN c INT DEFAULT 5", "DROP COLUMN c"), kinds=(ADD, DROP), added=("c",), dropped=("c",)),
    Case("two_adds", ("ADD COLUMN c INT DEFAULT 5", "ADD COLUMN d INT NOT NULL, ADD INDEX (n)"), kinds=(ADD,),
         added=("c", "d"), has_rows_between=False),
    # types: no value can have changed, and the target stays as it is
    _modify("longer", "VARCHAR(9)", "VARCHAR(300)", "CONCAT('v', i)", is_longer=True),
    _modify("to_text", "VARCHAR(9)", "TEXT", "CONCAT('v', i)", is_longer=True),
    _modify("labels", "ENUM('x', 'y')", "ENUM('z', 'y', 'x')", "ELT(1 + i % 2, 'x', 'y')"),
    _modify("charset", "VARCHAR(9) CHARSET latin1", "VARCHAR(9) CHARSET utf8mb4", "CONCAT('é', i)"),
    Case("others", ("ALTER COLUMN a SET DEFAULT 4, ADD INDEX (a), COMMENT 'c'", "MODIFY a INT DEFAULT 3 COMMENT 'x' FIRST"),
         "a INT", "i"),
    # ... the target becomes wider
    _modify("tinyint", "TINYINT", "INT", "-i", kinds=(TYPE,)),
    _modify("int", "INT NOT NULL DEFAULT 1", "BIGINT NOT NULL DEFAULT 5000000000", "i * 10", kinds=(TYPE,)),
    _modify("float", "FLOAT", "DOUBLE", "i / 8", kinds=(TYPE,)),
    _modify("decimal", "DECIMAL(6,2)", "DECIMAL(12,4)", "i / 8", kinds=(TYPE,)),
    _modify("nullable", "INT NOT NULL DEFAULT 1", "INT NULL", "i * 10", kinds=(TYPE,)),
    # ... values of existing rows have changed
    _modify("not_null", "INT NULL", "INT NOT NULL DEFAULT 0", "IF(i = 1, NULL, i)", kinds=(TYPE,), is_loaded=True),
    _modify("sign", "INT", "INT UNSIGNED", "i - 2", kinds=(TYPE,), is_loaded=True),
    # ... and the target keeps its wider type: the sessions are not strict, so the server changes values
    Case("type_of_generated", ("ADD COLUMN h INT AS (a + 0)", "MODIFY a ENUM('z', 'y', 'x')"), "a ENUM('x', 'y')",
         "ELT(1 + i % 2, 'x', 'y')", kinds=(ADD,), added=("h",), is_loaded=True, has_rows_between=False),
    _modify("narrow", "BIGINT", "INT", "i * 2000000000", kinds=(TYPE,), is_loaded=True, keeps_type=True),
    _modify("narrow_decimal", "DECIMAL(10,4)", "DECIMAL(8,2)", "i * 1.0055", kinds=(TYPE,), is_loaded=True,
            keeps_type=True),
    _modify("narrow_float", "DOUBLE", "FLOAT", "i / 7", kinds=(TYPE,), is_loaded=True, keeps_type=True),
    _modify("shorter", "VARCHAR(50)", "VARCHAR(20)", "CONCAT('v', i, REPEAT('x', 30))", kinds=(TYPE,), is_loaded=True),
    _modify("fewer_digits", "DATETIME(6)", "DATETIME(3)", "'2024-02-29 10:20:30.456789'", kinds=(TYPE,), is_loaded=True),
    # a wider key
    Case("key_type", ("MODIFY id BIGINT NOT NULL",), kinds=(TYPE,), refused_by=("doris", "starrocks")),
    # ... or it cannot be followed
    _modify("to_date", "INT", "DATE", "20240100 + i", kinds=(TYPE,), is_refused=True),
    _modify("to_varchar", "INT", "VARCHAR(20)", "i", kinds=(TYPE,), is_refused=True),
    Case("key_dropped", ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",), kinds=(KEY,), is_refused=True),
    Case("key_narrower", ("MODIFY id SMALLINT NOT NULL",), kinds=(TYPE,), is_refused=True),
    Case("key_text", ("MODIFY id VARCHAR(20) NOT NULL",), kinds=(TYPE,), is_refused=True),
    Case("key_renamed", ("RENAME COLUMN id TO number",), kinds=(KEY,), is_refused=True),
    # rows that are removed without row events
    Case("truncated", ("TRUNCATE TABLE {t}",), kinds=(TRUNCATE,), removed=(1, 2, 3)),
    Case("partition_dropped", ("DROP PARTITION p0",), kinds=(PARTITION,), options=PARTITIONS, removed=(1,), is_loaded=True),
    Case("partition_emptied", ("TRUNCATE PARTITION p0",), kinds=(PARTITION,), options=PARTITIONS, removed=(1,), is_loaded=True),
    Case("partition_exchanged", ("ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {away}.{t}",), kinds=(PARTITION,), options=PARTITIONS,
         others=(OTHER, "INSERT INTO {away}.{t} VALUES (0, 5)"), removed=(1,), arrived=(0,), is_loaded=True),
    Case("ignored_duplicates", ("ALTER IGNORE TABLE {t} ADD UNIQUE (a)",), "a INT NOT NULL DEFAULT 0", "IF(i < 3, 7, i)",
         kinds=(PARTITION,), removed=(2,), servers=("mariadb",), is_loaded=True,
         refused_from=("files",)),
    Case("ignored_equal_values", ("ALTER IGNORE TABLE {t} MODIFY a TINYINT",), "a SMALLINT UNIQUE",
         "IF(i < 3, 1000, 5) + i", kinds=(PARTITION, TYPE), removed=(2,), servers=("mariadb",), is_loaded=True,
         keeps_type=True, refused_from=("files",)),
    # whole tables
    Case("swapped", ("RENAME TABLE {t} TO {away}.{t}_old, {away}.{t} TO {t}",), kinds=(RENAME_TABLE,),
         others=(OTHER, "INSERT INTO {away}.{t} VALUES (2, 5), (7, 8)"), is_loaded=True),
    Case("renamed_back", ("RENAME TABLE {t} TO {away}.{t}", "RENAME TABLE {away}.{t} TO {t}"), kinds=(RENAME_TABLE,),
         has_rows_between=False, is_loaded=True),
    Case("renamed_away", ("RENAME TABLE {t} TO {away}.{t}",), kinds=(RENAME_TABLE,), is_gone=True),
    Case("dropped", ("DROP TABLE {t}",), kinds=(DROP_TABLE,), is_gone=True),
    Case("created_again", ("DROP TABLE {t}", "CREATE TABLE {t} (id INT NOT NULL PRIMARY KEY, n INT NOT NULL) CHARSET utf8mb4"),
         kinds=(DROP_TABLE, CREATE_TABLE), has_rows_between=False),
    Case("replaced", ("CREATE OR REPLACE TABLE {t} (id INT NOT NULL PRIMARY KEY, n INT NOT NULL) CHARSET utf8mb4",),
         kinds=(DROP_TABLE, CREATE_TABLE), servers=("mariadb",)),
    Case("gh_ost", ("ADD COLUMN c INT NOT NULL DEFAULT 5",), kinds=(ADD,), added=("c",), tool="gh-ost"),
    Case("gh_ost_twice", ("ADD COLUMN c INT NOT NULL DEFAULT 5", "ADD COLUMN d VARCHAR(9) CHARSET utf8mb4 DEFAULT 'x'"),
         kinds=(ADD,), added=("c", "d"), tool="gh-ost"),
    Case("gh_ost_equal_values", ("MODIFY a TINYINT",), "a SMALLINT UNIQUE", "IF(i < 3, 1000, 5) + i",
         kinds=(RENAME_TABLE, TYPE), is_loaded=True, keeps_type=True, tool="gh-ost"),
    Case("pt_osc", ("ADD COLUMN c INT NOT NULL DEFAULT 5",), kinds=(ADD,), added=("c",), tool="pt-osc"),
    Case("pt_osc_drop_swap", ("ADD COLUMN c INT NOT NULL DEFAULT 5",), kinds=(DROP_TABLE, ADD), added=("c",), tool="drop_swap"),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


def left_out(case: str, server: str, source: str, sink: str, mode: ChangeMode) -> str:
    """Return why a combination is not compared; "" if it is. Each of them pauses the job, and no value is wrong."""
    product = sink.partition("-")[0]
    if server not in BY_NAME[case].servers:
        return "the other server does not have the statement"
    if source == "canal" and case in ("add_text", "type_charset"):
        return "Canal reads text of other charsets as UTF-8, and the job pauses at the first damaged value"
    of_today = ("type_longer", "type_shorter")
    if case in of_today and (server, source) == ("mariadb", "binlog"):
        return "these jobs start before the statement, and take the length from MariaDB's catalog of today"
    if case == "key_renamed" and mode is ChangeMode.IGNORE:
        return "an ignored rename of a key column keeps its name in the target, so the job continues"
    if case == "add_after_drop" and product == "starrocks" and BY_NAME[case].reuses_name(ChangePolicy(mode)):
        return "StarRocks pauses at the second statement, when the first one has changed the table"
    return ""
