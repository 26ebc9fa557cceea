"""An agent that survives: kill it or the server at any moment, and it continues where it was.

Shows: steps that run once, children and their results, a sleep and a signal without a slot, and an
       effect that never happens twice.
Run:   fairlane serve &  python examples/durable_agent.py &
       fairlane submit --handler plan-trip --param city=Oslo
       fairlane signal TASK paid --value '{"amount": 5}'
"""

import os
import sys
from pathlib import Path
from typing import Any

from fairlane import EffectNotDone, Work, Worker

worker = Worker(
    os.environ.get("FAIRLANE_URL", "http://127.0.0.1:9867"), lease_seconds=2, renew_seconds=0.5
)
LOG = Path(os.environ.get("TRIP_LOG", os.devnull))


def act(key: str, result: Any) -> Any:
    """Call another system. The key is the same in every run, so that it can refuse a repetition."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{key}\n")
    return result


def look(key: str) -> str:
    """Ask the other system whether a run that died has acted."""
    if not LOG.is_file() or key not in LOG.read_text("utf-8").splitlines():
        raise EffectNotDone
    return "found"


@worker.handler("plan-trip")
async def plan_trip(work: Work) -> Any:
    city = work.params["city"]
    plan = await work.step("plan", act, f"{work.task_id}-plan", {"city": city, "days": 2})
    days = [
        await work.submit(handler="echo", params={"day": day + 1}) for day in range(plan["days"])
    ]
    programme = await work.results(days)
    await work.sleep(0.2)
    paid = await work.signal("paid")
    booked = await work.effect("book", act, f"{city}-7", check=look)
    return {"programme": programme, "paid": paid["amount"], "booked": booked}


if __name__ == "__main__":
    worker.serve(lambda: print(f"{worker.name} takes tasks", file=sys.stderr, flush=True))
