"""`fairlane resources …` and `--need`, on a server and on its store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

POLICY = {
    "resources": {
        "gpt": {"limits": [{"unit": "requests", "amount": 5, "perMs": 60_000}]},
        "spend": {
            "limits": [{"unit": "usd", "amount": "2.50", "resetEvery": "month"}],
            "by": "agent",
        },
    }
}


@pytest.fixture
def side(run: Run, tmp_path: Path) -> list[str]:
    """A store of the test's own, with two resources."""
    side = ["--store", f"sqlite:///{tmp_path / 'fairlane.db'}"]
    document = tmp_path / "policy.json"
    document.write_text(json.dumps(POLICY))
    assert run("submit", "--handler", "first", *side).code == 0
    assert run("policy", "set", "--file", str(document), *side).code == 0
    return side


def test_resources_are_listed_and_shown(run: Run, side: list[str]) -> None:
    listed = run("resources", *side)
    assert listed.code == 0
    assert "gpt" in listed.out
    assert "0 of 5 requests per 1m0s" in listed.out
    shown = run("resources", "gpt", *side)
    assert "5 available" in shown.out
    assert run("resources", "gpt", "--json", *side).json["limits"][0]["amount"] == 5


def test_a_store_without_resources_says_so(run: Run, tmp_path: Path) -> None:
    side = ["--store", f"sqlite:///{tmp_path / 'empty.db'}"]
    run("submit", "--handler", "first", *side)
    assert "no resources" in run("resources", *side).out


def test_needs_are_given_by_unit(run: Run, side: list[str]) -> None:
    need = ("--need", "gpt:requests=1", "--need", "spend:usd=0.12")
    task = run("submit", "--handler", "away", *need, "--json", *side).json["taskId"]
    shown = run("show", task, "--json", *side).json
    assert shown["needs"] == {"gpt": {"requests": 1}, "spend": {"usd": "0.12"}}
    wrong = run("submit", "--handler", "away", "--need", "gtp:requests=1", *side)
    assert wrong.code == 2
    assert "did you mean gpt" in wrong.err
    assert "NAME:UNIT=AMOUNT" in run("submit", "--handler", "x", "--need", ":a=1", *side).err


def test_close_open_raise_and_the_ledger(run: Run, side: list[str]) -> None:
    closed = run("resources", "close", "gpt", "--for", "5m", "--reason", "incident", *side)
    assert closed.out.startswith("closed gpt until ")
    assert "closed" in run("resources", *side).out
    assert "incident" in run("resources", "gpt", *side).out
    assert run("resources", "open", "gpt", *side).out == "opened gpt\n"
    more = ("--key", "ada", "--unit", "usd", "--amount", "1.25")
    raised = run("resources", "raise", "spend", *more, *side)
    assert raised.out == "raised spend/ada by 1.25 usd\n"
    ledger = run("resources", "ledger", "spend", "--key", "ada", *side)
    assert "raise" in ledger.out
    assert "1.25 usd" in ledger.out


def test_usage_as_csv(run: Run, side: list[str]) -> None:
    assert run("resources", "usage", "spend", "--csv", *side).out == "day,agentId,unit,used\n"
    assert "no use" in run("resources", "usage", "spend", *side).out


def test_an_unknown_resource_is_not_found(run: Run, side: list[str]) -> None:
    wrong = run("resources", "gtp", *side)
    assert wrong.code == 3
    assert "gpt" in wrong.err
