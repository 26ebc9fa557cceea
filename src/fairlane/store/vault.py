"""Secrets at rest: clear in memory, sealed in rows.

Values are sealed (AES-256-GCM) just before they are written and opened just after they are read;
nothing else is aware of it. A sealed text names its key, so keys can be rotated: the first of the
ring seals, all of them open. Texts that were stored before keys existed are not encrypted and are
returned unchanged. Caution: values that callers send are always sealed, even if they look sealed,
so a caller cannot have a stolen text opened. A text that no key of ours opens stays as it is, and
is written back unchanged.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.errors import InvalidRequest, OperatorError, StoreMismatch
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.secrets import SEALED, References, is_reference, map_secrets

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PREFIX: Final = "sealed:1:"
_CONFIG: Final = "llmConfig"
_CONFIG_TEXT: Final = f'"{_CONFIG}"'
_SEALED_TEXT: Final = f'"{_PREFIX}'

Ring = dict[str, "AESGCM"]


class Vault:
    def __init__(
        self,
        keys: Callable[[], Sequence[bytes]] | None = None,
        references: References | None = None,
    ) -> None:
        """`keys` is called once, when there is a secret, and returns the newest key first.

        Without `keys` a key is created that lives as long as this process.
        """
        self.references = references or References()
        self._keys = keys or (lambda: [new_key()])

    @functools.cached_property
    def _ring(self) -> Ring:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

        return {_name(key): AESGCM(key) for key in self._keys()}

    @property
    def changing(self) -> bool:
        """Return whether there are older keys beside the one that seals."""
        return len(self._ring) > 1

    def seal(self, value: object) -> str:
        """Return any JSON value as sealed text for the database."""
        name, cipher = next(iter(self._ring.items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hidden = cipher.encrypt(nonce, msgspec.json.encode(value), name.encode())
        return f"{_PREFIX}{name}:{base64.urlsafe_b64encode(nonce + hidden).decode()}"

    def open(self, text: str) -> Any:
        """Return the value of a sealed text. Raise `StoreMismatch` if its key is not here."""
        found = SEALED.fullmatch(text)
        if found is None:
            return text
        cipher = self._ring.get(found[1])
        if cipher is None:
            raise StoreMismatch(
                f"the store's secrets are sealed with the key {found[1]}, which this node does not "
                "have: set secret_key to the key of the other nodes, or restore the key file"
            )
        return self._opened(cipher, found[1], found[2])

    def _opened(self, cipher: AESGCM, name: str, sealed: str) -> object:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import

        try:
            raw = base64.urlsafe_b64decode(sealed)
            clear = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError, binascii.Error):
            raise StoreMismatch("a secret in the store is damaged: set it again") from None
        return msgspec.json.decode(clear)

    def seal_body(self, body: str) -> str:
        """Return a request, template or job as JSON text with its secrets sealed."""
        return _within(body, self._seal_one) if _CONFIG_TEXT in body else body

    def open_body(self, body: str) -> str:
        if _SEALED_TEXT not in body:
            return body  # nearly all
        with contextlib.suppress(msgspec.DecodeError):  # damaged: the reader reports it
            return _within(body, self._open_one)
        return body

    def problem(self, document: JsonMapping | str) -> InvalidRequest | None:
        """Return the problem with the references of a request (as JSON text), template or job."""
        if isinstance(document, str):
            if _CONFIG_TEXT not in document:
                return None  # nearly all
            document = msgspec.json.decode(document, type=JsonObject)
        try:
            for path, config in _configs(document):
                self.references.check(config, path)
        except InvalidRequest as error:
            return error
        return None

    def _seal_one(self, value: object) -> object:
        return value if is_reference(value) or self._is_foreign(value) else self.seal(value)

    def _open_one(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        with contextlib.suppress(StoreMismatch):
            return self.open(value)
        return value

    def _is_foreign(self, value: object) -> bool:
        """Return whether it is sealed with a missing key: it cannot be opened and is kept."""
        found = SEALED.fullmatch(value) if isinstance(value, str) else None
        return found is not None and found[1] not in self._ring


def _within(body: str, change: Callable[[object], object]) -> str:
    """Return the objects with `llmConfig`: at the top, or in the `task` of a job."""
    document = msgspec.json.decode(body, type=JsonObject)
    for _, config in _configs(document):
        config.update(map_secrets(config, change))
    return msgspec.json.encode(document).decode()


def _configs(document: JsonMapping) -> Iterator[tuple[str, JsonObject]]:
    for path, holder in (("", document), ("task.", document.get("task"))):
        if isinstance(holder, Mapping) and isinstance(holder.get(_CONFIG), dict):
            yield f"{path}{_CONFIG}", holder[_CONFIG]


def _name(key: bytes) -> str:
    return hashlib.sha256(b"fairlane key " + key).hexdigest()[:16]


# -------------------------------------------------------------------- keys


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def read_keys(text: str) -> list[bytes]:
    """Return keys from base64, the newest first. Raise `ValueError` for malformed ones."""
    keys = [base64.b64decode(word, validate=True) for word in text.split()]
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"must be {KEY_BYTES} random bytes in base64: openssl rand -base64 32")
    return keys


def keys_of_file(file: Path) -> list[bytes]:
    """Return the keys of our key file; create it if missing: mode 0600, atomically."""
    if not file.exists():
        _make(file)
    try:
        _check_private(file)
        return read_keys(file.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise OperatorError(f"the key file {file} cannot be used: {error}") from None


def add_keys(file: Path, keys: Sequence[bytes]) -> bool:
    """Add keys at the end of a key file, so that they open but do not seal; create the file if it
    is missing. Return whether the file has changed.
    """
    known = keys_of_file(file) if file.exists() else []
    missing = [key for key in keys if key not in known]
    if missing:
        with _draft(file, [*known, *missing]) as draft:
            draft.replace(file)
    return bool(missing)


def _make(file: Path) -> None:
    # If another process was first, its file counts.
    with _draft(file, [new_key()]) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, file)


@contextlib.contextmanager
def _draft(file: Path, keys: Sequence[bytes]) -> Iterator[Path]:
    """Write a private file with keys beside `file`, and delete it if it is still there."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(b"".join(base64.b64encode(key) + b"\n" for key in keys))
            out.flush()
            os.fsync(out.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _check_private(file: Path) -> None:
    mode = file.stat().st_mode
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise ValueError(f"other users can read it; run chmod 600 {file}")
