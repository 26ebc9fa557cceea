"""The plainest Sender over aiohttp: what the guarded one does, without the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec

from fairlane.core.errors import PayloadTooLarge
from fairlane.worker.executors.base import CONNECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping


class PlainResponse(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class PlainSender:
    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> PlainResponse:
        bound = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        async with self._session.request(
            method, url, headers=headers, data=body, timeout=bound, allow_redirects=False
        ) as answer:
            read = bytearray()
            async for chunk in answer.content.iter_any():
                read += chunk
                if len(read) > max_bytes:
                    raise PayloadTooLarge(f"more than {max_bytes} bytes")
            return PlainResponse(answer.status, dict(answer.headers), bytes(read))
