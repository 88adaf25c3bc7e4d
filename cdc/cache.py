"""Files that can be created or fetched again: servers, compiled kernels, class archives, recordings.

The job runs code out of them, so a folder that another user can change is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdc.permissions import refuse_untrusted


def cache_folder() -> Path:
    """Return ``$CDC_CACHE``, else ``spark-binlog-load`` in the user's cache folder; created if it is missing.

    Raises: ConfigError - another user owns it or can write it; OSError - it cannot be created.
    """
    configured = os.environ.get("CDC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(configured) if configured else (Path(base) if base else Path.home() / ".cache") / "spark-binlog-load"
    refuse_untrusted(folder, "CDC_CACHE")
    return folder
