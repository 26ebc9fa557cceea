"""Commands that follow a stream: events, and the text that tasks produce."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from fairlane.cli.direct import StoreBackend
from tests.cli.conftest import Server
from tests.cli.processes import (
    FAIRLANE,
    Terminal,
    environment,
    run_on_terminal,
    running_server,
)
from tests.fakes.ports import lasting_port
from tests.fakes.signals import heed_signals
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

STREAMS = ["task.created", "task.started", "task.completed"]


def _echo(run: Run, side: list[str], agent: str) -> str:
    flags = ("--handler", "echo", "--agent", agent, "--wait", "15", "--json")
    ran = run("submit", *flags, *side)
    assert ran.code == 0, ran
    task_id: str = ran.json["taskId"]
    return task_id


def _lines(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


class Follow:
    """A command that goes on until somebody stops it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*FAIRLANE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment(),
            preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def until(self, done: Callable[[Any], bool]) -> list[Any]:
        found = [json.loads(self.line())]
        while not done(found[-1]):
            found.append(json.loads(self.line()))
        return found

    def interrupt(self) -> tuple[int, str]:
        """Its exit code, and what it complained about."""
        self.process.send_signal(signal.SIGINT)
        _, complaint = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, complaint


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Callable[..., Follow]]:
    begun: list[Follow] = []

    def follow(*arguments: str) -> Follow:
        begun.append(Follow(tmp_path, *arguments))
        return begun[-1]

    yield follow
    for one in begun:
        one.process.kill()
        one.process.communicate(timeout=WAIT_SECONDS)


# -------------------------------------------------------------------- events


@pytest.mark.slow
def test_events_tell_what_has_happened_to_a_task(
    run: Run, side: list[str], server: Server, agent: str
) -> None:
    task_id = _echo(run, side, agent)
    events = _lines(run("events", "--task", task_id, "--json", *side).out)
    assert [event["type"] for event in events] == STREAMS
    assert events == json.loads(server.get(f"/tasks/{task_id}/events"))["events"]
    out = run("events", "--task", task_id, *side).out.splitlines()
    assert [line.split()[2:4] for line in out] == [[kind, task_id] for kind in STREAMS]
    assert re.match(
        r" *\d+  \d{4}-\d\d-\d\dT\S+Z  task\.started +tsk_\w+  \S+ echo  node_\w+$", out[1]
    )


@pytest.mark.slow
def test_events_can_be_picked(run: Run, side: list[str], agent: str) -> None:
    first, second = _echo(run, side, agent), _echo(run, side, agent)
    flags = ("events", "--agent", agent, "--json", *side)
    everything = _lines(run(*flags).out)
    assert [event["taskId"] for event in everything] == [first] * 3 + [second] * 3
    rest = _lines(run(*flags, "--after", str(everything[2]["id"])).out)
    assert rest == everything[3:]
    ends = _lines(run(*flags, "--type", "task.completed,task.failed", "--lane", "main").out)
    assert ends == [everything[2], everything[5]]
    assert run(*flags, "--lane", "team").out == ""
    assert run(*flags, "--batch", "bat_none").out == ""


def test_an_unknown_type_is_reported(run: Run, side: list[str]) -> None:
    for follow in ([], ["--follow"]):
        ran = run("events", *follow, "--type", "task.complete", *side)
        assert (ran.code, ran.out) == (2, "")
        assert "is not an event type; did you mean task.completed?" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("place", ["url", "store"])
def test_what_happens_is_followed_until_ctrl_c(
    run: Run, server: Server, agent: str, following: Callable[..., Follow], place: str
) -> None:
    before = _echo(run, ["--url", server.url], agent)
    last = _lines(run("events", "--task", before, "--json", "--url", server.url).out)[-1]["id"]
    side = (f"--{place}", getattr(server, place))
    flags = ("--follow", "--after", str(last), "--agent", agent, "--json")
    follow = following("events", *flags, *side)
    task_id = _echo(run, ["--url", server.url], agent)
    events = follow.until(lambda event: bool(event["type"] == "task.completed"))
    assert [(event["taskId"], event["type"]) for event in events] == [
        (task_id, kind) for kind in STREAMS
    ]
    assert follow.interrupt() == (130, "")


