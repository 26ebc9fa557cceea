"""Where secrets come from: `env:NAME`, a variable, or `file:PATH`, a file that only we may read.

Operators may name any of them in the settings. A task may name only what `allow_secrets` lists, its
files stand in `secrets_folder`, and it is asked again just before the secret is sent: the last word
is that of the node that sends it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fairlane.core.secrets import References, changed, is_reference, is_sealed

BYTES_MAX: Final = 65_536
# Readable by others; and, for files of the system's that it lends us, writable or beyond a group.
_OTHERS: Final = 0o077
_OTHERS_OF_ROOT: Final = 0o037


def secret_at(reference: str, env: Mapping[str, str], folder: Path | None = None) -> str:
    """Raises `ValueError` that says what is wrong and never what is in it."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = env.get(name)
        if not value:
            raise ValueError(f"the variable {name} is not set")
        return value
    return _content(folder / name if folder else Path(name))


def _content(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            _check_private(file, os.fstat(opened.fileno()))
            raw = opened.read(BYTES_MAX + 1)
        text = raw.decode("utf-8").strip()
    except OSError as error:
        raise ValueError(f"the file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {file} cannot be read: it is not text") from None
    if not text or len(raw) > BYTES_MAX:
        raise ValueError(f"the file {file} must hold 1 to {BYTES_MAX} bytes")
    return text


def _check_private(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{file} is not a file")
    if os.name != "posix":
        return
    lent = found.st_uid == 0 and os.geteuid() != 0  # as systemd and containers hand them out
    if stat.S_IMODE(found.st_mode) & (_OTHERS_OF_ROOT if lent else _OTHERS):
        raise ValueError(f"the file {file} may be read by others; chmod 600 it")


class TaskSecrets:
    """The secrets that tasks may refer to."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        folder: str | None = None,
        environment: Mapping[str, str],
    ) -> None:
        self.references = References(allowed)
        self._folder = Path(folder) if folder else None
        self._env = environment

    def resolved(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with what its references stand for.

        Raises `InvalidRequest` when one is not allowed, `ValueError` when it leads nowhere.
        """
        self.references.check(config)
        return changed(config, self._secret)

    def _secret(self, given: Any) -> Any:
        if is_sealed(given):
            raise ValueError("it was sealed with a key that this node does not have")
        return self._at(given) if is_reference(given) else given

    def _at(self, reference: str) -> str:
        if reference.startswith("file:") and self._folder is None:
            raise ValueError("there is no secrets_folder")
        return secret_at(reference, self._env, self._folder)


def entry_problem(entry: str, folder: str | None) -> str | None:
    """What is wrong with one of `allow_secrets`."""
    reference, at, url = entry.partition("@")
    kind, _, name = reference.partition(":")
    if kind not in ("env", "file") or not name:
        return f"allow_secrets: {entry[:80]!r} must be env:NAME or file:NAME, with @URL if you like"
    if at and not url.startswith(("http://", "https://")):
        return f"allow_secrets: what follows @ in {entry[:80]!r} must be http(s)://…"
    if kind == "env" and name.upper().startswith("FAIRLANE_"):
        return f"allow_secrets: {reference[:80]!r} is this server's own; give it another name"
    if kind == "file" and (name.startswith(("/", ".")) or "/.." in name or "\\" in name):
        return f"allow_secrets: {reference[:80]!r} must name a file in secrets_folder"
    if kind == "file" and not folder:
        return f"allow_secrets: {reference[:80]!r} needs secrets_folder, the folder it stands in"
    return None
