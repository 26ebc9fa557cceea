"""Access tokens, and the audit log, which records what callers did with them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from fairlane.cli.backends import Side, connected, for_each, moment
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.options import count, declared, follow
from fairlane.cli.output import Columns, Fields, Output, Shape, ago, fields_of, print_json, shown
from fairlane.clock import SystemClock
from fairlane.core.errors import InvalidRequest
from fairlane.schema.tokens import CreateAccessToken

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_AUDIT_PAGE: Final = 1000
_LOOK_SECONDS: Final = 1.0
_CREATE_NOTE: Final = (
    "As soon as one token exists, every caller of the server needs one. Create the first token\n"
    "directly in the store (--store), or over HTTP while no token exists; after that, creating\n"
    "tokens over HTTP needs the scope admin. Scopes: submit, read, cancel (the default three),\n"
    "lease, approve, operate, admin, or all."
)


def register(commands: Commands) -> None:
    commands.noun(
        "token",
        _verbs,
        epilog="examples:\n"
        "  fairlane token create --name root --scope all --store sqlite:///fairlane.db\n"
        "  fairlane token create --name bot --agent a1 --expires 30d --rate 50/s --max-open 1000\n"
        "  fairlane token revoke bot",
    )
    note = "The newest entry is printed last. --follow runs until Ctrl-C."
    commands.add("audit", connected(audit), _audit_options, epilog=note)


def _verbs(token: Commands) -> None:
    about = "Create a token and print it; it is shown only once"
    run = connected(create, create=True)
    token.add("create", run, _create_options, about, epilog=_CREATE_NOTE)
    token.add("list", connected(list_), None, "List all tokens, including revoked ones")
    token.add("revoke", connected(revoke), _revoke_options, "Revoke tokens immediately")


# -------------------------------------------------------------------- tokens


def _create_options(parser: Parser) -> None:
    request = CreateAccessToken
    declared(parser, request, "name", metavar="NAME", required=True)
    declared(parser, request, "agent", metavar="ID")
    about = "what the token may do; repeat the option or separate scopes with commas"
    declared(parser, request, "scopes", "--scope", metavar="SCOPE", help=about)
    about = "when the token expires: a duration like 30d, a date, or RFC 3339 (default: never)"
    declared(parser, request, "expires_at", "--expires", metavar="TIME", help=about)
    declared(parser, request, "rate", metavar="N/UNIT")
    declared(parser, request, "max_open")


def create(args: argparse.Namespace, side: Side, out: Output) -> None:
    token = side.client.create_token(
        args.name,
        agent=args.agent,
        scopes=args.scope or (),
        expires_at=_expiry(args.expires),
        rate=args.rate,
        max_open=args.max_open,
    )
    out.secret(token, token["token"], f"{_about(token)}; save it now; it will not be shown again")


def _about(token: Shape) -> str:
    agent = f" of agent {token['agentId']}" if "agentId" in token else ""
    until = f", until {token['expiresAt']}" if "expiresAt" in token else ""
    return f"token {token['id']} ({token['name']}){agent}: {', '.join(token['scopes'])}{until}"


def _expiry(text: str | None) -> str | None:
    """Return the time that `--expires` means. A date is its first moment in UTC."""
    if text is None:
        return None
    if _DATE.fullmatch(text):
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
        except ValueError as error:
            raise InvalidRequest(f"--expires: {error}") from None
    return moment(text)


def list_(_: argparse.Namespace, side: Side, out: Output) -> None:
    none = "no tokens: the server trusts every caller on this machine"
    out.page(side.client.tokens(), "tokens", TOKENS, none=none)


def _state(token: Fields) -> str:
    if "revokedAt" in token:
        return "revoked"
    return f"until {token['expiresAt']}" if "expiresAt" in token else "valid"


TOKENS: Final[Columns] = {
    "TOKEN": "id",
    "NAME": "name",
    "AGENT": lambda token: token.get("agentId", "-"),
    "SCOPES": lambda token: ",".join(token["scopes"]),
    "USED": lambda token: ago(token["lastUsedAt"]) if "lastUsedAt" in token else "never",
    "STATE": _state,
}


def _revoke_options(parser: Parser) -> None:
    parser.add_argument("tokens", metavar="TOKEN", nargs="+", help="token IDs or names")


def revoke(args: argparse.Namespace, side: Side, out: Output) -> int:
    def act(token: str) -> None:
        response = side.client.revoke_token(token)
        out.line(response, f"revoked {response['name']} ({response['id']})")

    return for_each(args, args.tokens, act)


# -------------------------------------------------------------------- audit


def _audit_options(parser: Parser) -> None:
    parser.add_argument("--who", metavar="NAME", help="only entries made with this token")
    about = "only entries for this action, such as 'PATCH /policy'"
    parser.add_argument("--action", metavar="ACTION", help=about)
    about = "only entries with this outcome: done, refused, denied or blocked"
    parser.add_argument("--outcome", metavar="OUTCOME", help=about)
    about = "maximum number of entries (default 100)"
    parser.add_argument("--limit", metavar="N", type=count, default=100, help=about)
    follow(parser, "keep printing new entries", "-f")


def audit(args: argparse.Namespace, side: Side, out: Output) -> None:
    page = _page(side, args, args.limit)
    if args.follow:
        for entry in _as_they_come(side, args, page["entries"]):
            if args.json:
                print_json(entry)
            else:
                sys.stdout.write(f"{_line(entry)}\n")
            sys.stdout.flush()
    elif args.json:
        print_json(page)
    else:
        entries = fields_of(page)["entries"][::-1]
        out.page({"entries": entries}, "entries", AUDIT, none="no audit log entries match")


AUDIT: Final[Columns] = {
    name.upper(): name for name in ("at", "outcome", "who", "action", "target", "detail")
}


def _page(
    side: Side,
    args: argparse.Namespace,
    limit: int,
    after: int | None = None,
    cursor: str | None = None,
) -> Shape:
    which = {"who": args.who, "action": args.action, "outcome": args.outcome}
    page: Shape = side.client.audit(limit=limit, after=after, cursor=cursor, **which)
    return page


def _as_they_come(
    side: Side, args: argparse.Namespace, entries: Sequence[Fields]
) -> Iterator[Fields]:
    """Yield entries, oldest first, and then new ones forever."""
    last = 0
    while True:
        yield from reversed(entries)
        last = entries[0]["id"] if entries else last
        SystemClock().sleep(_LOOK_SECONDS)
        entries = _since(side, args, last)


def _since(side: Side, args: argparse.Namespace, after: int) -> list[Fields]:
    """Return all entries after one, newest first."""
    found: list[Fields] = []
    cursor: str | None = None
    while True:
        page = _page(side, args, _AUDIT_PAGE, after, cursor)
        found += page["entries"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


def _line(entry: Fields) -> str:
    words = (entry["at"], entry["outcome"], entry["who"], entry["action"], entry.get("target", ""))
    return shown("  ".join([*words, entry.get("detail", "")]).rstrip())
