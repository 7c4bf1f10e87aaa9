"""Each table of a pipeline and its state: for `penstock table ls`, the web page and /metrics.

Read from the state files and the target, whether or not the pipeline runs. Not here: making
wishes (`table_wishes.py`).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock.control.config import Config
from penstock.control.table_copy import read_notes
from penstock.control.table_wishes import read_answers, read_wishes
from penstock.load.apart import Apart, ApartState, next_state
from penstock.load.progress import open_progress
from penstock.model import TableName
from penstock.model.wishes import Capture, CaptureAnswers, TableWish, TableWishes

APPLICATION_NAME = "penstock tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table that somebody has wished something for.

    state: where it is. wanted: what it is on its way to; empty when it is there. behind: row
    changes that the others have behind them and it has not, of all tables. code, error, hint: why
    it does not go on; empty when it does.
    """

    table: TableName
    state: str
    wanted: str = ""
    behind: int = 0
    code: str = ""
    error: str = ""
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As `penstock table ls --json` prints it."""
        return {
            "table": str(self.table),
            "state": self.state,
            "wanted": self.wanted,
            "behind_rows": self.behind,
            "code": self.code,
            "error": self.error,
            "hint": self.hint,
        }


def table_lines(config: Config) -> list[TableLine]:
    """The tables that are, were or shall be apart from the others, by name.

    Raises the typed errors of the target's connection.
    """
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        rows, applied = target.read_apart(), target.read_applied()
    notes = {note.table: note for note in read_notes(config) if note.error}
    wishes, answers = read_wishes(config), read_answers(config)
    lines = []
    for table in sorted({*rows, *(wish.table for wish in wishes.tables)}):
        line = line_of(rows.get(table), wishes.of(table), answers, applied_gsn=applied.gsn)
        note = notes.get(table)
        if note is not None and line.state == "copying" and not line.error:
            line = TableLine(
                table=table,
                state=line.state,
                wanted=line.wanted,
                behind=line.behind,
                code=note.code,
                error=note.error,
                hint=note.hint,
            )
        lines.append(line)
    return lines


def line_of(
    row: Apart | None, wish: TableWish, answers: CaptureAnswers, *, applied_gsn: int
) -> TableLine:
    """What is shown of a table. Pure."""
    state = row.state if row is not None else ApartState.FOLLOWING
    answer = answers.of(wish.table)
    refused = answers.refuses(wish)
    shown = str(state)
    if row is None and wish.capture is Capture.ADDED:
        shown = "refused" if refused else "waiting"
    following = next_state(row, wish, answers)
    wanted = str(following) if following is not None else _on_the_way(state, wish)
    if shown == "waiting":
        wanted = str(ApartState.COPYING)
    behind = 0
    if row is not None and state in (ApartState.PAUSED, ApartState.COPYING, ApartState.JOINING):
        behind = max(applied_gsn - row.applied.gsn, 0)
    return TableLine(
        table=wish.table,
        state=shown,
        wanted="" if refused else wanted,
        behind=behind,
        code=answer.code if refused and answer else "",
        error=answer.error if refused and answer else "",
        hint=answer.hint if refused and answer else "",
    )


def _on_the_way(state: ApartState, wish: TableWish) -> str:
    """Where a table comes to by itself."""
    if state is ApartState.COPYING:
        return str(ApartState.PAUSED if wish.paused else ApartState.FOLLOWING)
    if state is ApartState.JOINING:
        return str(ApartState.FOLLOWING)
    return ""


def states(wishes: TableWishes, rows: dict[TableName, Apart]) -> dict[TableName, str]:
    """The state of each table that does not follow with the others."""
    apart = {t: str(row.state) for t, row in rows.items() if row.state is not ApartState.FOLLOWING}
    waiting = {
        wish.table: "waiting"
        for wish in wishes.tables
        if wish.capture is Capture.ADDED and wish.table not in rows
    }
    return {**waiting, **apart}


def columns_left_out(config: Config) -> dict[TableName, frozenset[str]]:
    """Columns that the target does not have, by policy. Raises as `table_lines` does."""
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        return target.read_left_out()


def apart_tables(config: Config) -> dict[TableName, str]:
    """Tables that do not stand with the others, and their state. Raises as `table_lines` does."""
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        rows = target.read_apart()
    return states(read_wishes(config), rows)
