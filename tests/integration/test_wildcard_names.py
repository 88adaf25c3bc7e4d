"""A wildcard job on a real server: tables with hostile names, and the cut-over of gh-ost."""

from __future__ import annotations

from pathlib import Path

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from channels.sinks.delta.table_paths import table_folder
from tests.integration.test_left_out import JOB
from tests.support.limits import HANG_S

NAMES = ("t", "a\\b", "../../../evil", "a%20b", "a\tb", "_delta_log")


def _rows(folder: Path, name: str) -> list[int] | None:
    table = table_folder(folder / "warehouse", f"ods.{name}")
    if not (table / "_delta_log").is_dir():
        return None
    return sorted(proof.read_delta(table).column("id").to_pylist())


def test_wildcard_job_keeps_rows_with_hostile_names_and_gh_ost(
    mysql: LocalServer, database: str, tmp_path: Path
) -> None:
    port, home, folder = free_port(), tmp_path / "state", tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    file = folder / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, start="snapshot", exclude=""))
    for name in NAMES:
        mysql.execute(
            f"CREATE TABLE {database}.`{name}` (id INT PRIMARY KEY)", f"INSERT INTO {database}.`{name}` VALUES (1)"
        )
    before = set(tmp_path.rglob("*"))
    with JobProcess(file, home=home, port=port) as job:
        # given every table loaded and streamed, below the root
        job.start()
        job.wait_for("loaded", lambda _: all(_rows(folder, name) == [1] for name in NAMES), HANG_S)
        mysql.execute(*(f"INSERT INTO {database}.`{name}` VALUES (2)" for name in NAMES))
        job.wait_for("streamed", lambda _: all(_rows(folder, name) == [1, 2] for name in NAMES), HANG_S)
        made = set(tmp_path.rglob("*")) - before
        assert [path for path in made if not {home, folder / "warehouse"} & {path, *path.parents}] == []

        # when gh-ost copies a table and renames both
        mysql.execute(
            f"CREATE TABLE {database}._t_gho LIKE {database}.t",
            f"ALTER TABLE {database}._t_gho ADD COLUMN five INT DEFAULT 5",
            f"INSERT INTO {database}._t_gho (id) SELECT id FROM {database}.t",
            f"INSERT INTO {database}.t VALUES (3)",
            f"INSERT INTO {database}._t_gho (id) VALUES (3)",
            f"RENAME TABLE {database}.t TO {database}._t_del, {database}._t_gho TO {database}.t",
            f"INSERT INTO {database}.t (id) VALUES (4)",
        )

        # then the new column of the copy is added to the target, without a pause
        job.wait_for("the new table", lambda _: _rows(folder, "t") == [1, 2, 3, 4], HANG_S)
        found = proof.read_delta(table_folder(folder / "warehouse", "ods.t"))
        assert set(found.column("five").to_pylist()) == {5}
        mysql.execute(f"DROP TABLE {database}._t_del", f"INSERT INTO {database}.t (id) VALUES (5)")
        status = job.wait_for("the later rows", lambda _: _rows(folder, "t") == [1, 2, 3, 4, 5], HANG_S)
        assert status["state"] == "RUNNING" and not status["left_out"]
        assert _rows(folder, "_t_gho") is None and _rows(folder, "_t_del") is None
