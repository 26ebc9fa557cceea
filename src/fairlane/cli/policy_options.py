"""The options of `fairlane policy`."""

from __future__ import annotations

from fairlane.cli.options import Commands, Parser, offer, paging
from fairlane.cli.values import whole


def fill(commands: Commands) -> None:
    commands.noun(
        "policy",
        "Look at the policy, change it, compare its versions, go back to one",
        _verbs,
        "examples:\n"
        "  fairlane policy show > policy.json\n"
        "  fairlane policy set lanes.main.maxInflight=50 --note 'more room'\n"
        "  fairlane policy set --file policy.json --dry-run\n"
        "  fairlane policy rollback 3",
    )


def _verbs(policy: Commands) -> None:
    policy.add("show", "Print the policy in force, or one of its versions", _show)
    policy.add("set", "Change keys of the policy, or replace all of it", _set)
    policy.add("check", "Say what is wrong with a policy file, or what it would change", _check)
    policy.add("versions", "List the versions: who, when, why and what", paging)
    policy.add("diff", "Compare two versions", _diff)
    policy.add("rollback", "Make an old version the newest one", _rollback)


def _show(parser: Parser) -> None:
    parser.add_argument("--version", metavar="N", type=whole, help="0 for the defaults")


def _set(parser: Parser) -> None:
    parser.epilog = (
        "VALUE is JSON, or a word: null brings the default back, none takes a limit away.\n"
        'A name with a dot stands in quotes: agents."bot@example.com".weight=2.'
    )
    parser.add_argument("assignments", metavar="PATH=VALUE", nargs="*", default=[])
    parser.add_argument(
        "--file", metavar="FILE", help="replace all of it by this JSON; - reads stdin"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would change")
    _why(parser)


def _check(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON; - reads stdin")


def _diff(parser: Parser) -> None:
    parser.add_argument(
        "before", metavar="FROM", nargs="?", type=whole, help="the one before TO; 0: the defaults"
    )
    parser.add_argument("after", metavar="TO", nargs="?", type=whole, help="the version in force")


def _rollback(parser: Parser) -> None:
    parser.add_argument("version", metavar="VERSION", type=whole, help="0 for the defaults")
    _why(parser)


def _why(parser: Parser) -> None:
    offer(parser, "note", note="why, kept with the version")
    parser.add_argument("--author", metavar="NAME", help="who wants it (you)")
    parser.add_argument(
        "--expect", metavar="N", type=whole, help="refuse when another version is in force"
    )
