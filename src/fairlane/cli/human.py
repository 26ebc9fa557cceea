"""Output for people: tables, relative times, coloured states.

Colours only on a terminal (rich minds NO_COLOR); in a pipe a line is as long as it has to be.
Everything that comes from tasks goes through `shown` and is never read as markup.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlane import wire
from fairlane.cli.output import Deliveries, Shape
from fairlane.cli.text import shortened, shown
from fairlane.clock import SystemClock
from fairlane.core import lifecycle

STYLES: Final[Mapping[str, str]] = {
    lifecycle.QUEUED: "cyan",
    lifecycle.ASSIGNED: "blue",
    lifecycle.RUNNING: "yellow",
    lifecycle.PARKED: "magenta",
    lifecycle.DONE: "green",
    lifecycle.FAILED: "red",
    lifecycle.CANCELLED: "bright_black",
    lifecycle.REJECTED: "red",
}
_PIPE_WIDTH: Final = 10_000
# By the width of the screen: how wide some columns may get, 0 for not at all.
_LAYOUTS: Final[Sequence[tuple[int, Mapping[str, int]]]] = (
    (_PIPE_WIDTH, {}),
    (120, {"AGENT": 20, "LANE": 12, "WHAT": 24}),
    (0, {"AGENT": 10, "LANE": 0, "WHAT": 13, "TOOK": 0, "NOTE": 0}),
)
_NOTE_CHARACTERS: Final = 200
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_MOMENTS: Final = ("createdAt", "startedAt", "completedAt", "deadline", "nextEligibleAt")
# Fields of a task that are part of another line, or say nothing that another line does not.
_WITHIN: Final = frozenset(
    {"action", "handler", "tabId", "ref", "selector", "kind", "maxAttempts", "position"}
    | {"latencyMs", "parkedReason", "leaseExpiresAt"}
)


class HumanOutput:
    def __init__(self) -> None:
        self._console = _console(sys.stdout)
        self._clock = SystemClock()
        self._pages = 0

    def submitted(self, answer: Shape) -> None:
        if "batchId" in answer:
            self._batch(answer)
        else:
            place = f", position {answer['position']}" if answer.get("position") else ""
            state = _state(str(answer["state"]))
            self._line(f"submitted {answer['taskId']} (", state, f"{place})")

    def tasks(self, page: Shape, *, more: bool) -> None:
        self._pages += 1
        if page["tasks"]:
            self._print(self._task_table(page["tasks"], header=self._pages == 1))
        elif self._pages == 1:
            self._line("no tasks")
        if "nextCursor" in page and not more:
            hint = f"there are more: add --cursor {shown(str(page['nextCursor']))}, or --all"
            _console(sys.stderr).print(Text(hint, style="bright_black"))

    def task(self, task: Shape, deliveries: Deliveries) -> None:
        table = _grid()
        for label, value in self._task_lines(task):
            table.add_row(Text(label, style="bright_black"), value)
        for row in deliveries:
            table.add_row(Text("webhook", style="bright_black"), self._delivery(row))
        self._print(table)

    def ended(self, tasks: Sequence[Shape]) -> None:
        if len(tasks) == 1:
            self.task(tasks[0], ())
        else:
            self._print(self._task_table(tasks, header=True))

    def cancelled(self, answer: Shape) -> None:
        self._line(f"cancelled {answer['taskId']}")

    def stats(self, stats: Shape) -> None:
        queue, metrics = stats["queue"], stats["metrics"]
        self._line(f"{queue['totalQueued']} queued, {queue['totalInflight']} in flight")
        names = ("Submitted", "Completed", "Failed", "Cancelled", "Rejected", "Expired", "Parked")
        totals = ", ".join(f"{metrics[f'tasks{name}']} {name.lower()}" for name in names)
        self._line(f"since the beginning: {totals}")
        self._line(f"{metrics['avgDispatchLatencyMs']:g} ms from queue to worker on average")
        if metrics["agents"]:
            self._line("")
            self._print(_agent_table(queue["agents"], metrics["agents"]))

    def doctor(self, report: Shape) -> None:
        self._line(f"store   {report['store']} ({_size(report['sizeBytes'])})")
        self._line(f"schema  {report['schemaVersion']}, newest is {report['newestSchema']}")
        for problem in report["problems"]:
            self._line(Text("wrong   ", style="red"), problem)
        if not report["problems"]:
            checked = f"{', '.join(report['checked'])}: nothing disagrees"
            self._line(Text("good    ", style="green"), checked)

    def secret(self, answer: Shape) -> None:
        self._line(answer["secret"])

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        console = _console(sys.stderr)
        if not console.is_terminal or console.is_dumb_terminal:
            yield lambda _: None
            return
        with console.status("") as status:
            yield lambda text: status.update(Text(shown(text)))

    # ---------------------------------------------------------------- parts

    def _print(self, table: Table) -> None:
        if self._console.is_terminal:
            self._console.print(table)
            return
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            self._line(line.rstrip())

    def _line(self, *parts: str | Text) -> None:
        """One line, never broken, so that what is copied from it is whole."""
        texts = [part if isinstance(part, Text) else Text(shown(part)) for part in parts]
        self._console.print(Text.assemble(*texts), soft_wrap=True)

    def _batch(self, answer: Shape) -> None:
        rows = [
            [
                _text(item.get("taskId", "-")),
                _state(item["state"]),
                _text(item.get("position", "")),
                _text(item.get("error", "")),
            ]
            for item in answer["tasks"]
        ]
        self._print(_table(("TASK", "STATE", "PLACE", "NOTE"), rows))
        outcome = f"{answer['accepted']} accepted, {answer['rejected']} rejected"
        self._line(f"batch {answer['batchId']}: {outcome}")

    def _task_table(self, tasks: Sequence[Shape], *, header: bool) -> Table:
        columns: dict[str, Callable[[Shape], Text]] = {
            "TASK": lambda task: _text(task["taskId"]),
            "STATE": lambda task: _state(task["state"]),
            "AGENT": lambda task: _text(task["agentId"]),
            "LANE": lambda task: _text(task["lane"]),
            "WHAT": lambda task: _text(_what(task)),
            "CREATED": lambda task: _text(self._ago(task["createdAt"])),
            "TOOK": lambda task: _text(_took(task)),
            "NOTE": lambda task: _text(_note(task)),
        }
        widths = next(widths for least, widths in _LAYOUTS if self._console.width >= least)
        names = [name for name in columns if widths.get(name) != 0]
        rows = [[columns[name](task) for name in names] for task in tasks]
        return _table(names, rows, header=header, widths=widths)

    def _task_lines(self, task: Shape) -> Iterator[tuple[str, Text]]:
        yield "task", _text(task["taskId"], limit=None)
        yield "state", Text.assemble(_state(task["state"]), Text(shown(self._state_note(task))))
        yield "what", _text(_what(task), limit=None)
        for name, value in task.items():
            if name in _WITHIN or name in ("taskId", "state"):
                continue
            if name in _MOMENTS:
                yield _label(name), _text(f"{value} ({self._ago(value)})")
            elif name == "attempts":
                yield "attempts", _text(f"{value} of {task['maxAttempts']}")
            elif isinstance(value, str | int | float) and name != "result":
                yield _label(name), _text(value, limit=None)
            else:
                yield _label(name), _json(value)

    def _state_note(self, task: Shape) -> str:
        if "latencyMs" in task:
            return f", took {_span(task['latencyMs'])}"
        if task["state"] == lifecycle.QUEUED and "position" in task:
            return f", handed in at position {task['position']}"
        if "leaseExpiresAt" in task:
            return f", leased {self._ago(task['leaseExpiresAt'], before='until ')}"
        return ""

    def _delivery(self, row: Sequence[Any]) -> Text:
        """`row` as in `Views.deliveries`."""
        _, url, event, state, attempts, error, due_at, settled_at = row
        told = f"{event} to {url}: {state.replace('_', ' ')} after {attempts} tries"
        if settled_at is not None:
            told += f", {_distance(settled_at, self._clock.now())}"
        elif due_at is not None:
            told += f", next {_distance(due_at, self._clock.now())}"
        return _text(told + (f" ({error})" if error else ""), limit=None)

    def _ago(self, moment: str, before: str = "") -> str:
        return before + _distance(_at(moment), self._clock.now())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1 here; what a closed pipe means is decided in one place."""
        raise BrokenPipeError


