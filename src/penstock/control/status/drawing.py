"""Parts of the view of a run on a screen: the bulk load, the changes, tables out of step.

No line is longer than the screen, numbers stand below each other, and a long name is shortened in
its middle, because its two ends tell it from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.control.pipeline.display import grid, human_bytes, human_count, human_seconds
from penstock.control.status.run_events import table_text
from penstock.control.status.status import Status
from penstock.control.tables.table_list import TableLine
from penstock.load.bulk_progress import BulkProgress, TableProgress, share_of
from penstock.model import TableName
from penstock.model.words import count_words

TABLES_SHOWN_MAX = 12
TABLES_SHOWN_MIN = 3
BAR_WIDTH = 28
BAR_WIDTH_NARROW = 10
WIDE = 100
MIDDLE = 66
NARROW = 50
NAME_WIDTH_MIN = 9  # of `bulk load`
STATE_NAME_WIDTH_MAX = 44
LABEL_WIDTH = 12  # of `  change log`
GAP = 2


def indent(text: str, style: str = "", by: int = 2) -> RenderableType:
    """Return a line of the view; its continuation lines are indented as well."""
    return Padding(Text(text, style=style), (0, 0, 0, by), expand=False)


def shorten(name: str, width: int) -> str:
    """Return the name, with `…` in place of its middle if it is wider than this."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return name[: width - 1 - end] + "…" + name[len(name) - end :]


def shown_names(names: Sequence[TableName]) -> list[str]:
    """Return the names for people: without the schema if all have the same."""
    if len({name.schema for name in names}) == 1:
        return [name.name for name in names]
    return [str(name) for name in names]


def shown_count(lines_left: int) -> int:
    """Return how many tables to list on a screen with so many lines left for them."""
    return max(TABLES_SHOWN_MIN, min(TABLES_SHOWN_MAX, lines_left))


# --- tables that are not in step --------------------------------------------------------------


def lines_out_of_step(status: Status) -> list[TableLine]:
    """Return the tables that are not in step; those with errors first."""
    lines = [line for line in status.tables if line.state != "following" or line.wanted]
    lines = [line for line in lines if line.state != "removed" or line.wanted]
    return sorted(lines, key=lambda line: not line.error)


def table_rows(status: Status) -> list[tuple[str, str]]:
    """Return a text and style for each table that is not in step, for lines of any length."""
    lines = lines_out_of_step(status)
    rows = [
        (table_text(line), "red" if line.error else "yellow") for line in lines[:TABLES_SHOWN_MAX]
    ]
    if len(lines) > TABLES_SHOWN_MAX:
        rows.append((f"and {len(lines) - TABLES_SHOWN_MAX} more: penstock table ls", ""))
    return rows


def table_states(status: Status, width: int, most: int = TABLES_SHOWN_MAX) -> list[RenderableType]:
    """Return lines for a screen: name and state of each table in columns, below it why.

    Args:
        status: The newest status.
        width: Width of the screen.
        most: How many tables to list.
    """
    every = lines_out_of_step(status)
    lines = every[:most]
    if not lines:
        return []
    states = [_state_text(line) for line in lines]
    room = width - 2 - GAP - max(map(len, states))
    names = [shorten(str(line.table), min(room, STATE_NAME_WIDTH_MAX)) for line in lines]
    across = max(map(len, names))
    drawn: list[RenderableType] = []
    for line, name, state in zip(lines, names, states, strict=True):
        style = "red" if line.error else "yellow"
        drawn.append(Text.assemble(f"  {name:<{across}}  ", (state, style)))
        if line.error:
            drawn.append(indent(f"{line.code} {line.error}", style, by=4))
            drawn.append(indent(f"next: {line.hint}", by=4))
    if len(every) > most:
        drawn.append(indent(f"and {len(every) - most} more: penstock table ls", "dim"))
    return drawn


def _state_text(line: TableLine) -> str:
    return line.state + (f", on its way to {line.wanted}" if line.wanted else "")


