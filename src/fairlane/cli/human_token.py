"""Tokens for people: a table of them."""

from __future__ import annotations

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape


class HumanTokenOutput(HumanOutput):
    def tokens(self, answer: Shape) -> None:
        if not answer["tokens"]:
            self._line("no tokens: whoever reaches the server on this machine is trusted")
            return
        rows = [
            [
                drawing.text(one["id"]),
                drawing.text(one["name"]),
                drawing.text(one.get("agentId", "-")),
                drawing.text(",".join(one["scopes"])),
                drawing.text(self._ago(one["lastUsedAt"]) if "lastUsedAt" in one else "never"),
                drawing.text(_state(one)),
            ]
            for one in answer["tokens"]
        ]
        names = ("TOKEN", "NAME", "AGENT", "SCOPES", "USED", "STATE")
        self._print(drawing.table(names, rows, header=True))


def _state(token: Shape) -> str:
    if "revokedAt" in token:
        return "revoked"
    return f"until {token['expiresAt']}" if "expiresAt" in token else "valid"
