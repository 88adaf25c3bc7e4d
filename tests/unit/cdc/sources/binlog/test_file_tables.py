"""Files of CREATE TABLE statements, as mysqldump and people write them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.checks.job import check_job
from cdc.config.models import load_config
from cdc.errors import SchemaMismatch, SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.file_tables import FileTables, StatementDescriptions, statements_of

DUMP = r"""/*M!999999\- enable the sandbox mode */
-- MySQL dump 10.13;  Distrib 9.7.0
--
-- Host: localhost    Database: shop
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!40101 SET NAMES utf8mb4 */;

CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET latin1 */ /*!80016 DEFAULT ENCRYPTION='N' */;

USE `shop`;
DROP TABLE IF EXISTS `orders`;
CREATE TABLE `orders` (
  `id` int NOT NULL,
  `note` varchar(9) DEFAULT 'a;b''c\'d' COMMENT 'semi;colon -- # /*',
  PRIMARY KEY (`id`)
);
/*!50003 SET sql_mode = '' */ ;
DELIMITER ;;
/*!50003 CREATE*/ /*!50003 TRIGGER `x` BEFORE INSERT ON `orders` FOR EACH ROW BEGIN
  CREATE TABLE `orders` (`wrong` int); END */;;
DELIMITER ;
/*!50001 CREATE VIEW `v` AS SELECT 1 AS `id`*/;
# a comment; with a semicolon
USE other;
CREATE TABLE `orders` (`id` bigint PRIMARY KEY);
CREATE TABLE `open` (`id` int PRIMARY KEY, `note` text);
CREATE TABLE `late` (`id` int);
ALTER TABLE `late` ADD PRIMARY KEY (`id`);
CREATE TABLE `twice` (`id` int);
CREATE TABLE `twice` (`id` bigint);
/*!40000 ALTER TABLE `orders` DISABLE KEYS */;
"""


def described(tmp_path: Path, text: str = DUMP, database: str = "") -> StatementDescriptions:
    file = tmp_path / "schema.sql"
    file.write_text(text)
    found = StatementDescriptions(str(file), database)
    found.open()
    return found


def columns(schema: TableSchema | None) -> list[tuple[str, str, str]]:
    assert schema is not None
    return [(column.name, column.type, column.charset) for column in schema.columns]


def test_statements_of_splits_outside_quotes_and_comments() -> None:
    assert len([each for each in statements_of(DUMP) if "CREATE TABLE" in each]) == 6


def test_descriptions_return_the_tables_of_each_database(tmp_path: Path) -> None:
    found = described(tmp_path)
    assert columns(found.table(("shop", "orders"))) == [("id", "int", ""), ("note", "varchar(9)", "latin1")]
    assert columns(found.table(("other", "orders"))) == [("id", "bigint", "")]
    assert found.table(("shop", "v")) is None and found.table(("third", "orders")) is None


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("open", "character set of column note is the default of the database"),
        ("late", "an ALTER TABLE statement follows it"),
        ("twice", "two different statements"),
    ],
)
def test_descriptions_with_an_incomplete_definition_raise(tmp_path: Path, table: str, why: str) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        described(tmp_path).table(("other", table))


def test_descriptions_without_use_need_a_database(tmp_path: Path) -> None:
    text = "CREATE TABLE t (id INT PRIMARY KEY)"
    with pytest.raises(SchemaMismatch, match="names no database"):
        described(tmp_path, text).table(("shop", "t"))
    assert described(tmp_path, text, "shop").table(("shop", "t")) is not None


def test_descriptions_of_an_unreadable_file_raise(tmp_path: Path) -> None:
    with pytest.raises(SourceActionRequired, match="No such file"):
        StatementDescriptions(str(tmp_path / "gone.sql")).open()
    (tmp_path / "bytes.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceActionRequired, match="not UTF-8"):
        StatementDescriptions(str(tmp_path / "bytes.sql")).open()


def test_check_reports_an_unusable_description(tmp_path: Path) -> None:
    (tmp_path / "mysql-bin.000001").touch()
    (tmp_path / "schema.sql").write_text(DUMP)
    file = tmp_path / "job.yaml"
    source = "{type: binlog_files, path: ./mysql-bin.*, schema: {file: schema.sql}}"
    channels = "[{source: shop.orders, target: a.a}, {source: other.twice, target: a.b}]"
    file.write_text(f"name: a\nsource: {source}\nsink: {{type: delta, path: ./w}}\nchannels: {channels}\n")
    (found,) = check_job(load_config(file))
    assert "two different statements" in found.problem and "source.schema" in found.hint


@pytest.mark.parametrize(("folds_case", "is_used"), [(True, True), (None, False)])
def test_created_table_in_another_case_is_used_only_for_a_known_server(folds_case: bool | None, is_used: bool) -> None:
    """Else the statement can have created another table, with other columns."""
    descriptions: Any = SimpleNamespace(open=lambda: folds_case, table=lambda name: None)
    files = FileTables(lambda position, found: None, descriptions)
    files.open()
    at = BinlogPosition("b.000001", 4, "u")
    statement = Statement("shop", "CREATE TABLE Orders (id INT PRIMARY KEY)", at, at, 0, False, False)
    found = files.created(statement, ("shop", "orders"))
    assert (found is not None) is is_used
    assert ("another case" in files.hint(("shop", "orders"), changes=False)) is not is_used
