"""The options of `fairlane sched` and `fairlane queue`, also as cool-workflow spells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlane.cli.options import Commands, Parser, named_values, offer, one, paging
from fairlane.cli.values import count, json_object, json_value, milliseconds, number, whole

# The keys of a `scheduling-policy.json`, each an option, and how its value is read.
POLICY: Final[dict[str, tuple[Callable[[str], float], str]]] = {
    "maxConcurrent": (whole, "how many may be leased at once"),
    "maxAttempts": (whole, "how often an entry is tried before it parks"),
    "leaseTtlMs": (whole, "how long a lease lasts that is not renewed"),
    "backoffBaseMs": (whole, "how long the first retry waits"),
    "backoffFactor": (number, "how much longer each further wait is"),
    "backoffCapMs": (whole, "how long a wait can get"),
}


def fill(commands: Commands) -> None:
    commands.noun(
        "sched",
        "Plan and take leases, report on them, set the rules of the queue",
        _sched,
        "example: a host that runs one entry\n"
        "  lease=$(fairlane sched lease --limit 1 --json | jq -r '.leases[0].leaseId')\n"
        "  ./run-it && fairlane sched complete $lease \\\n"
        "    || fairlane sched release $lease --failed --reason 'tests red'",
    )
    about = "Put work into the queue, look at it, hand it over, take in a file of it"
    commands.noun("queue", about, _queue)


def _queue(queue: Commands) -> None:
    queue.add("add", "Put an entry into the queue", _add)
    queue.add("list", "List entries, those that go first first", _list)
    queue.add("show", "Show an entry", one)
    queue.add("drain", "Hand over the next entries for good, without leases", _drain)
    queue.add("import", "Take in a queue.json of cool-workflow, all of it or nothing", _import)


def _sched(sched: Commands) -> None:
    sched.add("plan", "Tell what would be leased, and why the rest has to wait", _plan)
    sched.add("lease", "Take what may run", _lease)
    sched.add("renew", "Keep a lease for longer", _renew)
    sched.add("complete", "Report that the work of a lease is done", _complete)
    sched.add("release", "Give a lease back, or with --failed report a failed attempt", _release)
    sched.add("reclaim", "Take back leases that have run out")
    sched.add("reset", "Queue a parked entry again, with all its attempts", one)
    sched.noun(
        "policy",
        "Look at the rules of the queue, or set them",
        _policy,
        "`fairlane policy` sets everything else, and keeps the versions of both.",
    )


def _policy(policy: Commands) -> None:
    policy.add("show", "Show the rules of the queue")
    policy.add("set", "Set what is given of the rules of the queue", _policy_set)


# -------------------------------------------------------------------- sched


def _lane(parser: Parser) -> None:
    offer(parser, "lane", lane="which lane (queue)")


def _plan(parser: Parser) -> None:
    _lane(parser)
    offer(parser, "now")
    parser.add_argument(
        "--limit", metavar="N", type=count, help="how many leases, and tasks for each reason (100)"
    )


def _lease(parser: Parser) -> None:
    _lane(parser)
    parser.add_argument("--limit", metavar="N", type=count, help="at most so many (all that may)")
    parser.add_argument("--worker", metavar="NAME", help="who takes them (sched)")
    _ttl(parser)


def _ttl(parser: Parser) -> None:
    parser.add_argument(
        "--ttl", metavar="MS", type=milliseconds, help="how long; or like 5m (as the policy says)"
    )


def _lease_id(parser: Parser) -> None:
    parser.add_argument("lease", metavar="LEASE", help="the leaseId of a lease")


def _renew(parser: Parser) -> None:
    _lease_id(parser)
    _ttl(parser)


def _complete(parser: Parser) -> None:
    _lease_id(parser)
    parser.add_argument("--result", metavar="JSON", type=json_value, help="what came of it, kept")


def _release(parser: Parser) -> None:
    _lease_id(parser)
    parser.add_argument("--failed", action="store_true", help="it counts as an attempt")
    parser.add_argument("--reason", metavar="TEXT", help="with --failed: what went wrong")


def _policy_set(parser: Parser) -> None:
    for name, (read, about) in POLICY.items():
        kebab = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
        parser.add_argument(
            f"--{name}", f"--{kebab}", dest=name, metavar="N", type=read, help=about
        )


# -------------------------------------------------------------------- queue


def _add(parser: Parser) -> None:
    parser.epilog = "example:\n  fairlane queue add --app review --priority 20 --input pr=7"
    parser.add_argument("--app", "--appId", metavar="ID", help="what is to run it")
    parser.add_argument("--workflow", "--workflowId", metavar="ID")
    parser.add_argument("--run", "--runId", metavar="ID", help="a run to go on with")
    parser.add_argument("--repo", metavar="PATH", help="where it is to run (this folder)")
    offer(parser, "priority", priority="lower goes first (100); or high, low, …")
    parser.add_argument("--inputs", metavar="JSON", type=json_object, help="an object")
    named_values(parser, "--input", "one of the inputs")
    parser.add_argument("--id", metavar="ID", help="a name of its own; none that is taken")
    offer(parser, "note", "agent")


def _list(parser: Parser) -> None:
    parser.add_argument(
        "--status",
        metavar="STATUS",
        help="pending or ready (both wait), leased, parked, drained, cancelled, failed",
    )
    paging(parser)


def _drain(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=count, help="at most so many (1)")


def _import(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON; - reads stdin")
