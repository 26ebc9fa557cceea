"""An LLM quota: several agents share one API key, and nobody is refused.

Shows: a rate in the policy, a permit for each call, reporting what a call used, and what to do when
the provider says "too many requests" anyway.
Run:   python examples/llm_quota.py    (needs no server)
"""

import asyncio
import time

from fairlane import Fairlane, Work

PER_SECOND = 40  # what the provider allows
RATES = [
    {"unit": "requests", "amount": PER_SECOND, "perMs": 1000},
    {"unit": "tokens", "amount": 40_000, "perMs": 1000},
]
app = Fairlane("sqlite://:memory:", policy={"resources": {"gpt": {"limits": RATES}}})
calls: list[float] = []  # when the provider was called


async def provider(prompt: str) -> tuple[int, int]:
    """Stand in for a call of the model; return its status and the tokens it took."""
    calls.append(time.monotonic())
    if len(calls) == 5:
        return 429, 0  # somebody else has used the key
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
            permit.closed(retry_after=0.2)  # nobody calls until then


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
