"""One local Spark session for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark.session import SessionHolder


@pytest.fixture(scope="session")
def sessions() -> Iterator[SessionHolder]:
    """The holder of a session on two local cores."""
    holder = SessionHolder("tests", "local[2]")
    yield holder
    holder.close()
