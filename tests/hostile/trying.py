"""Asking while looking whether a refusal leaves everything as it was."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fairlane.core.policy import Policy
from tests.hostile.inside import Answer, Inside

HANG_SECONDS = 20.0
# Nothing runs, so that nothing changes by itself.
STILL = {"lanes": {name: {"paused": True} for name in Policy().lanes}}


# Paths, statements, modules and addresses of the inside.
_INSIDE = re.compile(
    r"/(?:usr|home|root|tmp|work|etc|var)/[\w./-]*|site-packages|Traceback|\bSELECT\b|\bINSERT\b"
    r"|sqlite|psycopg|apsw|msgspec|\.py\b|\bline \d+|0x[0-9a-f]{6,}|\b127\.0\.0\.1\b"
)


def check_no_leak(answer: Answer, asked: str) -> None:
    """What an answer tells of the inside, unless the request has said it first."""
    for found in _INSIDE.findall(answer.raw.decode()):
        assert found in asked, (asked, answer)


class Tried:
    """What is kept is compared after each refusal; what was accepted is the new measure."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._kept = inside.kept()

    async def ask(self, method: str, target: str, **what: Any) -> Answer:
        async with asyncio.timeout(HANG_SECONDS):
            answer = await self._inside.ask(method, target, **what)
        assert answer.status < 500, (method, target, what, answer)
        kept = self._inside.kept()
        if answer.status >= 400:
            assert kept == self._kept, (method, target, what, answer)
            assert answer.json["code"], answer
            assert answer.json["error"].isprintable(), answer
            check_no_leak(answer, repr((target, what)))
        self._kept = kept
        return answer
