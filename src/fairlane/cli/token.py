"""What the commands of `fairlane token` do."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fairlane.cli import exits
from fairlane.cli.asking import for_each, moment
from fairlane.cli.backends import opened
from fairlane.core.errors import InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.human_token import HumanTokenOutput

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def create(args: argparse.Namespace) -> int:
    with opened(args, _for_people, create=True) as (side, out):
        made = side.client.create_token(
            args.name,
            agent=args.agent,
            scopes=args.scope or (),
            expires_at=_moment(args.expires),
            rate=args.rate,
            max_open=args.max_open,
        )
        out.made(made)
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.tokens(side.client.tokens())
    return exits.OK


def revoke(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        revoke = side.client.revoke_token
        return for_each(args, args.tokens, lambda token: out.revoked(revoke(token)))


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "create": create,
    "list": list_,
    "revoke": revoke,
}


def _for_people() -> HumanTokenOutput:
    from fairlane.cli.human_token import HumanTokenOutput  # noqa: PLC0415 - slow to import

    return HumanTokenOutput()


def _moment(text: str | None) -> str | None:
    """A moment as the route wants it. A date means its first moment, in UTC."""
    if text is None:
        return None
    if _DATE.fullmatch(text):
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
        except ValueError as error:
            raise InvalidRequest(f"--expires: {error}") from None
    return moment(text)
