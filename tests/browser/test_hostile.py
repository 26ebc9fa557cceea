"""Text from callers, in any field, is shown as text: none of it runs or is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.http.stage import HELD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser.dashboard import Dashboard
    from tests.http.hooks import Hooks

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

MARK = "ran-by-itself"
RUN = f"window['{MARK}']=1"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f"</pre></textarea></title><svg onload={RUN}>",
    f"\"' autofocus onfocus={RUN} x='",
    f"javascript:{RUN}",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<style>*{{background:url(javascript:{RUN})}}</style>",
    f"{{{{constructor.constructor('{RUN}')()}}}}${{{RUN}}}",
]
ALL = " ".join(PAYLOADS)
LINE = PAYLOADS[1]  # for fields that hold one line, or little


class Seen:
    """What a hostile caller has left behind."""

    def __init__(self, dash: Dashboard, agent: str) -> None:
        self.dash = dash
        self.api = dash.api
        self.agent = agent
        self.instruction = ""
        self.failed = ""
        self.job: dict[str, Any] = {}
        self.session = f"chat:{agent}"

    async def leave_traces(self, hooks: Hooks) -> None:
        nested = {text: {text: [text]} for text in PAYLOADS}
        own = {"agentId": self.agent, "metadata": nested}
        model = {"model": ALL, "apiKey": ALL}
        self.instruction = await self.api.submit(
            instruction=ALL, lane=HELD, llmConfig=model, sessionKey=self.session, **own
        )
        action = {"action": "click", "tabId": "t", "selector": ALL, "ref": ALL, "lane": HELD}
        await self.api.submit(params=nested, **action, **own)
        hook = hooks.new(500)
        url = f"{hook.url}?q={quote(LINE)}"
        self.failed = await self._failed(callbackUrl=url, params=nested, **own)
        await self.api.post(f"/sessions/{self.session}/messages", {"message": ALL, **own})
        await self._job(nested)
        note = quote(LINE)
        patch = {"retention": {"days": 31}}
        await self.api.ask("PATCH", f"/policy?note={note}&author={note}", patch)

    async def _failed(self, **fields: Any) -> str:
        """Run by a worker whose words are hostile too."""
        handler = f"bad-{self.agent}"
        retry = {"maxRetries": 0}
        task_id = await self.api.submit(handler=handler, retryPolicy=retry, **fields)
        asked = {"worker": "w", "handlers": [handler], "start": True}
        (lease,) = (await self.api.post("/leases", asked)).json["leases"]
        said = {"token": lease["token"], "output": ALL, "progress": {LINE: LINE}}
        path = f"/leases/{lease['leaseId']}"
        assert (await self.api.post(f"{path}/renew", said)).status == 200
        ended = {"token": lease["token"], "error": ALL, "retryable": False}
        assert (await self.api.post(f"{path}/fail", ended)).status == 200
        return task_id

    async def _job(self, nested: dict[str, Any]) -> None:
        task = {"handler": "echo", "params": nested, "metadata": nested}
        body = {
            "name": f"job-{self.agent}",
            "schedule": {"kind": "every", "everyMs": 86_400_000},
            "task": task,
        }
        answer = await self.api.post("/cron/jobs", body)
        assert answer.status == 201, answer
        self.job = answer.json
        ran = await self.api.post(f"/cron/jobs/{self.job['id']}/run")
        await self.api.end_of(ran.json["taskId"])


@pytest_asyncio.fixture(loop_scope="session")
async def seen(dash: Dashboard, agent: str, hooks: Hooks) -> AsyncIterator[Seen]:
    seen = Seen(dash, agent)
    await seen.leave_traces(hooks)
    dash.page.on("dialog", lambda dialog: dash.faults.append(f"asked: {dialog.message}"))
    yield seen
    assert await dash.page.evaluate(f"window['{MARK}']") is None
    strangers = "[onerror],[onload],[onfocus],iframe,main style,main script,main img"
    assert await dash.page.locator(strangers).count() == 0
    await dash.api.post("/tasks/cancel", {"agentId": agent})


async def test_hostile_texts_are_inert_on_every_page(seen: Seen) -> None:
    dash = seen.dash
    places = {
        "overview": "ran-by-itself",
        f"tasks?agentId={seen.agent}": "<script>",
        f"tasks/{seen.instruction}": "<script>",
        f"tasks/{seen.failed}": "<svg onload",
        "sessions": seen.session,
        f"sessions/{seen.session}": "Waiting",
        "cron": seen.job["name"],
        f"cron/{seen.job['id']}": "<iframe srcdoc",
        "batches": "Batches",
        "policy": "<img src=x",
        "events": "<script>",
        "deliveries": "Deliveries",
    }
    for place, text in places.items():
        await dash.open(place)
        await dash.sees(text)
        for line in await dash.main.locator("summary").all():
            await line.click()
        await dash.page.mouse.move(400, 300)
    await dash.open("cron")
    await dash.press(f"Edit {seen.job['name']}")
    await expect(dash.page.locator("dialog textarea")).to_be_visible()


async def test_hostile_addresses_and_searches_are_inert(seen: Seen) -> None:
    dash = seen.dash
    dash.expect_fault("404")
    dash.expect_fault("400")
    for name in ("tasks", "sessions", "batches", "cron"):
        await dash.open(f"{name}/{quote(LINE, safe='')}")
    for name in ("agentId", "text", "lane", "sessionKey", "state", "kind"):
        await dash.open(f"tasks?{name}={quote(LINE)}")
    for text in PAYLOADS:
        await dash.page.get_by_label("Search tasks, or go to an id").fill(text)
        await dash.page.keyboard.press("Enter")
    await dash.sees("<script>")
