"""Fan-out with retries: check many pages at once, then summarise them in one task.

Shows: handlers, dependencies between tasks, retries with backoff, results of parents as inputs.
Run:   python examples/fan_out.py    (needs no server)
"""

import asyncio

from fairlane import ExecutionFailed, Fairlane, TaskFailed, Work

PAGES = [f"https://example.com/{number}" for number in range(7)]
RETRIES = {"maxRetries": 4, "backoffMs": 20, "backoffMultiplier": 2}

app = Fairlane("sqlite://:memory:", policy={"lanes": {"main": {"maxInflight": 4}}})


@app.handler("check")
async def check(work: Work) -> dict[str, object]:
    """Stand in for a request that sometimes fails; replace it with your own."""
    url: str = work.params["url"]
    if url.endswith("missing"):
        raise ExecutionFailed(f"{url} does not exist", retryable=False)  # a retry would not help
    if int(url[-1]) % 3 == 0 and work.attempt < 3:
        raise ConnectionError("connection reset")  # any other exception is retried
    return {"url": url, "attempts": work.attempt}


@app.handler("summarise")
def summarise(work: Work) -> dict[str, int]:
    """Run when all parents are done; `inputs` has their results."""
    results = [parent["result"] for parent in work.inputs]
    return {"pages": len(results), "attempts": sum(one["attempts"] for one in results)}


async def main() -> None:
    async with app:
        pages = [
            await app.submit(handler="check", params={"url": url}, retry_policy=RETRIES)
            for url in PAGES
        ]
        summary = await app.submit(handler="summarise", depends_on=[page.id for page in pages])
        print(await summary.result(timeout=30))  # {'pages': 7, 'attempts': 13}

        broken = await app.submit(handler="check", params={"url": "https://example.com/missing"})
        try:
            await broken.result(timeout=30)
        except TaskFailed as error:
            print(f"{error.state}: {error.error}")


asyncio.run(main())
