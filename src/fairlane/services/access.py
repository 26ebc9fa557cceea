"""Show the identity of the caller."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.engine.node import Node
from fairlane.schema import access as schema
from fairlane.schema.access import Identity, identity
from fairlane.services.registry import implements


@implements(schema.WHOAMI)
async def show_identity(node: Node, caller: Caller, _: schema.ShowIdentity) -> Identity:
    return identity(caller, tokens_required=node.tokens.required)
