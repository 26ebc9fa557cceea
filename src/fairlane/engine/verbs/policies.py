"""The policy's verb: a document becomes the next version, with all consequences.

A document is applied as a whole or not at all. Versions are never rewritten; a rollback is a new
version. Caution: a lane that holds tasks cannot be removed, whatever a document says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.compat import policies
from fairlane.core.errors import Conflict, InvalidPolicy
from fairlane.core.policy import FAIR, Policy, read, to_document
from fairlane.engine.commands import MERGE, PATCH, REPLACE, PolicyChange, SetPolicy
from fairlane.engine.verbs import resources
from fairlane.store.tables import lines
from fairlane.store.tables import policy as table
from fairlane.store.tables import sessions as session_table
from fairlane.store.transaction import Transaction

_READ: Final[Mapping[str, Callable[[Policy, object], Policy]]] = {
    MERGE: policies.merge,
    REPLACE: policies.replace,
    PATCH: policies.patch,
}


def set_policy(tx: Transaction, requests: Sequence[SetPolicy], now: int) -> Iterator[object]:
    for request in requests:
        try:
            yield _changed(tx, request, now)
        except (InvalidPolicy, Conflict) as error:
            yield error


def _changed(tx: Transaction, request: SetPolicy, now: int) -> PolicyChange:
    if request.expected_version not in (None, tx.policy_version):
        raise Conflict(
            f"the policy is at version {tx.policy_version}, not {request.expected_version}; "
            "read it again",
            details={"version": tx.policy_version},
        )
    before = tx.policy
    after = _READ[request.how](before, request.document)
    notes: list[str] = []
    if after != before:
        _refuse_to_lose(tx, before, after)
        notes = resources.notes_on_removal(tx, before.resources, after.resources)
        if not request.dry_run:
            _adopt(tx, after, request, now)
    return PolicyChange(tx.policy_version, before, after, tuple(notes))


def _refuse_to_lose(tx: Transaction, before: Policy, after: Policy) -> None:
    """Raise if tasks would be lost, or keys of a newer node that this one cannot read."""
    problems = []
    for lane in sorted(before.lanes.keys() - after.lanes.keys()):
        tally = tx.counters.lane(lane)
        count = tally.queued + tally.slots + tally.parked
        if count:
            tasks = "1 task is" if count == 1 else f"{count} tasks are"
            problems.append(
                f"lanes.{lane} cannot be removed while {tasks} in the lane; clear it first"
            )
    if problems:
        raise InvalidPolicy(problems)
    newest = table.newest(tx.connection)
    unknown = read(msgspec.json.decode(newest.document))[1] if newest else []
    if unknown:
        raise Conflict(
            f"version {tx.policy_version} of the policy was written by a newer fairlane: this "
            f"version does not know {', '.join(unknown[:5])}; change it there",
            details={"version": tx.policy_version, "unknown": unknown},
        )


def _adopt(tx: Transaction, policy: Policy, request: SetPolicy, now: int) -> None:
    old = tx.policy
    tx.use_policy(policy)
    tx.policy_version += 1
    new = table.PolicyView(
        version=tx.policy_version,
        document=msgspec.json.encode(to_document(policy)).decode(),
        source=request.source,
        created_at=now,
        author=request.author,
        note=request.note,
    )
    table.adopt(tx.connection, new)
    names = old.agents.keys() | policy.agents.keys()
    changed = sorted(name for name in names if old.weight(name) != policy.weight(name))
    if changed:
        tx.counters.reshare(lines.pairs_of(tx.connection, changed))
    for lane in sorted(policy.lanes.keys() & old.lanes.keys()):
        if _line_rule(policy, lane) != _line_rule(old, lane):
            _reline(tx, lane)
    resources.follow_policy(tx, old.resources, policy.resources)
    if policy.sessions != old.sessions:
        keys = session_table.busy(tx.connection)
        tx.counters.load_sessions(keys)
        for key in keys:
            tx.counters.touch_session(key)


def _line_rule(policy: Policy, lane: str) -> tuple[str, int | None]:
    return policy.lanes[lane].strategy, policy.lanes[lane].aging_ms


def _reline(tx: Transaction, lane: str) -> None:
    """Move all tasks of a lane to the lines and ranks that the policy now requires."""
    settings = tx.policy.lanes[lane]
    by_agent = settings.strategy == FAIR
    if not by_agent:
        for capability in lines.capabilities(tx.connection, lane):
            tx.counters.line_number(lane, "", capability)
    tx.reline(lane, by_agent=by_agent, aging_ms=settings.aging_ms or 0)
