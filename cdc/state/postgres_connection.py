"""A connection of psycopg with a time limit for each answer: neither psycopg nor libpq has a read timeout.

A proxy or a load balancer acknowledges data for a server that does not answer, so TCP reports no fault.
Source: psycopg 3.2 and 3.3, ``Connection.wait`` and ``psycopg.waiting``.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class PostgresConnection(psycopg.Connection[Any]):
    """Closes itself if the server sends nothing for ``answer_s``."""

    answer_s = 0.0  # 0: no limit, as during the login, which has its own

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Wait for an answer. Raises: psycopg.OperationalError - there is none within the limit."""
        return super().wait(self._limited(gen) if self.answer_s else gen, *args, **options)

    def _limited(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + self.answer_s
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted  # 0 after each interval of 0.1 s without data
                if ready:
                    deadline = time.monotonic() + self.answer_s
                elif time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"The server has not answered within {self.answer_s:.0f} s.")
                wanted = steps.send(ready)
        except StopIteration as end:
            return end.value


def connect(*words: Any, answer_s: float, **options: Any) -> PostgresConnection:
    """Open a connection. Raises: psycopg.Error."""
    connection = PostgresConnection.connect(*words, **options)
    connection.answer_s = answer_s
    return connection
