"""Secrets in `llmConfig`: which of its values nobody but the executor may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
SECRETS: Final = frozenset({"apiKey", "accessKeyId", "secretAccessKey", "sessionToken"})


def masked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as people may see it, at any depth."""
    return {name: MASK if name in SECRETS else _inner(value) for name, value in config.items()}


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return masked(value)
    return [_inner(item) for item in value] if isinstance(value, list) else value
