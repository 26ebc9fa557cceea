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
    """`node` is the front's, `link` its end of the link."""

    def __init__(self, app: Fairlane) -> None:
        self.link = Link(self._heard, lambda: None, self._late)
        writer = RemoteWriter(self.link, app.node.policy, app.clock)
        self.node = FrontNode(
            app.node.store, app.clock, name=app.node.name, writer=writer, draining=False
        )
        self.deaf = False

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
    front = Fronted(app)
    parent = FrontLink(app.node, calls_of(app.node), front.link.close)
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
