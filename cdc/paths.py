"""The cache folder and the state folder.

The cache has files that can be created or downloaded again: servers, compiled kernels, class archives. The job runs
code from it, so a folder that another user can change is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdc.permissions import refuse_untrusted


def cache_folder() -> Path:
    """Return ``$CDC_CACHE``, else ``spark-binlog-load`` in the user's cache folder. Create it if it is missing.

    Raises: ConfigError - another user owns it or can write it; OSError - it cannot be created.
    """
    configured = os.environ.get("CDC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(configured) if configured else (Path(base) if base else Path.home() / ".cache") / "spark-binlog-load"
    refuse_untrusted(folder, "CDC_CACHE")
    return folder


def state_folder() -> Path:
    """Return ``$CDC_HOME``, else ``~/.cdc``."""
    return Path(os.environ.get("CDC_HOME") or Path.home() / ".cdc").absolute()
