"""Workers as the scheduler knows them, and whether one of them can run a task.

A worker is known from the first time it asks for leases until a day after the last time. It is
online while it waits for tasks, holds a lease, or has asked within its patience; otherwise it is
silent. What a silent worker offers is still a known name: its tasks wait for it to come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import moments
from fairlane.core.documents import nearest
from fairlane.core.model import HANDLER, is_node, is_open

ONLINE: Final = "online"
DRAINING: Final = "draining"
SILENT: Final = "silent"
STATES: Final = (ONLINE, DRAINING, SILENT)

# A worker that waits for tasks asks again at once; any other may pause between two requests.
WAITER_PATIENCE_MS: Final = 15_000
POLLER_PATIENCE_MS: Final = 60_000

_PREFIX: Final = f"{HANDLER}/"


class KnownWorker(msgspec.Struct, frozen=True):
    """What a worker has said about itself with its last request for leases.

    `server` is the node that it asks. With `any_handler` it also runs every handler that does not
    belong to one process. `lanes` and `agent` limit which tasks it takes, None if nothing does.
    `slots` is how many tasks it runs at once, None if it has not said so.
    """

    name: str
    server: str
    capabilities: frozenset[str] = frozenset()
    any_handler: bool = False
    lanes: tuple[str, ...] | None = None
    agent: str | None = None
    address: str | None = None
    version: str | None = None
    slots: int | None = None
    patience_ms: int = WAITER_PATIENCE_MS
    first_seen_at: int = 0
    seen_at: int = 0
    running: int = 0
    state: str = ONLINE

    @property
    def is_node(self) -> bool:
        return is_node(self.name)

    @property
    def handlers(self) -> list[str]:
        """Return the names of its handlers, except names that belong to one process."""
        found = (one.removeprefix(_PREFIX) for one in self.capabilities if is_open(one))
        return sorted(found)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of tasks that it runs besides handlers."""
        return sorted(one for one in self.capabilities if not one.startswith(_PREFIX))

    @property
    def takes_all(self) -> bool:
        """Return whether it takes tasks of every lane and agent."""
        return self.lanes is None and self.agent is None

    def offers(self, capability: str, lane: str, agent: str) -> bool:
        if self.lanes is not None and lane not in self.lanes:
            return False
        if self.agent not in (None, agent):
            return False
        return capability in self.capabilities or (self.any_handler and is_open(capability))


class Unserved(msgspec.Struct, frozen=True):
    """No worker can run a task now. `unknown` says that no known worker ever could."""

    text: str
    unknown: bool


def judged(
    worker: KnownWorker, now: int, *, running: int, waits: bool = False, served: bool = True
) -> KnownWorker:
    """Return an external worker with its state. `served`: a server that it could ask is there."""
    recent = now - worker.seen_at <= worker.patience_ms
    online = waits or running > 0 or (served and recent)
    state = ONLINE if online else SILENT
    seen_at = max(worker.seen_at, now) if waits else worker.seen_at
    return msgspec.structs.replace(worker, running=running, state=state, seen_at=seen_at)


def is_served(workers: Sequence[KnownWorker], capability: str, lane: str, agent: str) -> bool:
    """Return whether a worker can run a task with this capability. If no worker is known at all,
    or only one process may run it, assume so.
    """
    if not workers or (capability.startswith(_PREFIX) and not is_open(capability)):
        return True
    return any(one.state == ONLINE and one.offers(capability, lane, agent) for one in workers)


def unserved(
    workers: Sequence[KnownWorker], capability: str, lane: str, agent: str
) -> Unserved | None:
    """Return why no worker can run a task with this capability; None if it is served."""
    if is_served(workers, capability, lane, agent):
        return None
    able = [one for one in workers if one.offers(capability, lane, agent)]
    what = described(capability)
    if able:
        last = max(able, key=lambda one: one.seen_at)
        seen = f"{last.name} was last seen at {moments.text(last.seen_at)}"
        return Unserved(f"no worker for {what} is online; {seen}", unknown=False)
    elsewhere = [one for one in workers if one.offers(capability, *_place(one, lane, agent))]
    if elsewhere:
        where = _limits(elsewhere, agent)
        return Unserved(f"no known worker offers {what} in lane {lane}{where}", unknown=True)
    hint = nearest(capability.removeprefix(_PREFIX), handler_names(workers, agent))
    hint = hint if capability.startswith(_PREFIX) else ""
    return Unserved(f"no known worker offers {what}{hint}", unknown=True)


def handler_names(workers: Iterable[KnownWorker], agent: str | None) -> list[str]:
    """Return the handlers that an agent's tasks can use, each once; None for all agents."""
    mine = (one for one in workers if one.agent is None or agent in (None, one.agent))
    return sorted({name for one in mine for name in one.handlers})


def described(capability: str) -> str:
    """Return a capability in words: `handler 'echo'`, `tasks of kind 'action'`."""
    if capability.startswith(_PREFIX):
        return f"handler '{capability.removeprefix(_PREFIX)}'"
    return f"tasks of kind '{capability}'"


def unknown_lane(lane: str, lanes: Mapping[str, object], used: str | None = None) -> str:
    """Return that a lane does not exist, with the nearest name; `used` is the lane used instead."""
    instead = "" if used is None else f", so the task runs in lane {used}"
    return f"the policy has no lane '{lane[:64]}'{instead}{nearest(lane, lanes)}"


def _place(worker: KnownWorker, lane: str, agent: str) -> tuple[str, str]:
    """Return a lane and an agent that a worker takes tasks of."""
    return (worker.lanes[0] if worker.lanes else lane), worker.agent or agent


def _limits(workers: Sequence[KnownWorker], agent: str) -> str:
    """Return which lanes the workers with a capability take, if lanes are what is missing."""
    lanes = {lane for one in workers if one.agent in (None, agent) for lane in one.lanes or ()}
    return f"; its workers take tasks of {', '.join(sorted(lanes))}" if lanes else f" for {agent}"
