"""What is counted and what is owed: counters, sessions, webhooks and output, as the rows say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.model import Task
from fairlane.engine.commands import AppendOutput, SettleDelivery
from fairlane.engine.reads import views
from tests.simulation import ledger
from tests.simulation.causes import Causes, Step, Violation, demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.store.sqlite import SqliteStore
    from tests.simulation.ground import Ground
    from tests.simulation.ledger import Row


class Accounts:
    def __init__(self, ground: Ground, store: SqliteStore) -> None:
        self._ground = ground
        self._named = store.reader()
        self._output: dict[tuple[int, int, int], str] = {}

    def close(self) -> None:
        self._named.close()

    def judge_lines(self, *, every: bool) -> None:
        """Compare the lines that have moved, or all."""
        ground, books = self._ground, self._ground.books
        if every:
            rows = ground.reader.lines()
            common = [row for row in rows if not row[1]]
            rows = [row for row in rows if row[1]]
            demand("counters", not any(any(row[3:]) for row in common), f"{common} count nothing")
            if len(rows) != len(books.lines):
                self._judge_forgotten({row[:3] for row in rows})
        else:
            rows = ground.reader.lines(books.touched) if books.touched else []
        for row in rows:
            lane, agent, route, share, served, *counters = row
            line, pair = (lane, agent, route), (lane, agent)
            right = share == books.slots[pair] / ground.policy.weight(agent)
            right = right and served == books.served[pair]
            if not right or counters != books.lines.get(line):
                raise Violation("counters", f"line {row}, counted {books.lines.get(line)}")
        books.touched.clear()

    def judge_lanes(self) -> None:
        reader, books = self._ground.reader, self._ground.books
        for name, *counters in reader.lanes():
            if counters != books.lanes.get(name) or not _balanced(counters):
                counted = books.lanes.get(name)
                raise Violation("counters", f"lane {name}: {counters}, counted {counted}")

    def judge_sessions(self, now: int) -> None:
        """Who has the turn, who waits, who may grow, and what the session was told."""
        ground, books = self._ground, self._ground.books
        found = {row[0]: row[1:] for row in ground.reader.sessions()}
        ground.marks.forget(found, ground.policy, now)
        lists = (books.holders, books.waiting, books.debouncing, books.later)
        busy = {key for keys in lists for key in keys}
        for key in busy | found.keys():
            right = tuple(len(tasks.get(key, ())) for tasks in lists)
            row = found.get(key)
            if row is None or row[:4] != right:
                raise Violation("counters", f"session {key}: {row} is {right}")
            ground.marks.judge_row(key, row[4:], interrupted=key in ground.talks.dying)
            told = ground.marks.known.get(key)
            needed = key in busy or (told is not None and told.anything)
            demand("counters", needed, f"session {key} is kept for nothing")

    def _judge_forgotten(self, kept: set[Row]) -> None:
        """An agent's lines in a lane may go when nothing of it is left there."""
        ground = self._ground
        pairs = {(task.lane, task.agent) for task in ground.reader.tasks.values()}
        for line in [line for line in ground.books.lines if line not in kept]:
            demand("counters", line[:2] not in pairs, f"line {line} is missing")
            del ground.books.lines[line]
            ground.books.served.pop(line[:2], None)

    def judge_deliveries(self, step: Step) -> None:
        ground = self._ground
        if not any(isinstance(r, SettleDelivery) for r in step.batch) and not self._is_owed_more():
            return
        rows = ground.reader.deliveries()
        owed = {row[0]: (row[1], row[2]) for row in rows}
        if owed != ground.owed:
            raise Violation("delivery", f"{sorted(owed)} instead of {sorted(ground.owed)}")
        states = {row[0]: row[3] for row in rows}
        for id_, state in states.items() if states != ground.delivery_states else ():
            was = ground.delivery_states.get(id_, "due")
            if was != state:
                settled = {r.id for r in step.batch if isinstance(r, SettleDelivery)}
                demand("delivery", was == "due" and id_ in settled, f"{id_}: {was} became {state}")
        ground.delivery_states = states

    def _is_owed_more(self) -> bool:
        """Or less, because something is gone."""
        return self._ground.owed.keys() != self._ground.delivery_states.keys()

    def forget_deliveries(self, seq: int, step: Step, what: str) -> None:
        """A task or a batch is gone: nothing of it may still be owed."""
        ground = self._ground
        settled = {r.id for r in step.batch if isinstance(r, SettleDelivery)}
        for id_ in [id_ for id_, (owner, _) in ground.owed.items() if owner == seq]:
            due = ground.delivery_states.get(id_, "due") == "due" and id_ not in settled
            demand("delivery", not due, f"{what} went with a webhook still owed")
            del ground.owed[id_]

    def judge_output(self, step: Step, causes: Causes, gone: Sequence[Task]) -> None:
        """Output is kept of runs that were the task's newest, as it was first said."""
        if not causes.output and not gone:
            return
        tasks = self._ground.reader.tasks
        rows = self._ground.reader.sql("SELECT seq, token, part, text FROM output")
        found = {(seq, token, part): text for seq, token, part, text in rows}
        for place, text in found.items() - self._output.items():
            said = text in causes.output.get(place, ())
            demand("output", said and place not in self._output, f"{place}: {text!r}")
            task = tasks.get(place[0])
            demand("output", task is not None, f"{place} is of no task")
        for place in self._output.keys() - found.keys():
            demand("output", place[0] not in tasks, f"{place} is lost")
        known, self._output = self._output, found
        fresh = {seen.after.seq: seen for seen in self._ground.changed}
        for request in step.batch if step.outcome else ():
            if isinstance(request, AppendOutput):
                seen, task = fresh.get(request.seq), tasks.get(request.seq)
                row = seen.before if seen else task
                mine = (
                    row is not None
                    and row.fencing_token == request.fencing_token > 0
                    and task is not None
                )
                place = (request.seq, request.fencing_token, request.part)
                kept = place in found
                demand("output", kept == mine or place in known, f"{request}: kept {kept}")

    def judge_rows(self) -> None:
        """Every row is what it was taken for when it last changed."""
        for row in self._ground.reader.task_rows():
            task, known = Task(*row), self._ground.reader.tasks[row[0]]
            if task != known:
                raise Violation("fixed", f"{known} became {task}")

    def recount(self) -> None:
        """The doctor's own statements, so that they are known to be right too."""
        books = self._ground.books
        for lane, agent, route, *facts in self._named.run("recount"):
            counters = books.lines.get((lane, agent, route), [])[: len(facts)]
            demand("recount", facts == counters, f"{lane} {agent} {route}: {facts}")
        for key, *facts in self._named.run("session_recount"):
            counters = [len(books.holders.get(key, ())), len(books.waiting.get(key, ()))]
            demand("recount", facts[:2] == counters, f"session {key}: {facts}")
        problems = views.recount(self._named)
        demand("recount", not problems, "; ".join(problems))


def _balanced(counters: Sequence[int]) -> bool:
    """submitted = completed + failed + cancelled + parked + queued + in flight."""
    ended = counters[ledger.COMPLETED] + counters[ledger.FAILED] + counters[ledger.CANCELLED]
    kept = counters[ledger.PARKED] + counters[ledger.QUEUED] + counters[ledger.INFLIGHT]
    return counters[ledger.SUBMITTED] == ended + kept
