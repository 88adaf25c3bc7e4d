"""The draws of random tests: one seed for a run, which a failure shows, and which can be given again."""

from __future__ import annotations

import os
import random

VARIABLE = "CDC_TEST_SEED"


def seed_of(given: int | None = None) -> int:
    """``given``, else what the environment has, else a new one; the whole process has it from then on, and says it.

    It repeats what is drawn, not the timing of threads and processes.
    """
    seed = given if given is not None else int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(10**6))
    os.environ[VARIABLE] = str(seed)
    print(again())
    return seed


def again() -> str:
    """What a person types to have the same draws."""
    return f"the same draws again: {VARIABLE}={os.environ[VARIABLE]}"