def _console(file: TextIO) -> Console:
    width = None if file.isatty() else _PIPE_WIDTH
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def _table(
    names: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    header: bool = True,
    widths: Mapping[str, int] | None = None,
) -> Table:
    """Each column as wide as it needs, but not wider than `widths` says; the last has the rest."""
    table = Table(box=None, show_header=header, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        needed = max([len(name), *(row[number].cell_len for row in rows)])
        width = min(needed, (widths or {}).get(name, needed))
        last = number == len(names) - 1
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            min_width=len(name) if last else width,
            max_width=width,
        )
    for row in rows:
        table.add_row(*row)
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _agent_table(now: Shape, ever: Shape) -> Table:
    fields = ("submitted", "completed", "failed", "cancelled", "rejected")
    rows = []
    for agent, totals in ever.items():
        has = now.get(agent, {})
        counts = [has.get("queued", 0), has.get("inflight", 0), *(totals[name] for name in fields)]
        rows.append([_text(agent), *(Text(str(count), justify="right") for count in counts)])
    names = ("AGENT", "QUEUED", "IN FLIGHT", *(name.upper() for name in fields))
    return _table(names, rows)


def _text(value: Any, limit: int | None = _NOTE_CHARACTERS) -> Text:
    text = shown(str(value))
    return Text(text if limit is None else shortened(text, limit))


