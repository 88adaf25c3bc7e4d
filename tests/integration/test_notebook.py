"""The cells of the example notebook run as one program against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
  - {{source: {database}.customers, target: ods.customers}}
commit: {{interval: 500ms}}
status: {{port: 0}}
"""


def _run(folder: Path, after: str) -> str:
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (folder / "notebook.py").write_text("\n\n".join([*code, after]), encoding="utf-8")
    environment = {**os.environ, "CDC_HOME": str(folder / "state"), "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_notebook_runs_until_the_stop_position_and_continues(mysql, database, tmp_path):
    (tmp_path / "shop.yaml").write_text(JOB.format(port=mysql.port, database=database), encoding="utf-8")
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))")
        cursor.execute("CREATE TABLE customers (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        cursor.execute("INSERT INTO customers VALUES (1)")
        connection.commit()
    assert _run(tmp_path, "print(code, rows)") == "0 {'ods.orders': 3, 'ods.customers': 1}"
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM orders WHERE id = 2")
        cursor.execute("INSERT INTO customers VALUES (2), (3)")
        connection.commit()
    assert _run(tmp_path, "print(code, rows)") == "0 {'ods.orders': 2, 'ods.customers': 3}"
