"""An approval: work that waits until a person says yes or no.

Shows: a task that only a person completes (its handler runs nowhere), a second task that depends
on it, and what becomes of the second one after a yes and after a no.
Run:   python examples/approval.py    (needs no server)
"""

import asyncio

from fairlane import Fairlane, TaskFailed, TaskHandle, Work

app = Fairlane("sqlite://:memory:", policy={"lanes": {"approvals": {"maxInflight": 1000}}})


@app.handler("publish")
def publish(work: Work) -> str:
    approval = work.inputs[0]["result"]
    return f"published {work.request['params']['title']!r}, approved by {approval['by']}"


async def request_approval(title: str) -> TaskHandle:
    """Return the task that runs after the approval. Nothing waits in memory meanwhile."""
    approval = await app.submit(handler="approve", lane="approvals", params={"title": title})
    return await app.submit(handler="publish", params={"title": title}, depends_on=[approval.id])


async def decide(person: str, *, approve: bool) -> str:
    """Decide the oldest open approval, as a button in your program would."""
    lease = (await app.lease(person, lanes=["approvals"], handlers=["approve"]))["leases"][0]
    if approve:
        await app.complete_lease(lease["leaseId"], result={"by": person})
    else:
        await app.fail_lease(lease["leaseId"], f"rejected by {person}", retryable=False)
    title: str = lease["task"]["params"]["title"]
    return title


async def main() -> None:
    async with app:
        news = await request_approval("News")
        gossip = await request_approval("Gossip")
        print((await news.show())["state"])  # waiting_dependency
        print(await decide("ada", approve=True), "is approved")
        print(await news.result(timeout=30))
        print(await decide("ada", approve=False), "is rejected")
        try:
            await gossip.result(timeout=30)
        except TaskFailed as error:
            print(error.state)


asyncio.run(main())
