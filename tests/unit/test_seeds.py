"""A run's seed is said, and taken back."""

from __future__ import annotations

import os

import pytest

from tests.support.seeds import VARIABLE, again, seed_of


def test_a_seed_is_taken_from_the_environment_and_one_given_comes_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "4711")
    assert seed_of() == 4711
    assert seed_of(7) == seed_of() == 7
    assert f"{VARIABLE}=7" in capsys.readouterr().out and again().endswith("=7")


def test_a_seed_that_nobody_gave_is_drawn_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    drawn = seed_of()
    assert seed_of() == drawn == int(os.environ[VARIABLE])
