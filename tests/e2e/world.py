"""One server to kill, with an agent for its instructions and a receiver for its webhooks.

The agent and the receiver live in the test's own process and outlive every kill, so that what they
have seen is the truth about what the servers did. `successor` puts a second server in the place of
the first: on a shared database it is another node, which takes over from one that died.
"""

from __future__ import annotations

import itertools
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from tests.e2e.asking import Asker
from tests.e2e.processes import until
from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.waiting import WAIT_SECONDS
from tests.outbound.receivers import Receiver, answering, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.e2e.processes import Program, Programs
    from tests.fakes.chat_agent import Entry

LEASE_SECONDS = 12.0
TAKEN_BACK_SECONDS = LEASE_SECONDS + WAIT_SECONDS  # what a dead node held is another's by then
AT_ONCE = {"maxRetries": 3, "backoffMs": 0}
NEVER = {"maxRetries": 0}
ENDED = ("done", "failed", "cancelled", "rejected", "parked")

BUSY = """SELECT state FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"""

HELD = "held"  # nothing starts until the policy says so
ONE = "one"  # one at a time, the most urgent first
WIDE = "wide"  # as many as come
POLICY: dict[str, Any] = {
    "lanes": {
        HELD: {"maxInflight": 1000, "maxQueueSize": None, "paused": True},
        ONE: {"maxInflight": 1, "strategy": "priority"},
        WIDE: {"maxInflight": 1000, "maxQueueSize": None},
    }
}


class World(Asker):
    def __init__(
        self, servers: list[Program], agent: ChatAgent, hook: Receiver, policy_file: Path
    ) -> None:
        super().__init__(servers[0])
        self.agent = agent
        self.hook = hook
        self.ready_at_ms = self.gone_at_ms = 0
        self.servers = servers
        self._policy_file = policy_file

    @property
    def server(self) -> Program:
        return self._server

    async def start(self) -> None:
        await self.server.start()
        self.ready_at_ms = int(time.time() * 1000)

    async def restart(self) -> None:
        """`kill -9`, and start it again on what it has left."""
        self.gone_at_ms = int(time.time() * 1000)
        self.server.kill()
        await self.start()

    async def successor(self, database: str) -> Program:
        """Freeze the server and talk to another one from now on; the frozen one, to be killed."""
        frozen, self._server = self.servers
        with psycopg.connect(database, autocommit=True) as connection:

            def stands_still() -> bool:
                """Frozen in a transaction it would keep the lock that all writers need."""
                self.gone_at_ms = int(time.time() * 1000)
                frozen.send(signal.SIGSTOP)
                if not connection.execute(BUSY).fetchall():
                    return True
                frozen.send(signal.SIGCONT)
                return False

            await until(stands_still, WAIT_SECONDS, lambda: "it is never between two transactions")
        await self.start()
        return frozen

    def turn_to_the_other(self) -> None:
        """Talk to the other one of two running servers."""
        (self._server,) = [one for one in self.servers if one is not self._server]

    # --- the server -----------------------------------------------------------------------------

    def write_policy(self, document: Mapping[str, Any]) -> None:
        """Replace the policy file at once; the server looks at it now and then."""
        new = self._policy_file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(document))
        new.replace(self._policy_file)

    async def say(self, message: str, **body: Any) -> str:
        """Submit an instruction."""
        return await self.submit(instruction=message, **{"lane": WIDE, **body})

    async def until_task(self, task_id: str, seconds: float = WAIT_SECONDS, **wanted: Any) -> Any:
        """The task as soon as it has all these values."""
        await self.until_tasks([task_id], seconds, **wanted)
        return await self.task(task_id)

    async def end_of(self, task_id: str, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        async def over() -> bool:
            found[:] = [await self.task(task_id)]
            return found[0]["state"] in ENDED

        await until(over, seconds, lambda: f"it does not end: {found}")
        return found[0]

    async def output(self, task_id: str) -> dict[str, Any]:
        return (await self.get(f"/tasks/{task_id}/output")).body

    async def read(self, path: str) -> str:
        """The whole of an answer that is a stream."""
        async with self._session.get(self.server.url + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def events(self, **query: Any) -> list[dict[str, Any]]:
        """All events that fit, page by page."""
        found: list[dict[str, Any]] = []
        after, text = 0, "".join(f"&{name}={value}" for name, value in query.items())
        while True:
            url = f"{self.server.url}/events?after={after}&limit=1000{text}"
            async with self._session.get(url, headers={"Accept": "application/json"}) as answer:
                assert answer.status == 200, await answer.text()
                page = await answer.json()
            found += page["events"]
            if page["nextAfter"] == after:
                return found
            after = page["nextAfter"]

    # --- what the agent saw -----------------------------------------------------------------------

    def asked(self, message: str) -> list[Entry]:
        """The requests whose message begins like this, in the order of their arrival."""
        found = [one for one in self.agent.requests if str(one.message).startswith(message)]
        return sorted(found, key=lambda one: one.arrived)

    async def until_asked(self, message: str, count: int = 1) -> None:
        def seen() -> str:
            return f"{len(self.asked(message))} requests for {message!r}, not {count}"

        await until(lambda: len(self.asked(message)) >= count, TAKEN_BACK_SECONDS, seen)

    def most_at_once(self, message: str) -> int:
        """How many of these requests were under way together, broken ones included."""
        moments: list[tuple[int, int]] = []
        for one in self.asked(message):
            end = one.finished if one.finished is not None else 2**62
            moments += [(one.arrived, 1), (end, -1)]
        return max(itertools.accumulate(step for _, step in sorted(moments)), default=0)

    # --- what the receiver got ------------------------------------------------------------------

    def webhooks(self, event: str) -> list[tuple[str, dict[str, Any]]]:
        """Ids and bodies of the webhooks about one type of event."""
        return [
            (one.headers["webhook-id"], msgspec.json.decode(one.body))
            for one in self.hook.received
            if one.headers["x-pinchtab-event"] == event
        ]


def text(*words: str) -> list[dict[str, str]]:
    """Events in which an agent says these words."""
    return [{"type": "text-delta", "id": "t", "delta": word} for word in words]


def talking(*words: str, **script: Any) -> Script:
    """An agent that says these words and finishes."""
    finish = {"type": "finish", "text": "".join(words)}
    return Script(events=[*text(*words), finish], done=True, **script)


@asynccontextmanager
async def world(
    programs: Programs,
    folder: Path,
    store: str,
    *flags: str,
    policy: Mapping[str, Any] = POLICY,
    variables: Mapping[str, str] | None = None,
) -> AsyncIterator[World]:
    """Everything but the server is running; that is the test's to start."""
    file = folder / "policy.json"
    async with ChatAgent() as agent, receiving(answering(200)) as hook:
        outbound = hook.url.split("/")[2]
        given = ["--agent", agent.url, "--allow-outbound", outbound, "--policy", str(file), *flags]
        servers = [
            programs.server(store, *given, name=name, variables=variables)
            for name in ("server", "successor")
        ]
        async with World(servers, agent, hook, file) as made:
            made.write_policy(policy)
            yield made
