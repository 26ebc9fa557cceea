"""Messages: each has one fate and its sender knows it; what is joined keeps every word, in order.

Every message says a word of its own. Where the word stands is where the message is: in a task of
its own, at the end of a task that waited, or nowhere when it was refused. What follows from a
message for others (windows, drops, interruptions) and from a stop is judged on the rows before
and after the step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.errors import (
    Disabled,
    IdempotencyConflict,
    MessageStale,
    NotFound,
    QueueFull,
    SessionQueueFull,
)
from fairlane.core.model import Submission, Task
from fairlane.engine.commands import SetSession, SetUsage, StoppedRuns, StopSession, Submit
from tests.simulation.causes import Violation, demand
from tests.simulation.histories import CANCELLED, REQUEUED
from tests.simulation.ledger import ENDS, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.causes import Causes, Step
    from tests.simulation.ground import Ground
    from tests.simulation.marks import Rule

_TEXT_SQL: Final = """SELECT task.seq, request.body FROM task JOIN request USING (seq)
  WHERE task.session = ? ORDER BY task.seq"""

Run = tuple[int, int]  # a task and the token of its lease


class Talks:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.seen: Counter[str] = Counter()
        self.dying: dict[str, set[Run]] = {}  # by session: who was interrupted and has not ended
        self.windowed: set[int] = set()  # tasks that could grow at some time of this step
        self._places: dict[str, int] = {}  # the task that each word stands in
        self._said: dict[str, Submission] = {}
        self._texts: dict[int, list[str]] = {}
        self._fresh: dict[int, list[str]] = {}  # words of this step, by the task they came into
        self._step: dict[str, list[Submission]] = {}  # what was said in this step, by session
        self._before: dict[int, Task | None] = {}
        self._open: dict[str, dict[int, Task]] = {}  # by session: who waited before this step
        self._held: dict[str, dict[int, Task]] = {}  # who had the turn
        self._limits: dict[str, int] = {}

    def keys(self, step: Step) -> set[str]:
        """The sessions that somebody has asked something of."""
        kinds = StopSession | SetSession | SetUsage
        found = {request.key for request in step.batch if isinstance(request, kinds)}
        return found | {s.session for s in _messages(step) if s.session}

    def begin(self, step: Step, keys: Iterable[str]) -> None:
        """Remember how things stand, before anything is entered into the books."""
        ground, books = self._ground, self._ground.books
        self._fresh, self._step = {}, {}
        self._before = {seen.after.seq: seen.before for seen in ground.changed}
        for submission in _messages(step):
            self._step.setdefault(submission.session or "", []).append(submission)
        self.windowed = set()
        for key in keys:
            growing = books.debouncing.get(key, {})
            self._open[key] = {**books.waiting.get(key, {}), **growing}
            self._held[key] = dict(books.holders.get(key, {}))
            self._limits[key] = ground.marks.limit(key)
            self.windowed |= growing.keys()

    # ------------------------------------------------------------ the words

    def judge(self, step: Step, causes: Causes) -> None:
        """After the rows have been entered into the books, before turns are judged."""
        self._ground.marks.hear(step, self._ground.changed, causes)
        if step.committed:
            for key in sorted(self._step):
                self._judge_messages(key)
        dying = {key: {r for r in runs if self._goes_on(r)} for key, runs in self.dying.items()}
        self.dying = {key: runs for key, runs in dying.items() if runs}
        self._judge_windows(step)
        self._judge_drops()
        if step.committed:
            self._judge_stops(step)
        if step.outcome is not None:
            for request, answer in zip(step.batch, step.outcome.answers, strict=True):
                if isinstance(request, Submit):
                    self._judge_fates(request, answer)

    def _judge_messages(self, key: str) -> None:
        self._read(key)
        for submission in self._step[key]:
            if self._placed(submission):
                self._ground.marks.take_over(submission)
        self._judge_interruption(key)
        self._judge_order(key)
        self._judge_joining(key)
        self._judge_cap(key)

    def _read(self, key: str) -> None:
        """Find the words of this step. What was there before is still there."""
        order: dict[str, int] = {}
        for number, one in enumerate(self._step[key]):
            order.setdefault(_text(one), number)
        for seq, body in self._ground.reader.sql(_TEXT_SQL, (key,)):
            request = msgspec.json.decode(body)
            if "sender" not in request:
                continue
            words = request["params"]["message"].split("\n")
            known = self._texts.get(seq, [])
            demand("text", words[: len(known)] == known, f"task {seq}: {known} became {words}")
            fresh = words[len(known) :]
            for word in fresh:
                # A key is forgotten with its task: then the words may be said again.
                kept = self._places.get(word) in self._ground.reader.tasks
                new = word in order and not kept
                demand("text", new, f"task {seq}: {word} is there twice or was never said")
                self._places[word] = seq
                self._said[word] = self._step[key][order[word]]
            numbers = [order[word] for word in fresh]
            demand("text", numbers == sorted(numbers), f"task {seq}: {words} in another order")
            if fresh:
                self._fresh[seq], self._texts[seq] = fresh, words
                self._judge_text(seq, known, request["sender"])

    def judge_all_texts(self) -> None:
        """No word is lost as long as its task is kept."""
        tasks = self._ground.reader.tasks
        self._texts = {seq: words for seq, words in self._texts.items() if seq in tasks}
        for seq, words in self._texts.items():
            ((body,),) = self._ground.reader.sql("SELECT body FROM request WHERE seq = ?", (seq,))
            found = msgspec.json.decode(body)["params"]["message"].split("\n")
            demand("text", found == words, f"task {seq}: {words} became {found}")

    def _judge_text(self, seq: int, known: list[str], sender: str) -> None:
        """Who may be joined to whom."""
        task, words = self._ground.reader.tasks[seq], self._texts[seq]
        head = self._said[words[0]]
        name = f"task {seq}: {words}"
        assert head.message is not None
        demand("text", head.message.sender == sender, f"{name} is of {sender}")
        before = self._before.get(seq, task)
        if known:
            waited = before is not None and before.state == "queued" and _is_open(before)
            demand("text", waited, f"{name} grew while it was {before}")
        else:
            own = {one.id for one in self._step[task.session or ""] if _text(one) == words[0]}
            demand("text", before is None and task.id in own, f"{name} is a task of another")
        for word in self._fresh[seq] if known else self._fresh[seq][1:]:
            self.seen["joined"] += 1
            later = self._said[word]
            assert later.message is not None
            rule = self._rule(later)
            apart = rule.no_merge or rule.interrupts or head.message.no_merge
            demand("text", not apart, f"{name}: {word} was not to be joined")
            alike = _kind(later, self._ground.policy) == _kind_of(task)
            demand("text", alike, f"{name}: {word} is of another kind")
            one = later.message.sender == sender or rule.collects
            demand("senders", one, f"{name}: {word} is of {later.message.sender}")

    def _rule(self, submission: Submission) -> Rule:
        assert submission.message is not None
        return self._ground.marks.rule(submission.session or "", submission.message)

    def _placed(self, submission: Submission) -> bool:
        """Whether it was accepted in this step."""
        word = _text(submission)
        return word in self._fresh.get(self._places.get(word, 0), ())

    def _owners(self, key: str) -> list[tuple[Task, Submission]]:
        """The tasks that messages of this step have made, oldest first."""
        found = []
        for submission in self._step.get(key, ()):
            task = self._ground.task(submission.id)
            if task is not None and task.session and self._placed(submission):
                found.append((task, submission))
        return found

    # ------------------------------------------------------------ what was answered

    def _judge_fates(self, request: Submit, answer: Any) -> None:
        answers = answer if isinstance(answer, list) else [answer] * len(request.submissions)
        for submission, one in zip(request.submissions, answers, strict=True):
            if submission.message is not None:
                self._judge_fate(submission, one, keyed=request.idempotency is not None)

    def _judge_fate(self, submission: Submission, answer: Any, *, keyed: bool) -> None:
        ground, word = self._ground, _text(submission)
        message, key = submission.message, submission.session or ""
        assert message is not None
        name = f"{word} in {key}: {answer!r}"
        cutoff = ground.marks.of(key).cutoff_at
        stale = message.sent_at is not None and cutoff is not None and message.sent_at < cutoff
        if isinstance(answer, Task):
            demand("fate", self._places.get(word) == answer.seq, f"{name} has no such word")
            demand("stale", not stale or keyed, f"{name}, sent before {cutoff}")
            return
        repeated = keyed and word in self._places
        demand("fate", repeated or not self._placed(submission), f"{name} and yet it is there")
        self.seen[type(answer).__name__] += 1
        if isinstance(answer, MessageStale):
            demand("stale", stale, f"{name}, sent at {message.sent_at} after {cutoff}")
        elif isinstance(answer, SessionQueueFull):
            rule, waited = self._rule(submission), len(self._open[key]) + len(self._new(key))
            demand("cap", rule.drop == "new" and waited >= rule.cap, f"{name} with {waited}")
        elif isinstance(answer, QueueFull):
            record = ground.task(submission.id)
            demand("fate", record and record.state == "rejected", f"{name} without a record")
        elif isinstance(answer, Disabled):
            demand("fate", not ground.policy.enabled, name)
        elif isinstance(answer, NotFound | IdempotencyConflict):
            demand("fate", repeated, name)
        else:
            raise Violation("fate", name)

    def _new(self, key: str) -> list[Seen]:
        """What was made in this session in this step."""
        changed = self._ground.changed
        return [seen for seen in changed if seen.after.session == key and seen.before is None]

    def _back(self) -> set[int]:
        """Those that had ended and began again in this step, after its messages."""
        return {seen.after.seq for seen in self._ground.changed if seen.has(REQUEUED)}

    # ------------------------------------------------------------ the window

    def _judge_windows(self, step: Step) -> None:
        for seen in self._ground.changed:
            before, after = seen.before, seen.after
            fresh = [self._said[word] for word in self._fresh.get(after.seq, ())]
            grew = before is not None and before.gate == "debounce"
            if not (grew or after.gate == "debounce" or (before is None and fresh)):
                continue
            ends = before.eligible_at if before is not None and grew else None
            opened = grew or (bool(fresh) and self._rule(fresh[0]).opens_a_window)
            if fresh and opened:
                since = after.created_at + self._ground.histories.lives[after.seq].moved_ms
                ends = self._rule(fresh[-1]).window_ends(since, step.now)
                self.windowed.add(after.seq)
            name = f"task {after.seq} may grow until {after.eligible_at}, not {ends}"
            if after.gate == "debounce":
                demand("window", opened and after.eligible_at == ends, name)
            elif opened and after.state not in ENDS:
                others = len(self._step.get(after.session or "", ())) > len(fresh)
                over = ends is not None and ends <= step.now
                demand("window", over or others, f"{name}: it went too early")

    def _judge_order(self, key: str) -> None:
        """The last message of a sender waits for more; all messages before it do not."""
        growing = self._ground.books.debouncing.get(key, {})
        tasks = self._ground.reader.tasks.values() if growing else ()
        said = [task for task in tasks if task.session == key and task.seq in self._texts]
        for seq, task in growing.items():
            for other in said:
                later = other.seq > seq and other.priority >= task.priority
                overtakes = later and self._sender(other.seq) == self._sender(seq)
                name = f"task {seq} may still grow and {other.seq} came after it"
                demand("speech", not overtakes, name)

    def _judge_joining(self, key: str) -> None:
        """The first message of a step is joined to what was there, if it could be."""
        submission = self._step[key][0]
        task, rule = self._ground.task(submission.id), self._rule(submission)
        own = task is not None and task.session and self._placed(submission)
        if not own or rule.no_merge or rule.interrupts or submission.message is None:
            return
        newest = None
        for seq, one in sorted(self._open[key].items()):
            there = self._ground.reader.tasks.get(seq)
            over = there is None or there.state in ENDS
            mine = seq in self._texts and (rule.collects or one.gate == "debounce")
            mine = mine and (rule.collects or self._sender(seq) == submission.message.sender)
            if mine and not over and one.priority == submission.priority:
                newest = one
        if newest is not None:
            head = self._said[self._texts[newest.seq][0]].message
            alike = _kind(submission, self._ground.policy) == _kind_of(newest)
            apart = not alike or (head is not None and head.no_merge)
            demand("merge", apart, f"{_text(submission)} was not joined to task {newest.seq}")

    def _sender(self, seq: int) -> str:
        message = self._said[self._texts[seq][0]].message
        assert message is not None
        return message.sender

    # ------------------------------------------------------------ who has to go

    def _judge_cap(self, key: str) -> None:
        """After the last newcomer no more wait than it has found room for."""
        owners = self._owners(key)
        if not owners or self._rule(owners[-1][1]).interrupts:
            return
        task, submission = owners[-1]
        books, marks = self._ground.books, self._ground.marks
        waiting = {**books.waiting.get(key, {}), **books.debouncing.get(key, {})}
        new = {seen.after.seq for seen in self._new(key)}
        there = (self._open[key].keys() | new) - self._back()
        mine = [seq for seq in waiting if seq <= task.seq and seq in there]
        said = [one.message.settings.max_concurrent or 0 for one in self._step[key] if one.message]
        most = max(self._limits[key], marks.limit(key), marks.unthrottled(key), *said)
        kept = self._held[key].keys() & books.holders.get(key, {}).keys()
        room = self._rule(submission).room + max(0, most - len(kept))
        demand("cap", len(mine) <= room, f"{mine} wait in {key}, where {room} may")

    def _judge_drops(self) -> None:
        dropped: dict[str, list[int]] = {}
        for seen in self._ground.changed:
            if _ended_by(seen, "queue_dropped"):
                dropped.setdefault(seen.after.session or "", []).append(seen.after.seq)
        for key, seqs in dropped.items():
            self.seen["dropped"] += len(seqs)
            rules = [self._rule(one) for one in self._step[key] if self._placed(one)]
            rooms = [r.room for r in rules if r.drop == "old" and not r.interrupts]
            demand("drop", rooms, f"{seqs} of {key} were dropped for nobody")
            new = {seen.after.seq: seen.after for seen in self._new(key)}
            left = {**self._open[key], **new}.keys() - set(seqs)
            demand("drop", len(left) >= min(rooms), f"{seqs} of {key} were dropped, {left} left")
            still = self._ground.books.waiting.get(key, {}).keys() & self._open[key].keys()
            # Others may have had the turn for a moment.
            for seq in still - self.windowed - self._back():
                demand("drop", seq > max(seqs), f"{seqs} of {key} were dropped before {seq}")

    def _judge_interruption(self, key: str) -> None:
        """All that was there has ended, and those that still run hold back the others."""
        found = [task for task, s in self._owners(key) if self._rule(s).interrupts]
        if not found:
            return
        last = found[-1]
        self.seen["interruptions"] += 1
        self._demand_ended("interrupt", key, self._reach(key))
        for seen in self._new(key):
            early = seen.after.seq < last.seq and seen.after.gate not in ("delay", "dependency")
            over = seen.after.state in ENDS or seen.has(REQUEUED) or len(seen.word) > 1
            demand("interrupt", over or not early, f"task {seen.after.seq} outlived {last.seq}")
        runs = [(t.seq, t.fencing_token) for t in self._held[key].values() if t.lease_expires_at]
        self.dying[key] = {run for run in runs if self._goes_on(run)}

    def _goes_on(self, run: Run) -> bool:
        task = self._ground.reader.tasks.get(run[0])
        return (
            task is not None and task.lease_expires_at is not None and task.fencing_token == run[1]
        )

    # ------------------------------------------------------------ stops

    def _reach(self, key: str) -> list[int]:
        """What a stopall would have stopped before this step."""
        return [*self._held[key], *self._open[key]]

    def _demand_ended(self, rule: str, key: str, seqs: Iterable[int]) -> None:
        fresh = {seen.after.seq: seen for seen in self._ground.changed}
        for seq in seqs:
            task, seen = self._ground.reader.tasks.get(seq), fresh.get(seq)
            again = seen is not None and seen.has(REQUEUED)
            over = task is None or task.state in (*ENDS, "parked")
            demand(rule, over or again, f"task {seq} of {key} goes on")

    def _judge_stops(self, step: Step) -> None:
        answers: list[Any] = [None] * len(step.batch)
        if step.outcome is not None:
            answers = step.outcome.answers
        told: dict[str, set[str]] = {}
        for request, answer in zip(step.batch, answers, strict=True):
            if not isinstance(request, StopSession):
                continue
            if not request.only_oldest:
                self.seen["stopalls"] += 1
                self._demand_ended("stop", request.key, self._reach(request.key))
            if isinstance(answer, StoppedRuns):
                ids = {*answer.stopped, *answer.drained}
                one = len(ids) <= 1 or not request.only_oldest
                demand("stop", one, f"one stop of {request.key} has stopped {ids}")
                told.setdefault(request.key, set()).update(ids)
                self._judge_choice(request, answer)
        for key, ids in told.items():
            mine = [seen for seen in self._ground.changed if seen.after.session == key]
            ended = {s.after.id for s in mine if _ended_by(s, "stopped", "session_reset")}
            demand("stop", ended == ids, f"{key}: stopped {ended}, told {ids}")

    def _judge_choice(self, request: StopSession, answer: StoppedRuns) -> None:
        """Who began first goes first."""
        if not request.only_oldest:
            return
        runs = [t for t in self._held[request.key].values() if t.lease_expires_at]
        tasks = self._ground.reader.tasks
        on = [
            t.fencing_token
            for t in runs
            if self._goes_on((t.seq, t.fencing_token)) and t.state not in ENDS
        ]
        on = [token for token in on if _still_runs(tasks, runs, token)]
        demand("stop", answer.stopped or not on, f"nobody was stopped in {request.key}")
        for id_ in answer.stopped:
            self.seen["stops of sessions"] += 1
            mine = [t.fencing_token for t in runs if t.id == id_]
            first = all(token > mine[0] for token in on) if mine else False
            demand("stop", first, f"{id_} of {request.key} did not begin first")


def _still_runs(tasks: dict[int, Task], runs: list[Task], token: int) -> bool:
    return any(t.fencing_token == token and tasks[t.seq].state not in ENDS for t in runs)


def _messages(step: Step) -> list[Submission]:
    submits = [request for request in step.batch if isinstance(request, Submit)]
    return [one for request in submits for one in request.submissions if one.message]


def _text(submission: Submission) -> str:
    assert submission.message is not None
    return submission.message.text


def _is_open(task: Task) -> bool:
    return task.gate in ("session", "debounce")


def _kind_of(task: Task) -> tuple[Any, ...]:
    return (task.lane, task.agent, task.capability, task.priority, task.callback_url)


def _kind(one: Submission, policy: Any) -> tuple[Any, ...]:
    lane = one.lane if one.lane in policy.lanes else "main"
    return (lane, one.agent, one.capability, one.priority, one.callback_url)


def _ended_by(seen: Seen, *codes: str) -> bool:
    """Whether it was cancelled in this step for one of these reasons."""
    return any(
        event.type == CANCELLED and (event.detail or "").partition(":")[0] in codes
        for event in seen.word
    )
