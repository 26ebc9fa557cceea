"""Whole stores as files: backups and restores, for both databases.

A backup is a SQLite store in one file, whatever database it was made from. It appears under its
name only when it is complete, and only its owner can read it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlane import config
from fairlane.cli.direct import existing_store, location
from fairlane.clock import SystemClock
from fairlane.core.errors import InvalidRequest, OperatorError, StoreInUse, StoreMismatch
from fairlane.store import migrate
from fairlane.store.copying.backup import copy_store
from fairlane.store.copying.move import Move, Say, TableReport, check_empty
from fairlane.store.copying.side import StoreSide
from fairlane.store.opening import carry_keys, key_path, open_side, open_store, sqlite_path

_SQLITE = "sqlite:///"
_BESIDE = ("-wal", "-shm")


class CopyReport(msgspec.Struct, frozen=True, rename="camel"):
    """`key_file` has the key of the secrets, which no backup contains; None if the settings do.

    `replaced` is where the old file of a restored store went.
    """

    store: str
    file: str
    rows: int
    size_bytes: int
    seconds: float
    tables: list[TableReport]
    key_file: str | None = None
    replaced: str | None = None


@contextlib.contextmanager
def opened_move(source_url: str, target_url: str) -> Iterator[Move]:
    """Open both stores of a move."""
    here, there = location(source_url), location(target_url)
    if here == there:
        raise InvalidRequest(f"{here} cannot be moved to itself; name another store as TO")
    existing_store(source_url).close()
    with _side(source_url) as source, _side(target_url) as target:
        yield Move(source, target, SystemClock())


class Keys:
    """The keys of the secrets in a store that moves. `file` is the key file that has changed."""

    def __init__(self, source_url: str, target_url: str) -> None:
        self._source_url = source_url
        self._target_url = target_url
        self.file: str | None = None

    def bring(self) -> None:
        """Let the target's servers open the secrets in the rows."""
        if config.load({"store": self._source_url}).secret_key is not None:
            return  # the setting names the key, whatever the store
        file = carry_keys(self._source_url, self._target_url)
        self.file = None if file is None else str(file)


def back_up(url: str, file: Path, say: Say) -> CopyReport:
    """Write a backup of a store, which servers may use meanwhile."""
    if file.exists():
        raise InvalidRequest(f"{file} already exists; choose another file name")
    began = SystemClock().monotonic()
    existing_store(url).close()
    with _draft(file) as draft:
        with _side(url) as source, _side(f"{_SQLITE}{draft}") as target:
            tables = copy_store(source, target, say)
        draft.rename(file)
    return CopyReport(
        store=location(url),
        file=str(file),
        rows=sum(table.rows for table in tables),
        size_bytes=file.stat().st_size,
        seconds=round(SystemClock().monotonic() - began, 3),
        tables=tables,
        key_file=_key_file(url),
    )


def restore(file: Path, url: str, say: Say, *, replace: bool) -> CopyReport:
    """Restore a backup into a store that no server is using; with `replace`, even if not empty.

    The store has everything of the backup or, if this fails, what it had before.
    """
    began = SystemClock().monotonic()
    path = sqlite_path(url)
    if path is not None and not replace:
        _check_new(Path(path))
    if not file.is_file():
        raise InvalidRequest(f"cannot read {file}: there is no such file")
    with _newest(file) as backup, _side(f"{_SQLITE}{backup}") as source:
        if path is not None:
            tables, replaced = _restore_file(source, Path(path), say)
        else:
            tables, replaced = _restore_database(source, url, say, replace=replace), None
    return CopyReport(
        store=location(url),
        file=str(file),
        rows=sum(table.rows for table in tables),
        size_bytes=file.stat().st_size,
        seconds=round(SystemClock().monotonic() - began, 3),
        tables=tables,
        key_file=_key_file(url),
        replaced=replaced,
    )


def _check_new(target: Path) -> None:
    if target.exists() and target.stat().st_size > 0:
        raise StoreMismatch(
            f"{target} is not empty; restore to a new file, or set the old one aside with --replace"
        )


def _restore_file(
    source: StoreSide, target: Path, say: Say
) -> tuple[list[TableReport], str | None]:
    target = Path(os.path.realpath(target))
    is_full = target.exists() and target.stat().st_size > 0
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.closing(open_store(f"{_SQLITE}{target}")) as lock:
        lock.claim()  # raises if a server runs
        with _draft(target) as draft:
            with _side(f"{_SQLITE}{draft}") as copy:
                tables = copy_store(source, copy, say)
            kept = _set_aside(target) if is_full else None
            draft.replace(target)
    return tables, kept


def _set_aside(target: Path) -> str:
    """Rename the old file and what belongs to it, so that nothing of it joins the new one."""
    kept = target.with_name(f"{target.name}.replaced-{SystemClock().now()}")
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{target}{suffix}").rename(f"{kept}{suffix}")
    target.rename(kept)
    return str(kept)


def _restore_database(source: StoreSide, url: str, say: Say, *, replace: bool) -> list[TableReport]:
    with _side(url) as target:
        target.lock()
        if not replace:
            check_empty(target)
        if target.is_served():
            raise StoreInUse(f"servers are using {target.location}; stop them before you restore")
        return copy_store(source, target, say, clear=target.drop_all if replace else None)


def _key_file(url: str) -> str | None:
    if config.load({"store": url}).secret_key is not None:
        return None
    file = key_path(url)
    return str(file) if file.exists() else None


@contextlib.contextmanager
def _side(url: str) -> Iterator[StoreSide]:
    with contextlib.closing(open_side(url, location(url))) as side:
        yield side


@contextlib.contextmanager
def _newest(file: Path) -> Iterator[Path]:
    """Give a backup with the newest schema: the file itself, or an upgraded copy."""
    version = open_store(f"{_SQLITE}{file}").version()  # raises if it is something else
    if version == migrate.newest():
        yield file
        return
    with _draft(file) as draft:
        draft.write_bytes(file.read_bytes())
        open_store(f"{_SQLITE}{draft}").migrate()
        yield draft


@contextlib.contextmanager
def _draft(file: Path) -> Iterator[Path]:
    """Give a new name beside `file` for a private file, and delete it at the end if it exists."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise OperatorError(f"cannot write beside {file}: {error.strerror}") from None
    try:
        yield draft
    finally:
        for suffix in ("", *_BESIDE, ".move"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)
