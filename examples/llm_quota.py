"""An LLM quota: several agents share one API key without exceeding its limits.

Shows: a rate in the policy, a permit for each call, reporting the use of a call, and handling a 429
of the provider.
Run:   python examples/llm_quota.py    (needs no server)
"""

import asyncio
import time

from fairlane import Fairlane, Work

PER_SECOND = 40  # the limit of the provider
RATES = [
    {"unit": "requests", "amount": PER_SECOND, "perMs": 1000},
    {"unit": "tokens", "amount": 40_000, "perMs": 1000},
]
app = Fairlane("sqlite://:memory:", policy={"resources": {"gpt": {"limits": RATES}}})
calls: list[float] = []  # when the provider was called


async def provider(prompt: str) -> tuple[int, int]:
    """Stand in for a call of the model; return its status and the tokens it used."""
    calls.append(time.monotonic())
    if len(calls) == 5:
        return 429, 0  # another program has used the key
    await asyncio.sleep(0.01)
    return 200, 100 + len(prompt)


@app.handler("ask")
async def ask(work: Work) -> str:
    prompt = work.params["prompt"]
    while True:
        async with work.permit(gpt={"requests": 1, "tokens": 1000}) as permit:
            status, tokens = await provider(prompt)
            permit.used(tokens=tokens)
            if status == 200:
                return "an answer"
            permit.closed(retry_after=0.2)  # no task calls until then


def busiest_second() -> int:
    return max(sum(first <= one < first + 1 for one in calls) for first in calls)


async def main() -> None:
    async with app:
        tasks = [
            await app.submit(handler="ask", agent=agent, params={"prompt": f"question {number}"})
            for agent in ("support", "research", "marketing")
            for number in range(20)
        ]
        await asyncio.gather(*(task.result(timeout=60) for task in tasks))
        print(f"{len(tasks)} questions answered with {len(calls)} calls")
        print(f"never more than {PER_SECOND} calls in a second: {busiest_second() <= PER_SECOND}")


asyncio.run(main())
