"""Webhooks: which of those that are due are sent now, and the endpoints that have their own secret.

An endpoint is a callback URL without its query, of one agent or (agent '') of all that have none of
their own. Its secret can be changed without a gap: for a while the one before signs besides.
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
DISABLED: Final = "the endpoint is disabled: it answered 410"
SECRET_LOST: Final = "the endpoint's secret cannot be opened: rotate it, then redeliver"  # noqa: S105 - a sentence, not a secret
OVERLAP_SECONDS_DEFAULT: Final = 24 * 3600
OVERLAP_SECONDS_MAX: Final = 7 * 24 * 3600
EVERYBODY: Final = ""
AGENT_ROOMS: Final = 3  # how many hosts' room one agent has, however many hosts it names

_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)", re.IGNORECASE)
_USUAL_PORT: Final = {"http": ":80", "https": ":443"}


class Delivery(msgspec.Struct, frozen=True):
    """A webhook that is or was owed; `log` has a line for each try."""

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
        """Only a failed try leaves an error, so one without has been claimed and not settled."""
        return self.state == DUE and self.attempts > 0 and self.error is None


class Endpoint(msgspec.Struct, frozen=True):
    """What is known of an endpoint; its secrets stay in the store."""

    seq: int
    id: str
    agent: str
    url: str
    created_at: int
    rotated_at: int | None = None
    previous_until: int | None = None  # until when the secret before signs besides
    disabled_at: int | None = None


class Try(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One attempt to deliver, as the log keeps it."""

    at: int
    attempt: int
    status: int | None = None
    error: str | None = None
    took_ms: int | None = None


_try = msgspec.json.Decoder(Try)


def line(one: Try) -> str:
    return msgspec.json.encode(one).decode() + "\n"


def tries(log: str) -> list[Try]:
    """Return the tries that a log tells of. A damaged line is left out."""
    found = []
    for text in filter(None, log.split("\n")):
        with contextlib.suppress(msgspec.DecodeError):
            found.append(_try.decode(text))
    return found


def about(delivery_id: str) -> str:
    """The task, batch or run that a delivery tells of: `msg_<id>_<event>`."""
    return delivery_id.removeprefix("msg_").rpartition("_")[0]


def endpoint_url(url: str) -> str:
    """The one spelling of the part of a callback URL that names its endpoint."""
    scheme, authority, path = _parts(url)
    return f"{scheme}://{authority}{path or '/'}"


def origin(url: str) -> str:
    """Scheme, host and port: what may be shown of a URL whose path or query may be a secret."""
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
    """Which of the due ones to send now, and which wait because enough goes to their host, or comes
    from their agent, already.

    `rooms` says how many more a host or an agent may get, `room` what other hosts get, and other
    agents some times that: neither one receiver that hangs nor one agent who names many of them
    must hold every slot.
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
    """The host that a webhook goes to and whose it is, as they are counted: no host has an @."""
    return host_of(url), f"@{agent}"
