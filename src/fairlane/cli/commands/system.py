"""The system as a whole: totals, a live overview, checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlane import config
from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import (
    Commands,
    Exit,
    Parser,
    build,
    nowhere,
    outline,
    store_only,
)
from fairlane.cli.options import seconds
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Output,
    Styled,
    complain,
    fields_of,
    print_json,
    shortened,
    size,
    span,
)
from fairlane.cli.output.terminal import drawn_table, rich_text, table
from fairlane.client.base import BaseClient
from fairlane.clock import SystemClock
from fairlane.core.errors import Forbidden, NotFound, StoreUnavailable, Unreachable
from fairlane.version import __version__

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

BAR: Final = 24
BAR_NARROW: Final = 8
WIDE: Final = 76  # the width from which everything fits
BESIDE_CURVE: Final = 32
SPARKS: Final = "▁▂▃▄▅▆▇█"
AGENTS_MAX: Final = 10
ATTENTION_MAX: Final = 3
_EMPTY: Final = (
    "no tasks have been submitted yet; try: fairlane submit --handler echo --param text=hello"
)


def register(commands: Commands) -> None:
    commands.add("stats", connected(stats))
    note = (
        "Press Ctrl-C to stop it. In a pipe it prints once; "
        "with --json it prints one line per update."
    )
    commands.add("top", connected(top), _top_options, epilog=note)
    commands.add("doctor", doctor, side=store_only)
    commands.add("help", help_, _help_options, side=nowhere)
    commands.add("version", version, side=nowhere)


# -------------------------------------------------------------------- stats


def stats(_: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.stats(), _draw_stats)


def _draw_stats(terminal: Terminal, stats: Fields) -> None:
    queue, metrics = stats["queue"], stats["metrics"]
    terminal.line(f"{queue['totalQueued']} queued, {queue['totalInflight']} in flight")
    names = ("Submitted", "Completed", "Failed", "Cancelled", "Rejected", "Expired", "Parked")
    totals = ", ".join(f"{metrics[f'tasks{name}']} {name.lower()}" for name in names)
    terminal.line(f"totals: {totals}")
    latency = span(round(metrics["avgDispatchLatencyMs"]))
    terminal.line(f"average time from queue to worker: {latency}")
    if metrics["agents"]:
        terminal.line("")
        counted = ("submitted", "completed", "failed", "cancelled", "rejected")
        columns: Columns = {
            "AGENT": "agent",
            "QUEUED": "queued",
            "IN FLIGHT": "inflight",
            **{name.upper(): name for name in counted},
        }
        idle = {"queued": 0, "inflight": 0}
        rows = [
            {"agent": agent, **idle, **queue["agents"].get(agent, {}), **totals}
            for agent, totals in metrics["agents"].items()
        ]
        terminal.table(columns, rows)


# -------------------------------------------------------------------- doctor


def doctor(args: argparse.Namespace) -> int:
    # Deferred because the other commands of this module do not need the engine (90 ms).
    from fairlane.cli.direct import examine  # noqa: PLC0415 - for the reason above

    report = examine(config.load({"store": args.store}).store)
    Output(args).show(report, _draw_report)
    return Exit.NOT_WELL if report["problems"] else Exit.OK


def _draw_report(terminal: Terminal, report: Fields) -> None:
    terminal.line(f"store   {report['store']} ({size(report['sizeBytes'])})")
    terminal.line(f"schema  {report['schemaVersion']}; the newest is {report['newestSchema']}")
    for problem in report["problems"]:
        terminal.line(Styled("error   ", "red"), problem)
    if not report["problems"]:
        checked = f"{', '.join(report['checked'])}: no problems found"
        terminal.line(Styled("ok      ", "green"), checked)


# -------------------------------------------------------------------- help and version


def _help_options(parser: Parser) -> None:
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="command, and its verb if any")


def help_(args: argparse.Namespace) -> int:
    """Print what `--help` prints after the same words."""
    name = " ".join(args.words)
    parser, leaves = build(args.words[0]) if args.words else outline()
    if name and name not in leaves:
        complain(f"unknown command {name!r}; see fairlane --help")
        return Exit.USAGE
    (leaves[name] if name else parser).print_help()
    return Exit.OK


def version(_: argparse.Namespace) -> int:
    sys.stdout.write(f"fairlane {__version__}\n")
    return Exit.OK


# -------------------------------------------------------------------- top


def _top_options(parser: Parser) -> None:
    parser.add_argument("--once", action="store_true", help="print once and exit")
    about = "time between updates (default: 1)"
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=1.0, help=about)


def top(args: argparse.Namespace, side: Side, out: Output) -> int:
    client = side.client
    if args.json:
        return _print_lines(client, args)
    console = out.terminal.console
    if args.once or not console.is_terminal:
        console.print(draw(look(client), width=console.width))
        return Exit.OK
    return _follow(client, console, args.interval)


def look(client: BaseClient) -> dict[str, Fields]:
    """Return everything that is drawn."""
    return {
        "lanes": fields_of(client.lanes()),
        "stats": fields_of(client.stats()),
        "history": fields_of(client.history("5m")),
        "nodes": _nodes(client),
        "attention": _attention(client),
    }


def _nodes(client: BaseClient) -> Fields:
    """Return the nodes, or none if the token may not see them."""
    try:
        return fields_of(client.nodes())
    except (Forbidden, NotFound):
        return {"nodes": [], "count": 0}


def _attention(client: BaseClient) -> Fields:
    """Return what needs attention, or nothing if the token may not see it."""
    try:
        return fields_of(client.attention())
    except (Forbidden, NotFound):
        return {"items": [], "count": 0}


def _print_lines(client: BaseClient, args: argparse.Namespace) -> int:
    while True:
        print_json(look(client))
        if args.once:
            return Exit.OK
        SystemClock().sleep(args.interval)


def _follow(client: BaseClient, console: Console, interval_seconds: float) -> int:
    """Draw until Ctrl-C, which is the normal way to leave and no error."""
    seen = look(client)
    try:
        first = draw(seen, width=console.width)
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                SystemClock().sleep(interval_seconds)
                seen, note = _look_again(client, seen)
                live.update(draw(seen, note, width=console.width), refresh=True)
    except KeyboardInterrupt:
        return Exit.OK


def _look_again(client: BaseClient, last: dict[str, Fields]) -> tuple[dict[str, Fields], str]:
    try:
        return look(client), ""
    except (Unreachable, StoreUnavailable) as error:
        return last, f"not up to date: {error.message}"


# -------------------------------------------------------------------- drawing


def draw(seen: Mapping[str, Fields], note: str = "", *, width: int) -> Group:
    """Return the overview for a screen of this width; bars and curves shrink to fit."""
    bar = BAR if width >= WIDE else BAR_NARROW
    parts: list[Table | Text] = [_headline(seen)]
    if note:
        parts.append(rich_text(note))
    lanes = [lane for lane in seen["lanes"]["lanes"] if _is_used(lane)]
    if not lanes:
        parts += [Text(""), Text(_EMPTY)]
    else:
        parts += [Text(""), _lane_table(lanes, bar)]
    if seen["attention"]["count"]:
        parts += [Text(""), *_attention_lines(seen["attention"])]
    points = seen["history"]["points"]
    if any(point["submitted"] or point["finished"] for point in points):
        parts += [Text(""), _curves(points, max(BAR_NARROW, width - BESIDE_CURVE))]
    if seen["history"]["agents"]:
        parts += [Text(""), _share_table(seen["history"]["agents"], bar)]
    if seen["nodes"]["nodes"]:
        parts += [Text(""), _node_table(seen["nodes"]["nodes"])]
    return Group(*parts)


def _attention_lines(attention: Fields) -> Iterator[Text]:
    """Yield the first things that need attention, one line each."""
    yield Text(f"{attention['summary']}; see fairlane attention", style="yellow")
    for one in attention["items"][:ATTENTION_MAX]:
        yield rich_text(f"  {shortened(one['text'], 100)}")


def _is_used(lane: Fields) -> bool:
    counted = ("active", "waiting", "parked", "completed", "failed")
    return lane["paused"] or any(lane[name] for name in counted)


def _headline(seen: Mapping[str, Fields]) -> Text:
    queue, done = seen["stats"]["queue"], seen["stats"]["metrics"]
    line = Text().append("fairlane top", style="bold")
    for count, word, style in (
        (queue["totalInflight"], "running", "yellow"),
        (queue["totalQueued"], "waiting", "cyan"),
        (done["tasksCompleted"], "done", "green"),
        (done["tasksFailed"], "failed", "red"),
        (done["tasksParked"], "parked", "magenta"),
    ):
        line.append(f"  {count} {word}", style=style if count else "bright_black")
    return line


def _lane_table(lanes: Sequence[Fields], width: int) -> Table:
    columns: Columns = {
        "LANE": "name",
        "SLOTS": lambda lane: _bar(lane["active"] / lane["ceiling"], "yellow", width),
        "USED": lambda lane: f"{lane['active']}/{lane['ceiling']}",
        "WAITING": "waiting",
        "OLDEST": lambda lane: span(lane["oldestWaitMs"]) if lane["oldestWaitMs"] else "-",
        "FAILED": "failed",
        "PARKED": "parked",
        "": lambda lane: Styled("paused", "yellow") if lane["paused"] else "",
    }
    return drawn_table(columns, lanes)


def _curves(points: Sequence[Fields], room: int) -> Table:
    """Draw tasks per second and waiting times over the last five minutes."""
    waits = [one["waitP95Ms"] or 0 for one in points]
    rows = [
        _curve(f"{name}/s", [_rate(one, name) for one in points], style, "{:.1f}".format, room)
        for name, style in (("submitted", "cyan"), ("finished", "green"), ("failed", "red"))
    ]
    rows.append(_curve("wait p95", waits, "magenta", lambda value: span(round(value)), room))
    return table(("LAST 5 MIN", "", "NOW", "MOST"), rows)


def _rate(point: Fields, name: str) -> float:
    """Return the rate per second of a step; steps may differ in length."""
    per_second: float = point[name] * 1000 / point["spanMs"] if point["spanMs"] else 0.0
    return per_second


def _curve(
    name: str, values: Sequence[float], style: str, spell: Callable[[float], str], room: int
) -> list[Text]:
    """Return a curve in the given room; if it is short, draw the maximum of neighbouring steps."""
    most = max(values, default=0)
    each = -(-len(values) // room)
    highs = [max(values[start : start + each]) for start in range(0, len(values), each)]
    drawn = "".join(SPARKS[round(value / most * 7)] if most else SPARKS[0] for value in highs)
    # The newest step is not complete, so the one before it counts as now.
    now = values[-2] if len(values) > 1 else values[-1]
    return [Text(name), Text(drawn, style=style), Text(spell(now)), Text(spell(most))]


def _share_table(agents: Sequence[Fields], width: int) -> Table:
    columns: Columns = {
        "AGENT": lambda one: "all others" if one["agentId"] is None else one["agentId"],
        "SHARE OF SLOTS": lambda one: _bar(one["share"], "green", width),
        "HAS": lambda one: f"{one['share']:.0%}",
        "FAIR": lambda one: f"{one['fairShare']:.0%}",
    }
    return drawn_table(columns, agents[:AGENTS_MAX], {"AGENT": 30})


def _node_table(nodes: Sequence[Fields]) -> Table:
    styles = {"ready": "green", "draining": "yellow", "silent": "red"}
    columns: Columns = {
        "NODE": "name",
        "PROCESS": lambda node: f"{node['host']}:{node['pid']}",
        "STATE": lambda node: Styled(node["state"], styles.get(node["state"], "")),
        "RUNNING": "running",
        "VERSION": "version",
    }
    return drawn_table(columns, nodes)


def _bar(share: float, style: str, width: int) -> Cell:
    filled = max(0, min(width, round(share * width)))
    if share > 0 and not filled:
        filled = 1
    return (Styled("█" * filled, style), Styled("░" * (width - filled), "bright_black"))
