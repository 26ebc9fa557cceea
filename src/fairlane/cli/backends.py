"""The server or the store that a command works on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from fairlane import config
from fairlane.cli import exit_code
from fairlane.cli.commands import Exit
from fairlane.cli.options import span_ms
from fairlane.cli.output import Output, print_error, remark
from fairlane.client.base import WAIT_SLICE_SECONDS, BaseClient
from fairlane.client.sync import Client
from fairlane.client.transport import DEFAULT_URL
from fairlane.clock import SystemClock
from fairlane.core.errors import CallerError, InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.schema import decoding, wire
from fairlane.schema.tasks import (
    SUBMIT,
    SUBMIT_BATCH,
    BatchAccepted,
    SubmitBatch,
    SubmitTask,
    TaskAccepted,
)

NOWHERE: Final = "sqlite://:memory:"  # an empty store that leaves nothing behind
Tell = Callable[[str], None]


class Backend(Protocol):
    @property
    def client(self) -> BaseClient: ...

    @property
    def look_seconds(self) -> float:
        """How long to wait for a task at a time."""
        ...


class ServerBackend:
    look_seconds = WAIT_SLICE_SECONDS

    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = Client(url or config.variable("FAIRLANE_URL") or DEFAULT_URL, token=token)


class Side:
    """The server or store that `--url` or `--store` names. It is opened on first use.

    For a store that does not exist yet, see `direct.usable_store`.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        *,
        create: bool = False,
        empty: bool = False,
        tell: Tell | None = None,
    ) -> None:
        self._args = args
        self._create = create
        self._empty = empty
        self._tell = tell

    @cached_property
    def _backend(self) -> Backend:
        args = self._args
        if args.store is None:
            return ServerBackend(args.url, config.token(args.token_file))
        # Deferred because a command that asks a server does not need the engine (90 ms).
        from fairlane.cli.direct import StoreBackend  # noqa: PLC0415 - for the reason above

        return StoreBackend(args.store, create=self._create, empty=self._empty, tell=self._tell)

    @property
    def client(self) -> BaseClient:
        return self._backend.client

    @property
    def look_seconds(self) -> float:
        return self._backend.look_seconds

    def close(self) -> None:
        if "_backend" in self.__dict__:
            self.client.close()


Perform = Callable[[argparse.Namespace, Side, Output], int | None]


def connected(
    perform: Perform, *, create: bool = False, empty: bool = False, tell: Tell | None = None
) -> Callable[[argparse.Namespace], int]:
    """Return the command that opens the server or store, performs, and closes it.

    `perform` may return an exit code; None is success.
    """

    def run(args: argparse.Namespace) -> int:
        side = Side(args, create=create, empty=empty, tell=tell)
        try:
            return perform(args, side, Output(args)) or Exit.OK
        finally:
            side.close()

    return run


def daemonless(perform: Perform, *, create: bool = False) -> Callable[[argparse.Namespace], int]:
    """Do the same as `connected`, but use the store in `FAIRLANE_STORE` if no server or store is
    named.

    With `create`, create a store that does not exist yet; otherwise treat it as empty.
    """
    run = connected(perform, create=create, empty=not create, tell=remark)

    def run_on_store(args: argparse.Namespace) -> int:
        if not names_side(args):
            args.store = config.variable("FAIRLANE_STORE") or None
        return run(args)

    return run_on_store


def names_side(args: argparse.Namespace) -> bool:
    """Return whether the command or `FAIRLANE_URL` names the server or store to use."""
    return bool(args.store or args.url or config.variable("FAIRLANE_URL"))


# -------------------------------------------------------------------- what commands share


def for_each(args: argparse.Namespace, things: Iterable[str], act: Callable[[str], None]) -> int:
    """Act on each item once, even after an error, and return the first exit code other than 0."""
    code = Exit.OK
    for thing in dict.fromkeys(things):
        try:
            act(thing)
        except CallerError as error:
            print_error(error, as_json=args.json)
            code = code or exit_code(error)
    return code


def given(args: argparse.Namespace, options: Mapping[str, str]) -> JsonObject:
    """Return the values of the options that are set, by the names that `options` maps them to."""
    named = {name: getattr(args, option) for option, name in options.items()}
    return {name: value for name, value in named.items() if value is not None}


def params(args: argparse.Namespace) -> JsonObject | None:
    """Return the object of `--params` with each `--param` merged into it."""
    if args.params is None and args.param is None:
        return None
    return {**(args.params or {}), **dict(args.param or ())}


def moment(text: str) -> str:
    """Return the time that a duration from now refers to; the server parses any other text."""
    milliseconds = span_ms(text)
    return text if milliseconds is None else wire.moment(SystemClock().now() + milliseconds)


def declined(args: argparse.Namespace, question: Callable[[], str | None]) -> bool:
    """Return whether the user at a terminal declined. If `question` returns None, do not ask."""
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    asked = question()
    if asked is None:
        return False
    sys.stderr.write(f"{asked} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return False
    sys.stderr.write("nothing was changed\n")
    return True


def read_bytes(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {name}: {error.strerror}") from None


def read_json(name: str) -> object:
    """Return the JSON in a file, or on stdin if the name is `-`."""
    try:
        return wire.decode(read_bytes(name))
    except (wire.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{file_name(name)} is not valid JSON: {error}") from None


def file_name(name: str) -> str:
    return "standard input" if name == "-" else name


def read_object(name: str, what: str) -> JsonObject:
    """Return the JSON object in a file. `what` says what it should describe."""
    document = read_json(name)
    if not isinstance(document, dict):
        raise InvalidRequest(f"{file_name(name)} must contain {what}: a JSON object")
    return document


def submit_document(
    client: BaseClient, document: JsonObject, key: str | None
) -> TaskAccepted | BatchAccepted:
    """Submit a task given as JSON, or a batch if it has `tasks`."""
    if "tasks" not in document:
        task: Any = document  # checked by the service
        return client.perform(SUBMIT, SubmitTask(task, idempotency_key=key))
    body = decoding.decode(wire.encode(document), SUBMIT_BATCH.part("body"))
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return client.perform(SUBMIT_BATCH, SubmitBatch(**fields, idempotency_key=key))
