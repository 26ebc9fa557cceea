"""One append-only history of a run: what was asked, answered, and done to the servers.

The rule: it is written while things happen and only read afterwards. An answer that never came is
`unknown`: the request may have been carried out or not. `refused` is certain: it was not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tests.e2e.processes import show

if TYPE_CHECKING:
    from pathlib import Path

INVOKE, OK, UNKNOWN, REFUSED = "invoke", "ok", "unknown", "refused"
SEEN, MISSING = "seen", "missing"
CANCEL_OK = "cancel-ok"
KILL, READY = "kill", "ready"
TAIL_ENTRIES = 40


class Entry(msgspec.Struct, omit_defaults=True):
    """`key` is the client's own name for a task, `group` that of a batch, `id` the server's."""

    at_ms: int
    who: str
    what: str
    key: str = ""
    id: str = ""
    group: str = ""
    note: str = ""


class History:
    def __init__(self, folder: Path, title: str) -> None:
        self.entries: list[Entry] = []
        self.acknowledged: list[tuple[str, str]] = []  # key, id
        self._title = title
        self._began = time.monotonic()
        self._file = (folder / "history.jsonl").open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        show(f"--- history of {self._title}: the last of {len(self.entries)} entries")
        for entry in self.entries[-TAIL_ENTRIES:]:
            show(msgspec.json.encode(entry).decode())

    def add(self, who: str, what: str, **fields: Any) -> None:
        at_ms = int((time.monotonic() - self._began) * 1000)
        entry = Entry(at_ms, who, what, **fields)
        self.entries.append(entry)
        if what == OK:
            self.acknowledged.append((entry.key, entry.id))
        self._file.write(msgspec.json.encode(entry) + b"\n")

    def about(self, *keys: str) -> str:
        """Everything that was written about some tasks, for the message of a failure."""
        found = [entry for entry in self.entries if entry.key in keys]
        return "\n".join(msgspec.json.encode(entry).decode() for entry in found)

    def count(self, what: str) -> int:
        return sum(entry.what == what for entry in self.entries)

    def by_key(self, *whats: str) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.key and entry.what in whats:
                found[entry.key].append(entry)
        return found
