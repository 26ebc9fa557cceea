"""One task on the terminal: its fields, its attempts and the newest traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Shape,
    Styled,
    ago,
    counted,
    label,
    moment_ms,
    pretty,
    shortened,
    span,
    state,
    with_ago,
)
from fairlane.client.base import BaseClient
from fairlane.clock import SystemClock
from fairlane.core import events, lifecycle
from fairlane.schema import wire

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

MOMENTS: Final = ("createdAt", "startedAt", "completedAt", "deadline", "nextEligibleAt")
# Fields that `show` prints as part of another line, or that only repeat another line.
_WITHIN: Final = frozenset(
    {"taskId", "state", "action", "handler", "tabId", "ref", "selector", "kind", "maxAttempts"}
    | {"position", "latencyMs", "executionTimeMs", "parkedReason", "leaseExpiresAt"}
    | {"attemptLog", "retryCount", "steps"}
)


def draw_task(terminal: Terminal, task: Fields, deliveries: Sequence[Fields] = ()) -> None:
    lines = list(_task_lines(task))
    lines += [("webhook", _delivery(one)) for one in deliveries]
    terminal.grid(lines)
    if task.get("attemptLog"):
        terminal.line("")
        terminal.table(_ATTEMPTS, task["attemptLog"])
        _draw_traceback(terminal, task["attemptLog"])
    if task.get("steps"):
        terminal.line("")
        has_effects = any("effect" in one for one in task["steps"])
        terminal.table(_EFFECTS if has_effects else _STEPS, task["steps"])


def _draw_traceback(terminal: Terminal, attempts: Sequence[Fields]) -> None:
    """Print the newest traceback."""
    found = [attempt for attempt in attempts if attempt.get("traceback")]
    if found:
        terminal.line("")
        terminal.line(f"traceback of attempt {found[-1]['attempt']}:")
        for line in found[-1]["traceback"].splitlines():
            terminal.line(f"  {line}")


def _task_lines(task: Fields) -> Iterator[tuple[str, Cell]]:
    yield "task", task["taskId"]
    yield "state", (state(task["state"]), _state_note(task))
    yield "what", what(task)
    for name, value in task.items():
        if name in _WITHIN:
            continue
        if name in MOMENTS:
            yield label(name), with_ago(value)
        elif name == "attempts":
            yield "attempts", f"{value} of {task['maxAttempts']}"
        elif name == "dependsOn":
            yield "depends on", Styled("\n".join(value), lines=True)
        elif name == "instruction":
            yield name, Styled(value, lines=True)
        elif isinstance(value, str | int | float) and name != "result":
            yield label(name), str(value)
        else:
            yield label(name), pretty(value)


def _state_note(task: Fields) -> str:
    if "latencyMs" in task:
        return f", took {span(task['latencyMs'])}"
    if task["state"] == lifecycle.QUEUED and "position" in task:
        return f", submitted at position {task['position']}"
    return f", lease expires {ago(task['leaseExpiresAt'])}" if "leaseExpiresAt" in task else ""


def _delivery(one: Fields) -> str:
    status = f"{one['state'].replace('_', ' ')} after {counted(one['attempts'], 'attempt')}"
    text = f"{one['event']} to {one['url']}: {status}"
    if "settledAt" in one:
        text += f", {ago(one['settledAt'])}"
    elif "nextAt" in one:
        text += f", next attempt {ago(one['nextAt'])}"
    return text + (f" ({one['lastError']})" if "lastError" in one else "")


def _attempt_time(attempt: Fields) -> str:
    if "endedAt" not in attempt:
        return ""
    started, ended = (moment_ms(attempt[name]) for name in ("startedAt", "endedAt"))
    return span(max(0, ended - started))


_ATTEMPTS: Final[Columns] = {
    "ATTEMPT": "attempt",
    "STARTED": lambda attempt: ago(attempt["startedAt"]),
    "TOOK": _attempt_time,
    "OUTCOME": lambda attempt: attempt.get("outcome", "running"),
    "WORKER": "worker",
    "ERROR": "error",
}


class WaitText:
    """What a person sees while waiting for a task: its state, for how long, why it waits, its
    place in line, its progress.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._clock = SystemClock()
        self._begun = self._clock.monotonic()

    def text(self, task: Shape) -> str:
        seconds = round(self._clock.monotonic() - self._begun)
        elapsed = f"{seconds} s" if seconds < 60 else span(seconds * 1000)
        parts = [f"{task['state']}, {elapsed}"]
        if task["state"] in (lifecycle.QUEUED, lifecycle.WAITING, lifecycle.ASSIGNED):
            parts += self._reason(task["taskId"])
        else:
            parts += self._progress(task)
        return " · ".join(parts)

    def _reason(self, task_id: str) -> list[str]:
        why = self._client.why(task_id)
        place = [] if why.position is None else [f"position {why.position}"]
        return [*place, why.reason]

    def _progress(self, task: Shape) -> list[str]:
        attempt = []
        if task["attempts"] > 1:
            attempt = [f"attempt {task['attempts']} of {task['maxAttempts']}"]
        newest = self._client.last_events(1, task=task["taskId"], types=[events.PROGRESS])
        return [*attempt, *(progress_text(one.get("progress")) for one in newest)]


def progress_text(progress: object) -> str:
    """Return reported progress as a bar if it has a share, and as JSON otherwise."""
    share, rest = progress, ""
    if isinstance(progress, dict):
        share = next((progress[name] for name in _SHARES if name in progress), None)
        total = progress.get("total")
        if isinstance(share, int | float) and isinstance(total, int | float) and total > 0:
            rest = f" ({share} of {total})"
            share = share / total
    if isinstance(share, bool) or not isinstance(share, int | float):
        return shortened(wire.encode(progress).decode(), 60)
    share = share / 100 if share > 1 else share
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {share:.0%}{rest}"


_SHARES: Final = ("done", "progress", "percent", "fraction", "current")
_BAR: Final = 20
# Enough to tell the tasks of a page apart: `tsk_`, the time, and four random digits.
SHORT_ID: Final = 20

_STEPS: Final[Columns] = {
    "STEP": "number",
    "NAME": "name",
    "RECORDED": lambda step: ago(step["at"]),
    "VALUE": lambda step: shortened(wire.encode(step.get("value")).decode(), 60),
}


_EFFECTS: Final[Columns] = {
    **_STEPS,
    "EFFECT": lambda step: step.get("effect", "").replace("_", " "),
}


def what(task: Fields) -> str:
    """Return what a task runs, in a few words."""
    if "handler" in task:
        return f"handler {task['handler']}"
    if "instruction" in task:
        return f"instruction {shortened(str(task['instruction']), 40)}"
    target = [f"tab {task['tabId']}"] if "tabId" in task else []
    target += [str(task[name]) for name in ("ref", "selector") if name in task]
    action = str(task.get("action", task.get("kind", "")))
    return " ".join([action, *(["on", *target] if target else [])])


def draw_queued(terminal: Terminal, response: Fields) -> None:
    terminal.line(f"queued {response['taskId']} again (", state(response["state"]), ")")
