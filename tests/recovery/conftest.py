"""The matrix has its summary at the end of everything."""

from __future__ import annotations

import pytest

from tests.recovery.matrix import SUMMARY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    summary = config.stash.get(SUMMARY, None)
    if summary is not None:
        terminalreporter.section("fault matrix")
        terminalreporter.write_line(summary)
