"""Each table of a pipeline and its state: for `penstock table ls`, the web page and /metrics.

Read from the state files and the target, whether or not the pipeline runs. Not here: making
wishes (`table_wishes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from penstock.control.change_counts import changes_between
from penstock.control.followed import followed_tables
from penstock.control.table_copy import read_notes
from penstock.control.table_wishes import read_answers, read_wishes
from penstock.load.isolation import read_isolations
from penstock.model import TableName
from penstock.model.wishes import Capture, CaptureAnswers, TableWish, TableWishes
from penstock.ports.config import Config
from penstock.ports.progress import open_progress
from penstock.ports.table_sync import Apart, ApartState, next_state

APPLICATION_NAME = "penstock tables"
LEFT_OUT = "left out"
WAITING = (ApartState.PAUSED, ApartState.COPYING, ApartState.JOINING)  # changes wait in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table that somebody has wished something for.

    state: where it is. wanted: what it is on its way to; empty when it is there. behind: row
    changes of this table that wait, as far as the others are. code, error, hint: why
    it does not go on, or is left out; empty otherwise.
    """

    table: TableName
    state: str
    wanted: str = ""
    behind: int = 0
    code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def follows(self) -> bool:
        """Whether it is with the others."""
        return self.state == ApartState.FOLLOWING

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
    return lines_from(config, rows, applied_gsn=applied.gsn)


def lines_from(
    config: Config, rows: Mapping[TableName, Apart], *, applied_gsn: int
) -> list[TableLine]:
    """The same, where the target was read already. Raises CheckpointCorrupt."""
    notes = {note.table: note for note in read_notes(config) if note.error}
    wishes, answers, known = read_wishes(config), read_answers(config), followed_tables(config)
    isolations = read_isolations(config.layout.state)
    lines = []
    for table in sorted({*rows, *(wish.table for wish in wishes.tables)}):
        line = line_of(rows.get(table), wishes.of(table), answers)
        if known is not None and line.follows and not line.wanted and not known.has(table):
            continue  # it has another name now, or was never a table
        row = rows.get(table)
        if row is not None and row.state in WAITING:
            behind = changes_between(
                config,
                table,
                first_segment=row.applied.segment,
                after_gsn=row.applied.gsn,
                until_gsn=applied_gsn,
            )
            line = replace(line, behind=behind)
        why = isolations.get(table)
        if why is not None and line.state == ApartState.ISOLATED:
            again = f"penstock table resync {config.path.name} {table}"
            line = replace(line, code=why.code, error=why.error, hint=f"{why.hint} Then: {again}")
        note = notes.get(table)
        if note is not None and line.state == "copying" and not line.error:
            line = replace(line, code=note.code, error=note.error, hint=note.hint)
        lines.append(line)
    return lines


def line_of(row: Apart | None, wish: TableWish, answers: CaptureAnswers) -> TableLine:
    """What is shown of a table. Pure."""
    if row is None and wish.capture is Capture.LEFT:
        return TableLine(
            table=wish.table, state=LEFT_OUT, code=wish.code, error=wish.error, hint=wish.hint
        )
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
    return TableLine(
        table=wish.table,
        state=shown,
        wanted="" if refused else wanted,
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
    shown = {Capture.ADDED: "waiting", Capture.LEFT: LEFT_OUT}
    waiting = {
        wish.table: shown[wish.capture]
        for wish in wishes.tables
        if wish.capture in shown and wish.table not in rows
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
