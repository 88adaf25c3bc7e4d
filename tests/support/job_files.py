"""A valid job file, changes of it, and the errors that ``load_config`` reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.errors import ConfigError

JOB = """\
name: shop
source: {type: binlog, host: 127.0.0.1, username: cdc, password: "s3cret", start: latest}
sink: {type: delta, path: ./warehouse}
channels:
  - {source: shop.orders, target: ods.orders}
"""


def write_job(folder: Path, text: str) -> Path:
    file = folder / "shop.yaml"
    file.write_text(text)
    return file


def issues_of(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_config(write_job(folder, text))
    first, *lines = refused.value.message.strip().splitlines()
    assert first.endswith(f"has {len(lines)} error{'s' if len(lines) > 1 else ''}:")
    assert "cdc check" in refused.value.hint
    return [line.strip() for line in lines]


def with_change(old: str, new: str) -> str:
    assert old in JOB
    return JOB.replace(old, new)
