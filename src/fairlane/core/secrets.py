"""Secrets in `llmConfig`: the values that only the executor may see.

A value is a secret by its name, at any depth. Responses show `***`, and a `***` that is sent back
stands for the stored secret. A reference (`env:NAME`, `file:NAME`) says where the secret is and is
not secret itself. `Redactor` removes known secrets from text that other programs wrote.
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
# The names that agents are known to use; other spellings and other secrets count as well.
SECRETS: Final = frozenset({"apiKey", "accessKeyId", "secretAccessKey", "sessionToken"})
_SECRET: Final = re.compile(
    r".*(?:token|secret|password|passwd|passphrase|credentials?|authorization|bearer|cookie"
    r"|(?:api|access|account|auth|private|secret|signing|subscription)key(?:id|s)?)|key"
)
_PUNCTUATION: Final = str.maketrans("", "", "-_. ")
_REFERENCES: Final = ("env:", "file:")
# What a database holds in place of a secret: the name of a key, and the ciphertext for that key.
SEALED: Final = re.compile(r"sealed:1:([0-9a-f]{16}):([A-Za-z0-9_-]+={0,2})")
# Shorter ones ("x", "-", "none" for a local model) protect nothing and would garble the text.
CHARACTERS_MIN: Final = 5


def is_secret(name: str) -> bool:
    """Return whether a value with this name is a secret, in any spelling: `x-api-key` too."""
    return name in SECRETS or bool(_SECRET.fullmatch(name.translate(_PUNCTUATION).lower()))


def is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_REFERENCES)


def is_sealed(value: object) -> bool:
    return isinstance(value, str) and SEALED.fullmatch(value) is not None


def mask_secrets(config: JsonMapping) -> JsonObject:
    """Return the configuration with its secrets masked, at any depth."""
    return map_secrets(config, lambda value: value if is_reference(value) else MASK)


def map_secrets(config: JsonMapping, change: Callable[[object], object]) -> JsonObject:
    """Return a copy in which `change` is applied to each secret, at any depth."""

    def inner(value: object) -> object:
        if isinstance(value, dict):
            return map_secrets(value, change)
        return [inner(item) for item in value] if isinstance(value, list) else value

    return {
        name: change(value) if value is not None and is_secret(name) else inner(value)
        for name, value in config.items()
    }


def restore_secrets(config: object, kept: object) -> Any:
    """Return the configuration with each masked secret replaced by the stored one."""
    if not isinstance(config, dict) or not isinstance(kept, dict):
        return config
    return {
        name: kept.get(name, value)
        if value == MASK and is_secret(name)
        else restore_secrets(value, kept.get(name))
        for name, value in config.items()
    }


def check_secrets(path: str, config: object, problems: list[str]) -> None:
    """Report masked values that stand for nothing, and known secrets that are not text."""
    for where, value in _secrets_in(config, path):
        if value == MASK:
            problems.append(
                f"field '{where}' is masked, but no secret is stored: send the secret itself"
            )
        elif not isinstance(value, str) and where.rpartition(".")[2] in SECRETS:
            problems.append(f"field '{where}' must be text")


def moved_secret_problem(kept: Any, config: Any, path: str = "llmConfig") -> str | None:
    """Return the problem of a configuration that keeps a secret from `kept`, which others have set,
    while another value could send it elsewhere. Return None if there is no problem.
    """
    known = {text for text in texts(kept) if len(text) >= CHARACTERS_MIN and not is_reference(text)}
    if known.isdisjoint(texts(config)):
        return None
    for name, value in config.items():
        new = value is not None and value != kept.get(name)
        another = isinstance(value, str) and is_secret(name)
        if new and not another and not _is_plain(name, value):
            return (
                f"field '{path}.{name[:40]}' cannot change while the secret stays masked: "
                "send the secret too"
            )
    return None


def _secrets_in(value: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each secret with its path, ordered by name."""
    if isinstance(value, dict):
        for name in sorted(value):
            where = f"{path}.{name[:40]}"
            if value[name] is not None and is_secret(name):
                yield where, value[name]
            else:
                yield from _secrets_in(value[name], where)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _secrets_in(item, f"{path}[{number}]")


def texts(config: object) -> Iterator[str]:
    """Return all texts that are secrets or parts of one."""
    for _, value in _secrets_in(config, ""):
        yield from _leaves(value)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


# -------------------------------------------------------------------- references


class References:
    """The references that tasks may use, each with the base URLs that it may be sent to.

    Caution: the author of a task decides with `baseUrl` where an agent sends the key. So beside a
    reference only plain words are allowed, and only a base URL that the operator has named with it.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Parse each `REFERENCE`, or `REFERENCE@URL` if it may be sent to that base URL."""
        self._urls: dict[str, set[str]] = {}
        for entry in entries:
            reference, _, url = entry.partition("@")
            self._urls.setdefault(reference, set()).update([url.rstrip("/")] if url else ())

    def __contains__(self, reference: str) -> bool:
        return reference in self._urls

    def check(self, config: Any, path: str = "llmConfig") -> None:
        """Raise `InvalidRequest` if a task may not use a reference in its configuration."""
        found = [(where, one) for where, one in _secrets_in(config, path) if is_reference(one)]
        for where, reference in found:
            if reference not in self:
                raise InvalidRequest(
                    f"field '{where}' refers to '{reference[:80]}', which tasks may not use: "
                    "send the secret itself, or ask the operator to list it in allow_secrets"
                )
        if found:
            allowed = set.intersection(*(self._urls[reference] for _, reference in found))
            _check_company(config, path, allowed)


# Keys allowed beside a reference: none of them can direct an agent to another server.
_COMPANY: Final[Mapping[str, re.Pattern[str]]] = {
    "provider": re.compile(r"[A-Za-z0-9_-]{1,64}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,199}"),
    "region": re.compile(r"[a-z0-9-]{1,64}"),
    "resourceName": re.compile(r"[A-Za-z0-9-]{1,64}"),
}
_URL_NAME: Final = "baseUrl"


def _is_plain(name: str, value: object) -> bool:
    """Return whether a value cannot direct an agent to a server."""
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
                f"field '{path}.{name[:40]}' is not allowed next to a reference to a secret; "
                f"allowed are {', '.join(_COMPANY)} as plain words, and a {_URL_NAME} that "
                "allow_secrets lists with the reference"
            )


# -------------------------------------------------------------------- foreign text


class Redactor:
    """Replaces secrets with ***: verbatim, JSON-escaped and URL-encoded."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = [form for secret in secrets for form in _forms(secret)]
        wanted = {form for form in forms if len(form) >= CHARACTERS_MIN}
        # The longest first: one may contain another.
        self._secrets = sorted(wanted, key=len, reverse=True)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def hide_in(self, document: object) -> Any:
        """Hide secrets in all texts of a document, including keys."""
        if not self._secrets:
            return document
        if isinstance(document, str):
            return self.hide(document)
        if isinstance(document, dict):
            return {self.hide(name): self.hide_in(value) for name, value in document.items()}
        return [self.hide_in(item) for item in document] if isinstance(document, list) else document

    def held_back(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the start of a secret."""
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
    """Redacts text that arrives in pieces, also where a secret is cut in two."""

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
        """Return the text that was held back: no secret follows."""
        rest, self._rest = self._rest, ""
        self._tell(rest)

    def _tell(self, text: str) -> None:
        if text:
            self._send(text)
