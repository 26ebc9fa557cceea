"""Groups of tasks: batches, which are submitted together; sessions, which run in order; lanes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import (
    Side,
    connected,
    declined,
    for_each,
    given,
    read_json,
    submit_document,
)
from fairlane.cli.commands import Commands, Exit, Parser
from fairlane.cli.commands.tasks import (
    TURN_SECONDS,
    batch_of,
    draw_submitted,
    gate,
    print_finished,
    verdict,
    wait_for,
)
from fairlane.cli.options import (
    confirmation,
    count,
    declared,
    input_file,
    needs,
    offer,
    one,
    paging,
    quiet,
    several,
    wait_option,
    whole,
)
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Output,
    Say,
    Shape,
    Styled,
    ago,
    counted,
    label,
    print_json,
    span,
    state,
    warn,
    with_ago,
)
from fairlane.cli.output.task import MOMENTS
from fairlane.client.base import AT_REST
from fairlane.clock import SystemClock
from fairlane.core.errors import InvalidRequest
from fairlane.schema import wire
from fairlane.schema.batches import ListBatches
from fairlane.schema.lanes import ChangeLane, LaneRequest

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

# Options by the argument of the client's method that each fills.
_BEHAVIOUR: Final = {
    "mode": "mode",
    "cap": "cap",
    "drop": "drop",
    "debounce": "debounce_ms",
    "max_concurrent": "max_concurrent",
}
_SETTINGS: Final = {**_BEHAVIOUR, "debounce_max": "debounce_max_ms"}
_MESSAGE: Final = {
    **_BEHAVIOUR,
    "sender": "sender",
    "agent": "agent",
    "handler": "handler",
    "no_merge": "no_merge",
    "message_id": "message_id",
    "sent_at": "sent_at",
    "lane": "lane",
    "priority": "priority",
    "timeout": "timeout_ms",
    "metadata": "metadata",
    "callback_url": "callback_url",
}
_BEHAVIOUR_OPTIONS: Final = ("mode", "cap", "drop", "debounce", "max-concurrent")

SESSIONS: Final[Columns] = {
    "SESSION": "sessionKey",
    "RUNNING": "running",
    "WAITING": lambda one: one["waiting"] + one["debouncing"],
    "AT ONCE": "effectiveConcurrency",
    "NOTE": lambda one: Styled("throttled", "yellow") if one["throttled"] else "",
}
_MEMBERS: Final[Columns] = {
    "TASK": "taskId",
    "STATE": lambda one: state(one["state"]),
    "LANE": "lane",
    "PLACE": lambda one: str(one.get("position", "-")),
    "NOTE": lambda one: (
        gate(one) or (f"started {ago(one['startedAt'])}" if "startedAt" in one else "")
    ),
}
LANES: Final[Columns] = {
    "LANE": "name",
    "CEILING": "ceiling",
    "ACTIVE": "active",
    "WAITING": "waiting",
    "OLDEST": lambda lane: span(lane["oldestWaitMs"]) if lane["oldestWaitMs"] else "-",
    "PAUSED": lambda lane: Styled("paused", "yellow") if lane["paused"] else "-",
    "STRATEGY": "strategy",
}


def register(commands: Commands) -> None:
    examples = (
        "examples:\n"
        "  fairlane message chat:7 'What is new?' --sender ada --wait\n"
        "  fairlane message chat:7 /stopall"
    )
    commands.add("message", connected(message, create=True), _message_options, epilog=examples)
    commands.add("stop", connected(stop), _key)
    commands.add("stopall", connected(stop), _key)
    commands.noun(
        "sessions",
        _sessions,
        epilog="examples:\n"
        "  fairlane sessions                list sessions, the same as sessions list\n"
        "  fairlane sessions chat:7         show one session, the same as sessions list chat:7\n"
        "  fairlane sessions set chat:7 --mode interrupt --max-concurrent 3",
    )
    commands.noun("lanes", _lanes)
    commands.noun("batch", _batch_verbs)


def _sessions(sessions: Commands) -> None:
    add = sessions.add
    add(
        "list", connected(list_), _list_options, "List sessions, sorted by key, or show one session"
    )
    add("set", connected(set_), _set_options, "Change the settings of a session permanently")
    add(
        "usage",
        connected(usage),
        _usage_options,
        "Report how much of its context window a session uses",
        epilog="example:\n  fairlane sessions usage chat:7 120000 200000",
    )
    add(
        "withdraw",
        connected(withdraw),
        _withdraw_options,
        "Withdraw a message that no run has taken yet",
        epilog="example:\n  fairlane sessions withdraw chat:7 msg_01k3x0c6k2v8tq9h1n5r7w4d2e",
    )
    about = "Stop all runs, cancel the waiting tasks and start a new generation"
    add("reset", connected(stop), _key, about)


def _key(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", help="session key")


# -------------------------------------------------------------------- sessions


def _list_options(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="session to show (default: list all)")
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    if args.key is not None:
        out.show(side.client.session(args.key), _draw_session)
    else:
        out.pages(args, side.client.sessions, "sessions", SESSIONS, none="no sessions")


def _set_options(parser: Parser) -> None:
    _key(parser)
    offer(parser, *_BEHAVIOUR_OPTIONS, "debounce-max")
    parser.add_argument(
        "--unset",
        metavar="NAME",
        action="append",
        default=[],
        help="reset a setting to the policy's value, such as --unset cap (repeatable)",
    )


def set_(args: argparse.Namespace, side: Side, out: Output) -> None:
    settings, unset = given(args, _SETTINGS), [_setting(name) for name in args.unset]
    if not settings and not unset:
        raise InvalidRequest("nothing to set; see fairlane sessions set --help")
    out.show(side.client.set_session(args.key, **settings, unset=unset), _draw_session)


def _setting(name: str) -> str:
    found = _SETTINGS.get(name.replace("-", "_"))
    if found is None:
        known = ", ".join(option.replace("_", "-") for option in _SETTINGS)
        raise InvalidRequest(f"--unset: unknown setting {name}; known settings: {known}")
    return found


def _usage_options(parser: Parser) -> None:
    _key(parser)
    parser.add_argument("tokens", metavar="TOKENS", type=whole, help="number of tokens in use")
    parser.add_argument(
        "window", metavar="WINDOW", type=count, help="size of the context window in tokens"
    )


def usage(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.set_usage(args.key, args.tokens, args.window), _draw_session)


def stop(args: argparse.Namespace, side: Side, out: Output) -> None:
    client = side.client
    act: Callable[[str], Shape] = {
        "stop": client.stop_session,
        "stopall": client.stop_all,
        "sessions": client.reset_session,
    }[args.command]
    out.show(act(args.key), _draw_stopped, args.key)


def _draw_stopped(terminal: Terminal, response: Fields, key: str) -> None:
    stopped, drained = response["stopped"], response["drained"]
    for word, ids in (("stopped", stopped), ("cancelled", drained)):
        for task_id in ids:
            terminal.line(f"{word} {task_id}")
    text = f"{counted(len(stopped), 'task')} stopped" if stopped else "nothing was running"
    if drained:
        text += f", {counted(len(drained), 'waiting task')} cancelled"
    if "generation" in response:
        text += f"; generation {response['generation']} starts"
    terminal.line(f"session {key}: {text}")


def _draw_session(terminal: Terminal, session: Fields) -> None:
    terminal.grid(_session_lines(session))
    members = [*session["running"], *session["waiting"]]
    if members:
        terminal.line("")
        terminal.table(_MEMBERS, members)


def _session_lines(session: Fields) -> Iterator[tuple[str, Cell]]:
    yield "session", session["sessionKey"]
    tasks = [f"{len(session['running'])} running", f"{len(session['waiting'])} waiting"]
    if session["debouncing"]:
        tasks.append(f"{session['debouncing']} waiting for more messages")
    if session.get("later"):
        tasks.append(f"{session['later']} scheduled for later")
    yield "tasks", ", ".join(tasks)
    yield "at once", f"{session['effectiveConcurrency']} ({session['why']})"
    if "usage" in session:
        tokens, window = session["usage"]["tokens"], session["usage"]["contextWindow"]
        yield "usage", f"{tokens} of {window} tokens ({tokens / window:.0%})"
    for name, value in session["settings"].items():
        in_words = span(value) if name.endswith("Ms") else str(value)
        yield label(name).removesuffix(" ms"), in_words
    yield "generation", str(session["generation"])
    if "cutoff" in session:
        cutoff = session["cutoff"]
        yield "cutoff", f"{cutoff} ({ago(cutoff)}): older messages are refused"


def _withdraw_options(parser: Parser) -> None:
    _key(parser)
    parser.add_argument("message", metavar="ID", help="id of the message, or of its task")


def withdraw(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.withdraw_message(args.key, args.message), _draw_withdrawn)


def _draw_withdrawn(terminal: Terminal, response: Fields) -> None:
    left = response["left"]
    still = f"; {left} of its messages still wait" if left else ""
    terminal.line(f"withdrew {response['messageId']} from {response['taskId']}{still}")


# -------------------------------------------------------------------- messages


def _message_options(parser: Parser) -> None:
    _key(parser)
    parser.add_argument(
        "text",
        metavar="TEXT",
        help="the message; /stop and /stopall work like the commands of the same name",
    )
    offer(parser, "sender", "agent")
    offer(parser, "handler", handler="handler that processes the message, instead of an agent")
    offer(parser, *_BEHAVIOUR_OPTIONS, "no-merge", "message-id", "sent-at")
    offer(parser, "lane", "priority", "timeout")
    offer(parser, "metadata", "callback-url", "idempotency-key")
    needs(parser)
    wait_option(parser)


def message(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    key, fields = args.idempotency_key, given(args, _MESSAGE)
    if args.need is not None:
        fields["needs"] = dict(args.need)
    response = side.client.message(args.key, args.text, idempotency_key=key, **fields)
    warn(response.get("warnings") or ())
    if "taskId" not in response:  # the text was a command
        out.show(response, _draw_stopped, args.key)
    elif args.wait is None:
        out.show(response, _draw_sent)
    else:
        return wait_for(side, out, [response["taskId"]], args.wait)
    return None


def _draw_sent(terminal: Terminal, response: Fields) -> None:
    if response.get("merged"):
        terminal.line(f"merged into {response['taskId']} (", state(str(response["state"])), ")")
    else:
        draw_submitted(terminal, response)


# -------------------------------------------------------------------- lanes


def _lanes(lanes: Commands) -> None:
    lanes.add("list", connected(list_lanes), None, "List lanes and their load")
    about = "Stop starting tasks in a lane; running tasks continue"
    lanes.add("pause", connected(set_paused), _lane, about)
    lanes.add("resume", connected(set_paused), _lane, "Resume starting tasks in a paused lane")
    lanes.add(
        "clear",
        connected(clear),
        _clear_options,
        "Cancel all queued tasks of a lane",
        epilog="On a terminal, the command asks for confirmation.",
    )


def _lane(parser: Parser) -> None:
    declared(parser, ChangeLane, "name", "name", metavar="NAME")


def list_lanes(_: argparse.Namespace, side: Side, out: Output) -> None:
    out.page(side.client.lanes(), "lanes", LANES, none="no lanes")


def set_paused(args: argparse.Namespace, side: Side, out: Output) -> None:
    act = side.client.pause_lane if args.verb == "pause" else side.client.resume_lane
    response = act(args.name)
    out.line(response, f"{'paused' if response['paused'] else 'resumed'} {response['lane']}")


def _clear_options(parser: Parser) -> None:
    declared(parser, LaneRequest, "name", "name", metavar="NAME")
    confirmation(parser)


def clear(args: argparse.Namespace, side: Side, out: Output) -> None:
    def question() -> str | None:
        lanes = side.client.lanes()["lanes"]
        number = next((lane["waiting"] for lane in lanes if lane["name"] == args.name), 0)
        return f"cancel {counted(number, 'task')} in lane {args.name}?" if number else None

    if not declined(args, question):
        response = side.client.clear_lane(args.name)
        cancelled = counted(response["cancelled"], "task")
        out.line(response, f"cancelled {cancelled} in lane {response['lane']}")


# -------------------------------------------------------------------- batches

BATCHES: Final[Columns] = {
    "BATCH": "batchId",
    "STATE": lambda batch: state(batch["state"]),
    "AGENT": "agentId",
    "TASKS": "total",
    "OPEN": "open",
    "CREATED": lambda batch: ago(batch["createdAt"]),
}
_BATCH_EXAMPLE: Final = (
    "example: the second task waits for the first\n"
    """  echo '[{"key": "a", "handler": "echo"},\n"""
    """         {"handler": "echo", "dependsOn": ["#a"]}]' \\\n"""
    "    | fairlane batch submit - --parallelism 2 --wait"
)
_BATCH_FIELDS: Final = {
    "agent": "agentId",
    "callback_url": "callbackUrl",
    "parallelism": "parallelism",
}


