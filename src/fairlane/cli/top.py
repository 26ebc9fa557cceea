"""`fairlane top`: the overview in a terminal, drawn again and again until Ctrl-C.

What is drawn comes from one look at the server, and a look that fails leaves the last one standing.
In a pipe, or with `--once`, it is printed one time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing, exits
from fairlane.cli.backends import backend
from fairlane.cli.output import Shape, print_json
from fairlane.client.sync import Client
from fairlane.clock import SystemClock
from fairlane.core.errors import Forbidden, NotFound, StoreUnavailable, Unreachable

BAR: Final = 24
BAR_NARROW: Final = 8
WIDE: Final = 76  # from so many columns on there is room for everything
BESIDE_CURVE: Final = 32
SPARKS: Final = "▁▂▃▄▅▆▇█"
AGENTS_MAX: Final = 10
_EMPTY: Final = (
    "nothing has been submitted yet; try: fairlane submit --handler echo --param text=hello"
)


def run(args: argparse.Namespace) -> int:
    with backend(args).client as client:
        if args.json:
            return _print_lines(client, args)
        console = drawing.console(sys.stdout)
        if args.once or not console.is_terminal:
            console.print(draw(look(client), width=console.width))
            return exits.OK
        return _follow(client, console, args.interval)


def look(client: Client) -> dict[str, Shape]:
    """Everything that is drawn, from one moment or nearly so."""
    return {
        "lanes": client.lanes(),
        "stats": client.stats(),
        "history": client.history("5m"),
        "nodes": _nodes(client),
    }


def _nodes(client: Client) -> Shape:
    """None for whoever may see only what is its own."""
    try:
        return client.nodes()
    except (Forbidden, NotFound):
        return {"nodes": [], "count": 0}


def _print_lines(client: Client, args: argparse.Namespace) -> int:
    while True:
        print_json(look(client))
        if args.once:
            return exits.OK
        SystemClock().sleep(args.interval)


def _follow(client: Client, console: Console, interval_seconds: float) -> int:
    """Until Ctrl-C, which is how one leaves it and no failure."""
    seen = look(client)
    try:
        first = draw(seen, width=console.width)
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                SystemClock().sleep(interval_seconds)
                seen, note = _look_again(client, seen)
                live.update(draw(seen, note, width=console.width), refresh=True)
    except KeyboardInterrupt:
        return exits.OK


def _look_again(client: Client, last: dict[str, Shape]) -> tuple[dict[str, Shape], str]:
    try:
        return look(client), ""
    except (Unreachable, StoreUnavailable) as error:
        return last, f"not up to date: {error.message}"


# -------------------------------------------------------------------- drawing


def draw(seen: Mapping[str, Shape], note: str = "", *, width: int) -> Group:
    """For a screen of so many columns: bars and curves are what gives way."""
    bar = BAR if width >= WIDE else BAR_NARROW
    parts: list[Table | Text] = [_headline(seen)]
    if note:
        parts.append(drawing.text(note))
    lanes = [lane for lane in seen["lanes"]["lanes"] if _is_used(lane)]
    if not lanes:
        parts += [Text(""), Text(_EMPTY)]
    else:
        parts += [Text(""), _lane_table(lanes, bar)]
    points = seen["history"]["points"]
    if any(point["submitted"] or point["finished"] for point in points):
        parts += [Text(""), _curves(points, max(BAR_NARROW, width - BESIDE_CURVE))]
    if seen["history"]["agents"]:
        parts += [Text(""), _agent_table(seen["history"]["agents"], bar)]
    if seen["nodes"]["nodes"]:
        parts += [Text(""), _node_table(seen["nodes"]["nodes"])]
    return Group(*parts)


def _is_used(lane: Shape) -> bool:
    counted = ("active", "waiting", "parked", "completed", "failed")
    return lane["paused"] or any(lane[name] for name in counted)


def _headline(seen: Mapping[str, Shape]) -> Text:
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


def _lane_table(lanes: Sequence[Shape], bar: int) -> Table:
    rows = []
    for lane in lanes:
        oldest = drawing.span(lane["oldestWaitMs"]) if lane["oldestWaitMs"] else "-"
        rows.append(
            [
                drawing.text(lane["name"]),
                _bar(lane["active"] / lane["ceiling"], "yellow", bar),
                Text(f"{lane['active']}/{lane['ceiling']}", justify="right"),
                Text(str(lane["waiting"]), justify="right"),
                Text(oldest, justify="right"),
                Text(str(lane["failed"]), justify="right"),
                Text(str(lane["parked"]), justify="right"),
                Text("paused", style="yellow") if lane["paused"] else Text(""),
            ]
        )
    names = ("LANE", "SLOTS", "USED", "WAITING", "OLDEST", "FAILED", "PARKED", "")
    return drawing.table(names, rows)


def _curves(points: Sequence[Shape], room: int) -> Table:
    """Tasks per second, and how long they waited, over the last five minutes."""
    waits = [one["waitP95Ms"] or 0 for one in points]
    rows = [
        _curve(f"{name}/s", [_rate(one, name) for one in points], style, "{:.1f}".format, room)
        for name, style in (("submitted", "cyan"), ("finished", "green"), ("failed", "red"))
    ]
    rows.append(
        _curve("wait p95", waits, "magenta", lambda value: drawing.span(round(value)), room)
    )
    return drawing.table(("LAST 5 MIN", "", "NOW", "MOST"), rows)


def _rate(point: Shape, name: str) -> float:
    """Per second; a step that goes on or was missed tells of another span than the rest."""
    per_second: float = point[name] * 1000 / point["spanMs"] if point["spanMs"] else 0.0
    return per_second


def _curve(
    name: str, values: Sequence[float], style: str, spell: Callable[[float], str], room: int
) -> list[Text]:
    """As long as there is room for: where that is short, the greatest of neighbours is drawn."""
    most = max(values, default=0)
    each = -(-len(values) // room)
    highs = [max(values[start : start + each]) for start in range(0, len(values), each)]
    drawn = "".join(SPARKS[round(value / most * 7)] if most else SPARKS[0] for value in highs)
    # The newest step has only begun: what counts as now is the one before.
    now = values[-2] if len(values) > 1 else values[-1]
    return [Text(name), Text(drawn, style=style), Text(spell(now)), Text(spell(most))]


def _agent_table(agents: Sequence[Shape], bar: int) -> Table:
    rows = []
    for one in agents[:AGENTS_MAX]:
        name = drawing.text(one["agentId"]) if one["agentId"] is not None else Text("all others")
        share, fair = one["share"], one["fairShare"]
        rows.append([name, _bar(share, "green", bar), Text(f"{share:.0%}"), Text(f"{fair:.0%}")])
    return drawing.table(("AGENT", "SHARE OF SLOTS", "HAS", "FAIR"), rows, widths={"AGENT": 30})


def _node_table(nodes: Sequence[Shape]) -> Table:
    styles = {"ready": "green", "draining": "yellow", "silent": "red"}
    rows = [
        [
            drawing.text(one["name"]),
            drawing.text(f"{one['host']}:{one['pid']}"),
            Text(one["state"], style=styles.get(one["state"], "")),
            Text(str(one["running"]), justify="right"),
            drawing.text(one["version"]),
        ]
        for one in nodes
    ]
    return drawing.table(("NODE", "PROCESS", "STATE", "RUNNING", "VERSION"), rows)


def _bar(share: float, style: str, width: int) -> Text:
    filled = max(0, min(width, round(share * width)))
    if share > 0 and not filled:
        filled = 1
    return Text("█" * filled, style=style).append("░" * (width - filled), style="bright_black")
