"""A FastAPI app with its own scheduler, which starts and stops with the app.

Shows: the embedded API in a lifespan, submitting from a request, errors as HTTP responses.
Run:   pip install fastapi uvicorn
       uvicorn --app-dir examples fastapi_app:api
       curl -X POST 'localhost:8000/reports?topic=trains'
"""

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from fairlane import BusyError, Fairlane, NotFound, Work, report_progress

app = Fairlane("sqlite:///reports.db", policy={"lanes": {"main": {"maxInflight": 4}}})


@app.handler("report")
async def report(work: Work) -> dict[str, str]:
    """Stand in for work that takes too long for a request; replace it with your own."""
    for percent in (25, 50, 75):
        report_progress({"percent": percent})
        await asyncio.sleep(0.01)
    return {"text": f"All about {work.params['topic']}"}


# Running tasks may finish when the app stops; the others run after a restart.
api = FastAPI(lifespan=app.lifespan)


@api.post("/reports", status_code=202)
async def create(topic: str) -> dict[str, str]:
    task = await app.submit(handler="report", params={"topic": topic})
    return {"id": task.id}


@api.get("/reports/{task_id}")
async def read(task_id: str) -> dict[str, Any]:
    task = await app.show(task_id)
    return {"state": task["state"], "report": task.get("result")}


@api.exception_handler(NotFound)
@api.exception_handler(BusyError)
async def refused(_: Request, error: NotFound | BusyError) -> JSONResponse:
    """404 for an unknown report; 503 while the queue is full or the app stops."""
    return JSONResponse({"error": error.message}, 404 if isinstance(error, NotFound) else 503)
