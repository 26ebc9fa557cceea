"""A stub of a model provider: exact sliding windows, 429 beyond them, and another user of the key.

`POST /v1/chat {"tokens", "run"}` counts the tokens on arrival, takes a moment and answers. Beyond
the limit of any window it answers 429 with `Retry-After` in whole seconds and `retry-after-ms`.
Every answer carries `x-ratelimit-limit-*` and `x-ratelimit-remaining-*`. A stranger uses the same
key: the provider counts its requests and says nothing of it. `GET /__log` returns every request in
the order of arrival: moment in seconds since the start, caller, tokens, and whether it was served.

As a program it prints one JSON line with its address:

    python -m tests.chaos.provider --window-ms 12000 --tokens 1500000 --requests 9000
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = "ours"
STRANGER = "stranger"
TICK_SECONDS = 0.01


class Call(NamedTuple):
    """One request, as the provider saw it."""

    at: float
    caller: str
    tokens: int
    served: bool


class Limits(NamedTuple):
    window_seconds: float
    tokens: int
    requests: int


class SlidingWindow:
    """What was served within the last window; a request leaves it exactly one window later."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tokens = 0
        self._served: deque[tuple[float, int]] = deque()

    def take(self, now: float, tokens: int) -> float | None:
        """Count a request and return None, or return the seconds until there is room for it."""
        self._forget(now)
        if self.tokens + tokens <= self.limits.tokens and len(self._served) < self.limits.requests:
            self._served.append((now, tokens))
            self.tokens += tokens
            return None
        return self._room_in(now, tokens)

    def remaining(self, now: float) -> tuple[int, int]:
        """Return the tokens and requests that are left."""
        self._forget(now)
        return self.limits.tokens - self.tokens, self.limits.requests - len(self._served)

    def _forget(self, now: float) -> None:
        while self._served and self._served[0][0] <= now - self.limits.window_seconds:
            self.tokens -= self._served.popleft()[1]

    def _room_in(self, now: float, tokens: int) -> float:
        in_use, count = self.tokens, len(self._served)
        for at, used in self._served:
            in_use, count = in_use - used, count - 1
            if in_use + tokens <= self.limits.tokens and count < self.limits.requests:
                return at + self.limits.window_seconds - now
        return self.limits.window_seconds


class Provider:
    """The provider in this process; `share` of the quota is the stranger's on average."""

    def __init__(
        self,
        limits: Limits,
        *,
        seed: int = 1,
        share: float = 0.2,
        latency_seconds: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = ""
        self.log: list[Call] = []
        self._window = SlidingWindow(limits)
        self._limits = limits
        self._share = share
        self._latency_seconds = latency_seconds
        self._chance = random.Random(f"provider {seed}")
        self._clock = clock
        self._began = clock() - limits.window_seconds  # the stranger has been here for a while
        self._due_at = 0.0
        self._runner: web.AppRunner | None = None
        self._stranger: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/chat", self._serve_chat)
        app.router.add_get("/__log", self._serve_log)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._stranger = asyncio.create_task(self._use_as_stranger())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._stranger is not None
        self._stranger.cancel()
        await asyncio.gather(self._stranger, return_exceptions=True)
        await self._runner.cleanup()

    def now(self) -> float:
        return self._clock() - self._began

    def take(self, caller: str, tokens: int) -> float | None:
        """Count a request; return the seconds to wait if it is refused."""
        return self._take(self.now(), caller, tokens)

    def _take(self, now: float, caller: str, tokens: int) -> float | None:
        wait_seconds = self._window.take(now, tokens)
        self.log.append(Call(now, caller, tokens, wait_seconds is None))
        return wait_seconds

    # --- routes ---------------------------------------------------------------------------------

    async def _serve_chat(self, request: web.Request) -> web.Response:
        asked = await request.json()
        wait_seconds = self.take(OURS, asked["tokens"])
        headers = self._headers()
        if wait_seconds is not None:
            headers["Retry-After"] = str(math.ceil(wait_seconds))
            headers["retry-after-ms"] = str(math.ceil(wait_seconds * 1000))
            return web.json_response({"error": "rate_limit_exceeded"}, status=429, headers=headers)
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._latency_seconds)
        return web.json_response({"usage": {"tokens": asked["tokens"]}}, headers=headers)

    def _headers(self) -> dict[str, str]:
        tokens, requests = self._window.remaining(self.now())
        return {
            "x-ratelimit-limit-tokens": str(self._limits.tokens),
            "x-ratelimit-limit-requests": str(self._limits.requests),
            "x-ratelimit-remaining-tokens": str(tokens),
            "x-ratelimit-remaining-requests": str(requests),
        }

    async def _serve_log(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode({"now": self.now(), "calls": self.log})
        return web.Response(body=body, content_type="application/json")

    # --- the stranger ---------------------------------------------------------------------------

    async def _use_as_stranger(self) -> None:
        while True:
            self.use_as_stranger()
            await asyncio.sleep(TICK_SECONDS)

    def use_as_stranger(self) -> None:
        """Make the stranger's requests that are due: of random size, at random moments, and on
        average its share of both limits.
        """
        mean = self._limits.tokens / self._limits.requests
        while self._share and self._due_at <= self.now():
            self._take(self._due_at, STRANGER, max(1, round(self._chance.uniform(0, 2) * mean)))
            rate = self._share * self._limits.requests / self._limits.window_seconds
            self._due_at += self._chance.expovariate(rate)


async def serve(provider: Provider) -> None:
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    async with provider:
        sys.stdout.write(msgspec.json.encode({"url": provider.url}).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a model provider with exact limits, for tests")
    parser.add_argument("--window-ms", type=int, default=60_000)
    parser.add_argument("--tokens", type=int, default=1_500_000, help="per window")
    parser.add_argument("--requests", type=int, default=9_000, help="per window")
    parser.add_argument("--stranger", type=float, default=0.2, help="share of somebody else")
    parser.add_argument("--latency-ms", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options: Any = parser.parse_args(arguments)
    provider = Provider(
        Limits(options.window_ms / 1000, options.tokens, options.requests),
        seed=options.seed,
        share=options.stranger,
        latency_seconds=options.latency_ms / 1000,
    )
    asyncio.run(serve(provider))


if __name__ == "__main__":
    main()
