"""What each command sets up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import click, cdc.cli.main as cli

@click.command()
@click.option("--debug", is_flag=True)
def app(debug):
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)

cli.app = app
cli.main()
"""


@pytest.mark.parametrize(("given", "expected"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_uses_the_allocator_of_the_system(given: str | None, expected: str) -> None:
    """Its own one kept freed buffers: a job needed a tenth more memory."""
    name = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {key: value for key, value in os.environ.items() if key != name} | ({name: given} if given else {})
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
