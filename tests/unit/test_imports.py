"""No module of the product imports itself through others, also not within functions and for types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(text: str, modules: set[str]) -> set[str]:
    """Return the names of ``modules`` that the source ``text`` imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found & modules


def test_imports_have_no_circle() -> None:
    paths = [path for package in ("cdc", "channels", "spark") for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    assert len(names) > 250, "the packages are elsewhere"
    graph = {name: imported(path.read_text(), set(names)) - {name} for name, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


def test_imports_in_functions_are_found() -> None:
    text = "from a import b\ndef f():\n    import c.d\n    from a.e import g\n"
    assert imported(text, {"a", "a.b", "c.d", "a.e", "z"}) == {"a", "a.b", "c.d", "a.e"}
