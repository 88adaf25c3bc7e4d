"""Hides Pandas from Python workers. None of them uses it, and PyArrow imports it for the first array of a process."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("Pandas is hidden from this process.", name=name)


def hide_pandas() -> None:
    """Let every import of Pandas in this process fail. A repeated call does nothing. Saves 0.2 CPU seconds.

    Calls: only in workers of this application. Those of a Spark Connect server may also run the code of others.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())
