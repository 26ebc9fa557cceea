"""The plan and the queue for people: what goes next, what has to wait and why, and entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape
from fairlane.cli.text import shown

_STYLES: Final[Mapping[str, str]] = {
    "pending": "cyan",
    "ready": "cyan",
    "leased": "yellow",
    "parked": "magenta",
    "drained": "green",
    "failed": "red",
    "cancelled": "bright_black",
}
_WIDTHS: Final[Mapping[str, int]] = {"ENTRY": 40, "WHAT": 30}
_MOMENTS: Final = ("enqueuedAt", "leaseExpiresAt", "nextEligibleAt", "drainedAt", "endedAt")


class HumanQueueOutput(HumanOutput):
    def plan(self, plan: Shape) -> None:
        slots = f"{plan['inFlight']} of {plan['maxConcurrent']} slots in use"
        self._line(f"lane {plan['lane']} at {plan['now']}: {slots}")
        rows = [
            [drawing.text(one["id"]), Text("lease", style="green"), Text("")]
            for one in plan["leases"]
        ]
        for one in plan["skipped"]:
            until = one.get("nextEligibleAt", "")
            rows.append([drawing.text(one["id"]), drawing.text(one["reason"]), Text(until)])
        if rows:
            self._print(drawing.table(("TASK", "WHY", "UNTIL"), rows))
        least = plan.get("atLeast", ())
        told = [
            f"{'at least ' if reason in least else ''}{number} {reason}"
            for reason, number in plan["counts"].items()
        ]
        self._line(", ".join(told))

    def leased(self, answer: Shape) -> None:
        if not answer["leases"]:
            self._line("nothing to lease; fairlane sched plan tells why")
        for one in answer["leases"]:
            self._line(f"leased {one['id']} as {one['leaseId']} until {one['leaseExpiresAt']}")

    def reported(self, answer: Shape, verb: str) -> None:
        told = f"{verb} {answer['leaseId']}: {answer['taskId']} is {shown(answer['state'])}"
        until = answer.get("nextEligibleAt") or answer.get("leaseExpiresAt")
        self._line(told + (f" until {until}" if until else ""))
        if answer.get("cancelRequested"):
            self._line("stop the work: the task was cancelled or has to make room")

    def reclaimed(self, answer: Shape) -> None:
        for entry_id in answer["reclaimed"]:
            self._line(f"reclaimed {entry_id}")
        if not answer["reclaimed"]:
            self._line("no lease has run out")

    def rules(self, answer: Shape) -> None:
        rows = drawing.grid()
        for name, value in answer["policy"].items():
            if name != "schemaVersion":
                rows.add_row(Text(name, style="bright_black"), drawing.text(value))
        self._print(rows)

    def entry(self, entry: Shape, *, added: bool = False) -> None:
        if added:
            self._line(f"added {entry['id']} with priority {entry['priority']}")
            return
        rows = drawing.grid()
        for name, value in entry.items():
            if name != "schemaVersion":
                rows.add_row(
                    Text(drawing.label(name), style="bright_black"), self._value(name, value)
                )
        self._print(rows)

    def entries(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["entries"], self._entry_table, "the queue is empty", more=more)

    def drained(self, answer: Shape) -> None:
        for entry in answer["drained"]:
            self._line(f"drained {entry['id']}")
        self._line(f"{answer['remaining']} left")
        if "reason" in answer:
            self._line(f"no more now: {answer['reason']}")

    def imported(self, answer: Shape) -> None:
        parts = ", ".join(f"{number} {status}" for status, number in answer["byStatus"].items())
        self._line(f"imported {answer['imported']}" + (f": {parts}" if parts else ""))

    def _value(self, name: str, value: Any) -> Text:
        if name == "status":
            return Text(value, style=_STYLES.get(value, ""))
        if name in _MOMENTS:
            return drawing.text(f"{value} ({self._ago(value)})")
        return drawing.text(value, limit=None) if isinstance(value, str) else drawing.pretty(value)

    def _entry_table(self, entries: Iterable[Shape], *, header: bool) -> Table:
        rows = [
            [
                Text(str(one["priority"]), justify="right"),
                drawing.text(one["id"]),
                Text(one["status"], style=_STYLES.get(one["status"], "")),
                drawing.text(_what(one)),
                drawing.text(self._ago(one["enqueuedAt"])),
                drawing.text(one.get("parkedReason") or one.get("note", "")),
            ]
            for one in entries
        ]
        names = ("PRIORITY", "ENTRY", "STATUS", "WHAT", "ENQUEUED", "NOTE")
        widths = _WIDTHS if self._console.is_terminal else None
        return drawing.table(names, rows, header=header, widths=widths)


def _what(entry: Shape) -> str:
    names = ("appId", "workflowId", "runId", "handler")
    return str(next((entry[name] for name in names if entry.get(name)), "-"))
