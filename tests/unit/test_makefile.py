"""``make test`` runs every folder that has tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_with_tests_is_run():
    named = re.search(r"^FOLDERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert named is not None
    assert {*named[1].split(), "unit"} == found
