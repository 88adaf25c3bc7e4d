"""The seed of random tests: one per run; a failure prints it, and the environment can set it."""

from __future__ import annotations

import os
import random

VARIABLE = "CDC_TEST_SEED"


def seed_of(given: int | None = None) -> int:
    """Return ``given``, or the seed of the environment, or a new one. Set it for the whole process and print it.

    A seed repeats the random choices, but not the timing of threads and processes.
    """
    seed = given if given is not None else int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(10**6))
    os.environ[VARIABLE] = str(seed)
    print(again())
    return seed


def again() -> str:
    """Return the setting that repeats the random choices."""
    return f"repeat the random choices with {VARIABLE}={os.environ[VARIABLE]}"
