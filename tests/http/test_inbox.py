"""The inbox of a run over plain HTTP: read, acknowledge by cursor, wait, renew, withdraw."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.stage import on_sqlite
from tests.http.talk import Talk

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANDLER = "steered"


class Run:
    """A leased run of a conversation."""

    def __init__(self, talk: Talk, lease: dict[str, Any]) -> None:
        self.api: Api = talk.api
        self.id: str = lease["leaseId"]
        self.task: str = lease["taskId"]

    async def inbox(self, query: str = "") -> dict[str, Any]:
        answer = await self.api.get(f"/leases/{self.id}/inbox{query}")
        assert answer.status == 200, answer
        page: dict[str, Any] = answer.json
        return page

    async def report(self, verb: str, **fields: Any) -> dict[str, Any]:
        answer = await self.api.post(f"/leases/{self.id}/{verb}", fields)
        assert answer.status == 200, answer
        done: dict[str, Any] = answer.json
        return done


async def running(talk: Talk) -> Run:
    handler = f"{HANDLER}-{talk.key}"
    await talk.say("go", handler=handler)
    return await leased(talk)


async def leased(talk: Talk) -> Run:
    wanted = {"worker": "w", "handlers": [f"{HANDLER}-{talk.key}"], "waitMs": 10_000}
    (lease,) = (await talk.api.post("/leases", wanted)).json["leases"]
    return Run(talk, lease)


async def steer(talk: Talk, text: str, **fields: Any) -> dict[str, Any]:
    answer = await talk.post(text, handler=f"{HANDLER}-{talk.key}", mode="steer", **fields)
    assert answer.status == 202, answer
    sent: dict[str, Any] = answer.json
    return sent


def texts(page: dict[str, Any]) -> list[str]:
    return [one["text"] for one in page["messages"]]


async def test_messages_are_read_and_acknowledged_by_cursor(work: Work) -> None:
    talk = Talk(work)
    run = await running(talk)
    first = await steer(talk, "a", metadata={"n": 1})
    page = await run.inbox()
    assert page["messages"] == [
        {
            "id": first["messageId"],
            "sender": work.agent,
            "text": "a",
            "taskId": first["taskId"],
            "metadata": {"n": 1},
        }
    ]
    assert (await talk.api.show(first["taskId"]))["state"] == "queued"
    second = await steer(talk, "b")
    renewed = await run.report("renew", inboxAfter=page["cursor"])
    assert texts(renewed["inbox"]) == ["b"]
    assert (await talk.api.show(first["taskId"]))["result"] == {"takenBy": run.task}
    await run.report("complete")
    following = await leased(talk)
    assert following.task == second["taskId"], "it was read and not acknowledged"
    await following.report("complete")
    assert (await talk.api.get(f"/leases/{run.id}/inbox")).code == "lease_lost"
    (drawn,) = (await talk.api.get(f"/tasks/{run.task}/timeline")).json["timelines"]
    marks = [(one["kind"], one["name"]) for one in drawn["marks"]]
    assert marks == [("message", work.agent)], "the one that it took"


@on_sqlite
async def test_a_read_waits_for_a_message(work: Work) -> None:
    talk = Talk(work)
    run = await running(talk)
    reading = asyncio.create_task(run.inbox("?waitMs=20000"))
    await steer(talk, "now")
    assert texts(await reading) == ["now"]
    taking = asyncio.create_task(run.report("inbox", waitMs=20_000))
    assert texts(await taking) == ["now"], "it waits already, and is taken"
    assert texts(await run.report("inbox")) == ["now"], "a repeated request gets the same"
    assert texts(await run.inbox("?after=1&waitMs=1")) == []
    await run.report("complete")


async def test_wrong_cursors_are_refused(work: Work) -> None:
    talk = Talk(work)
    run = await running(talk)
    for cursor in ("x", "1.", "-1", "1.x"):
        answer = await talk.api.get(f"/leases/{run.id}/inbox?after={cursor}")
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert "'after'" in answer.json["error"]
    await run.report("complete")


async def test_a_busy_session_refuses_with_409(work: Work) -> None:
    talk = Talk(work)
    run = await running(talk)
    answer = await talk.post("late", mode="reject")
    assert (answer.status, answer.code) == (409, "session_busy")
    assert (await talk.show())["waiting"] == []
    await run.report("complete")


async def test_a_waiting_message_is_withdrawn_once(work: Work) -> None:
    talk = Talk(work)
    run = await running(talk)
    sent = await steer(talk, "oops", messageId="draft")
    path = f"{talk.path}/messages"
    done = await talk.api.ask("DELETE", f"{path}/draft")
    assert (done.status, done.json["state"], done.json["left"]) == (200, "cancelled", 0)
    assert (await talk.api.ask("DELETE", f"{path}/{sent['taskId']}")).status == 200
    assert texts(await run.inbox()) == []
    taken = await steer(talk, "kept")
    await run.report("inbox")
    answer = await talk.api.ask("DELETE", f"{path}/{taken['messageId']}")
    assert (answer.status, answer.code) == (409, "message_taken")
    answer = await talk.api.ask("DELETE", f"{path}/nothing")
    assert answer.status == 404
    await run.report("complete")


@on_sqlite
@pytest.mark.parametrize("text", ["/stop@fairlane_bot", "/Stop", " /STOP ", "/stopall@Bot2"])
async def test_commands_are_understood_as_chats_write_them(work: Work, text: str) -> None:
    talk = Talk(work)
    run = await running(talk)
    answer = await talk.post(text)
    assert (answer.status, answer.json["stopped"]) == (200, [run.task])
    await run.report("complete")


@on_sqlite
async def test_other_words_are_no_commands(work: Work) -> None:
    talk = Talk(work)
    for text in ("/stopping", "/stop now", "/stop@a b", "stop"):
        assert (await talk.post(text)).status == 202
