"""Product code and documents use the words of the field: names and prose are searched for the private words of the past."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# "taken", "turn" and "place" have ordinary uses too, so that they are not listed; "widen" is what a column does
WORDS = (
    r"mend(s|ed|ing)?|told|tells?|wish(es)?|widening|grown|gather(s|ed|er|ing)?|surplus|sweeps?|swept|sweeping"
    r"|settle[sd]?|misfits?|leftovers?|leaf|touched|seams?|stand[_-]ins?|patience|unlogged|anew|ours"
    r"|nobody|somebody|whoever|breath|gives?_? ?(back|up)|given_? ?(back|up)|tid(y|ied|ies)|lets? go"
)
# a word inside an identifier counts as a word of its own: _give_up_unfit, LeftOver, tells_keys
PRIVATE = re.compile(rf"(?<![a-z])({WORDS})(?![a-z])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STREAM = re.compile(r"\.tell\(\)")  # a method of files
FILES = sorted(
    [path for folder in ("cdc", "channels", "spark", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    + list((ROOT / "docs").rglob("*.md"))
    + [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
)


def private_words(text: str) -> list[str]:
    """Return each line of ``text`` that has a private word, with the word."""
    lines = enumerate(text.splitlines(), 1)
    return [
        f"{number}: {found[0]}: {line.strip()[:100]}"
        for number, line in lines
        if (found := PRIVATE.search(_CAMEL.sub("_", _STREAM.sub("", line)).replace("_", " ")))
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_of_file_are_those_of_the_field(path: Path) -> None:
    assert private_words(path.read_text()) == []


def test_words_inside_identifiers_are_found() -> None:
    assert private_words("self._give_up_unfit(loads)") and private_words("class LostLeaf:") and private_words("x.mend")
    assert not private_words("recommended = settlement  # amended, and turned") and not private_words("cleaved")
