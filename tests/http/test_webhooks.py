"""Webhooks: one per task that ends, signed, to addresses that are allowed, never in the way.

Facts of specs/pinchtab.md section 17: 15, 81-91, 117; weaknesses of section 18: 3 (exactly one), 24
(signed). What needs time (a second try after a failure) is in test_time.py.
"""

from __future__ import annotations

import asyncio

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.fakes.waiting import steadily, within
from tests.http.stage import HANG, HELD, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_end_of_a_task_is_posted_with_the_documented_headers(stage: Stage) -> None:
    hook = stage.hooks.new()
    task = await stage.run(callbackUrl=hook.url)
    delivery = await hook.one()
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.event == "task.completed"
    assert delivery.headers["x-pinchtab-task-id"] == task["taskId"]
    assert delivery.headers["host"] == stage.hooks.address
    assert delivery.task == task


@pytest.mark.parametrize(
    ("state", "event"),
    [("done", "task.completed"), ("failed", "task.failed"), ("cancelled", "task.cancelled")],
)
async def test_the_event_says_how_it_ended(stage: Stage, state: str, event: str) -> None:
    hook = stage.hooks.new()
    if state == "cancelled":
        await stage.api.cancel(await stage.submit(lane=HELD, callbackUrl=hook.url))
    else:
        fake = {} if state == "done" else {"status": 500}
        await stage.run(callbackUrl=hook.url, fake=fake)
    delivery = await hook.one()
    assert (delivery.event, delivery.task["state"]) == (event, state)


async def test_an_independent_library_finds_the_signature_right(stage: Stage) -> None:
    hook = stage.hooks.new()
    await stage.run(callbackUrl=hook.url, params={"text": "ünï <&> 🚀"})
    delivery = await hook.one()
    assert delivery.verified() == delivery.task
    for change in ("webhook-id", "webhook-timestamp"):
        forged = {**delivery.headers, change: delivery.headers[change] + "1"}
        with pytest.raises(WebhookVerificationError):
            delivery._replace(headers=forged).verified()
    with pytest.raises(WebhookVerificationError):
        delivery._replace(raw=delivery.raw + b" ").verified()
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "b3RoZXIh" * 4).verify(delivery.raw, delivery.headers)


async def test_each_task_has_exactly_one_webhook_however_it_ended(stage: Stage) -> None:
    hook, marker = stage.hooks.new(), stage.hooks.new()
    done = [await stage.submit(callbackUrl=hook.url) for _ in range(5)]
    failed = [await stage.submit(callbackUrl=hook.url, fake={"status": 500}) for _ in range(5)]
    queued = [await stage.submit(callbackUrl=hook.url, lane=HELD) for _ in range(5)]
    await stage.api.ended(*done, *failed)
    before = len(stage.actions())
    running = [await stage.submit(callbackUrl=hook.url, fake=HANG) for _ in range(5)]
    await stage.arrived(before + 5)
    await asyncio.gather(*map(stage.api.cancel, [*queued, *running]))
    deliveries = await hook.until(20)
    await stage.run(callbackUrl=marker.url)
    await marker.one()
    assert sorted(one.task["taskId"] for one in hook.deliveries) == sorted(
        [*done, *failed, *queued, *running]
    )
    assert len({one.headers["webhook-id"] for one in deliveries}) == 20


async def test_a_task_without_a_callback_sends_nothing(stage: Stage) -> None:
    marker = stage.hooks.new()
    assert "callbackUrl" not in await stage.run()
    assert "callbackUrl" not in await stage.run(callbackUrl="")
    assert "callbackUrl" not in await stage.run(callbackUrl="   ")
    await stage.run(callbackUrl=marker.url)
    assert len(await marker.until(1)) == 1


async def test_webhook_url_is_another_word_for_it(stage: Stage) -> None:
    hook = stage.hooks.new()
    task = await stage.run(webhookUrl=hook.url)
    assert task["callbackUrl"] == hook.url
    await hook.one()


async def test_a_callback_keeps_its_query_and_loses_its_fragment(stage: Stage) -> None:
    hook = stage.hooks.new()
    task = await stage.run(callbackUrl=f"{hook.url}?key=value&x=%20#part")
    assert task["callbackUrl"].startswith(f"{hook.url}?key=value")
    assert (await hook.one()).task["taskId"] == task["taskId"]


@pytest.mark.parametrize("status", [400, 410, 500, 503])
async def test_a_receiver_that_refuses_does_not_touch_the_task(stage: Stage, status: int) -> None:
    hook = stage.hooks.new(status)
    task = await stage.run(callbackUrl=hook.url)
    await hook.one()
    assert await stage.api.show(task["taskId"]) == task
    assert task["state"] == "done"


async def test_a_redirect_is_not_followed(stage: Stage) -> None:
    target = stage.hooks.new()
    hook = stage.hooks.new(302, location=target.url)
    marker = stage.hooks.new()
    await stage.run(callbackUrl=hook.url)
    await hook.one()
    await stage.run(callbackUrl=marker.url)
    await marker.one()
    assert target.deliveries == []


async def test_slow_receivers_delay_neither_tasks_nor_other_webhooks(stage: Stage) -> None:
    async def send_beside() -> None:
        quick = stage.hooks.new()
        with within(2):
            assert (await stage.run(callbackUrl=quick.url))["state"] == "done"
            await quick.one()

    slow = stage.hooks.new()
    slow.hangs.clear()
    try:
        await stage.api.ended(*[await stage.submit(callbackUrl=slow.url) for _ in range(10)])
        await slow.until(10)
        await steadily(send_beside)
    finally:
        slow.hangs.set()


REFUSED = [
    "http://127.0.0.1:9/hook",
    "http://127.0.0.1/hook",
    "http://127.1:9/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://localhost/hook",
    "http://LOCALHOST./hook",
    "http://some.localhost/hook",
    "http://[::1]/hook",
    "http://[::ffff:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://0.0.0.0/",
    "http://10.0.0.8/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://[fc00::1]/",
    "http://[fe80::1]/",
    "http://user:secret@203.0.113.7/",
    "http://user@93.184.215.14/",
    "ftp://93.184.215.14/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "gopher://93.184.215.14/",
    "//93.184.215.14/hook",
    "/hook",
    "hook",
    "http://",
    "http:///hook",
    "http://93.184.215.14:99999/",
    "http://93.184.215.14:port/",
    "http://93.184.215.14\\@127.0.0.1/",
    "http://93.184.215.14\r\nHost: x/",
    "http://exa mple.com/",
    "http://" + "a" * 3000 + ".com/",
]


@on_sqlite
@pytest.mark.parametrize("url", REFUSED, ids=lambda url: url[:40])
async def test_a_callback_to_an_address_that_is_not_allowed_is_refused(
    stage: Stage, url: str
) -> None:
    answer = await stage.post(lane=HELD, callbackUrl=url)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "callbackUrl" in answer.error
    assert "secret" not in answer.error
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


async def test_another_port_of_an_allowed_host_is_not_allowed(stage: Stage) -> None:
    assert (await stage.post(lane=HELD, callbackUrl=stage.hooks.new().url)).status == 202
    other = f"http://127.0.0.1:{stage.hooks.port + 1}/hook"
    assert (await stage.post(lane=HELD, callbackUrl=other)).status == 400
