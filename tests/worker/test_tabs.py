from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import ExecutionFailed
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from fairlane.worker.executors.tabs import LISTING_SECONDS, Instance, TabResolver
from tests.fakes.tab_instance import TABS, Behaviour, TabInstance
from tests.fakes.waiting import eventually
from tests.outbound.receivers import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender(Guard(["127.0.0.1"])) as one:
        yield one


@pytest.fixture
async def a() -> AsyncIterator[TabInstance]:
    async with TabInstance(["a1", "a2"]) as one:
        yield one


@pytest.fixture
async def b() -> AsyncIterator[TabInstance]:
    async with TabInstance(["b1"], token="B") as one:
        yield one


def known(one: TabInstance) -> Instance:
    return Instance(one.url, one.token)


@pytest.fixture
async def resolver(sender: Sender, a: TabInstance, b: TabInstance) -> AsyncIterator[TabResolver]:
    one = TabResolver([known(a), known(b)], sender)
    yield one
    await one.close()


@pytest.fixture
def hasty(resolver: TabResolver) -> TabResolver:
    """One that does not wait long for the listing of `a`."""
    resolver._listings[0]._seconds = 0.2
    return resolver


async def failure_of(resolver: TabResolver, tab_id: str) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await resolver.resolve(tab_id)
    return caught.value


