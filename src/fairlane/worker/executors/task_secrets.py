"""Secrets that tasks may refer to: `env:NAME`, or `file:NAME` in the secrets folder.

A task may name only what `allow_secrets` lists. The reference is checked again just before the
secret is sent, so the node that sends it has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlane.config import secret_at
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.secrets import References, is_reference, is_sealed, map_secrets


class TaskSecrets:
    """The references that tasks may use, and where the secrets are read from."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.references = References(allowed)
        self._folder = Path(folder) if folder else None
        self._env = environment

    def resolved(self, config: JsonMapping) -> JsonObject:
        """Return the configuration with each reference replaced by its secret.

        Raise `InvalidRequest` for a reference that is not allowed, `ValueError` for one that cannot
        be read.
        """
        self.references.check(config)
        return map_secrets(config, self._secret)

    def _secret(self, value: Any) -> Any:
        if is_sealed(value):
            raise ValueError("it is sealed with a key that this node does not have")
        return self._at(value) if is_reference(value) else value

    def _at(self, reference: str) -> str:
        if reference.startswith("file:") and self._folder is None:
            raise ValueError("secrets_folder is not set")
        return secret_at(reference, self._env, self._folder)
