"""Counters of one transaction: lanes, lines, sessions and batches, held as whole rows.

That is safe because there is one writer at a time. The same `Change` that rewrites a task's row
moves them, and they are written together with it; nothing is decided here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core import batches, counts, gates, lifecycle, sessions
from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.core.model import Change, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import Session
from fairlane.core.steps import StepIndex
from fairlane.store.accounts import AccountCache
from fairlane.store.base import Connection
from fairlane.store.tables import batches as batch_table
from fairlane.store.tables import lines as line_table
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables.lines import BY_SHARE, URGENT, Order, Pair

_number: Final = operator.attrgetter("id")
_LINES_MAX: Final = 20_000  # about 10 MB
KNOWN_MAX: Final = 20_000  # about 10 MB, too


class WriterCache:
    """Tasks with open leases, their sessions, lanes and lines, as the last commit left them, so
    that the next transaction need not read them.

    It is valid only while no other process writes; `alone` says whether that is guaranteed. Nothing
    but tasks is copied: a transaction changes the rest, so a rollback must `clear` the cache.

    On a shared store, `known` has the same tasks with the transactions that wrote their rows. It
    stays when another process has written: a row that bears the same number is still the same.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        self.tasks: dict[int, Task] = {}
        self.known: dict[int, tuple[Task, int]] = {}
        self.sessions: dict[str, Session] = {}
        # By lane and agent, then by capability.
        self.lines: dict[tuple[str, str], dict[str, Line]] = {}
        self.lanes: dict[str, Tally] | None = None
        # Lanes with capabilities of which no task is ready: not looked up again.
        self.idle: set[Pair] = set()
        self.accounts = AccountCache()
        self.steps: dict[int, StepIndex] = {}  # of tasks with open leases that have recorded some

    def clear(self) -> None:
        self.known.clear()
        self.doubt()

    def doubt(self) -> None:
        """Forget what another process may have changed."""
        self.lanes = None
        self.idle.clear()
        self.tasks.clear()
        self.sessions.clear()
        self.lines.clear()
        self.accounts.clear()
        self.steps.clear()