def _batch_verbs(batch: Commands) -> None:
    about = "Submit the tasks in a file as one batch"
    batch.add(
        "submit",
        connected(submit_batch, create=True),
        _batch_submit_options,
        about,
        epilog=_BATCH_EXAMPLE,
    )
    batch.add("show", connected(show_batch), one("batch"), "Show a batch")
    batch.add("list", connected(list_batches), _batch_list_options, "List batches, newest first")
    batch.add(
        "cancel", connected(cancel_batches), several("batch"), "Cancel the open tasks of batches"
    )


def _batch_submit_options(parser: Parser) -> None:
    input_file(parser, "JSON file with a list of tasks or a batch")
    offer(
        parser,
        *("parallelism", "agent", "callback-url", "idempotency-key"),
        agent="agent that the tasks belong to",
        callback_url="URL that receives a POST when the batch finishes",
    )
    wait_option(parser, "wait until all tasks have finished, at most this long")
    quiet(parser)


def submit_batch(args: argparse.Namespace, side: Side, out: Output) -> int:
    content, fields = read_json(args.file), given(args, _BATCH_FIELDS)
    if isinstance(content, list):
        body = batch_of(content, fields)
    elif isinstance(content, dict) and "tasks" in content:
        body = {**content, **fields}
    else:
        problem = f"{args.file} must contain a list of tasks, or a batch with 'tasks'"
        raise InvalidRequest(problem)
    response = submit_document(side.client, body, args.idempotency_key)
    code = Exit.REFUSED if response["rejected"] else Exit.OK
    warn(response.get("warnings") or ())
    if args.wait is None or not response["accepted"]:
        out.show({"batchId": response["batchId"]} if out.is_quiet else response, draw_submitted)
        return code
    if response["rejected"] and not out.is_quiet:
        out.show(response, draw_submitted)
    return _wait_for_batch(side, out, response["batchId"], args.wait) or code


