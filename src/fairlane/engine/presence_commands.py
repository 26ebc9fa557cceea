"""The commands of the writer about nodes and workers that have died; see `commands.py`."""

from __future__ import annotations

import msgspec


class ReclaimGone(msgspec.Struct, frozen=True):
    """Answer: how many leases were reclaimed. Reclaim those of nodes that lost their locks."""

    nodes: list[str]


class OpenPresence(msgspec.Struct, frozen=True):
    """Answer: None. A worker keeps a connection to `server` open. `agent` is that of its token."""

    worker: str
    id: str
    agent: str | None
    server: str


class ClosePresence(msgspec.Struct, frozen=True):
    """Answer: how many leases were reclaimed. Forget the connection of a worker. With `gone`, it
    broke: reclaim the worker's leases unless it has opened another one.
    """

    worker: str
    id: str
    agent: str | None
    gone: bool
