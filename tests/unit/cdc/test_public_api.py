"""The names that ``cdc`` exports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cdc

ROOT = Path(__file__).parents[3]


def test_import_cdc_imports_nothing_heavy():
    script = "import sys, cdc; print(sorted({'pyspark', 'pyarrow', 'numpy', 'pydantic', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_the_objects_of_their_modules():
    from cdc.config.models import load_config
    from cdc.job.job import Job, run_job

    assert (cdc.load_config, cdc.run_job, cdc.Job) == (load_config, run_job, Job)
    assert set(cdc.__all__) <= set(dir(cdc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cdc.nothing


@pytest.mark.parametrize("package", ["cdc", "channels", "spark"])
def test_packages_ship_type_marker(package):
    assert (ROOT / package / "py.typed").is_file()
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert setuptools["package-data"]["*"] == ["py.typed"]
