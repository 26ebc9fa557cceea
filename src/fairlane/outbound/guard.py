"""The guard that every outgoing request passes: webhooks, executors and alerts.

The rule: a connection is opened only to a public address that is not our own, or to a target that
the operator listed, and never to a port that this process listens on. Every DNS answer is checked,
and one forbidden address rules out all of them: the owner of a name chooses which one is dialled.
`sending.py` connects only to the checked addresses, and checks the peer again. Caution: the author
of the URL gets an error that names no address; the reason goes to `on_blocked`, for the operator.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final

from fairlane.core.errors import TargetRefused
from fairlane.outbound.addresses import Address, is_own, special, unwrapped
from fairlane.outbound.rules import Rules
from fairlane.outbound.targets import Target, parse_host, parse_target

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""All addresses of a host name, as text; raises OSError when there are none."""

OnBlocked = Callable[[str, str], None]
"""Receives a refused host and the reason; never the rest of the URL, which may hold secrets."""

ADDRESS_REFUSED: Final = "target address is not allowed"
# For a name there is one text for both, or the errors would map the names of a private network.
NAME_REFUSED: Final = f"{ADDRESS_REFUSED} or its name does not resolve"

LOOKUP_SECONDS: Final = 5.0
LISTED_MAX: Final = 4096
LOOKUPS_MAX: Final = 256  # more than are waited for: an abandoned lookup continues for a while

# Public hosts are allowed on HTTP ports; these are known to be something else.
_PORTS_OF_OTHERS: Final = frozenset(
    {2049, *range(2375, 2381), 3306, 5432, 5984, 6379, 6443, 9200, 10250, 11211, 27017}
)
_LOOPBACK: Final = ("127.0.0.1", "::1")

_log = logging.getLogger(__name__)


def log_blocked(host: str, reason: str) -> None:
    _log.warning("outbound request to %s refused: %s", host, reason)


class Guard:
    """Decides which targets may be reached; see `Rules` for what `allow` and `deny` may list.

    A host that is allowed by name is trusted whatever it resolves to; a denied one stays denied.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        deny: Sequence[str] = (),
        lookup: Lookup | None = None,
        lookup_seconds: float = LOOKUP_SECONDS,
        is_own: Callable[[Address], bool] = is_own,
        on_blocked: OnBlocked = log_blocked,
    ) -> None:
        self._allowed = Rules("allow-outbound", allow)
        self._denied = Rules("deny-outbound", deny)
        self._listed = lru_cache(LISTED_MAX)(self._rules_on)  # the rules never change
        self._lookup = lookup or _system_lookup()
        self._lookup_seconds = lookup_seconds
        self._is_own = is_own
        self.on_blocked = on_blocked
        # Where this process listens, so that it never calls itself.
        self.own_ports: set[int] = set()

    def check(self, url: str) -> Target:
        """Check everything that needs no DNS: the form of the URL, and an address in it."""
        target = parse_target(url)
        self.check_host(target.host, target.port)
        return target

    def check_host(self, host: str, port: int) -> str | None:
        """Do the same as `check` for a separate host and port. Return the address if the host is
        one.
        """
        host, address = parse_host(host)
        if address is None and not _is_local(host):
            self._check_name(host, port)
            return None
        addresses = [host] if address else _LOOPBACK
        objections = [self._objection(host, one, port) for one in addresses]
        if all(objections):
            raise self._refusal(host, objections[0], ADDRESS_REFUSED)
        return host if address else None

    def _check_name(self, host: str, port: int) -> None:
        """Check a name's port: the address is known later, but some ports are never allowed."""
        if self._denied.name(host, port):
            raise self._refusal(host, "denied by the operator", ADDRESS_REFUSED)
        allowed = self._allowed.name(host, port) or self._allowed.could_hold(port)
        if not allowed and not _is_web_port(port):
            raise self._refusal(host, f"port {port}", f"target port {port} is not allowed")

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses to dial, all of them checked; raise OSError if the name has none."""
        host, address = parse_host(host)
        answers = [host] if address else await self._answers(host)
        for answer in answers:
            objection = self._objection(host, answer, port)
            if objection:
                raise self._refusal(host, f"{answer[:64]} is {objection}", NAME_REFUSED)
        return list(dict.fromkeys(str(unwrapped(answer)) for answer in answers))

    def trusts(self, host: str, port: int) -> bool:
        """Return whether the operator listed exactly this name: then any address is allowed."""
        return self._allowed.name(parse_host(host)[0], port)

    def check_peer(self, host: str, port: int, *, peer: str, own: str) -> None:
        """Check the other end of an open connection.

        If both ends have the same address, the peer is this machine.
        """
        host, _ = parse_host(host)
        objection = self._objection(host, peer, port)
        if not objection and unwrapped(peer) == unwrapped(own):
            listed = self._allowed.name(host, port) or self._allowed.hold(unwrapped(peer), port)
            objection = "" if listed else "an address of this machine"
        if objection:
            raise self._refusal(host, f"the peer {peer[:64]} is {objection}", ADDRESS_REFUSED)

    async def _answers(self, host: str) -> Sequence[str]:
        try:
            async with asyncio.timeout(self._lookup_seconds):
                answers = await self._lookup(host)
        except TimeoutError as error:
            raise OSError("the name lookup took too long") from error
        if not answers:
            raise OSError("the name has no address")
        return answers

    def _objection(self, host: str, answer: str, port: int) -> str:
        """Return why this address may not be dialled for the host; empty if it may."""
        try:
            address = unwrapped(answer)
        except ValueError:
            return "not an IP address"
        denied, allowed = self._listed(host, answer, port)
        if denied:
            return "denied by the operator"
        if port in self.own_ports and self._is_own(address):
            return "this server itself"
        if allowed:
            return ""
        if not _is_web_port(port):
            return f"not allowed on port {port}"
        return special(address) or ("an address of this machine" if self._is_own(address) else "")

    def _rules_on(self, host: str, answer: str, port: int) -> tuple[bool, bool]:
        """Return whether the operator denied it and whether the operator allowed it."""
        address = unwrapped(answer)
        denied, allowed = (
            rules.name(host, port) or rules.hold(address, port)
            for rules in (self._denied, self._allowed)
        )
        return denied, allowed

    def _refusal(self, host: str, reason: str, text: str) -> TargetRefused:
        self.on_blocked(host, reason)
        return TargetRefused(text)


def _system_lookup() -> Lookup:
    # Its own threads: a name server that never answers must not block other work of the loop.
    threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="fairlane-dns")

    async def lookup(host: str) -> list[str]:
        ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        answers = await asyncio.get_running_loop().run_in_executor(threads, ask)
        return [str(answer[4][0]) for answer in answers]

    return lookup


def _is_web_port(port: int) -> bool:
    return port in (80, 443) or (port >= 1024 and port not in _PORTS_OF_OTHERS)


def _is_local(host: str) -> bool:
    """Return whether a name means this machine by definition, whatever a name server says."""
    return host == "localhost" or host.endswith(".localhost")
