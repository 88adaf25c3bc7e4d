"""The documentation site builds without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=["']?(https?:)?//[^"'>\s]+|<link[^>]*\shref=["']?(https?:)?//[^"'>\s]+"""
    r"""|@import[^;]*(https?:)?//[^;]+|url\(["']?(https?:)?//[^)]+\)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # advice of the theme about its successor
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_build_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path for path in pages if not (site / path).is_file()} == set()


def test_site_pages_load_nothing_from_another_host(site: Path) -> None:
    files = [path for kind in ("html", "css", "svg") for path in site.rglob(f"*.{kind}")]
    assert files
    found = {(str(path.relative_to(site)), hit[0]) for path in files for hit in LOADED.finditer(path.read_text())}
    assert found == set()
