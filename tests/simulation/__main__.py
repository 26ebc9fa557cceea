"""Play seeds: `python -m tests.simulation --seed N --steps M [--seeds K] [--trace]`.

With `--cron DAYS` it is the world of cron that is played, for so many days.
"""

from __future__ import annotations

import argparse
import logging
import sys

from tests.simulation import cron_world
from tests.simulation.causes import Violation
from tests.simulation.world import Report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=10_000, help="steps before the drain")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after another")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--cron", type=int, metavar="DAYS", help="days of the world of cron")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # lost connections are what this is about
    watch = _say if options.trace else None
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            if options.cron:
                _say(_days(cron_world.run(seed, options.cron, watch)))
                continue
            report = run(seed, options.steps, watch)
        except Violation as violation:
            _say(f"seed {seed}: VIOLATION {violation}")
            for note in violation.__notes__:
                _say(f"  {note}")
            return 1
        _say(_sentence(report))
    return 0


def _sentence(report: Report) -> str:
    ended = ", ".join(f"{count} {state}" for state, count in report.ended.items())
    happened = ", ".join(f"{count} {what}" for what, count in report.happened.items())
    return (
        f"seed {report.seed}: {report.steps} steps in {report.batches} batches, "
        f"{report.admitted} tasks ({ended}), "
        f"{report.granted} leases; {happened}; trace {report.trace_hash}"
    )


def _days(report: cron_world.Report) -> str:
    happened = ", ".join(f"{count} {what}" for what, count in report.happened.items())
    return f"seed {report.seed}: {report.days:.0f} days in {report.steps} steps; {happened}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
