"""What the commands of `fairlane token` do. The token goes to the output, once; what is said about
it goes elsewhere, so that `fairlane token create … > file` keeps the token and nothing besides.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from fairlane import wire
from fairlane.cli import exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.output import Shape, print_json
from fairlane.cli.text import shown
from fairlane.cli.values import span_ms
from fairlane.clock import SystemClock
from fairlane.core.errors import InvalidRequest

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def create(args: argparse.Namespace) -> int:
    with _opened(args, create=True) as side:
        made = side.client.create_token(
            args.name,
            agent=args.agent,
            scopes=args.scope or (),
            expires_at=_moment(args.expires),
            rate=args.rate,
            max_open=args.max_open,
        )
    if args.json:
        print_json(made)
        return exits.OK
    sys.stderr.write(f"{shown(_about(made))}; keep it: it is not shown again\n")
    sys.stdout.write(f"{made['token']}\n")
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with _opened(args) as side:
        found = side.client.tokens()
    if args.json:
        print_json(found)
        return exits.OK
    from fairlane.cli.human_token import HumanTokenOutput  # noqa: PLC0415 - slow to import

    HumanTokenOutput().tokens(found)
    return exits.OK


def revoke(args: argparse.Namespace) -> int:
    with _opened(args) as side:
        for token in args.tokens:
            gone = side.client.revoke_token(token)
            if args.json:
                print_json(gone)
            else:
                sys.stdout.write(f"revoked {shown(gone['name'])} ({gone['id']})\n")
    return exits.OK


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "create": create,
    "list": list_,
    "revoke": revoke,
}


@contextlib.contextmanager
def _opened(args: argparse.Namespace, *, create: bool = False) -> Iterator[Backend]:
    side = backend(args, create=create)
    with side.client:
        yield side


def _about(token: Shape) -> str:
    whose = f" of agent {token['agentId']}" if "agentId" in token else ""
    until = f", until {token['expiresAt']}" if "expiresAt" in token else ""
    return f"token {token['id']} ({token['name']}){whose}: {', '.join(token['scopes'])}{until}"


def _moment(text: str | None) -> str | None:
    """A moment as the route wants it. A date means its first moment, in UTC."""
    if text is None:
        return None
    span = span_ms(text)
    if span is not None:
        return wire.moment(SystemClock().now() + span)
    if _DATE.fullmatch(text):
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
        except ValueError as error:
            raise InvalidRequest(f"--expires: {error}") from None
    return text
