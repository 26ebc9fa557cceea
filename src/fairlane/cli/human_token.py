"""Tokens for people: a table of them, and a new one."""

from __future__ import annotations

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape


class HumanTokenOutput(HumanOutput):
    def made(self, token: Shape) -> None:
        self._secret(token["token"], f"{_about(token)}; keep it: it is not shown again")

    def revoked(self, token: Shape) -> None:
        self._line(f"revoked {token['name']} ({token['id']})")

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


def _about(token: Shape) -> str:
    whose = f" of agent {token['agentId']}" if "agentId" in token else ""
    until = f", until {token['expiresAt']}" if "expiresAt" in token else ""
    return f"token {token['id']} ({token['name']}){whose}: {', '.join(token['scopes'])}{until}"


def _state(token: Shape) -> str:
    if "revokedAt" in token:
        return "revoked"
    return f"until {token['expiresAt']}" if "expiresAt" in token else "valid"
