"""Secrets in `llmConfig`: which of its values nobody but the executor may see.

A value is a secret by its name, at any depth. People see `***` for it, and `***` that comes back
stands for the one that is kept. A reference (`env:NAME`, `file:NAME`) says where the secret is and
is none itself. `Redactor` takes known secrets out of text that somebody else has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject

MASK: Final = "***"
# The names that agents are known to have; other spellings and other secrets count as well.
SECRETS: Final = frozenset({"apiKey", "accessKeyId", "secretAccessKey", "sessionToken"})
_SECRET: Final = re.compile(
    r".*(?:token|secret|password|passwd|passphrase|credentials?|authorization|bearer|cookie"
    r"|(?:api|access|account|auth|private|secret|signing|subscription)key(?:id|s)?)|key"
)
_PUNCTUATION: Final = str.maketrans("", "", "-_. ")
_REFERENCES: Final = ("env:", "file:")
# What a database holds instead of a secret: the name of a key, and what only that key can open.
SEALED: Final = re.compile(r"sealed:1:([0-9a-f]{16}):([A-Za-z0-9_-]+={0,2})")
# Shorter ones ("x", "-", "none" for a local model) protect nothing and would garble the text.
CHARACTERS_MIN: Final = 5


def is_secret(name: str) -> bool:
    """Whether what stands under this name is a secret, however it is spelled: `x-api-key` too."""
    return name in SECRETS or bool(_SECRET.fullmatch(name.translate(_PUNCTUATION).lower()))


def is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_REFERENCES)


def is_sealed(value: object) -> bool:
    return isinstance(value, str) and SEALED.fullmatch(value) is not None


def masked(config: JsonMapping) -> JsonObject:
    """The configuration as people may see it, at any depth."""
    return changed(config, lambda value: value if is_reference(value) else MASK)


def changed(config: JsonMapping, change: Callable[[Any], Any]) -> JsonObject:
    """A copy in which each secret, at any depth, is what `change` makes of it."""

    def inner(value: object) -> Any:
        if isinstance(value, dict):
            return changed(value, change)
        return [inner(item) for item in value] if isinstance(value, list) else value

    return {
        name: change(value) if value is not None and is_secret(name) else inner(value)
        for name, value in config.items()
    }


def unmasked(config: object, kept: object) -> Any:
    """A masked secret stands for the one that is kept at the same place."""
    if not isinstance(config, dict) or not isinstance(kept, dict):
        return config
    return {
        name: kept.get(name, value)
        if value == MASK and is_secret(name)
        else unmasked(value, kept.get(name))
        for name, value in config.items()
    }


def check_given(path: str, config: object, problems: list[str]) -> None:
    """Complain about what is masked and stands for nothing, and about known ones without text."""
    for where, value in _found(config, path):
        if value == MASK:
            problems.append(f"field '{where}' is masked and none is kept: give the secret")
        elif not isinstance(value, str) and where.rpartition(".")[2] in SECRETS:
            problems.append(f"field '{where}' must be text")


def moved(kept: Any, config: Any, path: str = "llmConfig") -> str | None:
    """What is wrong with a configuration that has a secret from `kept`, which others have given:
    beside it nothing may be said anew that could lead it elsewhere. None when nothing is.
    """
    known = {text for text in texts(kept) if len(text) >= CHARACTERS_MIN and not is_reference(text)}
    if known.isdisjoint(texts(config)):
        return None
    for name, value in config.items():
        new = value is not None and value != kept.get(name)
        another = isinstance(value, str) and is_secret(name)
        if new and not another and not _is_plain(name, value):
            return (
                f"field '{path}.{name[:40]}' may not change beside a secret that is kept: "
                "give the secret as well"
            )
    return None


def _found(value: object, path: str) -> Iterator[tuple[str, Any]]:
    """Each secret with its path, in the order of their names."""
    if isinstance(value, dict):
        for name in sorted(value):
            where = f"{path}.{name[:40]}"
            if value[name] is not None and is_secret(name):
                yield where, value[name]
            else:
                yield from _found(value[name], where)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _found(item, f"{path}[{number}]")


def texts(config: object) -> Iterator[str]:
    """All texts that are secrets or parts of one."""
    for _, value in _found(config, ""):
        yield from _leaves(value)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


# -------------------------------------------------------------------- references


class References:
    """What tasks may refer to: each reference with the base URLs that it may go to.

    The trap: who writes a task decides with `baseUrl` where an agent sends the key. So beside a
    reference only plain words may stand, and only a base URL that the operator has named with it.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Each `REFERENCE`, or `REFERENCE@URL` for one that may go to that base URL."""
        self._urls: dict[str, set[str]] = {}
        for entry in entries:
            reference, _, url = entry.partition("@")
            self._urls.setdefault(reference, set()).update([url.rstrip("/")] if url else ())

    def __contains__(self, reference: str) -> bool:
        return reference in self._urls

    def check(self, config: Any, path: str = "llmConfig") -> None:
        """Raises `InvalidRequest` when a task may not refer to what its configuration names."""
        found = [(where, one) for where, one in _found(config, path) if is_reference(one)]
        for where, reference in found:
            if reference not in self:
                raise InvalidRequest(
                    f"field '{where}' refers to '{reference[:80]}', which tasks may not: "
                    "give the secret itself, or have the operator name it in allow_secrets"
                )
        if found:
            allowed = set.intersection(*(self._urls[reference] for _, reference in found))
            _check_company(config, path, allowed)


# What may stand beside a reference: nothing that could lead an agent to another server.
_COMPANY: Final[Mapping[str, re.Pattern[str]]] = {
    "provider": re.compile(r"[A-Za-z0-9_-]{1,64}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,199}"),
    "region": re.compile(r"[a-z0-9-]{1,64}"),
    "resourceName": re.compile(r"[A-Za-z0-9-]{1,64}"),
}
_URL_NAME: Final = "baseUrl"


def _is_plain(name: str, value: object) -> bool:
    """Whether this leads nowhere, whatever an agent makes of it."""
    pattern = _COMPANY.get(name)
    if isinstance(value, str):
        return pattern is not None and pattern.fullmatch(value) is not None
    return isinstance(value, bool | int | float)


def _check_company(config: JsonMapping, path: str, urls: set[str]) -> None:
    for name, value in config.items():
        if value is None or is_secret(name) or _is_plain(name, value):
            continue
        if not (name == _URL_NAME and isinstance(value, str) and value.rstrip("/") in urls):
            raise InvalidRequest(
                f"field '{path}.{name[:40]}' may not stand beside a reference to a secret as it "
                f"is: {', '.join(_COMPANY)} may as plain words, and a {_URL_NAME} that "
                "allow_secrets names with the reference"
            )


# -------------------------------------------------------------------- texts of others


class Redactor:
    """Puts *** for secrets: as they are, as JSON has them, and as an address has them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = [form for secret in secrets for form in _forms(secret)]
        wanted = {form for form in forms if len(form) >= CHARACTERS_MIN}
        # The longest first: one may be a part of another.
        self._secrets = sorted(wanted, key=len, reverse=True)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def hide_in(self, document: object) -> Any:
        """The same for all texts of a document, names included."""
        if not self._secrets:
            return document
        if isinstance(document, str):
            return self.hide(document)
        if isinstance(document, dict):
            return {self.hide(name): self.hide_in(value) for name, value in document.items()}
        return [self.hide_in(item) for item in document] if isinstance(document, list) else document

    def held_back(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a secret."""
        longest = 0
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(text)), longest, -1):
                if text.endswith(secret[:size]):
                    longest = size
                    break
        return longest


def _forms(secret: str) -> tuple[str, ...]:
    plain = json.dumps(secret, ensure_ascii=False)[1:-1]
    return secret, plain, json.dumps(secret)[1:-1], quote(secret, safe="")


class RedactedStream:
    """Text that comes in pieces: a secret is found also where it is cut in two."""

    def __init__(self, redactor: Redactor, send: Callable[[str], None]) -> None:
        self._redactor = redactor
        self._send = send
        self._rest = ""

    def feed(self, piece: str) -> None:
        text = self._redactor.hide(self._rest + piece)
        keep = self._redactor.held_back(text)
        self._rest = text[len(text) - keep :]
        self._tell(text[: len(text) - keep])

    def end(self) -> None:
        """Nothing follows: what was held back was no secret."""
        rest, self._rest = self._rest, ""
        self._tell(rest)

    def _tell(self, text: str) -> None:
        if text:
            self._send(text)
