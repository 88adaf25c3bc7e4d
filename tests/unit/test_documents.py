"""The documents agree with the code: generated pages, commands and job files in them."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
import yaml

from cdc.cli.main import app
from cdc.config.models import load_config
from tests.support import reference

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
COMMAND = re.compile(r"(?:`|^ *|exec job |\n)cdc ((?:--debug )?[a-z][a-z-]*)((?: [^`\n#;|]*)?)", re.MULTILINE)
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_reference_pages_are_current() -> None:
    outdated = []
    for name, text in reference.pages().items():
        committed = (reference.FOLDER / name).read_text()
        outdated += difflib.unified_diff(committed.splitlines(), text.splitlines(), name, lineterm="", n=0)
    assert "\n".join(outdated[:20]) == "", "run `make reference`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_document_commands_exist(page: Path) -> None:
    for verb, rest in COMMAND.findall(page.read_text()):
        command = app.commands.get(verb.removeprefix("--debug "))
        assert command is not None, f"cdc {verb}{rest}"
        known = {option for one in command.params for option in one.opts} | {"--help"}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"cdc {verb}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_document_job_files_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CDC", "DORIS", "STARROCKS", "CANAL"):
        monkeypatch.setenv(f"{name}_PASSWORD", "pw")
    for text in YAML.findall(page.read_text()):
        body = yaml.safe_load(text) if not text.startswith("--8<--") else None
        if isinstance(body, dict) and {"name", "source", "sink", "channels"} <= body.keys():
            file = tmp_path / "job.yaml"
            file.write_text(text)
            load_config(file)


def test_contributing_names_every_module_without_a_test_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("### Modules without") : text.index("## Add a sink")]
    covered = tuple(
        name for row in re.findall(r"^\|([^|]+)\|", section, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    )
    assert covered
    for package in ("cdc", "channels", "spark"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            own = ROOT / "tests" / "unit" / path.relative_to(ROOT).with_name(f"test_{path.name}")
            assert path.name == "__init__.py" or own.exists() or name.startswith(covered), name


def test_contributing_names_existing_files() -> None:
    for name in re.findall(
        r"`((?:cdc|channels|spark|tests|docs|examples)/[\w/.-]+)`", (ROOT / "CONTRIBUTING.md").read_text()
    ):
        assert (ROOT / name).exists() or "NAME" in name, name


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_root_page_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        assert (ROOT / name).is_file(), target
        headings = re.findall(r"^#+ (.*)", (ROOT / name).read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, (
            target
        )
