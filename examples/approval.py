"""An approval: a person decides before a task starts, and in the middle of a run.

Shows: a task that waits for a person without holding a slot, a form that the person fills in, a
handler that asks, and what becomes of the work after a no.
Run:   python examples/approval.py    (needs no server)
"""

import asyncio
from typing import Any, Literal

from fairlane import ApprovalDenied, Fairlane, TaskFailed, Work

app = Fairlane("sqlite://:memory:")
FORM = {"properties": {"subject": {"type": "string", "title": "Subject"}}, "required": ["subject"]}


@app.handler("publish")
def publish(work: Work) -> str:
    assert work.approval is not None
    return f"published {work.params['title']!r}, {work.approval['state']}"


@app.handler("mail")
async def mail(work: Work) -> str:
    draft = f"Dear {work.params['to']}, …"
    try:
        answer = await work.ask("Send this e-mail?", detail=draft, form=FORM)
    except ApprovalDenied as error:
        return f"not sent: {error.comment}"
    return f"sent {answer['subject']!r}"


async def decide(decision: Literal["approve", "reject"], **more: Any) -> str:
    """Decide the open approval with its hash, as a button in your program would."""
    while not (found := (await app.approvals(state="open")).approvals):  # noqa: ASYNC110 - a demo
        await asyncio.sleep(0.01)
    await app.decide(found[0].id, decision, found[0].hash, **more)
    return found[0].title


async def main() -> None:
    async with app:
        ask = {"title": "Publish News?"}
        news = await app.submit(handler="publish", params={"title": "News"}, approval=ask)
        print((await news.show()).gate)  # approval
        print(await decide("approve"))
        print(await news.result(timeout=30))
        gossip = await app.submit(handler="publish", approval={"title": "Publish Gossip?"})
        print(await decide("reject", comment="no gossip"))
        try:
            await gossip.result(timeout=30)
        except TaskFailed as error:
            print(error.code)
        letter = await app.submit(handler="mail", params={"to": "Ann"})
        print(await decide("approve", answer={"subject": "Hello"}))
        print(await letter.result(timeout=30))


asyncio.run(main())
