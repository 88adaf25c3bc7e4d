"""Record the terminal screens of the documents: ``python -m tests.support.screens FOLDER [SECONDS]`` runs the demo.

Writes ``demo.svg`` and ``status.svg`` to docs/images. Both show a real run: its servers, rows and times.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console, RenderableType
from rich.table import Table

from cdc.api.models import JobStatus
from cdc.cli.views import status_view
from cdc.demo import run

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 132


def recorder() -> Console:
    return Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")


class LastFrame:
    """Replace ``rich.live.Live``: print only the last frame with a rate, because a recording keeps every frame."""

    def __init__(self, *, console: Console, **_: object) -> None:
        self._console = console
        self._frame: RenderableType = ""

    def __enter__(self) -> LastFrame:
        return self

    def __exit__(self, *_: object) -> None:
        self._console.print(self._frame)

    def update(self, frame: Table) -> None:
        # " 0 a second" means that nothing was committed since the previous frame
        if not self._frame or not str(frame.title).endswith(" 0 a second"):
            self._frame = frame


def record(folder: Path, seconds: float) -> int:
    demo, status = recorder(), recorder()
    frames: list[RenderableType] = []
    progress = run._progress

    def watched(body: dict[str, Any], *counts: Any) -> RenderableType:
        frames.append(status_view(JobStatus.from_json(body)))
        return progress(body, *counts)

    with (
        mock.patch.multiple(run, Live=LastFrame, _progress=watched),
        mock.patch.object(demo, "status", lambda *_: nullcontext()),  # a recording keeps every step of a spinner
        mock.patch("builtins.print", lambda text: demo.print(text, markup=False, highlight=False)),
    ):
        code = run.run_demo(folder, seconds=seconds, console=demo)
    status.print(frames[-1])
    for console, name, title in ((demo, "demo", "make demo"), (status, "status", "cdc status demo --watch")):
        path = IMAGES / f"{name}.svg"
        # rich names a web font in each image; browsers have a monospace font
        text = console.export_svg(title=title, unique_id=name).replace(str(folder), folder.name)
        start = text.index("@font-face")
        end = text.index(f".{name}-matrix")
        path.write_text(text[:start] + text[end:])
    return code


if __name__ == "__main__":
    sys.exit(record(Path(sys.argv[1]).absolute(), float(sys.argv[2]) if len(sys.argv) > 2 else 40.0))
