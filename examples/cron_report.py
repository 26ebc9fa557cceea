"""A report on a schedule: every weekday at nine in Berlin, and now by hand.

Shows: a cron job with a time zone, what happens to missed and failed runs, a run by hand, the log.
Run:   python examples/cron_report.py    (needs no server)
"""

import asyncio

from fairlane import Fairlane, Work

app = Fairlane("sqlite://:memory:")


@app.handler("report")
def report(work: Work) -> dict[str, object]:
    """Stand in for a report; replace it with your own."""
    return {"team": work.params["team"], "open": 7, "closed": 12}


JOB = {
    "name": "standup",
    "schedule": {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"},
    "task": {"handler": "report", "params": {"team": "trains"}},
    "misfire": "once",  # after an outage: run the newest missed one
    "overlap": "skip",  # no second run while one is still running
    "retryPolicy": {"maxRetries": 2, "backoffMs": 5000},
}


async def main() -> None:
    ended = asyncio.Event()

    @app.on_event
    async def notice(event: dict[str, object]) -> None:
        if event["type"] == "task.completed":
            ended.set()

    async with app:
        job = await app.create_cron_job(JOB)
        print("next run:", job["nextRunAt"])
        await app.run_cron_job("standup")  # now; the schedule does not move
        await asyncio.wait_for(ended.wait(), 30)
        for run in (await app.cron_runs("standup"))["runs"]:
            print(run["trigger"], run["status"], run.get("summary"))


asyncio.run(main())
