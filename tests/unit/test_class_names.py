"""Each class of the product has a name of its own, so that a name in a message, a log or a search says which one it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_class_names_are_used_once() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for package in ("cdc", "channels", "spark"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(str(path.relative_to(ROOT)))
    assert len(files) > 300, "the packages are elsewhere"
    assert {name: found for name, found in files.items() if len(found) > 1} == {}