def _state(state: str) -> Text:
    return Text(shown(state), style=STYLES.get(state, ""))


def _json(value: Any) -> Text:
    pretty = msgspec.json.format(wire.encode(value), indent=2).decode()
    return Text(shown(pretty, lines=True))


def _label(name: str) -> str:
    """`sessionKey` as `session`, `createdAt` as `created`, `callbackUrl` as `callback url`."""
    words = "".join(f" {one.lower()}" if one.isupper() else one for one in name).split()
    understood = len(words) > 1 and words[-1] in ("at", "id", "key")
    return shown(" ".join(words[:-1] if understood else words))


def _what(task: Shape) -> str:
    if "handler" in task:
        return f"handler {task['handler']}"
    where = [f"tab {task['tabId']}"] if "tabId" in task else []
    where += [str(task[name]) for name in ("ref", "selector") if name in task]
    return " ".join(
        [str(task.get("action", task.get("kind", ""))), *(["on", *where] * bool(where))]
    )


def _took(task: Shape) -> str:
    return _span(task["latencyMs"]) if "latencyMs" in task else ""


def _note(task: Shape) -> str:
    if "error" in task:
        return str(task["error"])
    return f"waits for its {task['gate']}" if "gate" in task else ""


def _at(moment: str) -> int:
    return int(datetime.fromisoformat(moment.upper()).timestamp() * 1000)


def _distance(at: int, now: int) -> str:
    """How long ago, or how far ahead."""
    if abs(now - at) < 1000:
        return "just now"
    return f"{_rough(now - at)} ago" if at < now else f"in {_rough(at - now)}"


def _rough(milliseconds: int) -> str:
    """In the largest unit of which there are at least two."""
    name, unit = next((one for one in _UNITS if milliseconds >= 2 * one[1]), _UNITS[-1])
    return f"{round(milliseconds / unit)} {name}"


def _span(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return wire.span(milliseconds // 1000)


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
