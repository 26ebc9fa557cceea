"""Templates for people: a table of them, one of them, and what one becomes when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape
from fairlane.cli.text import shown

_WIDTHS: Final[Mapping[str, int]] = {"NAME": 30}
_MOMENTS: Final = ("createdAt", "updatedAt")
_FIRST: Final = ("id", "name", "usageCount")


class HumanTemplateOutput(HumanOutput):
    def templates(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["templates"], self._template_table, "no templates", more=more)

    def template(self, template: Shape) -> None:
        self._print_lines(self._template_lines(template))

    def kept(self, template: Shape, verb: str) -> None:
        self._line(f"{verb} {template['id']} ({template['name']})")

    def deleted(self, answer: Shape) -> None:
        self._line(f"deleted {answer['id']}")

    def filled(self, body: Shape) -> None:
        self._print_lines((drawing.label(name), _value(value)) for name, value in body.items())

    def _template_table(self, templates: Iterable[Shape], *, header: bool) -> Table:
        rows = [
            [
                drawing.text(one["id"]),
                drawing.text(one["name"]),
                Text(str(one["usageCount"]), justify="right"),
                drawing.text(self._ago(one["createdAt"])),
                drawing.text(" ".join(map(_brief, one["parameters"]))),
            ]
            for one in templates
        ]
        names = ("TEMPLATE", "NAME", "USED", "CREATED", "PARAMETERS")
        widths = _WIDTHS if self._console.is_terminal else None
        return drawing.table(names, rows, header=header, widths=widths)

    def _print_lines(self, lines: Iterable[tuple[str, Text]]) -> None:
        rows = drawing.grid()
        for name, value in lines:
            rows.add_row(Text(name, style="bright_black"), value)
        self._print(rows)

    def _template_lines(self, template: Shape) -> Iterator[tuple[str, Text]]:
        yield "template", drawing.text(template["id"], limit=None)
        yield "name", drawing.text(template["name"], limit=None)
        yield "used", drawing.text(_times(template["usageCount"]))
        for name, value in template.items():
            if name in _FIRST or value in ("", []):
                continue
            if name in _MOMENTS:
                yield drawing.label(name), drawing.text(f"{value} ({self._ago(value)})")
            elif name == "parameters":
                yield from (
                    ("parameter", drawing.text(_described(one), limit=None)) for one in value
                )
            else:
                yield drawing.label(name), _value(value)


def _value(value: Any) -> Text:
    if isinstance(value, str):
        return Text(shown(value, lines=True))
    return drawing.text(value) if isinstance(value, int | float) else drawing.pretty(value)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _brief(parameter: Shape) -> str:
    """Those that may be left out in brackets."""
    name = str(parameter["name"])
    return name if parameter["required"] and "default" not in parameter else f"[{name}]"


def _described(parameter: Shape) -> str:
    told = f"{parameter['name']}: {parameter['type']}"
    if "default" in parameter:
        told += f", {drawing.pretty(parameter['default']).plain} if not given"
    elif parameter["required"]:
        told += ", required"
    return told + (f" - {parameter['description']}" if parameter.get("description") else "")
