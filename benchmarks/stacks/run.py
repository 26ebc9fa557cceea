"""Runs every stack in processes of its own, in alternation, and takes the median of each.

A stack that cannot be measured is a row too, with the reason. Fairlane's own run with this
interpreter, the others with the one that has them installed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.stacks import STACKS
from benchmarks.stacks.restate import PACKAGES

ROOT = Path(__file__).parents[2]
ROUNDS = 3
SECONDS_MAX = 300
STOP_SECONDS_MAX = 15

Row = dict[str, Any]


def measure(tasks: int, *, python: str, packages: str = "", rounds: int = ROUNDS) -> list[Row]:
    """One row per stack; `packages` is the folder with the modules of npm."""
    found: dict[str, list[Row]] = {name: [] for name in STACKS}
    reasons: dict[str, str] = {}
    for _ in range(rounds):
        for name in STACKS:
            if name in reasons:
                continue
            own = name.startswith("fairlane")
            row = _round(sys.executable if own else python, name, tasks, packages)
            if isinstance(row, str):
                reasons[name] = row
            else:
                found[name].append(row)
                print(f"  round: {json.dumps(row)}", file=sys.stderr, flush=True)
    return [_summary(name, found[name], reasons.get(name)) for name in STACKS]


def _summary(name: str, rows: list[Row], reason: str | None) -> Row:
    if not rows:
        return {"stack": name, "not_measured": reason}
    kept = rows[-1]
    return {
        key: round(median(row[key] for row in rows), 1)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
        for key, value in kept.items()
    } | {"rounds": len(rows)}


def _round(python: str, name: str, tasks: int, packages: str) -> Row | str:
    """The row of one round, or why there is none."""
    command = [python, "-m", "benchmarks.stacks.harness", name, "measure", str(tasks)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, PACKAGES: packages},
    )
    try:
        output, complaints = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"not done within {SECONDS_MAX} s"
    finally:
        _stop(process)
    if process.returncode == 0:
        row: Row = json.loads(output.splitlines()[-1])
        return row
    return (complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1]


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask the round to clean up after itself; if it cannot, end its whole group of processes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--packages", metavar="FOLDER", default="")
    arguments = parser.parse_args()
    rows = measure(
        arguments.tasks,
        python=arguments.peers,
        packages=arguments.packages,
        rounds=arguments.rounds,
    )
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
