"""`fairlane deliveries` and `fairlane webhooks`: against a server and beside it."""

from __future__ import annotations

import http.server
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.waiting import WAIT_SECONDS, steadily_here, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def receiver() -> Iterator[str]:
    """Answers with the status that the end of the path says."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def told(run: Run, server: Server, agent: str, url: str) -> str:
    """A task that has ended and whose webhook is settled."""
    flags = ("--handler", "echo", "--agent", agent, "--callback-url", url, "--wait", "--json")
    task_id: str = run("submit", *flags, "--url", server.url).json["taskId"]
    settled(run, server, task_id, tries=1)
    return task_id


def settled(run: Run, server: Server, task_id: str, *, tries: int) -> None:
    """Until the webhook of the task was tried so often in all, and is not to be tried again."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up_at:
        (one,) = run("deliveries", "--task", task_id, "--json", "--url", server.url).json[
            "deliveries"
        ]
        shown = run("deliveries", "show", one["id"], "--json", "--url", server.url).json
        if shown["state"] != "due" and len(shown["tries"]) == tries:
            return
    raise AssertionError("the webhook is not settled")


@pytest.fixture
def task(run: Run, server: Server, agent: str, receiver: str) -> str:
    return told(run, server, agent, f"{receiver}/200")


@pytest.fixture(params=["url", "store"])
def allowed(
    request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """As `side`, with the settings of the server."""
    monkeypatch.setenv("FAIRLANE_ALLOW_OUTBOUND", "127.0.0.1")
    return [f"--{request.param}", getattr(server, request.param)]


def test_the_log_is_a_table_for_people(
    run: Run, side: list[str], agent: str, task: str, receiver: str
) -> None:
    ran = run("deliveries", "--agent", agent, *side)
    assert (ran.code, ran.err) == (0, "")
    header, row = ran.out.splitlines()
    assert header.split() == ["DELIVERY", "EVENT", "TO", "STATE", "TRIES", "CREATED", "LAST"]
    assert row.split()[0].startswith(f"msg_{task}_")
    assert receiver in row
    assert "status 200" in row


def test_the_json_of_the_log_is_what_the_route_answers(
    run: Run, side: list[str], server: Server, agent: str, task: str
) -> None:
    assert task
    ran = run("deliveries", "list", "--agent", agent, "--json", *side)
    assert ran.out.strip() == server.get(f"/deliveries?agentId={agent}")


def test_an_empty_list_of_webhooks_is_explained(run: Run, side: list[str], agent: str) -> None:
    assert run("deliveries", "--agent", agent, *side).out == "no deliveries\n"


def test_all_pages_come_with_all(
    run: Run, side: list[str], server: Server, agent: str, receiver: str
) -> None:
    tasks = [told(run, server, agent, f"{receiver}/200") for _ in range(2)]
    first = run("deliveries", "--agent", agent, "--limit", "1", "--json", *side).json
    assert first["count"] == 1
    after = ("--cursor", first["nextCursor"])
    rest = run("deliveries", "--agent", agent, "--limit", "1", *after, "--json", *side).json
    pages = [page["deliveries"][0]["taskId"] for page in (first, rest)]
    assert (pages, rest["count"]) == (tasks[::-1], 1)
    ran = run("deliveries", "--agent", agent, "--limit", "1", "--all", *side)
    assert [tasks[::-1][n] in row for n, row in enumerate(ran.out.splitlines()[1:])] == [True] * 2


def test_one_delivery_is_shown_with_its_tries(
    run: Run, side: list[str], server: Server, agent: str, task: str
) -> None:
    (one,) = run("deliveries", "--task", task, "--json", *side).json["deliveries"]
    ran = run("deliveries", "show", one["id"], *side)
    assert ran.code == 0
    assert agent in ran.out
    assert "TRY" in ran.out
    ran = run("deliveries", "show", one["id"], "--json", *side)
    assert ran.out.strip() == server.get(f"/deliveries/{one['id']}")


def test_a_task_is_shown_with_its_webhooks(run: Run, side: list[str], task: str) -> None:
    ran = run("show", task, *side)
    assert "task.completed to http://127.0.0.1" in ran.out
    assert "delivered after 1 attempt" in ran.out


def test_a_delivery_is_sent_again(
    run: Run, side: list[str], server: Server, agent: str, receiver: str
) -> None:
    task = told(run, server, agent, f"{receiver}/410")
    (one,) = run("deliveries", "--task", task, "--json", *side).json["deliveries"]
    assert (one["state"], one["lastStatus"]) == ("given_up", 410)
    tries = itertools.count(2)

    def send_again() -> None:
        with within(10):  # also beside the server, which is not told, it does not take long
            ran = run("deliveries", "redeliver", one["id"], *side)
            assert (ran.code, ran.out) == (0, f"{one['id']} will be sent again\n")
            settled(run, server, task, tries=next(tries))

    steadily_here(send_again)


def test_what_is_not_there_does_not_keep_the_rest_from_being_sent(
    run: Run, side: list[str], server: Server, task: str
) -> None:
    (one,) = run("deliveries", "--task", task, "--json", *side).json["deliveries"]
    ran = run("deliveries", "redeliver", "msg_nobody_1", one["id"], *side)
    assert ran.code != 0
    assert "delivery not found" in ran.err
    assert ran.out == f"{one['id']} will be sent again\n"
    settled(run, server, task, tries=2)


# -------------------------------------------------------------------- endpoints


def added(run: Run, allowed: list[str], url: str, *more: str) -> dict[str, Any]:
    ran = run("webhooks", "add", url, *more, "--json", *allowed)
    assert ran.code == 0, ran
    made: dict[str, Any] = ran.json
    return made


def test_the_secret_alone_goes_to_the_output(
    run: Run, allowed: list[str], agent: str, receiver: str
) -> None:
    ran = run("webhooks", "add", f"{receiver}/200", "--agent", agent, *allowed)
    assert ran.code == 0
    assert ran.out.startswith("whsec_")
    assert ran.out.count("\n") == 1
    assert "not be shown again" in ran.err
    assert "whsec_" not in ran.err


def test_endpoints_are_listed_without_their_secrets(
    run: Run, allowed: list[str], agent: str, receiver: str
) -> None:
    made = added(run, allowed, f"{receiver}/200", "--agent", agent)
    ran = run("webhooks", "--agent", agent, *allowed)
    header, row = ran.out.splitlines()
    assert header.split() == ["ENDPOINT", "URL", "AGENT", "STATE", "SECRET"]
    assert row.split()[:4] == [made["id"], f"{receiver}/200", agent, "enabled"]
    assert "whsec_" not in run("webhooks", "list", "--json", *allowed).out
    nobody = run("webhooks", "list", "--agent", "nobody", *allowed)
    assert "all of them use the shared one" in nobody.out


def test_a_secret_is_changed_enabled_and_removed(
    run: Run, allowed: list[str], agent: str, receiver: str
) -> None:
    made = added(run, allowed, f"{receiver}/200", "--agent", agent)
    ran = run("webhooks", "rotate", made["id"], "--overlap", "2h", *allowed)
    assert ran.out.startswith("whsec_")
    assert made["secret"] not in ran.out
    assert "the old secret signs too until" in ran.err
    ran = run("webhooks", "rotate", made["id"], "--overlap", "0", "--json", *allowed)
    assert "previousUntil" not in ran.json
    assert run("webhooks", "enable", made["id"], *allowed).out == f"{made['id']} is enabled\n"
    assert run("webhooks", "remove", made["id"], *allowed).out == f"{made['id']} is removed\n"
    again = run("webhooks", "remove", made["id"], *allowed)
    assert again.code != 0
    assert "endpoint not found" in again.err


def test_an_address_that_is_not_allowed_gets_no_secret(run: Run, side: list[str]) -> None:
    ran = run("webhooks", "add", "http://169.254.169.254/", *side)
    assert ran.code != 0
    assert "field 'url' is not valid: target address is not allowed" in ran.err
