"""Where things lie that can be made or fetched again: servers, compiled kernels, class archives, recordings."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$CDC_CACHE``, else ``spark-binlog-load`` in the user's cache folder. It may not exist yet."""
    configured = os.environ.get("CDC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(configured) if configured else (Path(base) if base else Path.home() / ".cache") / "spark-binlog-load"
