"""Play the long scenarios: `python -m tests.chaos [quota] [move] ... [--short]`.

Each runs on SQLite with one node and on PostgreSQL with two, prints one line of a table, and ends
by itself. The exit code is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.chaos import inbox, money, move, quota, recovery
from tests.e2e.processes import Programs
from tests.postgres import new_database, running_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

USE_MIN = 0.92
SCALED = {"messages", "kills", "zombies", "probes", "steps"}  # not what happens at once


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    names = "|".join(SCENARIOS)
    parser.add_argument("scenarios", nargs="*", metavar=names, help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="the form that CI runs")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="0.1: a tenth; repeat it with other seeds"
    )
    parser.add_argument("--store", choices=["sqlite", "postgresql"], help="only on this database")
    options = parser.parse_args()
    chosen = options.scenarios or list(SCENARIOS)
    if unknown := set(chosen) - set(SCENARIOS):
        parser.error(
            f"unknown scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}"
        )
    stores = [options.store] if options.store else ["sqlite", "postgresql"]
    found = []
    for name in chosen:
        for store in stores:
            scenario = SCENARIOS[name]
            size = scenario.size(short=options.short, scale=options.scale)
            row, problems = scenario.play(store, options.seed, size, short=options.short)
            _say(f"{name}: {row}")
            found += [f"{name} on {store}: {problem}" for problem in problems]
    for problem in found:
        _say(f"FAILED {problem}")
    return 1 if found else 0


class Scenario(NamedTuple):
    """A module with `Scene`, `Size` and `SHORT`, and what the long and the short form must meet."""

    module: Any
    long: dict[str, Any] | None = None
    short: dict[str, Any] | None = None

    def size(self, *, short: bool, scale: float) -> Any:
        size = self.module.SHORT if short else self.module.Size()
        scaled = {
            name: max(1, round(scale * getattr(size, name)))
            for name in size._fields
            if name in SCALED
        }
        return size._replace(**scaled)

    def play(self, store: str, seed: int, size: Any, *, short: bool) -> tuple[str, Sequence[str]]:
        with ExitStack() as stack:
            folder, url = _ground(stack, store)
            programs = stack.enter_context(Programs(folder))
            outcome = asyncio.run(self.module.Scene(programs, folder, url, size, seed).play())
        must = (self.short if short else self.long) or {}
        return outcome.row(), outcome.problems(size, **must)


SCENARIOS = {
    "quota": Scenario(quota, {"use_min": USE_MIN}, {"use_min": None}),
    "money": Scenario(money),
    "inbox": Scenario(inbox),
    "move": Scenario(move, {"blocked_max": move.BLOCKED_SECONDS_MAX}),
    "recovery": Scenario(recovery, {"seconds_max": recovery.SECONDS_MAX}, {"seconds_max": None}),
}


def _ground(stack: ExitStack, store: str) -> tuple[Path, str]:
    """Return a folder for the processes and the address of an empty store."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-chaos-")))
    if store == "sqlite":
        return folder, f"sqlite:///{folder / 'fairlane.db'}"
    return folder, stack.enter_context(new_database(stack.enter_context(running_postgres())))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