@pytest.mark.slow
def test_following_survives_a_restart_of_the_server(
    run: Run, agent: str, following: Callable[..., Follow], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'own.db'}"
    port = str(lasting_port())
    with running_server(store, tmp_path, "--port", port) as url:
        follow = following("events", "--follow", "--after", "0", "--json", "--url", url)
        first = _echo(run, ["--url", url], agent)
        events = follow.until(lambda event: bool(event["type"] == "task.completed"))
    between = run("submit", "--handler", "nobody", "--json", "--store", store).json["taskId"]
    with running_server(store, tmp_path, "--port", port) as url:
        last = _echo(run, ["--url", url], agent)
        events += follow.until(lambda event: (event["taskId"], event["type"]) == (last, STREAMS[2]))
        code, _ = follow.interrupt()
    assert code == 130
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert {event["taskId"] for event in events} == {first, between, last}


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_follower_whose_reader_goes_away_ends_quietly(
    run: Run, server: Server, agent: str, tmp_path: Path, form: list[str]
) -> None:
    reading, writing = os.pipe()
    flags = ("--follow", "--after", "0", "--agent", agent, *form, "--url", server.url)
    _echo(run, ["--url", server.url], agent)
    process = subprocess.Popen(
        [*FAIRLANE, "events", *flags],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(writing)
    assert os.read(reading, 1)
    os.close(reading)
    _echo(run, ["--url", server.url], agent)
    _, complaint = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, complaint) == (141, b"")


