"""Numbers and tables as people see them; plain text without a terminal."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 200


def console(file: IO[str] | None = None) -> Console:
    """Return a console for standard output (or `file`), with the terminal's colours and width."""
    made = Console(file=file, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made


def screen() -> Console:
    """Return a console for output that is drawn in place: its lines end at the terminal's edge.

    A line that the terminal itself breaks is not counted, and a piece of it would remain.
    """
    return Console(highlight=False)


def human_bytes(count: float) -> str:
    """Return `1.5 GiB`; whole bytes below 1 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_count(count: float) -> str:
    """Return `1 234 567`, with narrow groups, for rows and rates."""
    return f"{count:,.0f}".replace(",", " ")


def human_seconds(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def grid(rows: list[tuple[str, str]]) -> Table:
    """Return `pairs` for a screen: a long value continues on the next line, in its own column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def pairs(rows: list[tuple[str, str]]) -> Text:
    """Return labels and values in two columns, without lines."""
    width = max((len(label) for label, _ in rows), default=0) + 2
    text = Text()
    for number, (label, value) in enumerate(rows):
        text.append(label.ljust(width), style="dim").append(value)
        if number < len(rows) - 1:
            text.append("\n")
    return text
