"""Callers that wait for something that a commit tells: by key, woken from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator


class Waiter:
    """An event that another thread can set; several sets wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._ringing = False

    async def wait(self, seconds: float | None) -> bool:
        """Return whether it was set; False after the timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def tell(self) -> None:
        if not self._ringing and not self._loop.is_closed():
            self._ringing = True
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._event.set()


class Waiters:
    """Waiters by key: the id of a task, or the key of a session."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[Waiter]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of keys with waiters."""
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    @contextlib.contextmanager
    def including(self, waiter: Waiter, key: str) -> Iterator[None]:
        """Tell the waiter about a key within the block."""
        with self._lock:
            self._by_key.setdefault(key, []).append(waiter)
        try:
            yield
        finally:
            with self._lock:
                waiting = self._by_key[key]
                waiting.remove(waiter)
                if not waiting:
                    del self._by_key[key]

    def tell(self, keys: Iterable[str] | None) -> None:
        """Wake the waiters of these keys, or all if it is not known which have changed."""
        with self._lock:
            wanted = list(self._by_key) if keys is None else keys
            found = [waiter for key in wanted for waiter in self._by_key.get(key, ())]
        for waiter in found:
            waiter.tell()
