"""The fault matrix: every seam x every fault x every receiver x every sink, made from its axes."""

import pytest

SUMMARY: pytest.StashKey[str] = pytest.StashKey()  # what the terminal shows at the end
