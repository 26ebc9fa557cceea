"""The secret that signs webhooks, and all sealed values in the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fairlane.store.base import Connection

SEALED_LIKE: Final = '%"sealed:1:%'


class SealedBody(NamedTuple):
    """A template or a job; `definition` is JSON text with sealed parts."""

    id: str
    definition: str


class SealedSecrets(NamedTuple):
    """The secrets of an endpoint, sealed."""

    id: str
    secret: str
    previous: str | None


class Sealed(NamedTuple):
    templates: list[SealedBody]
    jobs: list[SealedBody]
    endpoints: list[SealedSecrets]


def webhook_secret(connection: Connection) -> str | None:
    """Return the secret that signs webhooks, sealed."""
    secret: str | None = connection.run("secret_get")[0][0]
    return secret


def save_webhook_secret(connection: Connection, sealed: str) -> None:
    connection.run("secret_set", secret=sealed)


def sealed(connection: Connection) -> Sealed:
    """Return the sealed values that stay: not those of tasks, which expire."""
    found = Sealed([], [], [])
    for what, id_, first, second in connection.run("sealed_all", text=SEALED_LIKE):
        if what == "endpoint":
            found.endpoints.append(SealedSecrets(id_, first, second))
        else:
            (found.jobs if what == "job" else found.templates).append(SealedBody(id_, first))
    return found


def reseal(connection: Connection, again: Sealed) -> int:
    """Save values that were sealed again; return the number of rows."""
    _change(connection, "template_reseal", again.templates)
    _change(connection, "job_reseal", again.jobs)
    _change(connection, "endpoint_reseal", again.endpoints)
    return len(again.templates) + len(again.jobs) + len(again.endpoints)


def _change(connection: Connection, name: str, rows: Iterable[NamedTuple]) -> None:
    some = list(rows)
    if some:
        connection.change_rows(name, some)
