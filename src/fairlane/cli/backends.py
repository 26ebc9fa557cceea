"""Who answers a command: a server over HTTP, or the store itself."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from fairlane import config
from fairlane.cli.output import Told, output_of
from fairlane.client.sync import WAIT_SLICE_SECONDS, Client
from fairlane.client.transport import DEFAULT_URL

NOWHERE: Final = "sqlite://:memory:"  # an empty store that leaves nothing behind
Tell = Callable[[str], None]


class Backend(Protocol):
    client: Client
    look_seconds: float  # how long to wait for a task at a time


class ServerBackend:
    look_seconds = WAIT_SLICE_SECONDS

    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = Client(url or config.variable("FAIRLANE_URL") or DEFAULT_URL, token=token)


def backend(
    args: argparse.Namespace, *, create: bool = False, empty: bool = False, tell: Tell | None = None
) -> Backend:
    """Return who answers. For a store that is not there yet: see `direct.usable_store`."""
    if args.store is None:
        return ServerBackend(args.url, config.token(args.token_file))
    from fairlane.cli.direct import StoreBackend  # noqa: PLC0415 - slow to import

    return StoreBackend(args.store, create=create, empty=empty, tell=tell)


def names_side(args: argparse.Namespace) -> bool:
    """Return whether the command or `FAIRLANE_URL` names the server or store to use."""
    return bool(args.store or args.url or config.variable("FAIRLANE_URL"))


@contextlib.contextmanager
def opened(
    args: argparse.Namespace,
    for_people: Callable[[], Told],
    *,
    create: bool = False,
    empty: bool = False,
    tell: Tell | None = None,
) -> Iterator[tuple[Backend, Told]]:
    """Somebody to ask, and somewhere to print to: JSON, or what `for_people` makes."""
    side = backend(args, create=create, empty=empty, tell=tell)
    with side.client:
        yield side, output_of(args, for_people)
