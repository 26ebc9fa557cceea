"""Commands with `--store`: they work on a store, whether or not a server runs on it.

The services of the server run in this process, so both ways print the same bytes. The process takes
no lock on the store and starts no tasks. A write is a transaction of the same engine, so it is as
correct and as durable as a write by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from fairlane import config
from fairlane.cli.backends import NOWHERE, Tell
from fairlane.client.base import AsyncShapes, BaseClient, Shape, Shapes
from fairlane.client.methods import Q, R
from fairlane.clock import SystemClock
from fairlane.core.access import TRUSTED
from fairlane.core.errors import StoreMismatch, StoreMissing, StoreUnavailable
from fairlane.core.json_types import JsonObject
from fairlane.core.policy import Policy
from fairlane.core.secrets import References
from fairlane.engine.commands import UseSecret
from fairlane.engine.engine import Engine, apply_one, parse_stored_policy
from fairlane.engine.ids import new_node_name
from fairlane.engine.reads.views import Views
from fairlane.engine.writing_node import WritingNode
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.operation import GET, Operation
from fairlane.services import catalog, following
from fairlane.services.events import event_filter
from fairlane.store import migrate
from fairlane.store.base import ConnectionLost, Store
from fairlane.store.opening import open_store
from fairlane.store.tables import policy as policy_table

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1  # a running server does not notify this process
RECOUNT_SECONDS: Final = 60.0  # timeout of a statement that counts everything
_SQLITE_FILE: Final = "sqlite:///"


class StoreBackend:
    look_seconds = LOOK_SECONDS

    def __init__(
        self, url: str, *, create: bool, empty: bool = False, tell: Tell | None = None
    ) -> None:
        self.client = StoreClient(usable_store(url, create=create, empty=empty, tell=tell))


class StoreClient(BaseClient):
    """Performs operations on a store in this process."""

    def __init__(self, store: Store) -> None:
        self.node = WritingNode(store, SystemClock())
        self.node.engine.policy = _policy(store, self.node)
        self.node.check_url = _check_callback
        self._runner = asyncio.Runner()
        self._writing = False
        self._closed = False

    def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Perform an operation and return its response."""
        return self._run(self.answer(operation, request))

    async def answer(self, operation: Operation[Q, R], request: Q) -> R:
        """Do the same as `perform`, for callers with an event loop."""
        if operation.method != GET and not self._writing:
            self.node.writer.start(look=False)
            self._writing = True
        return await catalog.perform(self.node, TRUSTED, operation, request)

    def close(self) -> None:
        self._closed = True
        self._runner.close()
        self.node.stop()

    def _follow_events(self, request: ListEvents) -> Shapes:
        wanted = catalog.checked(LIST_EVENTS, request)
        event_filter(TRUSTED, wanted)  # raises the error of an invalid filter at once
        if wanted.after is None:
            wanted.after = self.node.views.last_event()
        return self._each(
            following.each_event(self.node, TRUSTED, wanted, look_seconds=LOOK_SECONDS)
        )

    def _follow_output(self, task_id: str) -> Shapes:
        return self._each(
            following.each_piece(self.node, TRUSTED, task_id, look_seconds=LOOK_SECONDS)
        )

    def _each(self, stream: AsyncShapes) -> Shapes:
        """Yield the items of a stream. The event loop runs only while the next item is awaited."""

        async def next_shape() -> Shape | None:
            return await anext(stream, None)

        async def close() -> None:
            await stream.aclose()

        try:
            while (shape := self._run(next_shape())) is not None:
                yield shape
        finally:
            if not self._closed:  # closing the runner has closed the stream
                self._run(close())

    def _run(self, coroutine: Coroutine[object, None, T]) -> T:
        """Run a coroutine. Close it if Ctrl-C came before it started, to avoid a warning."""
        try:
            return self._runner.run(coroutine)
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()


def _policy(store: Store, node: WritingNode) -> Policy:
    """Return the current policy: a node that has written nothing has not loaded it."""
    connection = store.reader()
    try:
        newest = policy_table.newest(connection)
    finally:
        connection.close()
    return node.policy if newest is None else parse_stored_policy(*newest)


def _check_callback(url: str) -> None:
    """Check a callback URL with the settings of the server, which checks it again later."""
    from fairlane.outbound.guard import Guard  # noqa: PLC0415 - slow to import

    settings = config.load()
    Guard(settings.allow_outbound, deny=settings.deny_outbound).check(url)


