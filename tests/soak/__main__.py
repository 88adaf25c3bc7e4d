"""``python -m tests.soak [--seconds N] [--seed N] [PAIR ...]``: one walk per pair of source and target."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.soak.pairs import SOURCES, TARGETS
from tests.soak.run import Outcome, ended_early, run
from tests.support.seeds import seed_of


def main() -> None:
    """Run the named pairs, or all. Exit with code 1 if a walk has a fault."""
    pairs = [f"{source}:{target}" for source in SOURCES for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=", ".join(pairs))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seed = seed_of(arguments.seed)
    outcomes = []
    for pair in arguments.pairs or pairs:
        source, target = pair.split(":")
        with tempfile.TemporaryDirectory(prefix="cdc-stress-") as folder:
            try:
                outcome = run(Path(folder), source, target, seconds=arguments.seconds, seed=seed)
            except Exception as error:  # the other pairs still run
                traceback.print_exc()
                outcome = Outcome(source, target, seed, 0, 0, 0, 0, 0, (ended_early(error),))
        outcomes.append(outcome)
        show(outcomes[-1:])
    show(outcomes)
    sys.exit(any(outcome.faults for outcome in outcomes))


def show(outcomes: list[Outcome]) -> None:
    """Print a line for each walk, and every fault. Views: reads that showed something new."""
    table = Table(title="Walks under kills")
    for heading in ("source", "target", "seed", "kills", "disturbed", "groups", "reads", "views", "faults"):
        table.add_column(heading)
    for one in outcomes:
        numbers = (one.seed, one.kills, one.disturbances, one.groups, one.polls, one.views, len(one.faults))
        table.add_row(one.source, one.target, *map(str, numbers))
    console = Console(width=120)
    console.print(table)
    for one in outcomes:
        for fault in one.faults[:20]:
            console.print(f"{one.source} -> {one.target}: {fault}", markup=False)


if __name__ == "__main__":
    main()
