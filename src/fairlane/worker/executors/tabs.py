"""Which instance owns a tab: ask all of them and remember the answers.

The rule: one instance that hangs or fails never affects the others. A caller continues as soon as
its tab is found, and at most one request per instance is in progress, however many tasks wait.
Caution: a listing that was requested before the caller asked proves nothing about a tab opened
since, so only a listing that began afterwards can show that a tab does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane.compat import pinchtab
from fairlane.core.errors import ExecutionFailed
from fairlane.worker.executors import exchange, failures
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, HttpSender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CACHE_TABS_MAX: Final = 10_000
LISTING_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)

Tabs = frozenset[str]


@dataclass(frozen=True, slots=True)
class Instance:
    """A server that holds tabs. The token never appears in a repr or a log."""

    url: str
    token: str | None = field(default=None, repr=False)

    def address(self, path: str) -> str:
        return self.url.rstrip("/") + path

    @property
    def credentials(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


class TabResolver:
    def __init__(
        self,
        instances: Sequence[Instance],
        sender: HttpSender,
        *,
        cache_tabs_max: int = CACHE_TABS_MAX,
    ) -> None:
        self.instances = tuple(dict.fromkeys(instances))
        self._listings = [_Listing(one, sender, self._seen) for one in self.instances]
        self._owners: OrderedDict[str, Instance] = OrderedDict()
        self._cache_tabs_max = cache_tabs_max

    async def resolve(self, tab_id: str) -> Instance:
        """Return the owner of the tab; a single instance owns them all and is never asked."""
        if not self.instances:
            raise ExecutionFailed(
                "no browser instance is configured: start Fairlane with --instance URL",
                retryable=False,
            )
        if len(self.instances) == 1:
            return self.instances[0]
        return self._cached(tab_id) or await self._search(tab_id, self._listings)

    async def resolve_again(self, tab_id: str, *, not_on: Instance) -> Instance | None:
        """Return the owner if `not_on` lacks the tab; None if there is no other instance."""
        self.forget(tab_id, not_on)
        others = [listing for listing in self._listings if listing.instance != not_on]
        return (self._cached(tab_id) or await self._search(tab_id, others)) if others else None

    async def find_elsewhere(self, tab_id: str, *, not_on: Instance) -> Instance | None:
        """Return another instance that has the tab; None if none lists it.

        The known owner stays until another one is found.
        """
        known = self._owners.get(tab_id)
        if known not in (None, not_on):
            return known  # another task has found it meanwhile
        others = [listing for listing in self._listings if listing.instance != not_on]
        try:
            return await self._search(tab_id, others)
        except ExecutionFailed:
            return None

    def forget(self, tab_id: str, instance: Instance) -> None:
        # Another task may have found the new owner meanwhile; that stays.
        if self._owners.get(tab_id) == instance:
            del self._owners[tab_id]

    async def close(self) -> None:
        for listing in self._listings:
            await listing.close()

    async def _search(self, tab_id: str, listings: Sequence[_Listing]) -> Instance:
        rounds = {listing.ask(): listing.instance for listing in listings}
        pending, silent = set(rounds), 0
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers = [(rounds[one], _answer(one)) for one in done]
            silent += sum(tabs is None for _, tabs in answers)
            owner = next((who for who, tabs in answers if tabs and tab_id in tabs), None)
            if owner is not None:
                self._remember(tab_id, owner)
                return owner
        raise self._not_found(tab_id, silent)

    def _not_found(self, tab_id: str, silent: int) -> ExecutionFailed:
        count = len(self.instances)
        unsure = f" ({silent} did not respond)" if silent else ""
        return ExecutionFailed(
            f'could not resolve tab "{tab_id}": not found on any of {count} instances{unsure}',
            retryable=silent > 0,
        )

    def _cached(self, tab_id: str) -> Instance | None:
        owner = self._owners.get(tab_id)
        if owner is not None:
            self._owners.move_to_end(tab_id)
        return owner

    def _seen(self, instance: Instance, tabs: Iterable[str]) -> None:
        # A listing fills gaps only: a known owner was right when last used, or a 404 will correct
        # it.
        for tab_id in tabs:
            if tab_id not in self._owners:
                self._remember(tab_id, instance)

    def _remember(self, tab_id: str, instance: Instance) -> None:
        self._owners[tab_id] = instance
        self._owners.move_to_end(tab_id)
        if len(self._owners) > self._cache_tabs_max:
            self._owners.popitem(last=False)


Round = asyncio.Task[Tabs | None]


class _Listing:
    """The tabs of one instance, requested in rounds: one in progress, one waiting behind it."""

    def __init__(
        self,
        instance: Instance,
        sender: HttpSender,
        seen: Callable[[Instance, Tabs], None],
    ) -> None:
        self.instance = instance
        self._sender = sender
        self._seconds = LISTING_SECONDS
        self._seen = seen
        self._current: Round | None = None
        self._next: Round | None = None

    def ask(self) -> Round:
        """Return a round that has not begun yet; all callers until it begins share it."""
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._current))
        return self._next

    async def close(self) -> None:
        rounds = [one for one in (self._current, self._next) if one is not None]
        for one in rounds:
            one.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    async def _round(self, before: Round | None) -> Tabs | None:
        if before is not None and not before.done():
            await asyncio.wait([before])
            # Its silence counts for later callers too: no caller waits for two timeouts.
            if _answer(before) is None:
                self._next = None
                return None
        self._current, self._next = self._next, None
        tabs = await self._question()
        if tabs is not None:
            self._seen(self.instance, tabs)
        return tabs

    async def _question(self) -> Tabs | None:
        try:
            asked = self._sender.stream(
                "GET",
                self.instance.address("/tabs"),
                headers={**pinchtab.SOURCE, **self.instance.credentials},
                body=None,
                max_bytes=RESPONSE_BYTES_MAX,
                timeout_seconds=self._seconds,
            )
            answer = await exchange.whole(asked)
            return listed_tabs(answer.status, answer.body)
        except OSError as error:
            # Its own text may show the headers of the request, and so the token.
            cause = failures.transport_cause(error)
            _log.warning("instance %s did not list its tabs: %s", self.instance.url, cause)
            return None
        except Exception as error:  # noqa: BLE001 - what goes wrong with one stays with it
            _log.warning("instance %s did not list its tabs: %r", self.instance.url, error)
            return None


def _answer(one: Round) -> Tabs | None:
    """Return the result of a finished round; None if the instance gave no usable response."""
    return None if one.cancelled() else one.result()


def listed_tabs(status: int, body: bytes) -> Tabs:
    """Return the tab ids of a listing: a list or `{"tabs": [...]}` of ids or of objects."""
    if status != 200:
        raise ValueError(f"status {status}")
    document = msgspec.json.decode(body)
    entries = document.get("tabs", document) if isinstance(document, dict) else document
    if not isinstance(entries, list | None):
        raise TypeError("neither a list nor an object with tabs")
    return frozenset(filter(None, map(_tab_id, entries or [])))


def _tab_id(entry: object) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("tabId") or entry.get("id")
    return entry if isinstance(entry, str) else None
