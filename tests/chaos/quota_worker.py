"""An external worker whose runs call the provider, each call under a permit.

A run is one agent's work: its calls one after another. The agent knows how many tokens a call may
take at most, reserves these, and reports what it took.
"""

from __future__ import annotations

import sys
from typing import Any

import aiohttp

from fairlane import Work, Worker

LANE = "llm"
HANDLER = "agent"
RESOURCE = "gpt"
LEASE_SECONDS = 60.0


def main(url: str, provider: str, name: str, concurrency: str) -> None:
    worker = Worker(
        url,
        lanes=[LANE],
        concurrency=int(concurrency),
        name=name,
        lease_seconds=LEASE_SECONDS,
        renew_seconds=LEASE_SECONDS / 6,
    )
    sessions: list[aiohttp.ClientSession] = []

    def session() -> aiohttp.ClientSession:
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        return sessions[0]

    @worker.handler(HANDLER)
    async def agent(work: Work) -> Any:
        refused = 0
        for most, tokens in work.request["params"]["calls"]:
            while not await call(work, most, tokens):
                refused += 1
        return {"calls": len(work.request["params"]["calls"]), "refused": refused}

    async def call(work: Work, most: int, tokens: int) -> bool:
        """Make one call; return False if the provider refused it."""
        async with work.permit(gpt={"requests": 1, "tokens": most}) as permit:
            body = {"tokens": tokens, "run": work.task_id}
            async with session().post(f"{provider}/v1/chat", json=body) as answer:
                await answer.read()
            headers = answer.headers
            permit.observed(
                tokens=int(headers["x-ratelimit-remaining-tokens"]),
                requests=int(headers["x-ratelimit-remaining-requests"]),
            )
            if answer.status == 429:
                permit.used(requests=0, tokens=0)
                permit.closed(retry_after=int(headers["retry-after-ms"]) / 1000, reason="429")
                return False
            permit.used(tokens=tokens)
            return True

    worker.serve(lambda: print("leases", flush=True))  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
