"""The fault matrix: every fault point x every fault x every receiver x every sink, generated from its dimensions."""

import pytest

SUMMARY: pytest.StashKey[str] = pytest.StashKey()  # printed at the end of the run
