"""Sessions and lanes for people: tables of them, one session, and what a stop has done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput, tasks
from fairlane.cli.output import Shape


class HumanSessionOutput(HumanOutput):
    def sessions(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["sessions"], _session_table, "no sessions", more=more)

    def session(self, session: Shape) -> None:
        rows = drawing.grid()
        for name, value in self._session_lines(session):
            rows.add_row(Text(name, style="bright_black"), value)
        self._print(rows)
        members = [*session["running"], *session["waiting"]]
        if members:
            self._line("")
            self._print(self._member_table(members))

    def said(self, answer: Shape) -> None:
        if answer.get("merged"):
            state = drawing.state(str(answer["state"]))
            self._line(f"joined to {answer['taskId']} (", state, ")")
        else:
            self.submitted(answer)

    def stopped(self, answer: Shape, key: str) -> None:
        """Each task, and in one line what that means: a stop may find only what waits."""
        stopped, drained = answer["stopped"], answer["drained"]
        for word, ids in (("stopped", stopped), ("drained", drained)):
            for task_id in ids:
                self._line(f"{word} {task_id}")
        told = f"{tasks(len(stopped))} stopped" if stopped else "nothing was running"
        if drained:
            told += f", {tasks(len(drained))} that waited will not run"
        if "generation" in answer:
            told += f"; generation {answer['generation']} begins"
        self._line(f"session {key}: {told}")

    def lanes(self, answer: Shape) -> None:
        rows = [
            [
                drawing.text(one["name"]),
                _number(one["ceiling"]),
                _number(one["active"]),
                _number(one["waiting"]),
                drawing.text(drawing.span(one["oldestWaitMs"]) if one["oldestWaitMs"] else "-"),
                Text("paused", style="yellow") if one["paused"] else Text("-"),
                drawing.text(one["strategy"]),
            ]
            for one in answer["lanes"]
        ]
        names = ("LANE", "CEILING", "ACTIVE", "WAITING", "OLDEST", "PAUSED", "STRATEGY")
        self._print(drawing.table(names, rows))

    def lane_set(self, answer: Shape) -> None:
        self._line(f"{'paused' if answer['paused'] else 'resumed'} {answer['lane']}")

    def lane_cleared(self, answer: Shape) -> None:
        self._line(f"cancelled {tasks(answer['cancelled'])} in lane {answer['lane']}")

    def _session_lines(self, session: Shape) -> Iterator[tuple[str, Text]]:
        yield "session", drawing.text(session["sessionKey"], limit=None)
        running, waiting = len(session["running"]), len(session["waiting"])
        growing = f", {session['debouncing']} may still grow" if session["debouncing"] else ""
        later = f", {session['later']} for later" if session.get("later") else ""
        yield "tasks", drawing.text(f"{running} running, {waiting} waiting{growing}{later}")
        yield "at once", drawing.text(f"{session['effectiveConcurrency']} ({session['why']})")
        if "usage" in session:
            yield "usage", drawing.text(_usage(session["usage"]))
        for name, value in session["settings"].items():
            shown = drawing.span(value) if name.endswith("Ms") else value
            yield drawing.label(name).removesuffix(" ms"), drawing.text(shown)
        yield "generation", drawing.text(session["generation"])
        if "cutoff" in session:
            ago = self._ago(session["cutoff"])
            yield "cutoff", drawing.text(f"{session['cutoff']} ({ago}): older messages are refused")

    def _member_table(self, members: Sequence[Shape]) -> Table:
        rows = [
            [
                drawing.text(one["taskId"]),
                drawing.state(one["state"]),
                drawing.text(one["lane"]),
                drawing.text(one.get("position", "-")),
                drawing.text(self._member_note(one)),
            ]
            for one in members
        ]
        return drawing.table(("TASK", "STATE", "LANE", "PLACE", "NOTE"), rows)

    def _member_note(self, one: Shape) -> str:
        if "gate" in one:
            return f"waits for its {one['gate']}"
        return f"started {self._ago(one['startedAt'])}" if "startedAt" in one else ""


def _session_table(sessions: Sequence[Shape], *, header: bool) -> Table:
    rows = [
        [
            drawing.text(one["sessionKey"]),
            _number(one["running"]),
            _number(one["waiting"] + one["debouncing"]),
            _number(one["effectiveConcurrency"]),
            Text("throttled", style="yellow") if one["throttled"] else Text(""),
        ]
        for one in sessions
    ]
    return drawing.table(("SESSION", "RUNNING", "WAITING", "AT ONCE", "NOTE"), rows, header=header)


def _number(value: Any) -> Text:
    return Text(str(value), justify="right")


def _usage(usage: Shape) -> str:
    share = usage["tokens"] / usage["contextWindow"]
    return f"{usage['tokens']} of {usage['contextWindow']} tokens ({share:.0%})"
