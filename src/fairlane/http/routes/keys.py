"""The header Idempotency-Key of routes that are not declared as operations yet."""

from __future__ import annotations

import re
from typing import Final

from fairlane.core.errors import InvalidRequest
from fairlane.engine.commands import IdempotencyKey
from fairlane.http.messages import Request
from fairlane.services import tasks

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


def idempotency_key(request: Request, agent: str, raw: bytes) -> IdempotencyKey | None:
    key = request.header(b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return tasks.idempotency_key(key, agent, raw)
