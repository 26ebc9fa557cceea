"""Output for people: tables, relative times, coloured states.

Colours only on a terminal (rich minds NO_COLOR); in a pipe a line is as long as it has to be.
Everything that comes from tasks goes through `shown` and is never read as markup.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.output import Deliveries, Say, Shape
from fairlane.cli.text import shortened, shown
from fairlane.clock import SystemClock
from fairlane.core import events, lifecycle

# By the width of the screen: how wide some columns may get, 0 for not at all.
_LAYOUTS: Final[Sequence[tuple[int, Mapping[str, int]]]] = (
    (drawing.PIPE_WIDTH, {}),
    (120, {"AGENT": 20, "LANE": 12, "WHAT": 24}),
    (0, {"AGENT": 10, "LANE": 0, "WHAT": 13, "TOOK": 0, "NOTE": 0}),
)
_INSTRUCTION_CHARACTERS: Final = 40
_MOMENTS: Final = ("createdAt", "startedAt", "completedAt", "deadline", "nextEligibleAt")
# Fields of a task that are part of another line, or say nothing that another line does not.
_WITHIN: Final = frozenset(
    {"action", "handler", "tabId", "ref", "selector", "kind", "maxAttempts", "position"}
    | {"latencyMs", "executionTimeMs", "parkedReason", "leaseExpiresAt"}
    | {"attemptLog", "retryCount"}
)


class HumanOutput:
    def __init__(self) -> None:
        self._console = drawing.console(sys.stdout)
        self._clock = SystemClock()
        self._begun = False  # a list
        self._attempt = 0

    def submitted(self, answer: Shape) -> None:
        if "batchId" in answer:
            self._batch(answer)
        else:
            place = f", position {answer['position']}" if answer.get("position") else ""
            state = drawing.state(str(answer["state"]))
            self._line(f"submitted {answer['taskId']} (", state, f"{place})")

    def tasks(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["tasks"], self._task_table, "no tasks", more=more)

    def task(self, task: Shape, deliveries: Deliveries) -> None:
        table = drawing.grid()
        for label, value in self._task_lines(task):
            table.add_row(Text(label, style="bright_black"), value)
        for row in deliveries:
            table.add_row(Text("webhook", style="bright_black"), self._delivery(row))
        self._print(table)
        if task.get("attemptLog"):
            self._line("")
            self._print(self._attempt_table(task["attemptLog"]))

    def why(self, answer: Shape) -> None:
        self._line(f"{answer['taskId']}  ", drawing.state(answer["state"]), f"  {answer['reason']}")
        if len(answer["waitingFor"]) > 1:
            self._line(f"waits for {', '.join(answer['waitingFor'])}")

    def ended(self, tasks: Sequence[Shape]) -> None:
        if len(tasks) == 1:
            self.task(tasks[0], ())
        else:
            self._print(self._task_table(tasks, header=True))

    def cancelled(self, answer: Shape) -> None:
        self._line(f"cancelled {answer['taskId']}")

    def again(self, answer: Shape) -> None:
        self._line(f"queued {answer['taskId']} again (", drawing.state(answer["state"]), ")")

    def many(self, answer: Shape, verb: str) -> None:
        again = "" if verb == "cancel" else " again"
        if answer["dryRun"]:
            would = "cancel" if verb == "cancel" else "queue"
            self._line(f"would {would} {tasks(answer['matched'])}{again}")
            for task_id in answer["taskIds"]:
                self._line(task_id)
            return
        did = "cancelled" if verb == "cancel" else "queued"
        left = answer["matched"] - answer["changed"]
        rest = f"; {tasks(left)} could not be" if left else ""
        self._line(f"{did} {tasks(answer['changed'])}{again}{rest}")

    def pruned(self, answer: Shape) -> None:
        did = "would forget" if answer["dryRun"] else "forgot"
        self._line(f"{did} {tasks(answer['tasks'])}")

    def batches(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["batches"], self._batch_table, "no batches", more=more)

    def batch(self, batch: Shape) -> None:
        table = drawing.grid()
        for label, value in self._batch_lines(batch):
            table.add_row(Text(label, style="bright_black"), value)
        self._print(table)

    def batch_ended(self, batch: Shape, members: Sequence[Shape]) -> None:
        self.ended(members)
        parts = f"; {_by_state(batch)}" if batch["byState"] else ""
        self._line(f"batch {batch['batchId']}: ", drawing.state(batch["state"]), parts)

    def batch_cancelled(self, answer: Shape) -> None:
        self._line(f"cancelled {answer['batchId']} ({tasks(answer['cancelled'])})")

    def event(self, event: Shape) -> None:
        about = str(event.get("taskId") or event.get("batchId", "-"))
        style = drawing.STYLES.get(event.get("state", ""), "")
        kind = Text(f"{shown(event['type']):<15}", style=style)
        head = f"{event['id']:>6}  {event['timestamp']}  "
        note = drawing.text(_event_note(event))
        self._line(head, kind, Text("  "), Text(shown(about)), Text("  " if note else ""), note)

    def piece(self, piece: Shape) -> None:
        self._attempt = self._attempt or piece["attempt"]
        if piece["attempt"] != self._attempt:
            self._attempt = piece["attempt"]
            self._note(f"attempt {self._attempt}")
        self._write(str(piece["text"]))

    def output(self, output: Shape) -> None:
        self._write(str(output["text"]))
        if output["text"] and not output["text"].endswith("\n"):
            self._write("\n")
        if output["truncated"]:
            self._note("there was more than is kept")

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
        self._line(f"store   {report['store']} ({drawing.size(report['sizeBytes'])})")
        self._line(f"schema  {report['schemaVersion']}, newest is {report['newestSchema']}")
        for problem in report["problems"]:
            self._line(Text("wrong   ", style="red"), problem)
        if not report["problems"]:
            checked = f"{', '.join(report['checked'])}: nothing disagrees"
            self._line(Text("good    ", style="green"), checked)

    def secret(self, answer: Shape) -> None:
        self._line(answer["secret"])

    @contextlib.contextmanager
    def progress(self, total: int, *, plain: bool = False) -> Iterator[Say]:
        console = drawing.console(sys.stderr)
        if not console.is_terminal or console.is_dumb_terminal:
            yield _lines(total) if plain else lambda *_: None
        elif total == 1:
            with console.status("") as status:
                yield lambda _, text: status.update(Text(shown(text)))
        else:
            with bar(console) as progress:
                task = progress.add_task("", total=total)
                yield lambda done, text: progress.update(
                    task, completed=done, description=shown(text)
                )

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

    def _write(self, text: str) -> None:
        """Text as it is, several lines of it or a part of one."""
        sys.stdout.write(shown(text, lines=True))
        sys.stdout.flush()

    def _note(self, text: str) -> None:
        sys.stdout.flush()
        drawing.console(sys.stderr).print(Text(shown(text), style="bright_black"))

    def _secret(self, secret: str, about: str) -> None:
        """The secret goes to the output and what is said about it elsewhere, so that `> file` keeps
        the secret and nothing besides.
        """
        sys.stderr.write(f"{shown(about)}\n")
        sys.stdout.write(f"{secret}\n")

    def _page(
        self,
        page: Shape,
        items: Sequence[Shape],
        table: Callable[..., Table],
        none: str,
        *,
        more: bool,
    ) -> None:
        """One page of a list, and whether there are more; `more`: the next page will follow.

        The header stands once, over the first page that has something: a page may be empty before.
        """
        if items:
            self._print(table(items, header=not self._begun))
            self._begun = True
        elif not self._begun and not (more and "nextCursor" in page):
            for line in ("none so far" if "nextCursor" in page else none).splitlines():
                self._line(line)
        self._tell_of_more(page, more=more)

    def _tell_of_more(self, page: Shape, *, more: bool) -> None:
        if "nextCursor" in page and not more:
            self._note(f"there are more: add --cursor {page['nextCursor']}, or --all")

    def _attempt_table(self, log: Sequence[Shape]) -> Table:
        rows = [
            [
                Text(str(one["attempt"]), justify="right"),
                drawing.text(self._ago(one["startedAt"])),
                drawing.text(_took_between(one)),
                drawing.text(one.get("outcome", "running")),
                drawing.text(one.get("worker", "")),
                drawing.text(one.get("error", "")),
            ]
            for one in log
        ]
        return drawing.table(("ATTEMPT", "STARTED", "TOOK", "OUTCOME", "WORKER", "ERROR"), rows)

    def _batch_table(self, batches: Sequence[Shape], *, header: bool) -> Table:
        rows = [
            [
                drawing.text(one["batchId"]),
                drawing.state(one["state"]),
                drawing.text(one["agentId"]),
                Text(str(one["total"]), justify="right"),
                Text(str(one["open"]), justify="right"),
                drawing.text(self._ago(one["createdAt"])),
            ]
            for one in batches
        ]
        names = ("BATCH", "STATE", "AGENT", "TASKS", "OPEN", "CREATED")
        return drawing.table(names, rows, header=header)

    def _batch_lines(self, batch: Shape) -> Iterator[tuple[str, Text]]:
        yield "batch", drawing.text(batch["batchId"], limit=None)
        yield "state", drawing.state(batch["state"])
        yield "tasks", drawing.text(f"{batch['total']}: {_by_state(batch)}")
        for name, value in batch.items():
            if name in _MOMENTS:
                yield drawing.label(name), drawing.text(f"{value} ({self._ago(value)})")
            elif name in ("agentId", "parallelism", "callbackUrl"):
                yield drawing.label(name), drawing.text(value, limit=None)

    def _batch(self, answer: Shape) -> None:
        rows = [
            [
                drawing.text(item.get("taskId", "-")),
                drawing.state(item["state"]),
                drawing.text(item.get("position", "")),
                drawing.text(item.get("error", "")),
            ]
            for item in answer["tasks"]
        ]
        self._print(drawing.table(("TASK", "STATE", "PLACE", "NOTE"), rows))
        outcome = f"{answer['accepted']} accepted, {answer['rejected']} rejected"
        self._line(f"batch {answer['batchId']}: {outcome}")

    def _task_table(self, tasks: Sequence[Shape], *, header: bool) -> Table:
        columns: dict[str, Callable[[Shape], Text]] = {
            "TASK": lambda task: drawing.text(task["taskId"]),
            "STATE": lambda task: drawing.state(task["state"]),
            "AGENT": lambda task: drawing.text(task["agentId"]),
            "LANE": lambda task: drawing.text(task["lane"]),
            "WHAT": lambda task: drawing.text(_what(task)),
            "CREATED": lambda task: drawing.text(self._ago(task["createdAt"])),
            "TOOK": lambda task: drawing.text(_took(task)),
            "NOTE": lambda task: drawing.text(_note(task)),
        }
        widths = next(widths for least, widths in _LAYOUTS if self._console.width >= least)
        names = [name for name in columns if widths.get(name) != 0]
        rows = [[columns[name](task) for name in names] for task in tasks]
        return drawing.table(names, rows, header=header, widths=widths)

    def _task_lines(self, task: Shape) -> Iterator[tuple[str, Text]]:
        yield "task", drawing.text(task["taskId"], limit=None)
        note = Text(shown(self._state_note(task)))
        yield "state", Text.assemble(drawing.state(task["state"]), note)
        yield "what", drawing.text(_what(task), limit=None)
        for name, value in task.items():
            if name in _WITHIN or name in ("taskId", "state"):
                continue
            if name in _MOMENTS:
                yield drawing.label(name), drawing.text(f"{value} ({self._ago(value)})")
            elif name == "attempts":
                yield "attempts", drawing.text(f"{value} of {task['maxAttempts']}")
            elif name == "dependsOn":
                yield "depends on", Text(shown("\n".join(value), lines=True))
            elif name == "instruction":
                yield name, Text(shown(value, lines=True))
            elif isinstance(value, str | int | float) and name != "result":
                yield drawing.label(name), drawing.text(value, limit=None)
            else:
                yield drawing.label(name), drawing.pretty(value)

    def _state_note(self, task: Shape) -> str:
        if "latencyMs" in task:
            return f", took {drawing.span(task['latencyMs'])}"
        if task["state"] == lifecycle.QUEUED and "position" in task:
            return f", handed in at position {task['position']}"
        if "leaseExpiresAt" in task:
            return f", leased {self._ago(task['leaseExpiresAt'], before='until ')}"
        return ""

    def _delivery(self, one: Shape) -> Text:
        state, number = one["state"].replace("_", " "), one["attempts"]
        told = f"{one['event']} to {one['url']}: {state} after {number} tries"
        if "settledAt" in one:
            told += f", {self._ago(one['settledAt'])}"
        elif "nextAt" in one:
            told += f", next {self._ago(one['nextAt'])}"
        error = f" ({one['lastError']})" if "lastError" in one else ""
        return drawing.text(told + error, limit=None)

    def _ago(self, moment: str, before: str = "") -> str:
        return before + drawing.distance(drawing.moment_of(moment), self._clock.now())


def bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(30), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True)


def _lines(total: int) -> Say:
    """A line whenever the number changes, for logs."""
    said = -1

    def say(done: int, _: str) -> None:
        nonlocal said
        if done != said:
            said = done
            sys.stderr.write(f"{done} of {total} ended\n")
            sys.stderr.flush()

    return say


def tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _agent_table(now: Shape, ever: Shape) -> Table:
    fields = ("submitted", "completed", "failed", "cancelled", "rejected")
    rows = []
    for agent, totals in ever.items():
        has = now.get(agent, {})
        counts = [has.get("queued", 0), has.get("inflight", 0), *(totals[name] for name in fields)]
        rows.append([drawing.text(agent), *(Text(str(count), justify="right") for count in counts)])
    names = ("AGENT", "QUEUED", "IN FLIGHT", *(name.upper() for name in fields))
    return drawing.table(names, rows)


def _what(task: Shape) -> str:
    if "handler" in task:
        return f"handler {task['handler']}"
    if "instruction" in task:
        return f"instruction {shortened(str(task['instruction']), _INSTRUCTION_CHARACTERS)}"
    where = [f"tab {task['tabId']}"] if "tabId" in task else []
    where += [str(task[name]) for name in ("ref", "selector") if name in task]
    return " ".join(
        [str(task.get("action", task.get("kind", ""))), *(["on", *where] * bool(where))]
    )


def _took(task: Shape) -> str:
    return drawing.span(task["latencyMs"]) if "latencyMs" in task else ""


def _note(task: Shape) -> str:
    if "error" in task:
        return str(task["error"])
    return f"waits for its {task['gate']}" if "gate" in task else ""


def _took_between(attempt: Shape) -> str:
    if "endedAt" not in attempt:
        return ""
    began, ended = (drawing.moment_of(attempt[name]) for name in ("startedAt", "endedAt"))
    return drawing.span(max(0, ended - began))


def _by_state(batch: Shape) -> str:
    return ", ".join(f"{number} {state}" for state, number in batch.get("byState", {}).items())


def _event_note(event: Shape) -> str:
    told = []
    if event["type"] in (events.CREATED, events.REQUEUED) and event["state"] != lifecycle.QUEUED:
        told.append(event["state"])
    if event.get("attempt", 1) > 1:
        told.append(f"attempt {event['attempt']}")
    told += [str(event[name]) for name in ("error", "worker", "jobId") if name in event]
    return ", ".join(told)
