"""A short run of the fuzzers. ``make fuzz`` runs them for longer."""

from __future__ import annotations

from tests import fuzz


def test_decoder_damaged_binlogs_give_rows_or_errors():
    outcome = fuzz.fuzz_streams(150, seed=1)
    assert outcome["decoded"] > 10 and outcome["refused"] > 10


def test_json_damaged_documents_give_text_or_errors():
    outcome = fuzz.fuzz_json(50_000, seed=1)
    assert outcome["decoded"] > 1000 and outcome["refused"] > 1000


def test_text_random_bytes_give_text_or_errors():
    outcome = fuzz.fuzz_text(5_000, seed=1)
    assert outcome["decoded"] > 1000 and outcome["refused"] > 1000
