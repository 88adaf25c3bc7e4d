"""Change data capture from MySQL and MariaDB into Delta, Apache Doris or StarRocks tables, on Spark.

The public API: ``load_config`` reads a job file, ``run_job`` runs it in this process, ``Job`` is the running job. Each
name is imported at its first use, so that ``import cdc`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.config.models import load_config
    from cdc.job.job import Job, run_job

__all__ = ["Job", "load_config", "run_job"]

_MODULES = {"Job": "cdc.job.job", "load_config": "cdc.config.models", "run_job": "cdc.job.job"}

if not TYPE_CHECKING:  # otherwise type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