def _batch_list_options(parser: Parser) -> None:
    declared(parser, ListBatches, "agent", metavar="ID")
    paging(parser)
    quiet(parser)


def list_batches(args: argparse.Namespace, side: Side, out: Output) -> None:
    ask = partial(side.client.batches, agent=args.agent)
    out.pages(args, ask, "batches", BATCHES, none="no batches")


def show_batch(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.details(side.client.batch(args.id), _batch_lines)


def _batch_lines(batch: Fields) -> Iterator[tuple[str, Cell]]:
    yield "batch", batch["batchId"]
    yield "state", state(batch["state"])
    yield "tasks", f"{batch['total']}: {_by_state(batch.get('byState', {}))}"
    for name, value in batch.items():
        if name in MOMENTS:
            yield label(name), with_ago(value)
        elif name in ("agentId", "parallelism", "callbackUrl"):
            yield label(name), str(value)


def cancel_batches(args: argparse.Namespace, side: Side, out: Output) -> int:
    def act(batch_id: str) -> None:
        response = side.client.cancel_batch(batch_id)
        about = counted(response["cancelled"], "task")
        out.line(response, f"cancelled {response['batchId']} ({about})")

    return for_each(args, args.ids, act)


def _wait_for_batch(side: Side, out: Output, batch_id: str, timeout: float) -> int:
    """Wait until all tasks of a batch have ended or are parked; print it. Return the exit code."""
    total = sum(side.client.batch(batch_id)["byState"].values())
    with out.progress(total, plain=True) as say:
        batch = _until_at_rest(side, batch_id, timeout, say)
    members = _batch_members(side, batch_id)
    if out.is_json:
        print_json(batch)
    else:
        print_finished(out, members)
        out.show(batch, _draw_finished)
    unfinished = [task["taskId"] for task in members if task["state"] not in AT_REST]
    return verdict(set(batch["byState"]), unfinished)


def _draw_finished(terminal: Terminal, batch: Fields) -> None:
    parts = f"; {_by_state(batch['byState'])}" if batch["byState"] else ""
    terminal.line(f"batch {batch['batchId']}: ", state(batch["state"]), parts)


def _until_at_rest(side: Side, batch_id: str, timeout: float, say: Say) -> Shape:
    clock = SystemClock()
    end = clock.monotonic() + timeout
    while True:
        batch = side.client.batch(batch_id)
        by_state: Mapping[str, int] = batch["byState"]
        done = sum(number for name, number in by_state.items() if name in AT_REST)
        say(done, _by_state(by_state))
        left = end - clock.monotonic()
        if done == sum(by_state.values()) or left <= 0:
            return batch
        clock.sleep(min(side.look_seconds, TURN_SECONDS, left))


def _batch_members(side: Side, batch_id: str) -> list[Shape]:
    """Return all tasks of a batch, oldest first; large results make pages short."""
    found: list[Shape] = []
    cursor: str | None = None
    while True:
        page = side.client.tasks(batch=batch_id, limit=wire.LIST_LIMIT_MAX, cursor=cursor)
        found += page["tasks"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found[::-1]


def _by_state(by_state: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in by_state.items())