@pytest.mark.slow
def test_events_are_coloured_on_a_terminal_and_end_with_ctrl_c(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    _echo(run, ["--url", server.url], agent)
    pressed: list[bool] = []

    def press(terminal: Terminal) -> None:
        if "task.completed" in terminal.text and not pressed:
            pressed.append(True)
            terminal.interrupt()

    flags = ("--follow", "--after", "0", "--agent", agent, "--url", server.url)
    seen = run_on_terminal("events", *flags, folder=tmp_path, on_text=press)
    assert seen.code == 130
    assert "\x1b[32mtask.completed" in seen.text
    assert "Traceback" not in seen.text


# -------------------------------------------------------------------- output


class Chat:
    """The chat agent of the server below, which runs as a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def behave(self, message: str, **script: Any) -> None:
        self._post("/__behave", {message: script})

    def release(self) -> None:
        self._post("/__release", {})

    def _post(self, path: str, body: Any) -> None:
        request = Request(self.url + path, json.dumps(body).encode())
        with urlopen(request, timeout=60) as answer:
            assert answer.status == 204


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.chat_agent"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        yield Chat(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
        process.stdout.close()


@pytest.fixture(scope="module")
def talking(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose instructions are run by the chat agent."""
    folder = tmp_path_factory.mktemp("talking")
    store = f"sqlite:///{folder / 'fairlane.db'}"
    with running_server(store, folder, "--agent", chat.url) as url:
        yield Server(url, store)


@pytest.fixture(params=["url", "store"])
def there(request: pytest.FixtureRequest, talking: Server) -> list[str]:
    return [f"--{request.param}", getattr(talking, request.param)]


def _told(run: Run, talking: Server, text: str, *more: str) -> str:
    ran = run("submit", "--instruction", text, "--json", *more, "--url", talking.url)
    assert ran.code == 0, ran
    task_id: str = ran.json["taskId"]
    return task_id


@pytest.mark.slow
def test_the_output_of_a_task_is_its_text(run: Run, talking: Server, there: list[str]) -> None:
    task_id = _told(run, talking, "Book a table", "--wait", "15")
    ran = run("output", task_id, *there)
    assert (ran.code, ran.out, ran.err) == (0, "Bookatable\n", "")
    answer = run("output", task_id, "--json", *there)
    assert answer.out == talking.get(f"/tasks/{task_id}/output") + "\n"
    assert answer.json["complete"] is True


@pytest.mark.slow
def test_output_is_followed_as_it_comes(
    run: Run, talking: Server, there: list[str], chat: Chat, following: Callable[..., Follow]
) -> None:
    text = f"slowly by {there[0]}"
    deltas = [{"type": "text-delta", "delta": word} for word in ("one ", "two\n")]
    chat.behave(text, events=[*deltas[:1], *deltas[1:], {"type": "finish"}], hangAfter=1)
    task_id = _told(run, talking, text)
    follow = following("output", task_id, "--follow", "--json", *there)
    first = json.loads(follow.line())
    chat.release()
    rest = _lines("".join(iter(follow.line, "")))
    assert follow.process.communicate(timeout=WAIT_SECONDS)[1] == ""
    assert follow.process.returncode == 0
    assert first == {"attempt": 1, "text": "one "}
    assert rest == [{"attempt": 1, "text": "two\n"}]
    assert run("output", task_id, "--follow", *there).out == "one two\n"


@pytest.mark.slow
def test_a_new_attempt_is_distinguished_from_its_text(
    run: Run, talking: Server, there: list[str], chat: Chat
) -> None:
    text = f"twice by {there[0]}"
    broken = [{"type": "text-delta", "delta": "half"}]
    chat.behave(text, events=broken, breakOff=True, times=1)
    task_id = _told(run, talking, text, "--backoff", "0", "--wait", "15")
    ran = run("output", task_id, "--follow", *there)
    assert ran.code == 0
    assert ran.out == "half" + text.replace(" ", "")
    assert ran.err == "attempt 2\ndone after 2 attempts\n"


@pytest.mark.slow
def test_ctrl_c_ends_following_output(
    run: Run, talking: Server, there: list[str], chat: Chat, following: Callable[..., Follow]
) -> None:
    text = f"hangs by {there[0]}"
    chat.behave(text, events=[{"type": "text-delta", "delta": "well\n"}], hangAfter=1)
    task_id = _told(run, talking, text)
    follow = following("output", task_id, "--follow", *there)
    assert follow.line() == "well\n"
    assert follow.interrupt() == (130, "")
    run("cancel", task_id, *there)


def test_a_question_that_is_cut_off_before_it_begins_does_not_complain(tmp_path: Path) -> None:
    """As by Ctrl-C in that moment. A coroutine that nobody waited for would."""
    client = StoreBackend(f"sqlite:///{tmp_path / 'f.db'}", create=True).client
    client.stats()
    client.close()
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="Runner is closed"):
            client.stats()
        gc.collect()
    assert complaints == []


@pytest.mark.slow
def test_output_cannot_move_the_cursor(run: Run, talking: Server, chat: Chat) -> None:
    chat.behave("evil", events=[{"type": "text", "text": "a\x1b[2Jb\n\x07c"}, {"type": "finish"}])
    task_id = _told(run, talking, "evil", "--wait", "15")
    for follow in ([], ["--follow"]):
        out = run("output", task_id, *follow, "--url", talking.url).out
        assert out.rstrip("\n") == "ab\nc"


def test_the_output_of_a_task_that_is_not_there_ends_with_3(run: Run, side: list[str]) -> None:
    for follow in ([], ["--follow"]):
        ran = run("output", "tsk_none", *follow, *side)
        assert (ran.code, ran.out, ran.err) == (3, "", "error: task not found\n")


def test_a_task_without_output_prints_nothing(run: Run, side: list[str], agent: str) -> None:
    flags = ("--handler", "nobody", "--agent", agent, "--json", *side)
    ran = run("output", run("submit", *flags).json["taskId"], *side)
    assert (ran.code, ran.out) == (0, "")
