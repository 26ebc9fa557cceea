"""A test's own queue, used through commands on its store, always with `--json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane.cli.direct import StoreBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fairlane.client.base import BaseClient
    from tests.cli.conftest import Ran

START = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Queue:
    run: Callable[..., Ran]
    store: str
    folder: Path

    def __post_init__(self) -> None:
        """The store is there from the start, so that no command has to say that it made it."""
        StoreBackend(self.store, create=True).client.close()

    def ran(self, *words: str) -> Ran:
        return self.run(*words, "--json", "--store", self.store)

    def __call__(self, *words: str) -> Any:
        """What a command prints that works."""
        ran = self.ran(*words)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.json

    def refused(self, *words: str) -> tuple[int, str]:
        """The exit code and the complaint of one that does not."""
        ran = self.run(*words, "--store", self.store)
        assert ran.code != 0, ran
        assert ran.out == "", ran
        return ran.code, ran.err.removeprefix("error: ").strip()

    def policy(self, **settings: float) -> None:
        self("sched", "policy", "set", *(f"--{name}={value}" for name, value in settings.items()))

    def add(self, name: str, *more: str) -> Any:
        return self("queue", "add", "--id", name, *more)

    def lease(self, *more: str) -> list[str]:
        """Ids of leases."""
        return [one["leaseId"] for one in self("sched", "lease", *more)["leases"]]

    def entry(self, name: str) -> Any:
        return self("queue", "show", name)

    def plan(self, *more: str) -> Any:
        return self("sched", "plan", *more)

    def planned(self, *more: str) -> list[str]:
        return [one["id"] for one in self.plan(*more)["leases"]]

    def reasons(self, *more: str) -> dict[str, str]:
        return {one["id"]: one["reason"] for one in self.plan(*more)["skipped"]}

    def bring_in(self, entries: Sequence[dict[str, Any]]) -> Any:
        file = self.folder / "queue.json"
        file.write_text(json.dumps({"schemaVersion": 1, "entries": entries}))
        return self("queue", "import", str(file))

    def clients(self, number: int) -> Iterator[BaseClient]:
        """As many callers as that, each with a writer of its own on the store."""
        for _ in range(number):
            yield StoreBackend(self.store, create=True).client


def entry(name: str, status: str = "pending", **fields: Any) -> dict[str, Any]:
    start = {"schemaVersion": 1, "id": name, "repo": "/srv/r", "priority": 100, "enqueuedAt": START}
    return {**start, "status": status, **fields}
