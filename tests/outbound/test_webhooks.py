"""Signatures judged by an independent verifier, and deliveries to a real receiver."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from fairlane.core.errors import InvalidRequest, InvalidSettings
from fairlane.core.webhooks import choose, target
from fairlane.engine.verbs.webhooks import new_secret
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import UNREACHABLE, OutboundResponse
from fairlane.outbound.webhooks import (
    ClaimedDelivery,
    Deliverer,
    DeliveryOutcome,
    failed,
    judge,
    one_line,
    retry_after_ms,
    sign,
    spread,
)
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time
from tests.outbound.receivers import answering, hanging, receiving, resetting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from aiohttp import web

SECRET = new_secret()
OTHER_SECRET = new_secret()
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def secret_of(number: int) -> str:
    return "whsec_" + base64.b64encode(bytes(number)).decode()


# --- signatures -----------------------------------------------------------------------------------


@given(
    st.text("abcXYZ019_-", min_size=1, max_size=64), st.text(), st.binary(min_size=24, max_size=64)
)
def test_what_we_sign_an_independent_verifier_accepts(
    message_id: str, text: str, key: bytes
) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    body = text.encode("utf-8", "replace")
    headers = sign(secret, message_id, now_ms(), body)
    assert headers.keys() == {"webhook-id", "webhook-timestamp", "webhook-signature"}
    assert headers["webhook-id"] == message_id
    Webhook(secret).verify(body, headers, json_parse=False)


def test_whatever_is_changed_spoils_the_signature() -> None:
    headers, body = sign(SECRET, "dlv_1", now_ms(), b"{}"), b"{}"
    Webhook(SECRET).verify(body, headers)
    later = str(int(headers["webhook-timestamp"]) + 1)
    for changed in ({"webhook-id": "dlv_2"}, {"webhook-timestamp": later}):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(body, headers | changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(b"{ }", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER_SECRET).verify(body, headers)


def test_while_secrets_change_either_one_verifies() -> None:
    headers = sign(f"{SECRET} {OTHER_SECRET}", "dlv_1", now_ms(), b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, OTHER_SECRET):
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(b"{}", headers)


def test_the_timestamp_is_in_whole_seconds() -> None:
    assert sign(SECRET, "m", 1_800_000_000_999, b"")["webhook-timestamp"] == "1800000000"


def test_new_secrets_are_valid_and_differ() -> None:
    assert new_secret() != new_secret()
    assert sign(new_secret(), "m", 0, b"")


@pytest.mark.parametrize("number", [24, 32, 64])
def test_a_secret_of_a_fitting_length_is_taken(number: int) -> None:
    assert sign(secret_of(number), "m", 0, b"")["webhook-signature"].startswith("v1,")


_BAD_SECRETS = (
    *("", " ", "whsec_", "geheim", secret_of(23), secret_of(65), secret_of(32)[6:]),
    *(secret_of(32) + "!", "whsec_\u00fc", "whsec_" + "-_" * 20, f"{secret_of(32)} geheim"),
)


@pytest.mark.parametrize("secret", _BAD_SECRETS)
def test_a_bad_secret_is_an_error_that_does_not_repeat_it(secret: str) -> None:
    with pytest.raises(InvalidSettings, match="whsec_") as error:
        sign(secret, "m", 0, b"")
    assert "geheim" not in error.value.message
    assert "AAAA" not in error.value.message


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\nb", "\u00fc", "a" * 129])
def test_a_message_id_that_could_be_read_otherwise_is_refused(message_id: str) -> None:
    with pytest.raises(InvalidRequest, match="message id"):
        sign(SECRET, message_id, 0, b"")


# --- when to try again ----------------------------------------------------------------------------


def delivery(
    number: int = 1, *, url: str = "http://127.0.0.1/", attempt: int = 1, agent: str = ""
) -> ClaimedDelivery:
    return ClaimedDelivery(
        id=f"dlv_{number}",
        task_id=f"tsk_{number}",
        url=url,
        event="task.completed",
        attempt=attempt,
        agent=agent,
        body=b'{"taskId": "tsk_%d",  "kept": "as it is"}' % number,
    )


def test_the_schedule_of_tries() -> None:
    seconds = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    assert [retry_after_ms(attempt) for attempt in range(1, 11)] == [
        *(second * 1000 for second in seconds),
        None,
    ]
    assert retry_after_ms(1000) is None


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_an_answer_of_2xx_is_success(status: int) -> None:
    outcome = judge(delivery(), OutboundResponse(status, {}, b""), now=0)
    assert outcome == DeliveryOutcome(delivered=True, status=status)


@pytest.mark.parametrize("status", [100, 199, 300, 301, 307, 400, 401, 404, 408, 429, 500, 503])
def test_any_other_answer_is_tried_again(status: int) -> None:
    assert judge(
        delivery(), OutboundResponse(status, {}, b"<html>secret"), now=0
    ) == DeliveryOutcome(
        delivered=False,
        error=f"receiver responded with {status}",
        retry_after_ms=5000,
        status=status,
    )


def test_a_receiver_that_is_gone_is_left_alone() -> None:
    gone = judge(delivery(), OutboundResponse(410, {"retry-after": "5"}, b""), now=0)
    assert gone == DeliveryOutcome(delivered=False, error="receiver responded with 410", status=410)


@pytest.mark.parametrize(
    ("asked", "attempt", "wait_ms"),
    [
        ("120", 1, 120_000),
        ("1", 1, 5000),
        ("120", 2, 300_000),
        ("999999999", 1, 24 * HOUR_MS),
        ("nonsense", 1, 5000),
        ("Thu, 01 Jan 1970 01:00:00 GMT", 1, HOUR_MS),
        ("120", 10, None),
    ],
)
def test_no_try_comes_earlier_than_the_receiver_asked(
    asked: str, attempt: int, wait_ms: int | None
) -> None:
    answer = OutboundResponse(503, {"retry-after": asked}, b"")
    assert judge(delivery(attempt=attempt), answer, now=0).retry_after_ms == wait_ms


def test_an_error_is_one_short_line() -> None:
    error = failed(delivery(), "a\r\nb\x1b[31m\u202e\u2028" + "x" * 1000).error
    assert error == "a  b [31m  " + "x" * 489
    assert one_line("gr\u00fc\u00df") == "gr\u00fc\u00df"


# --- the loop -------------------------------------------------------------------------------------


class Settled(NamedTuple):
    id: str
    delivered: bool
    error: str | None
    retry_after_ms: int | None


class Outbox:
    """The source of deliveries in memory. Time stands still, except that a wait for the next try
    ends at once and a claim runs out when `now` is moved.
    """

    def __init__(self, *deliveries: ClaimedDelivery) -> None:
        self.now = 0
        self.due = {one.id: one for one in deliveries}
        self.claimed_until: dict[str, int] = {}
        self.most_claimed = 0
        self.settled: list[Settled] = []
        self.statuses: list[int | None] = []
        self.limits: list[int] = []
        self.trouble: list[str] = []  # operations that fail when they are next called
        self._changed = asyncio.Condition()
        self._news = asyncio.Event()

    async def claim_deliveries(
        self, limit: int, *, room: int, rooms: Mapping[str, int]
    ) -> list[ClaimedDelivery]:
        self._fail("claim")
        self._news.clear()
        self.limits.append(limit)
        claimable = [
            one for one in self.due.values() if self.claimed_until.get(one.id, 0) <= self.now
        ]
        targets = [target(one.url, one.agent) for one in claimable]
        ready, _ = choose(targets, limit, rooms, room)
        claimed = [claimable[number] for number in ready]
        for one in claimed:
            self.claimed_until[one.id] = self.now + MINUTE_MS
        self.most_claimed = max(self.most_claimed, len(self.claimed_until))
        return claimed

    async def settle_delivery(
        self, delivery: ClaimedDelivery, outcome: DeliveryOutcome, took_ms: int
    ) -> None:
        self._fail("settle")
        assert took_ms >= 0
        self.claimed_until.pop(delivery.id)
        done = self.due.pop(delivery.id)
        ended = (delivery.id, outcome.delivered, outcome.error, outcome.retry_after_ms)
        self.settled.append(Settled(*ended))
        self.statuses.append(outcome.status)
        if not outcome.delivered and outcome.retry_after_ms is not None:
            again = {"attempt": done.attempt + 1}
            self.due[delivery.id] = ClaimedDelivery(**{**_fields(done), **again})
        await self.change()

    async def wait_for_deliveries(self) -> None:
        self._fail("wait")
        await self._news.wait()

    async def change(self) -> None:
        self._news.set()
        async with self._changed:
            self._changed.notify_all()

    async def settles(self, count: int) -> list[Settled]:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(self.settled) >= count)
        return self.settled

    def _fail(self, operation: str) -> None:
        if operation in self.trouble:
            self.trouble.remove(operation)
            raise RuntimeError(f"cannot {operation}")


def _fields(one: ClaimedDelivery) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def deliverer(outbox: Outbox, *, guard: Guard | None = None, **options: Any) -> Deliverer:
    return Deliverer(
        outbox,
        guard or Guard(["127.0.0.1"]),
        lambda _: SECRET,
        now_ms,
        **{"timeout_seconds": WAIT_SECONDS, "pause_seconds": 0.001, **options},
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


@asynccontextmanager
async def running(outbox: Outbox, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(deliverer(outbox, **options).run())
    try:
        yield task
    finally:
        await ended(task)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.wait([task])
    assert task.cancelled()


async def test_a_delivery_arrives_signed_and_word_for_word() -> None:
    async with receiving(answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            assert await outbox.settles(1) == [Settled("dlv_1", True, None, None)]
    [received] = receiver.received
    assert received.body == delivery().body
    assert received.path == "/hook"
    assert received.headers["Content-Type"] == "application/json"
    assert received.headers["X-PinchTab-Event"] == "task.completed"
    assert received.headers["X-PinchTab-Task-ID"] == "tsk_1"
    assert received.headers["User-Agent"].startswith("fairlane/")
    assert received.headers["webhook-id"] == "dlv_1"
    Webhook(SECRET).verify(received.body, dict(received.headers))


async def test_a_failed_delivery_is_tried_again_under_the_same_id() -> None:
    async with receiving(answering(500), resetting, answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            settled = await outbox.settles(3)
    assert settled == [
        Settled("dlv_1", False, "receiver responded with 500", 5000),
        Settled("dlv_1", False, UNREACHABLE, settled[1].retry_after_ms),
        Settled("dlv_1", True, None, None),
    ]
    assert {one.headers["webhook-id"] for one in receiver.received} == {"dlv_1"}
    assert {one.body for one in receiver.received} == {delivery().body}


async def test_a_delivery_nobody_takes_is_given_up_after_the_last_try() -> None:
    async with receiving(answering(500)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            settled = await outbox.settles(10)
    waits = [one.retry_after_ms for one in settled]
    for number, wait in enumerate(waits[:-1], 1):
        scheduled = retry_after_ms(number) or 0
        assert scheduled <= (wait or 0) <= scheduled * 1.1
    assert (waits[-1], len(receiver.received), outbox.due) == (None, 10, {})


async def test_a_redirect_is_a_failure_and_is_not_followed() -> None:
    async with receiving(answering(200)) as elsewhere:
        moved = answering(307, {"Location": elsewhere.url})
        async with receiving(moved) as receiver:
            outbox = Outbox(delivery(url=receiver.url, attempt=9))
            async with running(outbox):
                [settled, _] = await outbox.settles(2)
    assert (settled.delivered, settled.error) == (False, "receiver responded with 307")
    assert elsewhere.received == []


async def test_a_receiver_that_is_gone_gets_no_second_try() -> None:
    async with receiving(answering(410)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            settled = await outbox.settles(1)
    assert settled == [Settled("dlv_1", False, "receiver responded with 410", None)]
    assert (len(receiver.received), outbox.due) == (1, {})


async def test_a_receiver_may_ask_for_a_longer_wait() -> None:
    busy = answering(429, {"Retry-After": "120"})
    async with receiving(busy, answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            settled = await outbox.settles(2)
    assert 120_000 <= (settled[0].retry_after_ms or 0) <= 132_000
    assert settled[1].delivered


async def test_a_receiver_that_hangs_runs_into_the_timeout_and_delays_nobody() -> None:
    async def send(seconds: float) -> list[Settled]:
        async with receiving(hanging) as slow, receiving(answering(200)) as receiver:
            others = [delivery(number, url=receiver.url) for number in range(2, 12)]
            outbox = Outbox(delivery(1, url=slow.url, attempt=10), *others)
            async with running(outbox, timeout_seconds=seconds, concurrency=2):
                settled = await outbox.settles(11)
        if settled[-1].id != "dlv_1":
            raise TooLate("the time of one was up before the others had been sent")
        return settled

    settled = await in_time(send)
    assert [one.delivered for one in settled] == [True] * 10 + [False]
    assert settled[-1] == Settled("dlv_1", False, UNREACHABLE, None)


async def test_hosts_that_hang_do_not_hold_the_slots_of_others() -> None:
    """More are due to them than there are slots, and they were due first."""
    async with receiving(hanging) as slow, receiving(answering(200)) as receiver:
        first = [delivery(number, url=slow.url) for number in range(100)]
        others = [delivery(number, url=receiver.url) for number in range(100, 120)]
        outbox = Outbox(*first, *others)
        async with running(outbox, timeout_seconds=30, concurrency=4, host_concurrency=2) as task:
            settled = await outbox.settles(20)
            assert [one.delivered for one in settled] == [True] * 20
            assert len(slow.received) <= 2
            task.cancel()
            await asyncio.sleep(0)


async def test_an_agent_does_not_hold_all_slots_with_many_hosts_that_hang() -> None:
    async with AsyncExitStack() as stack, receiving(answering(200)) as receiver:
        slow = [await stack.enter_async_context(receiving(hanging)) for _ in range(8)]
        first = [delivery(number, url=one.url, agent="bot") for number, one in enumerate(slow)]
        others = [delivery(number, url=receiver.url, agent="ann") for number in range(8, 20)]
        outbox = Outbox(*first, *others)
        async with running(outbox, timeout_seconds=30, concurrency=4, host_concurrency=1) as task:
            settled = await outbox.settles(12)
            assert [one.delivered for one in settled] == [True] * 12
            assert sum(len(one.received) for one in slow) <= 3
            task.cancel()
            await asyncio.sleep(0)


async def test_a_host_that_gave_no_answer_gets_one_at_a_time_until_it_answers() -> None:
    together, all_there = 0, asyncio.Event()

    async def answer_when_all_are_there(request: web.Request) -> web.Response:
        nonlocal together
        together += 1
        if together == 8:
            all_there.set()
        await all_there.wait()
        return await answering(200)(request)

    async def most_under_way(numbers: range, **fields: Any) -> int:
        """How many at most are being sent at once until all of these are settled."""
        outbox.most_claimed = 0
        for number in numbers:
            outbox.due[f"dlv_{number}"] = delivery(number, url=receiver.url, **fields)
        await outbox.change()
        await outbox.settles(numbers.stop)
        return outbox.most_claimed

    async with receiving(resetting) as receiver:
        outbox = Outbox()
        async with running(outbox, host_concurrency=8):
            await most_under_way(range(1), attempt=10)
            assert await most_under_way(range(1, 4), attempt=10) == 1
            receiver.answers = [answering(200)]
            assert await most_under_way(range(4, 5)) == 1
            receiver.answers = [answer_when_all_are_there]
            assert await most_under_way(range(5, 25)) == 8
    assert [one.delivered for one in outbox.settled] == [False] * 4 + [True] * 21


async def test_an_endpoints_own_secrets_sign_instead_of_the_common_one() -> None:
    async with receiving(answering(200)) as receiver:
        own = f"{OTHER_SECRET} {new_secret()}"
        with_own = ClaimedDelivery(**{**_fields(delivery(1, url=receiver.url)), "secret": own})
        outbox = Outbox(with_own, delivery(2, url=receiver.url))
        async with running(outbox):
            await outbox.settles(2)
    by_id = {one.headers["webhook-id"]: one for one in receiver.received}
    for secret in own.split():
        Webhook(secret).verify(by_id["dlv_1"].body, dict(by_id["dlv_1"].headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(by_id["dlv_1"].body, dict(by_id["dlv_1"].headers))
    Webhook(SECRET).verify(by_id["dlv_2"].body, dict(by_id["dlv_2"].headers))
    assert "whsec_" not in repr(with_own)


async def test_the_status_of_an_answer_is_settled_with_it() -> None:
    async with receiving(answering(503), resetting, answering(204)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        async with running(outbox):
            await outbox.settles(3)
    assert outbox.statuses == [503, None, 204]


def test_longer_waits_are_spread_a_little() -> None:
    def waits(wait_ms: int | None, chance: float) -> int | None:
        outcome = DeliveryOutcome(delivered=False, error="no", retry_after_ms=wait_ms)
        return spread(outcome, chance).retry_after_ms

    assert [waits(5000, chance) for chance in (0, 0.5, 1)] == [5000] * 3
    assert [waits(300_000, chance) for chance in (0, 0.5, 1)] == [300_000, 315_000, 330_000]
    assert waits(None, 1) is None


async def test_a_target_inside_is_never_reached_and_the_reason_is_hidden() -> None:
    async with receiving(answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url, attempt=10))
        async with running(outbox, guard=Guard()):
            settled = await outbox.settles(1)
    assert settled == [Settled("dlv_1", False, UNREACHABLE, None)]
    assert receiver.received == []


@pytest.mark.parametrize("event", ["task.completed\r\nX-Evil: 1", "gr\u00fcn"])
async def test_what_cannot_be_a_header_is_not_sent(event: str) -> None:
    async with receiving(answering(200)) as receiver:
        forged = ClaimedDelivery(
            **{**_fields(delivery(url=receiver.url, attempt=10)), "event": event}
        )
        outbox = Outbox(forged)
        async with running(outbox):
            [settled] = await outbox.settles(1)
    assert settled.error == "header X-PinchTab-Event has characters that cannot be sent"
    assert receiver.received == []


async def test_a_fault_of_ours_counts_as_a_failed_try() -> None:
    def forgotten(_: ClaimedDelivery) -> str:
        raise LookupError("the secret is nowhere")

    outbox = Outbox(delivery(attempt=10))
    failing = Deliverer(outbox, Guard(["127.0.0.1"]), forgotten, now_ms)
    task = asyncio.create_task(failing.run())
    settled = await outbox.settles(1)
    await ended(task)
    assert settled == [Settled("dlv_1", False, "webhook could not be sent", None)]


async def test_trouble_of_the_source_never_ends_the_loop() -> None:
    async with receiving(answering(200)) as receiver:
        outbox = Outbox()
        outbox.trouble = ["claim", "wait", "claim", "wait"]
        async with running(outbox) as task:
            await until(lambda: not outbox.trouble)
            outbox.due["dlv_1"] = delivery(url=receiver.url)
            assert await outbox.settles(1) == [Settled("dlv_1", True, None, None)]
            assert not task.done()


async def test_a_delivery_that_could_not_be_settled_is_sent_again_when_its_claim_is_over() -> None:
    async with receiving(answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        outbox.trouble = ["settle"]
        async with running(outbox):
            await receiver.wait_for(1)
            await until(lambda: not outbox.trouble)
            outbox.now += MINUTE_MS
            await outbox.change()
            assert await outbox.settles(1) == [Settled("dlv_1", True, None, None)]
    assert [one.headers["webhook-id"] for one in receiver.received] == ["dlv_1", "dlv_1"]


async def test_no_more_are_claimed_than_can_be_sent_at_once() -> None:
    held, together, most = asyncio.Event(), 0, 0

    async def hold(_: web.Request) -> web.Response:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await held.wait()
        together -= 1
        return await answering(200)(_)

    async with receiving(hold) as receiver:
        outbox = Outbox(*(delivery(number, url=receiver.url) for number in range(10)))
        async with running(outbox, concurrency=3):
            await receiver.wait_for(3)
            assert len(outbox.claimed_until) == 3
            held.set()
            await outbox.settles(10)
    assert most == 3
    assert max(outbox.limits) == 3
    assert min(outbox.limits) >= 1


async def test_a_new_delivery_wakes_the_loop() -> None:
    async with receiving(answering(200)) as receiver:
        outbox = Outbox()
        async with running(outbox):
            await until(lambda: outbox.limits == [64])
            outbox.due["dlv_7"] = delivery(7, url=receiver.url)
            await outbox.change()
            assert (await outbox.settles(1))[0].id == "dlv_7"


# --- stopping -------------------------------------------------------------------------------------


async def test_a_stop_lets_what_is_being_sent_come_to_its_end() -> None:
    held = asyncio.Event()

    async def hold(request: web.Request) -> web.Response:
        await held.wait()
        return await answering(200)(request)

    async with receiving(hold) as receiver:
        outbox = Outbox(delivery(1, url=receiver.url), delivery(2, url=receiver.url))
        task = asyncio.create_task(deliverer(outbox, concurrency=1).run())
        await receiver.wait_for(1)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.02)
        assert not done
        held.set()
        await asyncio.wait([task], timeout=WAIT_SECONDS)
    assert task.cancelled()
    assert outbox.settled == [Settled("dlv_1", True, None, None)]
    assert len(receiver.received) == 1


async def test_a_stop_waits_no_longer_than_the_timeout() -> None:
    async with receiving(hanging) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        task = asyncio.create_task(deliverer(outbox, timeout_seconds=0.05).run())
        await receiver.wait_for(1)
        await ended(task)
    assert outbox.settled == [Settled("dlv_1", False, UNREACHABLE, 5000)]


async def test_a_second_cancel_ends_at_once_and_the_delivery_is_sent_again_later() -> None:
    async with receiving(hanging, answering(200)) as receiver:
        outbox = Outbox(delivery(url=receiver.url))
        task = asyncio.create_task(deliverer(outbox, timeout_seconds=600).run())
        await receiver.wait_for(1)
        task.cancel()
        await asyncio.sleep(0)
        await ended(task)
        assert outbox.settled == []

        async with running(outbox):
            await until(lambda: len(outbox.limits) == 3)
            assert len(receiver.received) == 1
            outbox.now += MINUTE_MS
            await outbox.change()
            assert await outbox.settles(1) == [Settled("dlv_1", True, None, None)]
    assert [one.headers["webhook-id"] for one in receiver.received] == ["dlv_1", "dlv_1"]