async def test_the_owner_of_a_tab_is_found(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    assert await resolver.resolve("a2") == known(a)
    assert await resolver.resolve("b1") == known(b)


async def test_each_instance_is_asked_with_its_own_token(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    await resolver.resolve("b1")
    await a.until(lambda: len(a.requests) == 1)
    assert "authorization" not in a.requests[0].headers
    assert b.requests[0].headers["authorization"] == "Bearer B"


async def test_no_token_gets_into_the_log_when_an_answer_is_no_http(
    sender: Sender, a: TabInstance, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(b"this is not HTTP\r\n\r\n") as odd:
        resolver = TabResolver([known(a), Instance(odd.url, "t0ken")], sender)
        await failure_of(resolver, "nowhere")
        await resolver.close()
    assert f"instance {odd.url} did not list its tabs" in caplog.text
    assert "t0ken" not in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        ["x", "t"],
        [{"id": "x"}, {"id": "t"}],
        [{"tabId": "x"}, {"tabId": "t", "id": 7}],
        {"tabs": ["x", "t"]},
        {"tabs": [{"id": "t", "title": "T"}], "count": 1},
        [None, 7, {"title": "no id"}, [], {"id": 3}, "t"],
    ],
)
async def test_every_shape_of_listing_is_understood(
    resolver: TabResolver, a: TabInstance, body: Any
) -> None:
    a.listing = Behaviour(status=200, body=body)
    assert await resolver.resolve("t") == known(a)


@pytest.mark.parametrize("body", ["null", "[]", '{"tabs": null}', '{"tabs": []}'])
async def test_an_empty_listing_is_an_answer(
    resolver: TabResolver, a: TabInstance, body: str
) -> None:
    a.listing = Behaviour(status=200, body=body)
    failure = await failure_of(resolver, "t")
    assert failure.message == 'could not resolve tab "t": not found on any of 2 instances'
    assert not failure.retryable


# --- asking no more than needed ------------------------------------------------------------------


async def test_an_answer_is_remembered_for_all_tabs_in_it(
    resolver: TabResolver, a: TabInstance
) -> None:
    for tab_id in ("a1", "a1", "a2"):
        await resolver.resolve(tab_id)
    assert len(a.seen(TABS)) == 1


async def test_a_burst_asks_each_instance_once(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    a.listing = Behaviour(delay_ms=20)
    owners = await asyncio.gather(*(resolver.resolve(t) for t in ["a1", "b1", "a2"] * 50))
    assert owners == [known(a), known(b), known(a)] * 50
    assert (len(a.seen(TABS)), len(b.seen(TABS))) == (1, 1)


async def test_a_burst_for_unknown_tabs_asks_each_instance_once(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    asked = (failure_of(resolver, f"x{n}") for n in range(100))
    failures = await asyncio.gather(*asked)
    assert not any(failure.retryable for failure in failures)
    assert (len(a.seen(TABS)), len(b.seen(TABS))) == (1, 1)


async def test_not_found_is_not_remembered(resolver: TabResolver, b: TabInstance) -> None:
    await failure_of(resolver, "new")
    b.tabs.append("new")
    assert await resolver.resolve("new") == known(b)


async def test_a_tab_opened_while_a_listing_was_on_its_way_is_found(
    resolver: TabResolver, a: TabInstance
) -> None:
    a.listing = Behaviour(hang=True, times=1)
    early = asyncio.create_task(failure_of(resolver, "nowhere"))
    await a.until(lambda: len(a.seen(TABS)) == 1)
    a.tabs.append("new")
    late = asyncio.create_task(resolver.resolve("new"))
    await eventually(lambda: resolver._listings[0]._next is not None)
    a.release()
    assert await late == known(a)
    assert not (await early).retryable
    assert len(a.seen(TABS)) == 2


async def test_the_memory_is_bounded_and_keeps_what_was_used_last(
    sender: Sender, a: TabInstance, b: TabInstance
) -> None:
    resolver = TabResolver([known(a), known(b)], sender, cache_tabs_max=2)
    b.tabs = []
    for tab_id in ("t1", "t2"):
        a.tabs = [tab_id]
        await resolver.resolve(tab_id)
    await resolver.resolve("t1")
    a.tabs = ["t3"]
    await resolver.resolve("t3")
    asked = len(a.seen(TABS))
    assert await resolver.resolve("t1") == known(a)
    assert len(a.seen(TABS)) == asked
    await failure_of(resolver, "t2")
    assert len(a.seen(TABS)) == asked + 1
    await resolver.close()


async def test_a_huge_listing_does_not_outgrow_the_memory(
    sender: Sender, a: TabInstance, b: TabInstance
) -> None:
    a.tabs = [f"t{n}" for n in range(200)]
    resolver = TabResolver([known(a), known(b)], sender, cache_tabs_max=50)
    assert await resolver.resolve("t7") == known(a)
    assert len(resolver._owners) == 50
    await resolver.close()


# --- a tab that moved ----------------------------------------------------------------------------


async def test_a_tab_denied_by_its_owner_is_looked_for_elsewhere(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    await resolver.resolve("a1")
    b.tabs.append("a1")  # and `a`, which no longer has it, still lists it
    assert await resolver.resolve_again("a1", not_on=known(a)) == known(b)
    assert await resolver.resolve("a1") == known(b)
    assert len(a.seen(TABS)) == 1


async def test_a_listing_does_not_override_what_is_known(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    b.tabs.append("a1")
    assert await resolver.resolve_again("a1", not_on=known(a)) == known(b)
    await failure_of(resolver, "nowhere")
    assert len(a.seen(TABS)) == 1
    assert await resolver.resolve("a1") == known(b)


async def test_the_new_owner_somebody_else_found_is_not_looked_for_again(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    await resolver.resolve("a1")
    a.move("a1", b)
    await resolver.resolve_again("a1", not_on=known(a))
    asked = len(b.seen(TABS))
    assert await resolver.resolve_again("a1", not_on=known(a)) == known(b)
    assert len(b.seen(TABS)) == asked


# --- instances that misbehave --------------------------------------------------------------------


async def test_an_instance_that_hangs_delays_nobody_whose_tab_is_elsewhere(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    a.listing = Behaviour(hang=True)
    assert await resolver.resolve("b1") == known(b)
    b.tabs.append("b2")
    await a.until(lambda: len(a.requests) == 1)
    assert await resolver.resolve("b2") == known(b)
    assert [entry.outcome for entry in a.requests] == ["open"]


async def test_an_instance_that_hangs_leaves_the_question_open(
    hasty: TabResolver, a: TabInstance
) -> None:
    a.listing = Behaviour(hang=True)
    failure = await failure_of(hasty, "a1")
    assert failure.message == (
        'could not resolve tab "a1": not found on any of 2 instances (1 did not respond)'
    )
    assert failure.retryable


async def test_those_who_come_while_an_instance_hangs_wait_for_one_timeout_only(
    hasty: TabResolver, a: TabInstance
) -> None:
    a.listing = Behaviour(hang=True)
    first = asyncio.create_task(failure_of(hasty, "x"))
    await a.until(lambda: len(a.requests) == 1)
    second = asyncio.create_task(failure_of(hasty, "y"))
    assert (await first).retryable
    assert (await second).retryable
    assert len(a.requests) == 1


async def test_an_instance_that_hung_is_asked_again_later(
    hasty: TabResolver, a: TabInstance
) -> None:
    a.listing = Behaviour(hang=True, times=1)
    await failure_of(hasty, "a1")
    hasty._listings[0]._seconds = LISTING_SECONDS
    assert await hasty.resolve("a1") == known(a)


@pytest.mark.parametrize(
    "how",
    [
        Behaviour(status=500, body=["a1"]),
        Behaviour(status=401, body={"code": "bad_token"}),
        Behaviour(status=302, body=["a1"], headers={"Location": "/elsewhere"}),
        Behaviour(status=200, body="<html>"),
        Behaviour(status=200, body={"instances": []}),
        Behaviour(status=200, body="[" * 50_000),
        Behaviour(status=200, body={"tabs": {"a1": {}}}),
        Behaviour(drop=True),
        Behaviour(break_off=True),
    ],
)
async def test_an_instance_that_errs_spoils_nothing_but_leaves_the_question_open(
    resolver: TabResolver, a: TabInstance, b: TabInstance, how: Behaviour
) -> None:
    a.listing = how
    assert await resolver.resolve("b1") == known(b)
    failure = await failure_of(resolver, "a1")
    assert failure.message.endswith("(1 did not respond)")
    assert failure.retryable


async def test_a_dead_instance_spoils_nothing(sender: Sender, b: TabInstance) -> None:
    async with TabInstance(["a1"]) as one:
        dead = known(one)
    resolver = TabResolver([dead, known(b)], sender)
    assert await resolver.resolve("b1") == known(b)
    assert (await failure_of(resolver, "a1")).retryable
    await resolver.close()


# --- one instance, none, and the end -------------------------------------------------------------


async def test_a_single_instance_owns_every_tab_and_is_not_asked(
    sender: Sender, a: TabInstance
) -> None:
    resolver = TabResolver([known(a)], sender)
    assert await resolver.resolve("whatever") == known(a)
    assert await resolver.resolve_again("whatever", not_on=known(a)) is None
    assert a.requests == []


async def test_the_same_instance_twice_is_one(sender: Sender, a: TabInstance) -> None:
    resolver = TabResolver([known(a), known(a)], sender)
    assert await resolver.resolve("whatever") == known(a)
    assert a.requests == []


async def test_no_instance_at_all_says_what_to_do(sender: Sender) -> None:
    failure = await failure_of(TabResolver([], sender), "t")
    assert (
        failure.message == "no browser instance is configured: start Fairlane with --instance URL"
    )
    assert not failure.retryable


async def test_one_who_gives_up_does_not_take_the_others_along(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    a.listing = Behaviour(hang=True)
    b.listing = Behaviour(hang=True)
    impatient = asyncio.create_task(resolver.resolve("a1"))
    patient = asyncio.create_task(resolver.resolve("a1"))
    await a.until(lambda: len(a.requests) == 1)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    a.release()
    assert await patient == known(a)
    assert len(a.requests) == 1


async def test_closing_ends_the_questions_on_their_way(
    resolver: TabResolver, a: TabInstance, b: TabInstance
) -> None:
    a.listing = Behaviour(hang=True)
    waiting = asyncio.create_task(failure_of(resolver, "a1"))
    await a.until(lambda: len(a.requests) == 1)
    async with asyncio.timeout(LISTING_SECONDS / 2):
        await resolver.close()
    assert (await waiting).retryable
    await a.until(lambda: a.requests[0].outcome == "gone")


def test_a_token_is_not_shown() -> None:
    assert "s3cret" not in repr(Instance("http://x", "s3cret"))
