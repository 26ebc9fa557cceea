"""`work.ask`: the run ends, a person decides, and the handler runs again with the answer."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import ApprovalDenied
from fairlane.core.errors import FairlaneError
from fairlane.testing import MemoryFairlane
from fairlane.worker.executors.base import Work
from tests.hostile.inside import Inside

FORM = {"properties": {"subject": {"type": "string"}}, "required": ["subject"]}


class Person:
    """Decides about open approvals over HTTP, as any client does."""

    def __init__(self, app: MemoryFairlane) -> None:
        self._inside = Inside(app)

    async def open(self) -> list[dict[str, Any]]:
        page = (await self._inside.ask("GET", "/approvals?state=open")).json
        found: list[dict[str, Any]] = page["approvals"]
        return found

    async def decide(self, decision: str, **fields: Any) -> None:
        (one,) = await self.open()
        body = {"decision": decision, "hash": one["hash"], **fields}
        answer = await self._inside.ask("POST", f"/approvals/{one['id']}/decide", body)
        assert answer.status == 200, answer.json


async def test_a_handler_asks_ends_and_goes_on_with_the_answer() -> None:
    app = MemoryFairlane()
    runs: list[int] = []

    @app.handler("send")
    async def send(work: Work) -> object:
        runs.append(work.attempt)
        answer = await work.ask("Send it?", detail="Dear Ann", form=FORM)
        return {"sent": answer["subject"], "known": len(work.answers)}

    async with app:
        task = await app.submit(handler="send")
        await app.settle()
        assert (await task.show()).gate == "approval"
        await Person(app).decide("approve", answer={"subject": "Hi"})
        await app.settle()
        shown = await task.show()
    assert (shown.state, shown.result) == ("done", {"sent": "Hi", "known": 1})
    assert runs == [1, 1], "asking spends no attempt"
    assert shown.attempts == 1


async def test_a_plain_handler_asks_in_its_thread() -> None:
    app = MemoryFairlane()

    @app.handler("send")
    def send(work: Work) -> object:
        return {"answer": work.ask("Send it?")}

    async with app:
        task = await app.submit(handler="send")
        await app.settle()
        await Person(app).decide("approve")
        await app.settle()
        assert (await task.show()).result == {"answer": {}}


async def test_a_rejection_fails_the_task_unless_the_handler_catches_it() -> None:
    app = MemoryFairlane()

    @app.handler("strict")
    async def strict(work: Work) -> object:
        return await work.ask("Send it?")

    @app.handler("kind")
    async def kind(work: Work) -> object:
        try:
            return await work.ask("Send it?", name="send")
        except ApprovalDenied as error:
            return {"state": error.state, "comment": error.comment}

    async with app:
        for name in ("strict", "kind"):
            task = await app.submit(handler=name)
            await app.settle()
            await Person(app).decide("reject", comment="no")
            await app.settle()
            shown = await task.show()
            if name == "strict":
                assert shown.state == "failed"
                assert shown.error == "approval_denied: Send it? (rejected): no"
            else:
                assert shown.result == {"state": "rejected", "comment": "no"}


async def test_a_handler_that_catches_everything_does_not_go_on_without_an_answer() -> None:
    app = MemoryFairlane()
    sent: list[str] = []

    @app.handler("careless")
    async def careless(work: Work) -> object:
        try:
            await work.ask("Send it?")
        except Exception:  # noqa: BLE001 - that is what the test is about
            sent.append("unapproved")
        sent.append("sent")
        return None

    async with app:
        await app.submit(handler="careless")
        await app.settle()
        assert sent == []
        await Person(app).decide("approve")
        await app.settle()
    assert sent == ["sent"]


@pytest.mark.parametrize(
    "given", [{"title": " "}, {"title": "x", "count": 0}, {"title": "x", "name": "?"}]
)
async def test_a_question_that_makes_no_sense_fails_the_run(given: dict[str, Any]) -> None:
    app = MemoryFairlane()
    caught: list[str] = []

    @app.handler("odd")
    async def odd(work: Work) -> object:
        try:
            return await work.ask(
                given["title"], **{k: v for k, v in given.items() if k != "title"}
            )
        except FairlaneError as error:
            caught.append(error.code)
            return None

    async with app:
        await app.submit(handler="odd")
        await app.settle()
    assert caught == ["invalid_request"]
