"""An LLM quota: several agents share one model endpoint that allows few calls at a time.

Shows: a lane with a ceiling for all and one per agent, weights, retries when the endpoint says
"too many requests".
Run:   python examples/llm_quota.py    (needs no server)
"""

import asyncio
from collections import Counter

from fairlane import ExecutionFailed, Fairlane, Work

POLICY = {
    "lanes": {"llm": {"maxInflight": 4, "maxPerAgentInflight": 3, "maxPerAgent": 50}},
    "agents": {"support": {"weight": 2}},  # twice the share of the others while calls are scarce
}
app = Fairlane("sqlite://:memory:", policy=POLICY)

running: Counter[str] = Counter()
peaks: Counter[str] = Counter()
refused: set[str] = set()


@app.handler("ask")
async def ask(work: Work) -> str:
    """Stand in for a call of the model; replace it with your own."""
    if work.agent == "research" and work.task_id not in refused and len(refused) < 3:
        refused.add(work.task_id)
        raise ExecutionFailed("429 Too Many Requests", retry_after_ms=50)  # wait, then retry
    running[work.agent] += 1
    peaks[work.agent] = max(peaks[work.agent], running[work.agent])
    peaks["all"] = max(peaks["all"], running.total())
    await asyncio.sleep(0.01)
    running[work.agent] -= 1
    return "an answer"


async def main() -> None:
    async with app:
        tasks = [
            await app.submit(handler="ask", agent=agent, lane="llm", params={"n": number})
            for agent in ("support", "research", "marketing")
            for number in range(20)
        ]
        await asyncio.gather(*(task.result(timeout=30) for task in tasks))
        print(f"{len(tasks)} calls, at most {peaks['all']} at a time")
        print(f"at most {max(peaks[agent] for agent in running)} of one agent at a time")
        print(f"{len(refused)} calls were refused once and repeated")


asyncio.run(main())