# -------------------------------------------------------------------- stores


def usable_store(
    url: str, *, create: bool = False, empty: bool = False, tell: Tell | None = None
) -> Store:
    """Return a store with the schema that this program knows.

    If it does not exist yet, `create` creates it, and `empty` returns an empty one in memory; both
    report that to `tell`. Without either, raise `StoreMissing`.
    """
    tell = tell or _quiet
    if empty and (_lacks_file(url) or _is_empty_file(url)):
        config.load({"store": url})  # report invalid settings in any case
        return _empty_store(url, tell)
    store = existing_store(url, create=create)
    version, newest = _version(store), newest_schema()
    if version == 0 and create:
        with _answering():
            store.migrate()
        tell(f"created a new store at {location(url)}")
    elif version == 0 and empty:
        store.close()
        return _empty_store(url, tell)
    elif version == 0:
        raise StoreMissing(f"{location(url)} is not a fairlane store; fairlane serve sets it up")
    elif version != newest:
        raise StoreMismatch(schema_problem(version, newest))
    return store


def _empty_store(url: str, tell: Tell) -> Store:
    """Return an empty store in memory, instead of one that does not exist."""
    if url != NOWHERE:
        tell(f"no store exists at {location(url)} yet; treating it as empty")
    store = open_store(NOWHERE)
    store.migrate()
    return store


def _quiet(_: str) -> None:
    """Report nothing."""


def existing_store(url: str, *, create: bool = False) -> Store:
    if not create and _lacks_file(url):
        raise StoreMissing(f"no store exists at {location(url)}; fairlane serve creates one")
    settings = config.load({"store": url})
    references = References(settings.allow_secrets)
    return open_store(url, secret_key=settings.secret_key, references=references)


def _lacks_file(url: str) -> bool:
    file = _file(url)
    try:
        return file is not None and not file.exists()
    except OSError:
        return False  # no permission: opening it reports that


def _is_empty_file(url: str) -> bool:
    """Return whether the store is an empty file; opening it would write to it."""
    file = _file(url)
    return file is not None and file.is_file() and file.stat().st_size == 0


def _file(url: str) -> Path | None:
    path = url.removeprefix(_SQLITE_FILE)
    return Path(path) if url.startswith(_SQLITE_FILE) and path else None


def _version(store: Store) -> int:
    with _answering():
        return store.version()


@contextlib.contextmanager
def _answering() -> Generator[None, None, None]:
    try:
        yield
    except ConnectionLost as error:
        raise StoreUnavailable(f"the store does not respond: {error}") from None


def newest_schema() -> int:
    return migrate.files()[-1][0]


def schema_problem(version: int, newest: int) -> str:
    if version < newest:
        return f"the store has schema {version}, older than {newest}; fairlane serve upgrades it"
    return f"the store has schema {version} of a newer fairlane; upgrade this program"


def location(url: str) -> str:
    """Return the address of a store without its user and password."""
    if url.startswith("sqlite:"):
        return url.removeprefix(_SQLITE_FILE)
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# -------------------------------------------------------------------- store only


def examine(url: str) -> JsonObject:
    """Return the report of `fairlane doctor`. Writes nothing."""
    store = existing_store(url)
    version, newest = _version(store), newest_schema()
    problems, checked = store.damage(), ["pages", "schema"]
    if version != newest:
        problems.append(schema_problem(version, newest))
    elif not problems:
        problems += _disagreements(store)
        checked.append("counters")
    return {
        "store": location(url),
        "sizeBytes": store.size_bytes(),
        "schemaVersion": version,
        "newestSchema": newest,
        "checked": checked,
        "problems": problems,
    }


def _disagreements(store: Store) -> list[str]:
    views = Views(store, seconds=RECOUNT_SECONDS)
    try:
        return views.disagreements()
    finally:
        views.close()


def webhook_secret(settings: config.Settings) -> str:
    """Return the shared secret: from the settings, or from the store, created if missing."""
    if settings.webhook_secret:
        return settings.webhook_secret
    from fairlane.engine.verbs.webhooks import new_secret  # noqa: PLC0415 - slow to import

    engine = Engine(usable_store(settings.store), SystemClock(), name=new_node_name())
    try:
        secret: str = apply_one(engine, UseSecret(new_secret()))
    finally:
        engine.close()
    return secret
