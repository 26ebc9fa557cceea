"""Endpoints: receivers of webhooks with a secret of their own, which can be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, NotFound
from fairlane.core.webhooks import SECRET_LOST, Delivery
from fairlane.engine.commands import (
    ClaimDeliveries,
    CreateEndpoint,
    DeleteEndpoint,
    EnableEndpoint,
    RotateEndpoint,
    SettleDelivery,
)
from fairlane.store.vault import Vault

if TYPE_CHECKING:
    from fairlane.core.webhooks import Endpoint
    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler

URL = "https://receiver.test/hook"
HOUR_MS = 3_600_000


def create(scheduler: Scheduler, name: str, agent: str = "", url: str = URL) -> Endpoint:
    made: Endpoint = scheduler.ask(CreateEndpoint(name, agent, url, f"secret of {name}"))
    return made


def secret_for(scheduler: Scheduler, name: str, url: str, agent: str = "a") -> str | None:
    """What a webhook of a new task to this URL is signed with."""
    scheduler.submit(name, agent=agent, callback_url=url)
    scheduler.cancel(name)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=True))
    found: str | None = one.secret
    return found


def test_a_webhook_is_signed_with_the_secret_of_its_endpoint(scheduler: Scheduler) -> None:
    create(scheduler, "one")
    create(scheduler, "two", url="https://receiver.test/other")
    assert secret_for(scheduler, "t1", URL) == "secret of one"
    assert secret_for(scheduler, "t2", "https://receiver.test/other") == "secret of two"
    assert secret_for(scheduler, "t3", "https://receiver.test/") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://receiver.test/hook?key=1",
        "https://receiver.test/hook#part",
        "HTTPS://Receiver.Test/hook",
        "https://receiver.test:443/hook",
    ],
)
def test_a_query_and_another_spelling_lead_to_the_same_endpoint(
    scheduler: Scheduler, url: str
) -> None:
    create(scheduler, "one")
    assert secret_for(scheduler, "t1", url) == "secret of one"


@pytest.mark.parametrize(
    "url",
    [
        "http://receiver.test/hook",
        "https://receiver.test:8443/hook",
        "https://receiver.test/Hook",
        "https://receiver.test/hook/",
        "https://other.test/hook",
    ],
)
def test_another_url_is_another_endpoint(scheduler: Scheduler, url: str) -> None:
    create(scheduler, "one")
    assert secret_for(scheduler, "t1", url) is None


def test_an_agents_own_endpoint_goes_before_the_one_for_all(scheduler: Scheduler) -> None:
    create(scheduler, "all")
    create(scheduler, "hers", agent="ada")
    assert secret_for(scheduler, "t1", URL, agent="ada") == "secret of hers"
    assert secret_for(scheduler, "t2", URL, agent="bob") == "secret of all"


def test_no_agent_gets_messages_signed_with_another_agents_secret(scheduler: Scheduler) -> None:
    create(scheduler, "hers", agent="ada")
    assert secret_for(scheduler, "t1", URL, agent="bob") is None


def test_there_is_one_endpoint_for_a_url_and_an_agent(scheduler: Scheduler) -> None:
    create(scheduler, "one", agent="ada")
    with pytest.raises(Conflict, match="rotate"):
        create(scheduler, "two", agent="ada", url="HTTPS://RECEIVER.test/hook")
    create(scheduler, "three", agent="bob")


def test_after_a_change_both_secrets_sign_for_a_while(scheduler: Scheduler) -> None:
    create(scheduler, "one")
    changed = scheduler.ask(RotateEndpoint("one", "newer", HOUR_MS))
    now = scheduler.clock.now()
    assert (changed.rotated_at, changed.previous_until) == (now, now + HOUR_MS)
    assert secret_for(scheduler, "t1", URL) == "newer secret of one"
    scheduler.clock.advance(HOUR_MS - 1)
    assert secret_for(scheduler, "t2", URL) == "newer secret of one"
    scheduler.clock.advance(1)
    assert secret_for(scheduler, "t3", URL) == "newer"
    scheduler.ask(RotateEndpoint("one", "newest", HOUR_MS))
    assert secret_for(scheduler, "t4", URL) == "newest newer"


def test_a_secret_that_leaked_is_worth_nothing_at_once(scheduler: Scheduler) -> None:
    create(scheduler, "one")
    scheduler.ask(RotateEndpoint("one", "newer", HOUR_MS))
    scheduler.ask(RotateEndpoint("one", "newest", 0))
    assert secret_for(scheduler, "t1", URL) == "newest"


def owing(scheduler: Scheduler, name: str, agent: str = "a") -> None:
    scheduler.submit(name, agent=agent, callback_url=URL)
    scheduler.cancel(name)


def states(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    """State and error of all webhooks, oldest first."""
    rows = scheduler.reader.run("delivery_list", limit=100)
    return [(row[4], row[9]) for row in reversed(rows)]


def test_an_endpoint_that_is_gone_gets_nothing_more_until_it_is_enabled(
    scheduler: Scheduler,
) -> None:
    create(scheduler, "one")
    for name in ("t1", "t2"):
        owing(scheduler, name)
        scheduler.clock.advance(1)
    (first,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(first.id, False, "receiver responded with 410", status=410))
    assert scheduler.ask(ClaimDeliveries(10)) == []
    assert states(scheduler) == [
        ("given_up", "receiver responded with 410"),
        ("given_up", "the endpoint is disabled: it responded with 410"),
    ]
    enabled = scheduler.ask(EnableEndpoint("one"))
    assert enabled.disabled_at is None
    owing(scheduler, "t3")
    assert len(scheduler.ask(ClaimDeliveries(10))) == 1


def test_an_address_without_an_endpoint_that_is_gone_loses_that_webhook_only(
    scheduler: Scheduler,
) -> None:
    create(scheduler, "hers", agent="ada")
    owing(scheduler, "t1")
    (first,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(first.id, False, "receiver responded with 410", status=410))
    owing(scheduler, "t2")
    owing(scheduler, "t3", agent="ada")
    assert len(scheduler.ask(ClaimDeliveries(10))) == 2


def test_a_removed_endpoint_leaves_the_common_secret(scheduler: Scheduler) -> None:
    create(scheduler, "one")
    assert scheduler.ask(DeleteEndpoint("one")).id == "one"
    assert secret_for(scheduler, "t1", URL) is None
    create(scheduler, "two")
    assert secret_for(scheduler, "t2", URL) == "secret of two"


@pytest.mark.parametrize(
    "request_of",
    [
        lambda id_, agent: RotateEndpoint(id_, "s", 0, agent),
        EnableEndpoint,
        DeleteEndpoint,
    ],
    ids=["rotate", "enable", "delete"],
)
def test_what_is_not_there_and_what_is_not_theirs_look_the_same(
    scheduler: Scheduler, request_of: Any
) -> None:
    create(scheduler, "hers", agent="ada")
    create(scheduler, "all")
    texts = set()
    for id_, agent in (("nobody", None), ("nobody", "bob"), ("hers", "bob"), ("all", "bob")):
        with pytest.raises(NotFound) as refusal:
            scheduler.ask(request_of(id_, agent))
        texts.add(refusal.value.message)
    assert len(texts) == 1
    assert scheduler.ask(request_of("hers", "ada")).id == "hers"


def test_secrets_are_sealed_in_the_store(scheduler: Scheduler, store: Store) -> None:
    create(scheduler, "one")
    scheduler.ask(RotateEndpoint("one", "newer", HOUR_MS))
    reader = store.reader()
    (row,) = reader.run_rows("endpoint_by_id", [("one",)])
    reader.close()
    assert "secret of one" not in str(row)
    assert "newer" not in str(row)
    assert store.vault.open(row[-1]) == "secret of one"


def test_a_secret_that_cannot_be_opened_holds_up_no_other_delivery(
    scheduler: Scheduler,
) -> None:
    create(scheduler, "lost")
    create(scheduler, "fine", url="https://receiver.test/other")
    scheduler.engine.store.vault = Vault()  # as if the key had been lost
    scheduler.ask(RotateEndpoint("fine", "new secret", HOUR_MS))
    for name, url in (("t1", URL), ("t2", "https://receiver.test/other")):
        scheduler.submit(name, callback_url=url)
        scheduler.cancel(name)
    (one,) = scheduler.ask(ClaimDeliveries(9))
    assert (one.url, one.secret) == ("https://receiver.test/other", "new secret")
    (row,) = scheduler.reader.run("delivery_list_of", about="t1", limit=9)
    assert (Delivery(*row).state, Delivery(*row).error) == ("given_up", SECRET_LOST)