# --- changes ----------------------------------------------------------------------------------


def change_rows(
    status: Status, log_rate: float | None = None, applied_rate: float | None = None
) -> list[tuple[str, str]]:
    """Return label and value of present changes. Rates in rows/s; None: not known."""
    rows = [
        (
            "  extracted",
            f"{_rows_in(status.log.end.gsn, status.log.end.trx)}{_rate(log_rate)}"
            f"{_up_to(status, status.log.end.position)}",
        ),
    ]
    if status.has_target:
        rows.append(("  loaded", _loaded_text(status, applied_rate)))
    rows.append(("  lag", _lag_text(status)))
    rows.append(("  change log", _log_text(status)))
    if status.target.action != "RUN":
        rows.append(("  action", f"{status.target.action} (wirekite.wirekite_action)"))
    return rows


def change_table(
    status: Status, log_rate: float | None, applied_rate: float | None, *, is_loading: bool
) -> Table:
    """Return the figures of extraction and load. is_loading: only the log has some."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    table.add_column("", style="dim", no_wrap=True, min_width=LABEL_WIDTH)
    for heading in ("rows", "transactions", "rows/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("up to", overflow="fold")
    end, applied = status.log.end, status.target.applied
    table.add_row(
        "  extracted",
        human_count(end.gsn),
        human_count(end.trx),
        _rate_cell(log_rate),
        status.positions.text(end.position) if end.position else "",
    )
    if not status.has_target or is_loading:
        return table
    if status.target.unknown:
        table.add_row("  loaded", "unknown", "", "", status.why_no_lag)
        return table
    place = status.positions.text(applied.position) if applied.position else ""
    if status.outage("target") is not None:
        place, applied_rate = f"{place} when read at {_read_at(status)}", None
    table.add_row(
        "  loaded",
        human_count(applied.gsn),
        human_count(applied.trx),
        _rate_cell(applied_rate),
        place,
    )
    return table


def change_facts(status: Status, loads: str, *, is_loading: bool) -> Table:
    """Return lag, change log and the work of Spark, each in a line. loads: that work in words."""
    rows = [] if is_loading else [("  lag", _lag_text(status))]
    rows.append(("  change log", _log_text(status)))
    if loads:
        rows.append(("  spark", loads))
    if status.target.action != "RUN":
        rows.append(("  action", f"{status.target.action} (wirekite.wirekite_action)"))
    return grid(rows)


def _rate_cell(rate: float | None) -> str:
    return "" if rate is None else human_count(rate)


def _lag_text(status: Status) -> str:
    lag, words = status.lag, status.lag_words
    if lag is None or lag.seconds is None:
        return words
    parts = [count_words(lag.rows, "row")] if status.has_target else []
    if lag.counts_bytes:
        parts.append(f"{human_bytes(lag.applied_bytes)} of the source's log")
    return ", ".join([words, *parts])


def _log_text(status: Status) -> str:
    return f"{count_words(status.log.segments, 'segment')}, {human_bytes(status.log.size_bytes)}"


def _loaded_text(status: Status, applied_rate: float | None) -> str:
    if status.target.unknown:
        return f"unknown: {status.why_no_lag}"
    applied = status.target.applied
    rows = _rows_in(applied.gsn, applied.trx)
    if status.outage("target") is not None:
        return f"{rows} when last read, at {_read_at(status)}"
    return f"{rows}{_rate(applied_rate)}{_up_to(status, applied.position)}"


def _read_at(status: Status) -> str:
    return f"{datetime.fromtimestamp(status.target_read_us / 1e6, UTC):%H:%M:%S} UTC"


def _rows_in(rows: int, transactions: int) -> str:
    return f"{count_words(rows, 'row')} in {count_words(transactions, 'transaction')}"


def _up_to(status: Status, position: int) -> str:
    """Return the words for a position where something ends; empty if no position is known yet."""
    return f", up to {status.positions.text(position)}" if position else ""


def _rate(rows_per_s: float | None) -> str:
    return "" if rows_per_s is None else f", {human_count(rows_per_s)} rows/s"


# --- the bulk load ----------------------------------------------------------------------------


def tables_done(bulk: BulkProgress) -> str:
    """Return how many tables are loaded: `1 of 12 tables`."""
    loaded = sum(t.chunks_done == t.chunks_total for t in bulk.tables)
    return f"{loaded} of {count_words(len(bulk.tables), 'table')}"


def time_left(item: TableProgress | BulkProgress) -> str:
    """Return the time to go; empty if it is not known."""
    return human_seconds(item.eta_s) if share_of(item) < 1.0 and item.eta_s is not None else ""


def bulk_table(bulk: BulkProgress, width: int = WIDE, most: int = TABLES_SHOWN_MAX) -> Table:
    """Return a bar per table that is not loaded yet, the largest first, and one for all.

    Args:
        bulk: The progress.
        width: Width of the screen; a narrow one has shorter bars and fewer figures.
        most: How many tables to list.
    """
    open_tables = [t for t in bulk.tables if t.chunks_done < t.chunks_total]
    open_tables.sort(key=lambda t: -t.bytes_total)
    names = shown_names([item.table for item in bulk.tables])
    named = dict(zip((item.table for item in bulk.tables), names, strict=True))
    whole = "bulk load paused" if bulk.phase == "paused" else "bulk load"
    rows = [
        *((named[item.table], _figures(item, width)) for item in open_tables[:most]),
        (whole, _figures(bulk, width)),
    ]
    room = width - 2 - sum(_widths(rows, width)) - GAP * (len(rows[0][1]) + 1) - _bar_width(width)
    across = max(room, NAME_WIDTH_MIN)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    table.add_column(f"  {tables_done(bulk)}", no_wrap=True)
    for heading in _headings(width):
        table.add_column(heading, justify="right" if heading != "" else "left", no_wrap=True)
    for number, (name, figures) in enumerate(rows):
        if number == len(rows) - 1 and len(open_tables) > most:
            table.add_row(f"  and {len(open_tables) - most} more", style="dim")
        item = open_tables[number] if number < len(rows) - 1 else bulk
        bar = ProgressBar(total=1.0, completed=share_of(item), width=_bar_width(width))
        cells: list[RenderableType] = [*figures[:-2], bar, *figures[-2:]]
        table.add_row(f"  {shorten(name, across)}", *cells)
    return table


def _headings(width: int) -> list[str]:
    rows = ["rows"] if width >= NARROW else []
    rates = ["rows/s"] if width >= MIDDLE else []
    return [*rows, *rates, "", "", "to go"]


def _figures(item: TableProgress | BulkProgress, width: int) -> list[str]:
    """Return rows, rate, share and time to go, as far as the screen has room for them."""
    share = share_of(item)
    waits = "waits" if not item.rows_done and share == 0.0 else ""
    if share == 1.0:
        left = "keys, indexes" if isinstance(item, BulkProgress) else "done"
    else:
        left = time_left(item) or waits
    rows = [human_count(item.rows_done)] if width >= NARROW else []
    rates = [_rate_cell(item.rows_per_s or None)] if width >= MIDDLE else []
    return [*rows, *rates, f"{share:.0%}", left]


def _widths(rows: Sequence[tuple[str, list[str]]], width: int) -> list[int]:
    headings = [heading for heading in _headings(width) if heading]
    columns = list(zip(*(figures for _, figures in rows), strict=True))
    names = [*headings[:-1], "", headings[-1]]
    return [
        max(len(heading), *map(len, column)) for heading, column in zip(names, columns, strict=True)
    ]


def _bar_width(width: int) -> int:
    return BAR_WIDTH if width >= WIDE else BAR_WIDTH_NARROW if width >= MIDDLE else 6