class Counters:
    def __init__(
        self,
        connection: Connection,
        *,
        now: int,
        last_line: int,
        policy: Policy,
        cache: WriterCache,
    ) -> None:
        self._connection = connection
        self._now = now
        self.policy = policy
        self.last_line = last_line
        self._cache = cache
        self.open_sessions: set[str] = set()
        self.tight_sessions: set[str] = set()
        self.open_batches: set[str] = set()
        self._lanes = cache.lanes
        self._dirty_lanes: set[str] = set()
        self._lines = cache.lines
        self._dirty_lines: dict[tuple[str, str], None] = {}
        self._new_lines: set[int] = set()
        self._sessions: dict[str, Session] = {}
        self._known_sessions: set[str] = set()
        self._dirty_sessions: set[str] = set()
        self._batches: dict[str, Batch] = {}
        self._dirty_batches: set[str] = set()
        self._counted_batches: set[str] = set()

    def lanes(self) -> Mapping[str, Tally]:
        if self._lanes is None:
            self._lanes = line_table.lanes(self._connection)
        return self._lanes

    def lane(self, name: str) -> Tally:
        found = (self._lanes or self.lanes()).get(name)
        if found is None:
            assert self._lanes is not None
            found = self._lanes[name] = Tally()
        return found

    def load_lines(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Load all lines of the given (lane, agent) pairs that are not loaded yet."""
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._lines]
        if missing:
            self._take_lines(line_table.of_agents(self._connection, missing))
            for pair in missing:
                self._lines.setdefault(pair, {})

    def _take_lines(self, lines: Iterable[Line]) -> None:
        """Add lines that were read from the database; lines already in memory are newer."""
        new: dict[tuple[str, str], dict[str, Line]] = {}
        for line in lines:
            pair = (line.lane, line.agent)
            if pair not in self._lines:
                new.setdefault(pair, {})[line.capability] = line
        self._lines.update(new)

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        """Load and return all lines of the first agents of each lane and capability.

        Counted lines need not be written: as many more are read, and those are put in their place.
        """
        wanted = [place for place in wanted if place not in self._cache.idle]
        lanes = {lane for lane, _ in wanted}
        counted = [pair for pair in self._dirty_lines if pair[0] in lanes]
        self._share(counted)
        pairs = dict.fromkeys(self._first_agents(order, wanted, limit + len(counted)))
        places = set(wanted)
        for pair in counted:
            pairs.pop(pair, None)
            lines = self._lines[pair].values()
            if any(
                _comes_up(line, order) and (line.lane, line.capability) in places for line in lines
            ):
                pairs[pair] = None
        return [line for pair in pairs for line in self._lines[pair].values()]

    def _first_agents(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Pair]:
        """Load all lines of the first agents as the database has them; return lanes and agents."""
        if not self._cache.alone:
            first = line_table.first(self._connection, order, wanted, limit)
            self._take_lines(first)
            return [(line.lane, line.agent) for line in first]
        # Most lines are in memory, and a second statement costs little.
        pairs: list[Pair] = []
        for lane, capability in wanted:
            found = line_table.first_agents(self._connection, order, lane, capability, limit)
            if not found and order is BY_SHARE:
                self._note_idle(lane, capability)
            pairs += found
        self.load_lines(pairs)
        return pairs

    def _note_idle(self, lane: str, capability: str) -> None:
        """Remember that no task is ready, unless one became ready in this transaction."""
        for pair in self._dirty_lines:
            line = self._lines[pair].get(capability) if pair[0] == lane else None
            if line is not None and line.ready:
                return
        self._cache.idle.add((lane, capability))

    def ready_capabilities(self, lane: str) -> list[str]:
        """Return the capabilities of the ready tasks of a lane, each once."""
        found = set(line_table.ready_capabilities(self._connection, lane))
        for pair in self._dirty_lines:
            if pair[0] == lane:
                found.update(line.capability for line in self._lines[pair].values() if line.ready)
        return sorted(found)

    def lines(self, lane: str, agent: str) -> Mapping[str, Line]:
        return self._lines[lane, agent]

    def line_number(self, lane: str, agent: str, capability: str) -> int:
        """Return the number of a line; create the line if there is none."""
        return self._line(lane, agent, capability).id

    def _line(self, lane: str, agent: str, capability: str) -> Line:
        pair = (lane, agent)
        if pair not in self._lines:
            self.load_lines([pair])
        lines = self._lines[pair]
        line = lines.get(capability)
        if line is None:
            self.last_line += 1
            line = Line(lane=lane, agent=agent, capability=capability, id=self.last_line)
            self._new_lines.add(line.id)
            lines[capability] = line
            self._dirty_lines[pair] = None
        return line

    def load_sessions(self, keys: Iterable[str]) -> None:
        missing = [key for key in dict.fromkeys(keys) if key not in self._sessions]
        for key in missing:
            if key in self._cache.sessions:
                self._sessions[key] = self._cache.sessions[key]
                self._known_sessions.add(key)
        stored = [key for key in missing if key not in self._sessions]
        for session in session_table.by_key(self._connection, stored) if stored else ():
            self._sessions[session.key] = session
            self._known_sessions.add(session.key)
        for key in missing:
            session = self._sessions.setdefault(key, Session(key))
            session.limit = sessions.limit(self.policy.sessions, session)

    def session(self, key: str) -> Session:
        return self._sessions[key]

    def forget_lines(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Delete the lines of agents that have none of their tasks left."""
        pairs = list(dict.fromkeys(pairs))
        line_table.forget(self._connection, pairs)
        for pair in pairs:
            self._lines.pop(pair, None)

    def save_to_cache(self) -> None:
        """Cache lanes, lines, and the sessions with running tasks."""
        self._cache.lanes = self._lanes
        if len(self._lines) > _LINES_MAX:
            self._lines.clear()
        for key, session in self._sessions.items():
            if session.holders and key in self._known_sessions:
                self._cache.sessions[key] = session
            else:
                self._cache.sessions.pop(key, None)

    def session_of(self, task: Task) -> Session | None:
        if not task.session:
            return None
        return self._sessions.get(task.session) or self._load_session(task.session)

    def _load_session(self, key: str) -> Session:
        self.load_sessions([key])
        return self._sessions[key]

    def touch_session(self, key: str) -> None:
        """Save changed settings or marks of a session, and re-evaluate its turns."""
        session = self._sessions[key]
        session.limit = sessions.limit(self.policy.sessions, session)
        self._dirty_sessions.add(key)
        if session.free and session.waiting:
            self.open_sessions.add(key)
        if session.holders > session.limit:
            self.tight_sessions.add(key)

    def load_batches(self, ids: Iterable[str]) -> None:
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._batches]
        for batch in batch_table.by_id(self._connection, missing) if missing else ():
            self._batches[batch.id] = batch

    def batch(self, id_: str) -> Batch | None:
        self.load_batches([id_])
        return self._batches.get(id_)

    def batch_of(self, task: Task) -> Batch | None:
        return self.batch(task.batch) if task.batch else None

    def count_rejected(self, lane: str) -> None:
        """Count a refused submission of which nothing else is stored."""
        self.lane(lane).rejected += 1
        self._dirty_lanes.add(lane)

    def settle_batches(self) -> list[Batch]:
        """End the batches whose tasks have all ended, and return them."""
        ended = [self._batches[id_] for id_ in sorted(self._counted_batches)]
        ended = [batch for batch in ended if batches.settle(batch, self._now)]
        self._dirty_batches.update(batch.id for batch in ended)
        return ended

    def add_batch(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        self._dirty_batches.add(batch.id)

    def drop_batch(self, id_: str) -> None:
        """Remove a batch with no admitted tasks."""
        del self._batches[id_]
        self._dirty_batches.discard(id_)
        batch_table.forget(self._connection, [id_])

    def prepare(self, tasks: Iterable[Task]) -> None:
        """Load the counters of many tasks at once, before changes are applied to them."""
        pairs: dict[tuple[str, str], None] = {}
        keys: dict[str, None] = {}
        batch_ids: dict[str, None] = {}
        for task in tasks:
            pairs[task.lane, task.agent] = None
            if task.session:
                keys[task.session] = None
            if task.batch:
                batch_ids[task.batch] = None
        self.load_lines(pairs)
        self.load_sessions(keys)
        self.load_batches(batch_ids)

    def reshare(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Recompute the shares of agents whose weight has changed."""
        pairs = list(pairs)
        self.load_lines(pairs)
        self._dirty_lines.update(dict.fromkeys(pairs))

    def count(self, change: Change) -> None:
        verb, after = change.verb, change.after
        if verb == lifecycle.START:
            return  # in flight before and after, with its slot
        pair = (after.lane, after.agent)
        lines = self._lines.get(pair)
        line = lines.get(after.capability) if lines else None
        if line is None:
            line = self._line(after.lane, after.agent, after.capability)
        counts.apply(self.lane(after.lane), line, change)
        self._dirty_lanes.add(after.lane)
        self._dirty_lines[pair] = None
        if verb == lifecycle.LEASE:
            line.served = after.fencing_token
            return  # a ready task has its session's turn and its place in the batch already
        if line.ready and self._cache.idle:
            self._cache.idle.discard((after.lane, after.capability))
        if after.session:
            session = self._sessions.get(after.session) or self._load_session(after.session)
            gates.apply(session, change)
            if session.agent is None:
                session.agent = after.agent
            self._dirty_sessions.add(session.key)
            if session.waiting and session.free:
                self.open_sessions.add(session.key)
        if after.batch:
            self._count_in_batch(after.batch, change)

    def _count_in_batch(self, id_: str, change: Change) -> None:
        batch = self.batch(id_)
        assert batch is not None, id_
        batches.apply(batch, change)
        self._dirty_batches.add(id_)
        self._counted_batches.add(id_)
        if batch.free and batch.waiting:
            self.open_batches.add(id_)

    def write(self) -> None:
        if self._dirty_lanes:
            dirty = {name: self.lane(name) for name in sorted(self._dirty_lanes)}
            line_table.save_lanes(self._connection, dirty)
            self._dirty_lanes.clear()
        if self._dirty_lines:
            self._write_lines()
        if self._dirty_sessions:
            self._write_sessions()
        if self._dirty_batches:
            batch_table.save(
                self._connection, [self._batches[id_] for id_ in sorted(self._dirty_batches)]
            )
            self._dirty_batches.clear()

    def _counted_lines(self) -> list[Line]:
        """Return the lines of counted agents with their new shares."""
        # In the order of the table.
        return sorted(self._share(self._dirty_lines), key=_number)

    def _share(self, pairs: Iterable[Pair]) -> list[Line]:
        """Compute the shares of agents from their slots; return their lines."""
        found: list[Line] = []
        for pair in pairs:
            lines = self._lines[pair].values()
            slots = served = 0
            for line in lines:
                slots += line.slots
                served = max(served, line.served)
            share = slots / self.policy.weight(pair[1])
            for line in lines:
                line.share, line.served = share, served
                found.append(line)
        return found

    def _write_lines(self) -> None:
        new: list[Line] = []
        known: list[Line] = []
        for line in self._counted_lines():
            (new if line.id in self._new_lines else known).append(line)
        self._dirty_lines.clear()
        if new:
            line_table.insert(self._connection, new)
            self._new_lines.clear()
        if known:
            line_table.update(self._connection, known)

    def _write_sessions(self) -> None:
        keep: list[Session] = []
        forget: list[str] = []
        for key in sorted(self._dirty_sessions):
            session = self._sessions[key]
            if not session.empty:
                session.touched_at = self._now
                keep.append(session)
                self._known_sessions.add(key)
                continue
            session.agent = None  # the next agent may take it over
            if key in self._known_sessions:
                forget.append(key)
                self._known_sessions.discard(key)
        self._dirty_sessions.clear()
        if keep:
            session_table.save(self._connection, keep)
        if forget:
            session_table.forget(self._connection, forget)


def _comes_up(line: Line, order: Order) -> bool:
    """Return whether the line has tasks of the kind that `order` is about."""
    return line.urgent > 0 if order is URGENT else line.ready > 0
