"""The progress of a verification as values: what a comparison adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cdc.model.position import Position
from cdc.model.snapshot import Chunk
from cdc.model.verify import MOST_DIFFERENCES, TableVerification, Verification, VerifyState
from channels.chunk_compare import KeyDifferences, PartOutcome
from channels.row_compare import DIFFERENT, EXTRA, MISSING

Confirmed = Sequence[tuple[str, KeyDifferences]]  # source table, and keys that differ


def with_parts(table: TableVerification, parts: Sequence[PartOutcome], *, searches: bool) -> TableVerification:
    """Return ``table`` after the comparison of ``parts``.

    ``searches``: a search for keys that only the target has follows.
    """
    by_chunk = {part.chunk: part for part in parts}  # the last part of each chunk
    rows = {number: sum(part.rows for part in parts if part.chunk == number) for number in by_chunk}
    left: list[Chunk] = []
    for chunk in table.open:
        part = by_chunk.get(chunk.number)
        if part is None:
            left.append(chunk)
        elif not part.ended:
            estimated = max(1, chunk.estimated_rows - rows[chunk.number])
            left.append(replace(chunk, above=part.above, estimated_rows=estimated))
    state = table.state if left else VerifyState.SEARCHING if searches else VerifyState.DONE
    return replace(
        table,
        state=state,
        open=tuple(left),
        done=table.done + len(table.open) - len(left),
        rows=table.rows + sum(rows.values()),
    )


def with_differences(
    run: Verification, tables: Mapping[str, TableVerification], confirmed: Confirmed, changing: Mapping[str, int]
) -> Verification:
    """Return ``run`` with the new states of ``tables`` and what differs in them. ``changing``: rows by table."""
    found = {**run.tables, **tables}
    differences = list(run.differences)
    for name, some in confirmed:
        counts = np.bincount(some.kinds, minlength=3)
        one = found[name]
        found[name] = replace(
            one,
            missing=one.missing + int(counts[MISSING]),
            extra=one.extra + int(counts[EXTRA]),
            different=one.different + int(counts[DIFFERENT]),
        )
        differences += some.details[: max(0, MOST_DIFFERENCES - len(differences))]
    for name, count in changing.items():
        found[name] = replace(found[name], changing=found[name].changing + count)
    return replace(run, tables=found, differences=tuple(differences))


def left_to_show(run: Verification, confirmed: Confirmed) -> int:
    """Return how many more rows are saved with their values."""
    return max(0, MOST_DIFFERENCES - len(run.differences) - sum(len(some.details) for _, some in confirmed))


def with_repairs(run: Verification, confirmed: Confirmed) -> Verification:
    """Return ``run`` after the rows of ``confirmed`` were loaded again or deleted."""
    found = dict(run.tables)
    for name, some in confirmed:
        found[name] = replace(found[name], repaired=found[name].repaired + some.count)
    return replace(run, tables=found)


def with_step(run: Verification, position: Position, seconds: float) -> Verification:
    """Return ``run`` after a step of ``seconds`` at ``position``."""
    return replace(run, position=position, seconds=run.seconds + seconds)
