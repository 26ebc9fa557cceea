"""Webhooks for people: the log of deliveries, one of them with its tries, and the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape

_WIDTHS: Final[Mapping[str, int]] = {"TO": 40, "LAST": 50}
_MOMENTS: Final = ("createdAt", "settledAt", "nextAt")


class HumanWebhookOutput(HumanOutput):
    def deliveries(self, page: Shape, *, more: bool) -> None:
        none = "no webhooks are or were owed"
        self._page(page, page["deliveries"], self._delivery_table, none, more=more)

    def _delivery_table(self, found: list[Shape], *, header: bool) -> Table:
        rows = [
            [
                drawing.text(one["id"]),
                drawing.text(one["event"]),
                drawing.text(one["url"]),
                drawing.text(one["state"].replace("_", " ")),
                Text(str(one["attempts"]), justify="right"),
                drawing.text(self._ago(one["createdAt"])),
                drawing.text(_last(one)),
            ]
            for one in found
        ]
        names = ("DELIVERY", "EVENT", "TO", "STATE", "TRIES", "OWED", "LAST")
        widths = _WIDTHS if self._console.is_terminal else None
        return drawing.table(names, rows, header=header, widths=widths)

    def delivery(self, one: Shape) -> None:
        table = drawing.grid()
        for name, value in one.items():
            if name == "tries":
                continue
            told = f"{value} ({self._ago(value)})" if name in _MOMENTS else str(value)
            table.add_row(
                Text(drawing.label(name), style="bright_black"), drawing.text(told, limit=None)
            )
        self._print(table)
        if one["tries"]:
            self._line("")
            self._print_tries(one["tries"])

    def _print_tries(self, tries: list[Shape]) -> None:
        rows = [
            [
                Text(str(one["attempt"]), justify="right"),
                drawing.text(self._ago(one["at"])),
                drawing.text(drawing.span(one["tookMs"]) if "tookMs" in one else "-"),
                drawing.text(str(one.get("status", "-"))),
                drawing.text(one.get("error", "")),
            ]
            for one in tries
        ]
        self._print(drawing.table(("TRY", "ENDED", "TOOK", "STATUS", "ERROR"), rows, header=True))

    def new_secret(self, endpoint: Shape) -> None:
        overlaps = "previousUntil" in endpoint
        until = f"; the old one signs too until {endpoint['previousUntil']}" if overlaps else ""
        about = f"{endpoint['id']} for {endpoint['url']}{until}"
        self._secret(endpoint["secret"], f"{about}; keep its secret: it is not shown again")

    def done(self, answer: Shape, told: str) -> None:
        self._line(f"{answer['id']} {told}")

    def endpoints(self, page: Shape, *, more: bool) -> None:
        none = "no endpoint has a secret of its own: all share the common one"
        self._page(page, page["endpoints"], self._endpoint_table, none, more=more)

    def _endpoint_table(self, found: list[Shape], *, header: bool) -> Table:
        rows = [
            [
                drawing.text(one["id"]),
                drawing.text(one["url"]),
                drawing.text(one.get("agentId", "all")),
                drawing.text(one["state"]),
                drawing.text(self._ago(one.get("rotatedAt", one["createdAt"]))),
            ]
            for one in found
        ]
        names = ("ENDPOINT", "URL", "AGENT", "STATE", "SECRET")
        return drawing.table(names, rows, header=header)


def _last(one: Shape) -> str:
    if "lastError" in one:
        return str(one["lastError"])
    return f"answered {one['lastStatus']}" if "lastStatus" in one else ""
