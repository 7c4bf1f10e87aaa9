"""Convert columns of SQL Server to what a target of another engine gets, in our own process.

Rows of a bulk load go to PostgreSQL and MySQL as lines, without passing a staging table whose SQL
could convert them. A `Goal` says what a column becomes; the results equal those of the change path
(`codec.types.from_sqlserver`). Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.errors import unfit
from penstock.codec.exact_text import time_text
from penstock.codec.sqlserver.columns import SourceColumn, make_columns, spread
from penstock.codec.sqlserver.moments import parse_moments, ticks_of_texts
from penstock.codec.types.mapping import ERROR, REMOVE, ROUND, TEXT, UTC, Mapping

_NUL = "\0"
_TEMPORALS = frozenset(("time", "datetime2", "datetimeoffset"))


class Form(StrEnum):
    """Result of the conversion of a column.

    Attributes:
        SAME: values of its neutral type.
        TEXT: exact text.
        TIME: time of day, in microseconds.
        TIMESTAMP: date and time without a zone.
        MOMENT: the moment in UTC.
        BYTES: the bytes of hexadecimal digits.
    """

    SAME = "same"
    TEXT = "text"
    TIME = "time"
    TIMESTAMP = "timestamp"
    MOMENT = "moment"
    BYTES = "bytes"


_FORMS = {"time": Form.TIME, "datetime2": Form.TIMESTAMP, "datetimeoffset": Form.MOMENT}
_NEUTRALS = {
    Form.TEXT: "string",
    Form.TIME: "string",
    Form.TIMESTAMP: "timestamp",
    Form.MOMENT: "timestamptz",
    Form.BYTES: "binary",
}


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Conversion of one column.

    Attributes:
        type_text: Type at the source.
        form: Form of the result.
        rounds: A digit behind the microsecond is rounded half up; it is an error otherwise.
        drops_offset: An offset from UTC is left out; one other than +00:00 is an error otherwise.
        removes_nul: U+0000 is removed from texts.
    """

    type_text: str
    form: Form = Form.SAME
    rounds: bool = False
    drops_offset: bool = False
    removes_nul: bool = False

    @classmethod
    def of(cls, column: SourceColumn, mapping: Mapping) -> Goal:
        """Return the goal of a column by its mapping to the target."""
        base, chosen = column.kind.base, mapping.chosen
        form = _FORMS.get(base, Form.SAME)
        if base in _TEMPORALS and TEXT in chosen.values():
            form = Form.TEXT
        if base in ("geometry", "geography"):
            form = Form.BYTES
        return cls(
            type_text=column.kind.text,
            form=form,
            rounds=chosen.get("nanoseconds", ERROR) == ROUND,
            drops_offset=chosen.get("offsets", ERROR) == UTC,
            removes_nul=chosen.get("nul characters", ERROR) == REMOVE,
        )

    @property
    def column(self) -> SourceColumn:
        """Column by which values are read: times as exact text."""
        column = SourceColumn.of("value", self.type_text)
        return column.as_text() if column.kind.base in _TEMPORALS else column

    @property
    def neutral(self) -> str:
        """Neutral type of the result."""
        return _NEUTRALS.get(self.form, self.column.neutral)


def reach(values: Any, goal: Goal, *, place: int = 0, first_row: int = 0) -> Any:
    """Return a column's values as its goal says.

    Args:
        values: of the driver, selected by `select_expression`.
        goal: of the column.
        place: number of the column, from 0, for errors.
        first_row: number of rows before these, for errors.

    Raises CellUnfit for a value that the target's type does not hold, and ValueBroken.
    """
    batch = pa.RecordBatch.from_arrays([values], ["value"])
    made = make_columns(batch, [goal.column]).arrays[0]
    if goal.form in (Form.SAME, Form.TEXT):
        return pc.replace_substring(made, _NUL, "") if goal.removes_nul else made
    if goal.form is Form.BYTES:
        raw = [None if one is None else bytes.fromhex(one) for one in made.to_pylist()]
        return pa.array(raw, pa.binary())
    return _temporal(made, goal, place, first_row)


def _temporal(texts: Any, goal: Goal, place: int, first_row: int) -> Any:
    there = texts.drop_null()
    if goal.form is Form.TIME:
        ticks = ticks_of_texts(there)
        _refuse(ticks % 10 != 0, texts, goal.rounds, "a time with nanoseconds", place, first_row)
        return spread(_times((ticks + 5) // 10), texts)
    moments = parse_moments(there, has_offset=goal.form is Form.MOMENT)
    finer = moments.ticks % 10 != 0
    _refuse(finer, texts, goal.rounds, "a time with nanoseconds", place, first_row)
    has_offset = moments.offsets != 0
    _refuse(has_offset, texts, goal.drops_offset, "a time with an offset", place, first_row)
    utc = moments.seconds - moments.offsets * 60
    microseconds = utc * 1_000_000 + (moments.ticks + 5) // 10
    zone = "UTC" if goal.form is Form.MOMENT else None
    return spread(pa.array(microseconds, pa.int64()).view(pa.timestamp("us", zone)), texts)


def _times(microseconds: Any) -> Any:
    return pa.array([time_text(one) for one in microseconds.tolist()], pa.string())


def _refuse(
    is_unfit: Any, texts: Any, is_allowed: bool, what: str, place: int, first_row: int
) -> None:
    if is_allowed or not is_unfit.any():
        return
    there = np.flatnonzero(np.asarray(texts.is_valid().to_numpy(zero_copy_only=False)))
    row = int(there[np.flatnonzero(is_unfit)[0]])
    raise unfit(first_row + row + 1, place, f"it is {what}")
