"""Tasks: submit, show, wait for and signal them; their output."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import (
    Side,
    connected,
    given,
    moment,
    params,
    read_json,
    submit_document,
)
from fairlane.cli.commands import Commands, Exit, Parser
from fairlane.cli.commands.task_streams import submit_stream
from fairlane.cli.options import (
    follow,
    json_value,
    offer,
    one,
    quiet,
    retries,
    seconds,
    several,
    task_fields,
    wait_option,
)
from fairlane.cli.output import (
    Columns,
    Fields,
    Layouts,
    Output,
    Say,
    Shape,
    ago,
    complain,
    counted,
    print_json,
    span,
    state,
    warn,
)
from fairlane.cli.output.task import SHORT_ID, WaitText, draw_queued, draw_task, what
from fairlane.client.base import AT_REST
from fairlane.clock import SystemClock
from fairlane.core import lifecycle
from fairlane.core.errors import InvalidRequest, NotFound
from fairlane.core.json_types import JsonObject
from fairlane.core.model import DEPENDENCY_GATE
from fairlane.schema.task_status import TaskStatus

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

# While waiting for several tasks, check each in turn.
TURN_SECONDS: Final = 0.25
BATCH_SHOWN: Final = 20
# While a person watches, show changes this often.
WATCH_SECONDS: Final = 1.0
# Options that describe one task, by the field of `POST /tasks` that each fills.
_FIELDS: Final = {
    "action": "action",
    "handler": "handler",
    "instruction": "instruction",
    "tab": "tabId",
    "ref": "ref",
    "selector": "selector",
    "priority": "priority",
    "deadline": "deadline",
    "lane": "lane",
    "session": "sessionKey",
    "depends_on": "dependsOn",
    "run_at": "runAt",
    "timeout": "timeoutMs",
    "preemptible": "preemptible",
    "metadata": "metadata",
    "params": "params",
}
_RETRIES: Final = {
    "retries": "maxRetries",
    "backoff": "backoffMs",
    "multiplier": "backoffMultiplier",
}
_COMMON: Final = {"agent": "agentId", "callback_url": "callbackUrl"}


def register(commands: Commands) -> None:
    commands.add("submit", connected(submit, create=True), _submit_options, epilog=_SUBMIT_EXAMPLES)
    commands.add("show", connected(show), one("task"))
    commands.add("why", connected(why), one("task"))
    commands.add("wait", connected(wait), _wait_options)
    commands.add("signal", connected(signal), _signal_options)
    commands.add("effect", connected(effect), _effect_options)
    commands.add("output", connected(output), _output_options)


# -------------------------------------------------------------------- submit

_SUBMIT_EXAMPLES: Final = (
    "examples:\n"
    "  fairlane submit --handler echo --param text=hello --wait\n"
    "  fairlane submit --instruction 'Sum it up' --depends-on tsk_1 --depends-on tsk_2\n"
    "  fairlane submit --agent a1 --action click --tab t7 --ref e3 --deadline 30s\n"
    "  fairlane submit --agent a1 --file tasks.json\n"
    "  fairlane submit --file tasks.ndjson --stream"
)


def _submit_options(parser: Parser) -> None:
    work = parser.add_mutually_exclusive_group(required=True)
    offer(work, "handler", "action", "instruction")
    work.add_argument(
        "--file",
        metavar="FILE",
        help="JSON file with a task, a list of tasks or a batch, as for POST /tasks; "
        "- reads standard input",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="read FILE as NDJSON, one task per line, however long it is; the same command "
        "continues after an interruption",
    )
    offer(parser, "agent")
    task_fields(parser)
    offer(parser, "session")
    parser.add_argument(
        "--depends-on",
        metavar="ID",
        action="append",
        help="start only after this task is done (repeatable)",
    )
    later = parser.add_mutually_exclusive_group()
    later.add_argument(
        "--delay",
        metavar="TIME",
        type=seconds,
        help="wait at least this long before starting, such as 5s, 10m or 2h",
    )
    offer(later, "run-at")
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="fail if not finished by this time: RFC 3339, or a duration from now like 30s, "
        "5m or 1d",
    )
    retries(parser)
    offer(parser, "preemptible", "idempotency-key")
    about = "do not start before a person has answered this question with fairlane approve"
    parser.add_argument("--approval", metavar="TITLE", help=about)
    wait_option(parser)
    quiet(parser)


def submit(args: argparse.Namespace, side: Side, out: Output) -> int:
    if args.stream:
        return _submit_stream(args, side, out)
    body = _body_from_file(args) if args.file else _body_from_options(args)
    response = submit_document(side.client, body, args.idempotency_key)
    items = response.get("tasks", [response])
    accepted = [item["taskId"] for item in items if item["state"] != lifecycle.REJECTED]
    code = Exit.OK if len(accepted) == len(items) else Exit.REFUSED
    warn(response.warnings or ())
    if args.wait is None or not accepted:
        out.show({"taskIds": accepted} if out.is_quiet else response, draw_submitted)
        return code
    if code != Exit.OK and not out.is_quiet:
        out.show(response, draw_submitted)
    return wait_for(side, out, accepted, args.wait) or code


def _submit_stream(args: argparse.Namespace, side: Side, out: Output) -> int:
    if not args.file:
        raise InvalidRequest("--stream needs --file, with one task per line")
    _refuse_beside_file(args, *_COMMON)
    if args.wait is not None:
        raise InvalidRequest("--wait cannot be combined with --stream")
    return submit_stream(args, side, out)


def _body_from_options(args: argparse.Namespace) -> JsonObject:
    body = given(args, {**_COMMON, **_FIELDS})
    found = params(args)
    if found is not None:
        body["params"] = found
    if args.need is not None:
        body["needs"] = dict(args.need)
    if policy := given(args, _RETRIES):
        body["retryPolicy"] = policy
    if args.approval is not None:
        body["approval"] = {"title": args.approval}
    if args.delay is not None:
        body["delayMs"] = round(args.delay * 1000)
    if args.deadline is not None:
        body["deadline"] = moment(args.deadline)
    return body


def _refuse_beside_file(args: argparse.Namespace, *others: str) -> None:
    """Raise `InvalidRequest` for an option that belongs in the file."""
    inside = [*_FIELDS, "param", "need", "delay", "approval", *_RETRIES, *others]
    misplaced = [name for name in inside if getattr(args, name) is not None]
    if misplaced:
        option = f"--{misplaced[0].replace('_', '-')}"
        raise InvalidRequest(f"{option} cannot be combined with --file; set it in the file")


def _body_from_file(args: argparse.Namespace) -> JsonObject:
    _refuse_beside_file(args)
    content = read_json(args.file)
    if isinstance(content, dict):
        return {**content, **given(args, _COMMON)}
    if isinstance(content, list):
        return batch_of(content, given(args, _COMMON))
    raise InvalidRequest(f"{args.file} must contain a task, a list of tasks, or a batch")


def batch_of(tasks: Sequence[object], fields: JsonObject) -> JsonObject:
    """Return a batch with the agent that its tasks name, if they agree; `fields` win."""
    named = {str(task["agentId"]) for task in tasks if isinstance(task, dict) and "agentId" in task}
    if len(named) > 1:
        raise InvalidRequest(
            "the tasks of a batch must belong to one agent, but these name several: "
            "choose one with --agent, or use one file per agent"
        )
    agent = {"agentId": named.pop()} if named else {}
    return {**agent, **fields, "tasks": tasks}


def draw_submitted(terminal: Terminal, response: Fields) -> None:
    if "batchId" in response:
        columns: Columns = {
            "TASK": lambda item: item.get("taskId", "-"),
            "STATE": lambda item: state(item["state"]),
            "PLACE": lambda item: str(item.get("position", "")),
            "NOTE": "error",
        }
        # The tasks of a large batch are shown by `tasks --batch`; what was rejected is shown here.
        shown = response["tasks"]
        if len(shown) > BATCH_SHOWN:
            rejected = [item for item in shown if item["state"] == lifecycle.REJECTED]
            shown = (rejected + shown)[:BATCH_SHOWN] if rejected else []
        if shown:
            terminal.table(columns, shown)
        outcome = f"{response['accepted']} accepted, {response['rejected']} rejected"
        terminal.line(f"batch {response['batchId']}: {outcome}")
        return
    place = f", position {response['position']}" if response.get("position") else ""
    terminal.line(f"submitted {response['taskId']} (", state(str(response["state"])), f"{place})")


# -------------------------------------------------------------------- columns of lists


def _note(task: Fields) -> str:
    return str(task.get("error") or task.get("notice") or gate(task))


def gate(task: Fields) -> str:
    if "gate" not in task:
        return ""
    parents = task.get("dependsOn") or ()
    which = f" {parents[0]}" if parents and task["gate"] == DEPENDENCY_GATE else ""
    more = f" and {len(parents) - 1} more" if which and len(parents) > 1 else ""
    return f"waiting for: {task['gate']}{which}{more}"


TASKS: Final[Columns] = {
    "TASK": "taskId",
    "STATE": lambda task: state(task["state"]),
    "AGENT": "agentId",
    "LANE": "lane",
    "WHAT": what,
    "CREATED": lambda task: ago(task["createdAt"]),
    "TOOK": lambda task: span(task["latencyMs"]) if "latencyMs" in task else "",
    "NOTE": _note,
}
LAYOUTS: Final[Layouts] = (
    (120, {"AGENT": 20, "LANE": 12, "WHAT": 24}),
    # The error stays: it is what people look for.
    (0, {"TASK": SHORT_ID, "AGENT": 0, "LANE": 0, "WHAT": 14, "CREATED": 0, "TOOK": 0}),
)

# -------------------------------------------------------------------- show


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    task = side.client.show(args.id)
    has_webhook = "callbackUrl" in task and not args.json
    found = side.client.deliveries(task=args.id)["deliveries"] if has_webhook else ()
    out.show(task, draw_task, found)


def why(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.why(args.id), _draw_why)


def _draw_why(terminal: Terminal, response: Fields) -> None:
    about = state(response["state"])
    terminal.line(f"{response['taskId']}  ", about, f"  {response['reason']}")
    if len(response["waitingFor"]) > 1:
        terminal.line(f"waiting for {', '.join(response['waitingFor'])}")


def _output_options(parser: Parser) -> None:
    one("task")(parser)
    follow(parser, "print the output of all attempts as it arrives, until the task has finished")


def output(args: argparse.Namespace, side: Side, out: Output) -> int:
    if not args.follow:
        out.show(side.client.output(args.id), _draw_output)
        return Exit.OK
    attempt, ends_line = 0, True
    with closing(side.client.output(args.id, follow=True)) as pieces:
        for piece in pieces:
            changed = attempt not in (0, piece["attempt"])
            out.show(piece, _draw_piece, changed=changed, ends_line=ends_line)
            attempt, ends_line = piece["attempt"], piece["text"].endswith("\n")
    task = side.client.show(args.id)
    if not out.is_json:
        out.terminal.end_line(ends_line=ends_line)
        out.terminal.note(outcome(task))
    return Exit.OK if task.state == lifecycle.DONE else Exit.NOT_WELL


def outcome(task: TaskStatus) -> str:
    """Return how a task ended, in one line: `failed after 4 attempts: model overloaded`."""
    after = "" if task.attempts <= 1 else f" after {counted(task.attempts, 'attempt')}"
    return f"{task.state}{after}" + (f": {task.error}" if task.error else "")


def _draw_output(terminal: Terminal, output: Fields) -> None:
    terminal.write(str(output["text"]))
    if output["text"] and not output["text"].endswith("\n"):
        terminal.write("\n")
    if output["truncated"]:
        terminal.note("the output was longer than the limit; the rest was discarded")


def _draw_piece(terminal: Terminal, piece: Fields, *, changed: bool, ends_line: bool) -> None:
    if changed:
        terminal.end_line(ends_line=ends_line)
        terminal.note(f"attempt {piece['attempt']}")
    terminal.write(str(piece["text"]))


# -------------------------------------------------------------------- wait


def _wait_options(parser: Parser) -> None:
    several("task")(parser)
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="wait at most this long (default: no limit)",
    )


def wait(args: argparse.Namespace, side: Side, out: Output) -> int:
    return wait_for(side, out, args.ids, args.timeout)


def wait_for(side: Side, out: Output, ids: Sequence[str], timeout: float | None) -> int:
    """Print the tasks when all have ended or are parked, or the time is up. Return the exit
    code.
    """
    ids = list(dict.fromkeys(ids))
    with out.progress(len(ids)) as say:
        watch = WaitText(side.client) if len(ids) == 1 and out.is_watched else None
        found = _until_at_rest(side, ids, timeout, say, watch)
    print_finished(out, list(found.values()))
    unfinished = [task["taskId"] for task in found.values() if task["state"] not in AT_REST]
    return verdict({task["state"] for task in found.values()}, unfinished)


def print_finished(out: Output, tasks: Sequence[Shape]) -> None:
    if out.is_quiet:
        for task in tasks:
            out.show(task, draw_task)
    elif out.is_json:
        for task in tasks:
            print_json(task)
    elif len(tasks) == 1:
        out.show(tasks[0], draw_task)
    else:
        out.terminal.table(TASKS, [dict(task.items()) for task in tasks], layouts=LAYOUTS)


def verdict(states: set[str], unfinished: Sequence[str]) -> int:
    if unfinished:
        tasks = counted(len(unfinished), "task")
        complain(f"timed out: {tasks} not finished yet, first {unfinished[0]}")
        return Exit.TIME_IS_UP
    return Exit.OK if states == {lifecycle.DONE} else Exit.NOT_WELL


def _until_at_rest(
    side: Side, ids: Sequence[str], timeout: float | None, say: Say, watch: WaitText | None
) -> dict[str, Shape]:
    clock = SystemClock()
    end = float("inf") if timeout is None else clock.monotonic() + timeout
    found: dict[str, Shape] = {}
    waiting = deque(ids)
    say(0, f"waiting for {ids[0] if len(ids) == 1 else counted(len(ids), 'task')}")
    while waiting and not (clock.monotonic() >= end and len(found) == len(ids)):
        turn = side.look_seconds if len(waiting) == 1 else min(side.look_seconds, TURN_SECONDS)
        turn = turn if watch is None else min(turn, WATCH_SECONDS)
        left = min(turn, max(0.0, end - clock.monotonic()))
        task = found[waiting[0]] = _wait_once(side, waiting[0], left)
        if task["state"] in AT_REST:
            waiting.popleft()
        else:
            waiting.rotate(-1)
        if waiting and watch is not None:
            say(0, watch.text(task))
        elif waiting:
            done = len(ids) - len(waiting)
            say(done, _progress_text(waiting[0], found.get(waiting[0]), done, len(ids)))
    return {task_id: found[task_id] for task_id in ids}


def _progress_text(task_id: str, task: Shape | None, done: int, total: int) -> str:
    about = f" ({task['state']})" if task else ""
    if total > 1:
        return f"{done} of {total} finished; waiting for {task_id}{about}"
    return f"waiting for {task_id}{about}"


def _wait_once(side: Side, task_id: str, timeout: float) -> Shape:
    try:
        return side.client.wait(task_id, timeout)
    except NotFound:  # say which of several
        raise NotFound(f'task "{task_id}" not found') from None


# -------------------------------------------------------------------- signal


def _signal_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="task ID")
    parser.add_argument("name", metavar="NAME", help="name of the signal")
    about = "value for the run, as JSON (default: null)"
    parser.add_argument("--value", metavar="JSON", type=json_value, help=about)


def signal(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.send_signal(args.id, args.name, value=args.value), _draw_signal)


def _effect_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="task ID")
    parser.add_argument("name", metavar="NAME", help="name of the effect")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--happened", action="store_true", help="it happened: the task continues after it"
    )
    what.add_argument(
        "--not-happened", action="store_true", help="it did not happen: the task repeats it"
    )
    about = "result of the effect for the run, as JSON (default: null)"
    parser.add_argument("--value", metavar="JSON", type=json_value, help=about)


def effect(args: argparse.Namespace, side: Side, out: Output) -> None:
    call = side.client.resolve_effect
    out.show(call(args.id, args.name, happened=args.happened, value=args.value), draw_queued)


def _draw_signal(terminal: Terminal, response: Fields) -> None:
    kept = "" if response["accepted"] else ": it has one of this name already, which is kept"
    verb = "sent" if response["accepted"] else "did not send"
    terminal.line(f"{verb} signal {response['name']} to {response['taskId']}{kept}")
