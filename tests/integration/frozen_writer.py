"""A process that stops itself with SIGSTOP between the check of its ownership and its entry in the log of a table.

Arguments: folder of the tables, way to merge, and what it does: commit or compact. It prints the name of its error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

from cdc.errors import CdcError
from channels.sinks.delta.log import DurableLogs
from channels.sinks.delta.sink import MergeMode
from tests.integration.test_delta_vectors import TABLE, mark, open_sink, stage
from tests.support.freezing import freeze

SMALL_FILES = 8  # as many as a compaction needs


def freezing_commit(real: Callable[..., None]) -> Callable[..., None]:
    def commit(self: DurableLogs, found: Any, folder: Path, write: Callable[[Any], None], *arguments: Any) -> None:
        def frozen(properties: Any) -> None:
            freeze()
            write(properties)

        real(self, found, folder, frozen, *arguments)

    return commit


def main(root: Path, mode: MergeMode, work: str) -> None:
    sink = open_sink(root, mode)
    sink.acquire_ownership(mark(0), [TABLE.name])
    for checkpoint in range(1, SMALL_FILES + 1):
        sink.commit(
            [stage(sink, checkpoint, dict.fromkeys(range(checkpoint * 10, checkpoint * 10 + 10), 1))], mark(checkpoint)
        )
    load = stage(sink, SMALL_FILES + 1, {11: 2, 500: 2})
    with mock.patch.object(DurableLogs, "commit", freezing_commit(DurableLogs.commit)):
        try:
            if work == "commit":
                sink.commit([load], mark(SMALL_FILES + 1))
            else:
                sink.maintain([TABLE])
            print("no error")
        except CdcError as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast("MergeMode", sys.argv[2]), sys.argv[3])
