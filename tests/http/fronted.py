"""A front in the process of the test: the same link, without a process around it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fairlane.cli.fronts import calls_of
from fairlane.embedded.app import Fairlane
from fairlane.engine.front_node import FrontNode, RemoteWriter
from fairlane.engine.fronts import FrontLink, FrontLinks, Measure
from fairlane.engine.links import Link
from fairlane.engine.node import News
from fairlane.engine.writing_node import Measures


class Fronted:
    """`node` is the front's, `link` its end of the link, `parent` the other one."""

    def __init__(self, app: Fairlane, links: FrontLinks) -> None:
        self.link = Link(self._heard, lambda: None, self._late)
        writer = RemoteWriter(self.link, app.node.policy, app.clock)
        self.node = FrontNode(
            app.node.store, app.clock, name=app.node.name, writer=writer, draining=False
        )
        self.links = links
        self.parent = FrontLink(app.node, calls_of(app.node), self.link.close)
        self.parent.begun = True
        self.deaf = False

    def read(self, *, go_on: bool) -> None:
        """Read nothing more, or go on."""
        transport = self.link._transport
        assert transport is not None
        (transport.resume_reading if go_on else transport.pause_reading)()

    @property
    def unsent(self) -> int:
        """Return how many bytes wait for the front."""
        transport = self.parent.link._transport
        assert transport is not None
        return transport.get_write_buffer_size()

    def _heard(self, items: Sequence[tuple[int, Any]]) -> None:
        for number, value in items:
            if isinstance(value, News) and not self.deaf:
                self.node.hear(value)
                self.link.answer(number, None)
            elif isinstance(value, Measure) and not self.deaf:
                found = Measures(self.node.stream_clients, self.node.lease_waits, {})
                self.link.answer(number, found)

    def _late(self, answer: object) -> None:
        self.node.writer.give_back(answer)


@asynccontextmanager
async def fronted(app: Fairlane) -> AsyncIterator[Fronted]:
    """A front beside a running scheduler."""
    ours, theirs = socket.socketpair()
    links = FrontLinks(app.node)
    front = Fronted(app, links)
    parent = front.parent
    await parent.link.open(ours)
    await front.link.open(theirs)
    links.add(parent)
    try:
        yield front
    finally:
        links.remove(parent)
        front.node.tokens.close()
        front.node.views.close()
        front.link.close()
        parent.link.close()
