"""`make bench`: one table, ours and peers, with ratios and the bars we set ourselves.

`--quick` for small numbers, `--peers PYTHON` to measure the peers too with the interpreter of the
environment they are installed in, `--write FILE` to keep the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import dashboard, families, ours, queue, resources, runs, servers, tokens
from benchmarks.ours import Row

Line = tuple[str, str, str]

START, END = "<!-- table -->", "<!-- /table -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the numbers")
    parser.add_argument("--peers", metavar="PYTHON", help="measure the peers with this interpreter")
    parser.add_argument(
        "--write", metavar="FILE", help="put the table between the file's marks, too"
    )
    parser.add_argument("--only", metavar="WORD", help="only measurements whose name has this word")
    arguments = parser.parse_args()
    if arguments.write and not has_marks(Path(arguments.write)):
        parser.error(f"--write: {arguments.write} is no file with {START} and {END}")
    scale = 0.1 if arguments.quick else 1.0
    with postgres() as postgres_url:
        lines = list(measure(scale, postgres_url, arguments.only or ""))
        if arguments.peers and not arguments.only:
            lines += measure_peers(scale, postgres_url, arguments.peers, lines)
            lines += measure_stacks(scale, arguments.peers)
    if arguments.write:
        write(Path(arguments.write), lines)


def plan_of(scale: float) -> list[tuple[str, Callable[[str], Row], str]]:

    def n(count: int) -> int:
        return max(1000, int(count * scale))

    return [
        ("python api, 16 callers", lambda s: ours.lifecycle(s, n(48_000), 16), ""),
        ("python api, 256 callers", lambda s: ours.lifecycle(s, n(92_160) // 768 * 768, 256),
         "lifecycle >= 10,000/s on SQLite"),
        ("10,000 sessions of 10 tasks", lambda s: ours.sessions(s, n(10_000), 10),
         "within 25 % of the line above"),
        ("submit to start, idle", ours.latency, "p50 <= 3 ms, p99 <= 15 ms on SQLite"),
        ("http, one POST per task", lambda s: ours.http_submit(s, n(40_000)), ">= 9,000/s"),
        ("http, batches of 50", lambda s: ours.http_batch(s, n(10_000) // 10), ""),
        ("http, a stream of lines", lambda s: ours.http_stream(s, n(200_000)), ">= 30,000/s"),
        ("http, run by the built-in worker", lambda s: ours.http_echo(s, n(20_000)), ""),
        ("http, executed through an HTTP stub", lambda s: ours.http_actions(s, n(20_000)),
         "> 3,100/s"),
        ("dashboard open, http, run by the built-in worker",
         lambda s: dashboard.cost(s, n(20_000)), "falls by < 5 %"),
        ("dashboard, next page of 100,000", lambda s: dashboard.listing(s, n(100_000)), ""),
        ("tokens on, http, one POST per task", lambda s: tokens.cost(s, n(40_000)),
         "falls by < 10 %"),
        ("fairness under a flood", ours.fairness, "99 tasks of 10 ms on 10 slots: 100 ms at best"),
        ("idle server", ours.idle, "< 1 % CPU"),
        ("idle, 10,000 enabled cron jobs", lambda s: ours.idle_jobs(s, 10_000), "< 1 % CPU"),
    ]  # fmt: skip


def families_of(scale: float) -> list[tuple[str, Callable[[str], Row]]]:
    """As large on either database: their bounds are about their size."""
    width, length = int(10_000 * scale), int(1000 * scale)
    return [
        (f"fan-out, 1 -> {width:,} -> 1", lambda s: families.fan_out(s, width)),
        (f"chain of {length:,}", lambda s: families.chain(s, length)),
    ]


def measure(scale: float, postgres_url: str, only: str) -> Iterator[Line]:
    """Name, figure, and the bar it is held against."""
    for name, run, bar in [*plan_of(scale), *resources.plan_of(scale), *runs.plan_of(scale)]:
        if only in name:
            with servers.sqlite_file() as url:
                yield show(f"sqlite: {name}", run(url), bar)
    for name, run, _ in plan_of(scale * 0.4)[:8]:
        if only in name:
            with database(postgres_url) as url:
                yield show(f"postgres: {name}", run(url), "")
    for name, run in families_of(scale):
        if only in name:
            with servers.sqlite_file() as url:
                yield show(f"sqlite: {name}", run(url), "")
            with database(postgres_url) as url:
                yield show(f"postgres: {name}", run(url), "")
    if only in "two nodes":
        with database(postgres_url) as url:
            row = ours.lifecycle_on_nodes(url, max(2000, int(20_000 * scale)), 64, 2)
            yield show("postgres: two nodes, 64 callers each", row, ">= 5,000/s")
    if only in "queue and plan":
        yield from measure_queue(scale)
    if only in "flat":
        yield from measure_flat(scale)


def measure_queue(scale: float) -> Iterator[Line]:
    with servers.sqlite_file() as url:
        row = queue.adds(url, int(1000 * scale))
        yield show("sqlite: queue add x 1,000", row, "< 188 s by command")
    bar = "plan < 135 ms, lease < 161 ms by command, and flat"
    for count in (10_000, 1_000_000) if scale == 1 else (10_000, 100_000):
        with servers.sqlite_file() as url:
            row = queue.plan_and_lease(url, count)
            yield show(f"sqlite: plan and lease, {count:,} entries", row, bar)


def measure_flat(scale: float) -> Iterator[Line]:
    sizes = [(1_000, 10), (1_000, 1_000), (100_000, 1_000), (1_000_000, 10_000)]
    sizes = sizes if scale == 1 else sizes[:3]
    bar = "lease within 1.5x of the first"
    with ExitStack() as stack:
        stores = [(stack.enter_context(servers.sqlite_file()), *size) for size in sizes]
        rows = ours.flat(stores)
        for (_, queued, agents), row in zip(stores, rows, strict=True):
            del row["rss_mb"]  # of all of them together
            yield show(f"sqlite: flat, {queued:,} queued, {agents:,} agents", row, bar)
        (alone,) = ours.flat(stores[-1:])
        del alone["lease_ratio"]
        yield show("sqlite: the last one alone", alone, "RSS <= 150 MB")
        largest = ours.ready_and_rss(stores[-1][0])
        yield show("sqlite: server on that", largest, "<= 1 s, <= 150 MB")


def measure_peers(scale: float, url: str, python: str, lines: list[Line]) -> list[Line]:
    from benchmarks.peers.run import measure as measure_all

    mine = {name: figure for name, figure, _ in lines}
    figure = mine.get("sqlite: python api, 256 callers", "")
    own = int(figure.split("lifecycle_per_s=")[1].split()[0]) if "lifecycle_per_s" in figure else 0
    found = []
    for row in measure_all(max(500, int(2000 * scale)), url, python=python):
        kept = {key: value for key, value in row.items() if key.endswith("_per_s")}
        ratio = f"ours is {own / row['lifecycle_per_s']:.1f}x" if own else ""
        durable = "durable" if row["durable"] else "not durable"
        name = f"peer: {row['peer']} {row['version']} on {row['store']}, {durable}"
        found.append(show(name, kept, ratio))
    return found


def measure_stacks(scale: float, python: str) -> list[Line]:
    """Servers that users would pick instead, beside ours, in alternation."""
    from benchmarks.stacks.run import measure as measure_all

    packages = str(Path(python).parents[1] / "npm")
    rows = measure_all(max(400, int(4000 * scale)), python=python, packages=packages)
    ours = next((row.get("cpu_us") for row in rows if row["stack"] == "fairlane"), None)
    found = []
    for row in rows:
        if "not_measured" in row:
            found.append(show(f"server: {row['stack']}", {"not_measured": row["not_measured"]}, ""))
            continue
        kept = {key: row[key] for key in ("lifecycle_per_s", "cpu_us", "server_us", "worker_us")}
        kept |= {key: row[key] for key in ("wal_bytes", "dead_tuples") if key in row}
        durable = "durable" if row["durable"] else "not durable"
        name = f"server: {row['stack']} {row['version']} on {row['store']}, {durable}"
        ratio = f"CPU {row['cpu_us'] / ours:.1f}x ours" if ours else ""
        found.append(show(name, kept, ratio))
    return found


def show(name: str, row: Row, bar: str) -> Line:
    kept = {key: value for key, value in row.items() if key not in ("began", "_", "statuses")}
    figure = " ".join(f"{key}={value}" for key, value in kept.items())
    print(f"{name:45} {figure:75} {bar}", flush=True)
    return name, figure, bar


def has_marks(file: Path) -> bool:
    """Ask before anything is measured: that takes long."""
    found = file.is_file() and re.search(f"{START}.*{END}", file.read_text("utf-8"), re.DOTALL)
    return bool(found)


def write(file: Path, lines: list[Line]) -> None:
    """Replace what stands between the two marks in the file."""
    text = file.read_text("utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    table = ["| measurement | figure | bar, or ratio |", "|---|---|---|"]
    table += [f"| {name} | {figure} | {bar} |" for name, figure, bar in lines]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    body = "\n".join(
        [f"Measured on: {machine}, with `{' '.join(sys.argv[1:]) or 'no flags'}`.", ""]
    )
    file.write_text(f"{before}{START}\n{body}\n" + "\n".join(table) + f"\n{END}{after}", "utf-8")


@contextmanager
def postgres() -> Iterator[str]:
    from tests.postgres import running_postgres

    with running_postgres() as url:
        yield url


@contextmanager
def database(server: str) -> Iterator[str]:
    from tests.postgres import new_database

    with new_database(server) as url:
        yield url


if __name__ == "__main__":
    main()
