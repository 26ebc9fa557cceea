"""The queue: work that a host leases, or drains, and runs itself.

These commands work without a server and without an existing store. Commands that only read report
an empty queue, and commands that add something create the store. Commands that name a lease or an
entry create nothing: a new store could not contain it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import Side, daemonless, read_object
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.options import (
    count,
    input_file,
    json_object,
    json_value,
    named_values,
    needs,
    number,
    offer,
    one,
    paging,
    span_option,
    whole,
)
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Layouts,
    Output,
    Shape,
    Styled,
    ago,
    label,
    pretty,
    shown,
    state,
    with_ago,
)
from fairlane.cli.output.task import draw_queued
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.json_types import JsonObject

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal
    from fairlane.client.base import BaseClient

LANE: Final = "queue"
WORKER: Final = "sched"
LEASES_MAX: Final = 1000
RELEASED: Final = "released as failed"
# The keys of a `scheduling-policy.json`: each is an option. How its value is read, and its help.
POLICY: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "maxConcurrent": (whole, "maximum number of concurrent leases"),
    "maxAttempts": (whole, "number of attempts before an entry is parked"),
    "leaseTtlMs": (whole, "how long a lease lasts without renewal"),
    "backoffBaseMs": (whole, "wait before the first retry"),
    "backoffFactor": (number, "multiplier for each further wait"),
    "backoffCapMs": (whole, "longest wait before a retry"),
}
_MOMENTS: Final = ("enqueuedAt", "leaseExpiresAt", "nextEligibleAt", "drainedAt", "endedAt")


def register(commands: Commands) -> None:
    commands.noun(
        "sched",
        _sched,
        epilog="example: a host that runs one entry\n"
        "  lease=$(fairlane sched lease --limit 1 --json | jq -r '.leases[0].leaseId')\n"
        "  ./run-it && fairlane sched complete $lease \\\n"
        "    || fairlane sched release $lease --failed --reason 'tests failed'",
    )
    commands.noun("queue", _queue)


def _sched(sched: Commands) -> None:
    add = sched.add
    add(
        "plan",
        daemonless(plan),
        _plan_options,
        "Show which tasks a lease would get, and why the others wait",
    )
    add("lease", daemonless(lease, create=True), _lease_options, "Lease ready tasks")
    add("renew", daemonless(renew), _renew_options, "Extend a lease")
    add("complete", daemonless(complete), _complete_options, "Report that a leased task is done")
    about = "Return a lease; with --failed, report a failed attempt"
    add("release", daemonless(release), _release_options, about)
    add("reclaim", daemonless(reclaim, create=True), None, "Reclaim expired leases")
    add(
        "reset",
        daemonless(reset),
        _entry_id,
        "Queue a parked entry again, with a full set of attempts",
    )
    sched.noun(
        "policy",
        _policy,
        "Show or change the settings of the queue",
        epilog="For all other settings, and for the versions of these, see fairlane policy.",
    )


def _policy(policy: Commands) -> None:
    policy.add("show", daemonless(show_policy), None, "Show the settings of the queue")
    run = daemonless(set_policy, create=True)
    policy.add("set", run, _policy_options, "Change settings of the queue")


def _queue(queue: Commands) -> None:
    example = "example:\n  fairlane queue add --app review --priority 20 --input pr=7"
    run = daemonless(add, create=True)
    queue.add("add", run, _add_options, "Add an entry to the queue", epilog=example)
    queue.add(
        "list", daemonless(list_), _list_options, "List queue entries in the order they will run"
    )
    queue.add("show", daemonless(show), one("entry"), "Show an entry")
    about = "Take the next entries off the queue without leases"
    queue.add("drain", daemonless(drain, create=True), _drain_options, about)
    about = "Import a queue.json file of cool-workflow: all of its entries or none"
    run = daemonless(import_, create=True)
    queue.add("import", run, lambda parser: input_file(parser, "JSON file"), about)


# -------------------------------------------------------------------- sched


def _lane(parser: Parser) -> None:
    offer(parser, "lane", lane="lane to lease from (default: queue)")


def _plan_options(parser: Parser) -> None:
    _lane(parser)
    parser.add_argument(
        "--now", metavar="TIME", help="plan for this time (RFC 3339) instead of now"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=count,
        help="maximum number of leases, and of tasks per reason (default 100)",
    )


def plan(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.plan(lane=args.lane, now=args.now, limit=args.limit), _draw_plan)


def _draw_plan(terminal: Terminal, plan: Fields) -> None:
    slots = f"{plan['inFlight']} of {plan['maxConcurrent']} slots in use"
    terminal.line(f"lane {plan['lane']} at {plan['now']}: {slots}")
    leases = [{"id": one["id"], "reason": Styled("lease", "green")} for one in plan["leases"]]
    rows = [*leases, *plan["skipped"]]
    if rows:
        terminal.table({"TASK": "id", "WHY": "reason", "UNTIL": "nextEligibleAt"}, rows)
    partial_counts = plan.get("atLeast", ())
    counts = [
        f"{'at least ' if reason in partial_counts else ''}{number} {reason}"
        for reason, number in plan["counts"].items()
    ]
    terminal.line(", ".join(counts))


def _lease_options(parser: Parser) -> None:
    _lane(parser)
    about = "maximum number of leases (default: all ready tasks)"
    parser.add_argument("--limit", metavar="N", type=count, help=about)
    parser.add_argument("--worker", metavar="NAME", help="name of the worker (default: sched)")
    _ttl(parser)


def _ttl(parser: Parser) -> None:
    span_option(parser, "--ttl", "how long the lease lasts (default: set by the policy)")


def lease(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = side.client.lease(
        args.worker or WORKER,
        lanes=[args.lane or LANE],
        limit=args.limit or LEASES_MAX,
        ttl_ms=args.ttl,
        start=True,
    )
    try:
        out.show(response, _draw_leases)
        sys.stdout.flush()
    except BaseException:  # the caller has not received them
        _give_back(side.client, response["leases"])
        raise


def _give_back(client: BaseClient, leases: Sequence[Shape]) -> None:
    for one_lease in leases:
        with contextlib.suppress(FairlaneError):
            client.release_lease(one_lease["leaseId"])


def _draw_leases(terminal: Terminal, response: Fields) -> None:
    if not response["leases"]:
        terminal.line("nothing to lease; run fairlane sched plan to see why")
    for lease in response["leases"]:
        until = lease["leaseExpiresAt"]
        terminal.line(f"leased {lease['id']} as {lease['leaseId']} until {until}")


def _lease_id(parser: Parser) -> None:
    either(parser, "lease", "--leaseId", "lease ID")


def either(parser: Parser, name: str, option: str, about: str) -> None:
    """Add an argument that may also be given as an option, as cool-workflow spells it."""
    which = parser.add_mutually_exclusive_group(required=True)
    # Without a default, an absent argument would replace the value of the option.
    which.add_argument(name, metavar=name.upper(), nargs="?", default=argparse.SUPPRESS, help=about)
    which.add_argument(option, metavar=name.upper(), dest=name, help="the same as an option")


def _entry_id(parser: Parser) -> None:
    either(parser, "id", "--id", "entry ID")


def _renew_options(parser: Parser) -> None:
    _lease_id(parser)
    _ttl(parser)


def renew(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.renew_lease(args.lease, ttl_ms=args.ttl), _draw_report, "renewed")


def _complete_options(parser: Parser) -> None:
    _lease_id(parser)
    parser.add_argument("--result", metavar="JSON", type=json_value, help="result to store")


def complete(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = side.client.complete_lease(args.lease, result=args.result)
    out.show(response, _draw_report, "completed")


def _release_options(parser: Parser) -> None:
    _lease_id(parser)
    parser.add_argument("--failed", action="store_true", help="count this as a failed attempt")
    parser.add_argument("--reason", metavar="TEXT", help="what went wrong; needs --failed")


def release(args: argparse.Namespace, side: Side, out: Output) -> None:
    if args.reason is not None and not args.failed:
        raise InvalidRequest("--reason needs --failed")
    if args.failed:
        response = side.client.fail_lease(args.lease, args.reason or RELEASED)
    else:
        response = side.client.release_lease(args.lease)
    out.show(response, _draw_report, "released")


def _draw_report(terminal: Terminal, response: Fields, verb: str) -> None:
    text = f"{verb} {response['leaseId']}: {response['taskId']} is {shown(response['state'])}"
    until = response.get("nextEligibleAt") or response.get("leaseExpiresAt")
    terminal.line(text + (f" until {until}" if until else ""))
    if response.get("cancelRequested"):
        terminal.line("stop the work: the task was cancelled or pre-empted")


def reclaim(_: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.reclaim_leases(), _draw_reclaimed)


def _draw_reclaimed(terminal: Terminal, response: Fields) -> None:
    for entry_id in response["reclaimed"]:
        terminal.line(f"reclaimed {entry_id}")
    if not response["reclaimed"]:
        terminal.line("no lease has expired")


def reset(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.reset(args.id), draw_queued)


def show_policy(_: argparse.Namespace, side: Side, out: Output) -> None:
    out.details(side.client.queue_policy(), _policy_lines)


def _policy_options(parser: Parser) -> None:
    for name, (read, about) in POLICY.items():
        kebab = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
        flags = (f"--{name}", f"--{kebab}")
        parser.add_argument(*flags, dest=name, metavar="N", type=read, help=about)


def set_policy(args: argparse.Namespace, side: Side, out: Output) -> None:
    settings = {name: getattr(args, name) for name in POLICY if getattr(args, name) is not None}
    if not settings:
        raise InvalidRequest(f"nothing to set; use {', '.join(f'--{name}' for name in POLICY)}")
    out.details(side.client.set_queue_policy(settings), _policy_lines)


def _policy_lines(response: Fields) -> Iterator[tuple[str, Cell]]:
    for name, value in response["policy"].items():
        if name != "schemaVersion":
            yield name, str(value)


# -------------------------------------------------------------------- queue


def _add_options(parser: Parser) -> None:
    parser.add_argument("--app", "--appId", metavar="ID", help="application that runs the entry")
    parser.add_argument("--workflow", "--workflowId", metavar="ID", help="workflow to run")
    parser.add_argument("--run", "--runId", metavar="ID", help="existing run to continue")
    about = "directory to run in (default: the current one)"
    parser.add_argument("--repo", metavar="PATH", help=about)
    about = "integer, lower runs first (default 100); or critical, high, normal, low"
    offer(parser, "priority", priority=about)
    about = "inputs, as a JSON object"
    parser.add_argument("--inputs", metavar="JSON", type=json_object, help=about)
    named_values(parser, "--input", "one input")
    parser.add_argument("--id", metavar="ID", help="ID of the entry; it must not be in use")
    offer(parser, "note", "agent", agent="agent that the entry belongs to")
    needs(parser)


def add(args: argparse.Namespace, side: Side, out: Output) -> None:
    inputs: JsonObject | None = None
    if args.inputs is not None or args.input is not None:
        inputs = {**(args.inputs or {}), **dict(args.input or ())}
    entry = side.client.queue_add(
        id=args.id,
        run=args.run,
        app=args.app,
        workflow=args.workflow,
        repo=str(Path(args.repo or ".").resolve()),
        priority=args.priority,
        inputs=inputs,
        note=args.note,
        agent=args.agent,
        needs=None if args.need is None else dict(args.need),
    )
    out.line(entry, f"added {entry['id']} with priority {entry['priority']}")


def _list_options(parser: Parser) -> None:
    parser.add_argument(
        "--status",
        metavar="STATUS",
        help="only entries with this status: pending or ready (both mean waiting), leased, parked, "
        "drained, cancelled, failed",
    )
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    ask = partial(side.client.queue_list, status=args.status)
    out.pages(args, ask, "entries", ENTRIES, none="the queue is empty", layouts=LAYOUTS)


def _what(entry: Fields) -> str:
    names = ("appId", "workflowId", "runId", "handler")
    return str(next((entry[name] for name in names if entry.get(name)), "-"))


ENTRIES: Final[Columns] = {
    "PRIORITY": "priority",
    "ENTRY": "id",
    "STATUS": lambda entry: state(entry["status"]),
    "WHAT": _what,
    "ENQUEUED": lambda entry: ago(entry["enqueuedAt"]),
    "NOTE": lambda entry: entry.get("parkedReason") or entry.get("note", ""),
}
LAYOUTS: Final[Layouts] = ((0, {"ENTRY": 40, "WHAT": 30}),)


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.details(side.client.queue_show(args.id), _entry_lines)


def _entry_lines(entry: Fields) -> Iterator[tuple[str, Cell]]:
    for name, value in entry.items():
        if name == "status":
            yield "status", state(value)
        elif name in _MOMENTS:
            yield label(name), with_ago(value)
        elif name != "schemaVersion":
            yield label(name), value if isinstance(value, str) else pretty(value)


def _drain_options(parser: Parser) -> None:
    about = "maximum number of entries (default 1)"
    parser.add_argument("--limit", metavar="N", type=count, help=about)


def drain(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.queue_drain(limit=args.limit), _draw_drained)


def _draw_drained(terminal: Terminal, response: Fields) -> None:
    for entry in response["drained"]:
        terminal.line(f"drained {entry['id']}")
    terminal.line(f"{response['remaining']} left")
    if "reason" in response:
        terminal.line(f"no more for now: {response['reason']}")


def import_(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = side.client.queue_import(read_object(args.file, "a queue with 'entries'"))
    parts = ", ".join(f"{number} {status}" for status, number in response["byStatus"].items())
    out.line(response, f"imported {response['imported']}" + (f": {parts}" if parts else ""))
