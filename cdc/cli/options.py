"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

job_file_argument = click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
name_argument = click.argument("name", metavar="NAME")
debug_option = click.option(
    "--debug", is_flag=True, help="Log every Batch, without values; show the code location of errors."
)
output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format: for people, or for programs.",
)
