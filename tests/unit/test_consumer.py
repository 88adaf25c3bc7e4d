"""The commit cycle: when it closes, what it saves in which order, how it stops."""

import pytest

from tests.flow.harness import Harness
from tests.flow.source import Source


@pytest.fixture
def make(tmp_path):
    made = []

    def make(source, **options):
        harness = Harness(tmp_path, source, **options)
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()


@pytest.mark.parametrize("seed", range(20))
def test_every_row_of_a_random_source_arrives_once_and_in_order(make, seed):
    harness = make(Source.random(seed))
    assert harness.until_finished() == []
    harness.verify()
