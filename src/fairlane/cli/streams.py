"""Commands that print what comes: events, and the text that a task produces."""

from __future__ import annotations

import argparse
from contextlib import closing

from fairlane.cli import exits
from fairlane.cli.backends import opened
from fairlane.cli.output import for_people


def events(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        found = side.client.events(
            after=args.after,
            follow=args.follow,
            task=args.task,
            batch=args.batch,
            agent=args.agent,
            lane=args.lane,
            types=args.type or (),
        )
        with closing(found):
            for event in found:
                out.event(event)
    return exits.OK


def output(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        if not args.follow:
            out.output(side.client.output(args.id))
            return exits.OK
        with closing(side.client.output(args.id, follow=True)) as pieces:
            for piece in pieces:
                out.piece(piece)
    return exits.OK
