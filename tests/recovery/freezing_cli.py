"""The command ``cdc``, whose driver stops itself with SIGSTOP at a point that a test names.

The file ``$CDC_TEST_FREEZE`` contains the name of the point. It is deleted when the process stops.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdc.cli.main import main
from channels.sinks.delta import maintenance
from channels.sinks.delta.log import DurableLogs
from channels.sinks.delta.merge import Merge
from tests.support.freezing import freeze


def _freezing(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        armed = Path(os.environ["CDC_TEST_FREEZE"])
        if armed.exists() and armed.read_text() == point:
            armed.unlink()
            freeze()
        return function(*arguments, **options)

    return call


if __name__ == "__main__":
    maintenance.find_inactive = _freezing("vacuum", maintenance.find_inactive)
    Merge.actions = _freezing("merge", Merge.actions)  # type: ignore[method-assign]
    DurableLogs.append = _freezing("log", DurableLogs.append)  # type: ignore[method-assign]
    main()
