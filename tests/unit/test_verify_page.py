"""The function on the page about webhooks, which people copy, tells our signatures from others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import SystemClock
from fairlane.engine.verbs.webhooks import new_secret
from fairlane.outbound.webhooks import sign

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
BODY = '{"taskId":"tsk_1","state":"done","result":"ü"}'.encode()


@pytest.fixture(scope="module")
def is_genuine() -> Callable[..., bool]:
    found = re.search(r"```python\n(# verify\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    function: Callable[..., bool] = names["is_genuine"]
    return function


def test_ours_is_genuine_under_the_old_secret_and_the_new_one(
    is_genuine: Callable[..., bool],
) -> None:
    old, new = new_secret(), new_secret()
    headers = sign(f"{new} {old}", "msg_1", SystemClock().now(), BODY)
    assert is_genuine(old, headers, BODY)
    assert is_genuine(new, headers, BODY)


def test_what_was_changed_recorded_or_signed_by_another_is_not(
    is_genuine: Callable[..., bool],
) -> None:
    secret, now = new_secret(), SystemClock().now()
    headers = sign(secret, "msg_1", now, BODY)
    assert not is_genuine(new_secret(), headers, BODY)
    assert not is_genuine(secret, headers, BODY + b" ")
    assert not is_genuine(secret, {**headers, "webhook-id": "msg_2"}, BODY)
    assert not is_genuine(secret, sign(secret, "msg_1", now - 400_000, BODY), BODY)
