"""Text for a terminal, printed with rich: tables, labelled values, colours, progress.

Rich colours text only on a terminal and respects NO_COLOR. In a pipe, lines are never cut.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fairlane.cli.output import Cell, Columns, Fields, Layouts, Say, Styled, shortened, shown

PIPE_WIDTH: Final = 10_000
_CELL_CHARACTERS: Final = 200


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of exiting with 1, as rich does: `main` knows the exit code."""
        raise BrokenPipeError


def console(file: TextIO) -> Console:
    width = None if file.isatty() else PIPE_WIDTH
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False)


class Terminal:
    """Standard output for human readers, not for scripts."""

    def __init__(self) -> None:
        self.console = console(sys.stdout)
        self._has_header = False

    def line(self, *parts: Cell) -> None:
        """Print one line. It is never wrapped, so that it can be copied whole."""
        self.console.print(rich_text(parts), soft_wrap=True)

    def write(self, text: str) -> None:
        """Print text as it is, without a line break after it."""
        sys.stdout.write(shown(text, lines=True))
        sys.stdout.flush()

    def end_line(self, *, ends_line: bool) -> None:
        """Begin a new line on a terminal, before a note. Text in a pipe stays as it is."""
        if not ends_line and self.console.is_terminal:
            self.write("\n")

    def note(self, text: str) -> None:
        sys.stdout.flush()
        console(sys.stderr).print(Text(shown(text), style="bright_black"))

    def grid(self, lines: Iterable[tuple[str, Cell]]) -> None:
        """Print one labelled value per line."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in lines:
            grid.add_row(Text(shown(name), style="bright_black"), rich_text(value))
        self._print(grid)

    def table(
        self,
        columns: Columns,
        rows: Iterable[Fields],
        *,
        header: bool = True,
        layouts: Layouts | None = None,
    ) -> None:
        """Print a table with the columns that the screen has room for."""
        fitting = (widths for least, widths in layouts or () if self.console.width >= least)
        widths = next(fitting, {}) if self.console.width < PIPE_WIDTH else {}
        names = [name for name in columns if widths.get(name) != 0]
        cells = [[_cell(columns[name], row) for name in names] for row in rows]
        if names and names[0] == "TASK" and widths.get("TASK"):
            ids = short_ids([row[0].plain for row in cells], widths["TASK"])
            cells = [[Text(one), *row[1:]] for one, row in zip(ids, cells, strict=True)]
            widths = {**widths, "TASK": max(map(len, ids), default=0)}
        self._print(table(names, cells, header=header, widths=widths))

    def page(
        self,
        page: Fields,
        items: Sequence[Fields],
        columns: Columns,
        *,
        none: str,
        more: bool,
        layouts: Layouts | None = None,
    ) -> None:
        """Print a page of a list; `more` says that the next page follows.

        The header is printed once, above the first page that is not empty.
        """
        if items:
            self.table(columns, items, header=not self._has_header, layouts=layouts)
            self._has_header = True
        elif not self._has_header and not (more and "nextCursor" in page):
            for line in ("none on this page" if "nextCursor" in page else none).splitlines():
                self.line(line)
        self.tell_more(page, more=more)

    def tell_more(self, page: Fields, *, more: bool) -> None:
        if "nextCursor" in page and not more:
            self.note(f"more items follow; add --cursor {page['nextCursor']}, or --all")

    @contextlib.contextmanager
    def progress(self, total: int, *, plain: bool) -> Iterator[Say]:
        errors = console(sys.stderr)
        if not errors.is_terminal or errors.is_dumb_terminal:
            yield _progress_lines(total) if plain else lambda *_: None
        elif total == 1:
            with errors.status("") as status:
                yield lambda _, text: status.update(Text(shown(text)))
        else:
            text = TextColumn("{task.description}", markup=False)
            bar = Progress(
                text, BarColumn(30), MofNCompleteColumn(), console=errors, transient=True
            )
            with bar:
                task = bar.add_task("", total=total)
                yield lambda done, text: bar.update(task, completed=done, description=shown(text))

    def _print(self, drawn: Table) -> None:
        if self.console.is_terminal:
            self.console.print(drawn)
            return
        with self.console.capture() as captured:
            self.console.print(drawn)
        for line in captured.get().splitlines():
            self.line(line.rstrip())


def short_ids(ids: Sequence[str], least: int) -> list[str]:
    """Return the beginnings of ids, as long as needed to tell them apart; every command takes
    them.
    """
    length = least
    while len({one[:length] for one in ids}) < len(set(ids)):
        length += 1
    return [one[:length] for one in ids]


def rich_text(cell: Cell, limit: int | None = None) -> Text:
    """Return a cell as text; numbers are aligned to the right."""
    if isinstance(cell, Styled):
        plain = shown(cell.text, lines=cell.lines)
        return Text(plain if limit is None else shortened(plain, limit), style=cell.style)
    if isinstance(cell, tuple):
        return Text.assemble(*(rich_text(part, limit) for part in cell))
    plain = shown(str(cell))
    right = isinstance(cell, int | float)
    return Text(
        plain if limit is None else shortened(plain, limit), justify="right" if right else None
    )


def table(
    names: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    header: bool = True,
    widths: Mapping[str, int] | None = None,
) -> Table:
    """Return a table whose columns are as wide as needed, up to `widths`; the last has the rest."""
    drawn = Table(box=None, show_header=header, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        needed = max([len(name), *(row[number].cell_len for row in rows)])
        width = min(needed, (widths or {}).get(name, needed))
        last = number == len(names) - 1
        least = len(name) if last else width
        drawn.add_column(name, no_wrap=True, overflow="ellipsis", min_width=least, max_width=width)
    for row in rows:
        drawn.add_row(*row)
    return drawn


def drawn_table(
    columns: Columns, rows: Iterable[Fields], widths: Mapping[str, int] | None = None
) -> Table:
    cells = [[_cell(column, row) for column in columns.values()] for row in rows]
    return table(list(columns), cells, widths=widths)


def _cell(column: object, row: Fields) -> Text:
    found = column(row) if callable(column) else row.get(str(column), "")
    return rich_text(found, _CELL_CHARACTERS)


def _progress_lines(total: int) -> Say:
    """Print a line whenever the number changes, for logs."""
    last = -1

    def say(done: int, _: str) -> None:
        nonlocal last
        if done != last:
            last = done
            sys.stderr.write(f"{done} of {total} finished\n")
            sys.stderr.flush()

    return say
