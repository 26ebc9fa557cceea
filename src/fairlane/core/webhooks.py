"""Webhooks: which due deliveries to send now, and endpoints with their own secret.

An endpoint is a callback URL without its query, of one agent or (agent '') of all agents that have
none of their own. Its secret can be rotated without a gap: for a while the previous one signs too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

DUE: Final = "due"
DELIVERED: Final = "delivered"
GIVEN_UP: Final = "given_up"
DeliveryState = Literal["due", "delivered", "given_up"]

GONE: Final = 410
DISABLED: Final = "the endpoint is disabled: it responded with 410"
SECRET_LOST: Final = "the endpoint's secret cannot be decrypted: rotate it, then redeliver"  # noqa: S105 - a sentence, not a secret
OVERLAP_SECONDS_DEFAULT: Final = 24 * 3600
OVERLAP_SECONDS_MAX: Final = 7 * 24 * 3600
ANY_AGENT: Final = ""
AGENT_ROOMS: Final = 3  # how many hosts' room one agent has, however many hosts it names

_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)", re.IGNORECASE)
_USUAL_PORT: Final = {"http": ":80", "https": ":443"}


class Delivery(msgspec.Struct, frozen=True):
    """A webhook delivery; `log` has a line for each attempt."""

    id: str
    agent: str
    url: str
    event: str
    state: str
    attempts: int
    due_at: int
    created_at: int
    status: int | None = None
    error: str | None = None
    settled_at: int | None = None
    log: str = ""

    @property
    def being_sent(self) -> bool:
        """Return whether it is claimed but not settled: only a failed attempt records an error."""
        return self.state == DUE and self.attempts > 0 and self.error is None


class Endpoint(msgspec.Struct, frozen=True):
    """A webhook endpoint; its secrets stay in the store."""

    seq: int
    id: str
    agent: str
    url: str
    created_at: int
    rotated_at: int | None = None
    previous_until: int | None = None  # until when the previous secret signs too
    disabled_at: int | None = None
    events: str | None = None  # types of events that it subscribes to, with spaces

    def wants(self, event: str, agent: str) -> bool:
        """Return whether it subscribes to an event about an agent."""
        if self.disabled_at is not None or self.agent not in (ANY_AGENT, agent):
            return False
        return event in (self.events or "").split()


class Try(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One delivery attempt, as the log stores it."""

    at: int
    attempt: int
    status: int | None = None
    error: str | None = None
    took_ms: int | None = None


_try = msgspec.json.Decoder(Try)


def line(one: Try) -> str:
    return msgspec.json.encode(one).decode() + "\n"


def tries(log: str) -> list[Try]:
    """Return the attempts in a log, without damaged lines."""
    found = []
    for text in filter(None, log.split("\n")):
        with contextlib.suppress(msgspec.DecodeError):
            found.append(_try.decode(text))
    return found


def about(delivery_id: str) -> str:
    """Return the task, batch or run of a delivery from its id `msg_<id>_<event>`."""
    return delivery_id.removeprefix("msg_").rpartition("_")[0]


def endpoint_url(url: str) -> str:
    """Return the canonical form of the part of a callback URL that names its endpoint."""
    scheme, authority, path = _parts(url)
    return f"{scheme}://{authority}{path or '/'}"


def origin(url: str) -> str:
    """Return scheme, host and port: the path or the query of a URL may be a secret."""
    scheme, authority, _ = _parts(url)
    return f"{scheme}://{authority}"


def host_of(url: str) -> str:
    return _parts(url)[1]


def _parts(url: str) -> tuple[str, str, str]:
    found = _URL.match(url.strip())
    if found is None:
        return "http", "", ""
    scheme, authority = found[1].lower(), found[2].rpartition("@")[2].lower()
    return scheme, authority.removesuffix(_USUAL_PORT[scheme]), found[3]


def choose(
    targets: Sequence[tuple[str, str]], limit: int, rooms: Mapping[str, int], room: int
) -> tuple[list[int], list[int]]:
    """Return the due deliveries to send now, and the ones that wait because their host or their
    agent is at its limit.

    `rooms` is how many more a host or an agent may get, `room` what other hosts get; other agents
    get a multiple of it. Neither one receiver that hangs nor one agent that names many hosts may
    hold every slot.
    """
    left = dict(rooms)
    ready: list[int] = []
    crowded: list[int] = []
    for number, (host, sender) in enumerate(targets):
        free = left.get(host, room), left.get(sender, room * AGENT_ROOMS)
        if min(free) <= 0:
            crowded.append(number)
        elif len(ready) < limit:
            ready.append(number)
            left[host], left[sender] = free[0] - 1, free[1] - 1
    return ready, crowded


def target(url: str, agent: str) -> tuple[str, str]:
    """Return the host and the agent of a webhook as counting keys: no host contains an @."""
    return host_of(url), f"@{agent}"
