"""Who got what: ceilings, order, fairness, turns and room for critical work.

Judged grant by grant, in the order of their tokens, on the world as it stood at that moment.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.leases import FENCING_TOKENS_PER_SECOND
from fairlane.core.policy import FAIR
from tests.simulation import ledger
from tests.simulation.causes import Step, Violation, demand
from tests.simulation.histories import CREATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.core.model import Task
    from fairlane.engine.commands import Grant, Lease
    from tests.simulation.ground import Ground
    from tests.simulation.ledger import Seen

CRITICAL: Final = -20


class Grants:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def judge(self, step: Step, last_token: int) -> None:
        ground = self._ground
        grants = sorted(
            (s.after for s in ground.changed if s.granted), key=lambda t: t.fencing_token
        )
        tokens = [task.fencing_token for task in grants]
        self._judge_tokens(tokens, last_token, step.now)
        ground.last_token = last_token
        ground.granted += len(grants)
        offers = {lease.worker: lease for lease in step.waiting}
        taken = Counter(task.worker for task in grants)
        for task in grants:
            ground.books.move(task, _as_ready(task))
        for task in grants:
            offer = offers.get(task.worker or "")
            demand("grant", offer, f"task {task.seq} went to {task.worker}, who did not ask")
            assert offer is not None
            self._judge_grant(task, offer, step.now)
        for lease in step.waiting:
            demand("grant", taken[lease.worker] <= lease.limit, f"{lease.worker} got too much")
        hungry = [lease for lease in step.waiting if taken[lease.worker] < lease.limit]
        if step.outcome is not None:
            self._judge_thirst(step, hungry)
            for given in step.outcome.grants:
                self._judge_inputs(given)
        self._judge_stops(step, grants, hungry)

    def _judge_tokens(self, tokens: Sequence[int], last: int, now: int) -> None:
        """One after the other, above all before and above all of the seconds before this one."""
        before = self._ground.last_token
        expected = list(range(last + 1 - len(tokens), last + 1))
        demand("tokens", tokens == expected, f"{tokens} up to {last}")
        demand("tokens", tokens or last == before, f"{last} after {before}, and none was granted")
        least = max(before, now // 1000 * FENCING_TOKENS_PER_SECOND)
        demand("tokens", not tokens or tokens[0] > least, f"{tokens} after {before} at {now}")

    def _judge_grant(self, task: Task, offer: Lease, now: int) -> None:
        ground = self._ground
        name = f"task {task.seq} of {task.agent} in {task.lane}"
        books, pair = ground.books, (task.lane, task.agent)
        late = task.deadline_at is not None and task.deadline_at <= now
        demand("grant", not late, f"{name} was leased after its deadline")
        able = task.lane in ground.lanes(offer) and task.capability in offer.capabilities
        demand("grant", able, f"{name} went to a worker that cannot run it")
        state = "running" if task.capability in offer.started else "assigned"
        demand("grant", task.state == state, f"{name} is {task.state}, not {state}")
        assert offer.ttl_ms is not None
        until = now + offer.ttl_ms
        demand("lease", task.lease_expires_at == until, f"{name} until {task.lease_expires_at}")
        demand("ceiling", ground.has_room(task.lane), f"{name} went over the lane or overall")
        demand("ceiling", ground.may_run(*pair), f"{name} went over the agent's")
        paused = ground.policy.lanes[task.lane].paused
        demand("paused", not paused, f"{name} was leased while its lane was paused")
        ground.families.demand_done(task, "was leased")
        self._judge_order(task, offer.capabilities, now)
        books.move(_as_ready(task), task)
        demand(
            "tokens",
            task.fencing_token > books.served[pair],
            f"{name} got token {task.fencing_token}",
        )
        books.served[pair] = task.fencing_token
        books.count(task, ledger.DISPATCHED)
        books.count(task, ledger.WAITED_MS, max(0, now - task.queued_at))

    def _judge_order(self, task: Task, routes: frozenset[str], now: int) -> None:
        ground, lane = self._ground, task.lane
        name = f"task {task.seq} of {task.agent} in {lane}"
        rivals = list(ground.books.ready_for(lane, routes))
        if any_late(rivals, now):
            return
        if ground.policy.lanes[lane].strategy == FAIR:
            first = min(
                {rival.agent for rival in rivals}, key=lambda a: self._turn(lane, a, rivals)
            )
            demand("fairness", task.agent == first, f"{name} went before {first}")
            rivals = [rival for rival in rivals if rival.agent == task.agent]
        aging_ms = ground.policy.lanes[lane].aging_ms
        head = min(rivals, key=lambda rival: self._place(rival, aging_ms))
        demand("order", head.seq == task.seq, f"{name} went before task {head.seq}")

    def _place(self, task: Task, aging_ms: int | None) -> tuple[int, ...]:
        """Critical work first; then by priority, where waiting counts for something if it ages."""
        if aging_ms is None or task.priority <= CRITICAL:
            return (task.priority > CRITICAL, task.priority, task.seq)
        since = task.created_at + self._ground.histories.lives[task.seq].aged_ms
        return (True, since + task.priority * aging_ms, task.seq)

    def _turn(self, lane: str, agent: str, rivals: Iterable[Task]) -> tuple[Any, ...]:
        """The place of an agent in the order; those at their ceiling come last."""
        ground = self._ground
        urgent = any(rival.agent == agent and rival.priority <= CRITICAL for rival in rivals)
        share = ground.books.slots[lane, agent] / ground.policy.weight(agent)
        served = ground.books.served[lane, agent]
        return (not ground.may_run(lane, agent), not urgent, share, served, agent)

    def _judge_thirst(self, step: Step, hungry: Iterable[Lease]) -> None:
        """Nobody goes empty-handed while there is work for them and room for it."""
        ground = self._ground
        for lease in hungry:
            for lane in ground.lanes(lease):
                if ground.policy.lanes[lane].paused or not ground.has_room(lane):
                    continue
                left = ground.books.ready_for(lane, lease.capabilities)
                free = [task.seq for task in left if ground.may_run(lane, task.agent)]
                # A task past its deadline takes a place in this round, to end in the next batch.
                if free and not any_late(ground.open.values(), step.now):
                    raise Violation("starvation", f"{lease.worker} did not get {free} in {lane}")

    def _judge_inputs(self, given: Sequence[Grant]) -> None:
        """A child is given what its parents have left, as far as they are kept."""
        ground = self._ground
        for grant in given:
            parents = ground.families.parents.get(grant.task.id, ())
            kept = {parent for parent in parents if ground.task(parent)}
            told = {id_: state for id_, state, _ in grant.inputs}
            name = f"task {grant.task.seq} got {grant.inputs}"
            demand("inputs", kept <= told.keys() <= set(parents), f"{name}, not {kept}")
            demand("inputs", set(told.values()) <= {"done"}, name)

    # ------------------------------------------------------------ room for critical work

    def _judge_stops(self, step: Step, grants: Sequence[Task], hungry: Sequence[Lease]) -> None:
        ground = self._ground
        stopped = [seen.after for seen in ground.changed if ground.preemption.judge_flags(seen)]
        late = any_late(ground.open.values(), step.now)

        def wanted(lane: str) -> int:
            return self._wanted(lane, step.waiting if late else hungry)

        running = [task for task in ground.open.values() if task.state in ("assigned", "running")]
        ground.preemption.judge(stopped, running, wanted, grants)
        if grants or late or step.outcome is None or not hungry:
            return
        for lane in ground.policy.lanes:
            if not ground.has_room(lane):
                most = max(self._wanted(lane, [lease]) for lease in hungry)
                ground.preemption.judge_patience(step, lane, most, running)

    def _wanted(self, lane: str, leases: Sequence[Lease]) -> int:
        """How much critical work of the lane these workers would run if there were room."""
        ground = self._ground
        if ground.policy.lanes[lane].paused:
            return 0
        routes = frozenset(
            route for lease in leases if lane in ground.lanes(lease) for route in lease.capabilities
        )
        by_agent = Counter(
            task.agent for task in ground.books.ready_for(lane, routes) if task.priority <= CRITICAL
        )
        found = 0
        for agent, count in by_agent.items():
            ceiling = ground.ceiling(lane, agent)
            slots = ground.books.slots[lane, agent]
            found += count if ceiling is None else max(0, min(count, ceiling - slots))
        return found

    # ------------------------------------------------------------ sessions

    def judge_turns(self, turns: dict[str, list[int]]) -> None:
        """`turns` are the sessions that something happened in, with those that had the turn."""
        books = self._ground.books
        late = {seen.after.seq for seen in self._ground.changed if _came_later(seen)}
        late |= self._ground.talks.windowed
        for key, had in turns.items():
            holders = books.holders.get(key, {})
            waiting = books.waiting.get(key, {})
            self._judge_number(key, holders, waiting)
            rivals = [task for task in waiting.values() if task.seq not in late]
            for seq, holder in holders.items():
                if seq not in had and rivals:
                    first = min([holder, *rivals], key=lambda task: (task.priority, task.seq))
                    ahead = f"task {seq} got the turn of {key} before task {first.seq}"
                    demand("session order", first.seq == seq, ahead)

    def _judge_number(
        self, key: str, holders: Mapping[int, Task], waiting: Mapping[int, Task]
    ) -> None:
        """As many as may have the turn, unless they had begun before fewer might."""
        limit, dying = self._ground.marks.limit(key), self._ground.talks.dying.get(key)
        name = f"{list(holders)} have the turn of {key}"
        if dying:
            seqs = {seq for seq, _ in dying}
            demand("interrupt", holders.keys() <= seqs, f"{name}, and {seqs} have not ended")
            return
        if len(holders) > limit:
            old = {seen.after.seq: seen.before for seen in self._ground.changed}
            begun = {seq: old.get(seq, task) for seq, task in holders.items()}
            over = [seq for seq, task in begun.items() if task is None or not task.fencing_token]
            demand("session", not over, f"{name}, {limit} may, and {over} had not begun")
        demand("session", len(holders) >= limit or not waiting, f"{name}, {limit} may")


def _came_later(seen: Seen) -> bool:
    """Whether it came to its session after this step's submissions: revived, unblocked, due."""
    if seen.word:
        return [event.type for event in seen.word] != [CREATED]
    return seen.before is not None and seen.before.gate == "delay"


def _as_ready(task: Task) -> Task:
    """A leased task as it stood just before."""
    return msgspec.structs.replace(task, state="queued", gate=None, lease_expires_at=None)


def any_late(tasks: Iterable[Task], now: int) -> bool:
    """One of them came in with a deadline that was just over: it ends in the next batch."""
    return any(t.deadline_at is not None and t.deadline_at <= now and t.ready for t in tasks)
