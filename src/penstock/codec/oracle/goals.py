"""Convert columns of Oracle to what a target of another engine gets, in our own process.

Rows of a bulk load go to PostgreSQL and MySQL as lines, without passing a staging table whose SQL
could convert them. A `Goal` says what a column becomes; the results equal those of the change path
(`codec.types.from_oracle`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.errors import unfit
from penstock.codec.oracle.moments import Moment, microseconds_of, parse_moment
from penstock.codec.oracle.read_columns import ReadColumn, broken_column, convert
from penstock.codec.oracle.types import parse_type
from penstock.codec.oracle.values import FormatUnknown, Malformed, Unfit
from penstock.codec.types.mapping import ERROR, NULL, REMOVE, ROUND, TEXT, UTC, Mapping

NANOSECONDS, OFFSETS, DATES = "nanoseconds", "offsets", "dates out of range"
NOT_A_NUMBER, DIGITS, NUL_CHARACTERS = "not a number", "digits", "nul characters"
_NUL = "\0"
_WHOLE_MAX, _FRACTION_MAX = 35, 30  # digits of MySQL's decimal(65,30)
_NUMBER = re.compile(rf"-?[0-9]{{1,{_WHOLE_MAX}}}(?:\.([0-9]*))?")
_EXACT = Context(prec=80)
_DAY_US = 86_400_000_000
_US_FIRST, _US_LAST = -719_162 * _DAY_US, 2_932_897 * _DAY_US - 1  # 0001-01-01 to 9999-12-31


class Form(StrEnum):
    """Result of the conversion of a column.

    Attributes:
        SAME: values of its neutral type.
        TEXT: exact text.
        TIMESTAMP: date and time without a zone.
        MOMENT: the moment in UTC.
    """

    SAME = "same"
    TEXT = "text"
    TIMESTAMP = "timestamp"
    MOMENT = "moment"


_FORMS = {
    "DATE": Form.TIMESTAMP,
    "TIMESTAMP": Form.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": Form.MOMENT,
    "TIMESTAMP WITH LOCAL TIME ZONE": Form.MOMENT,
}
_NEUTRALS = {Form.TEXT: "string", Form.TIMESTAMP: "timestamp", Form.MOMENT: "timestamptz"}


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Conversion of one column.

    Attributes:
        type_text: Type at the source.
        form: Form of the result.
        losses: For each loss that its target has, the choice; `error` without one.
    """

    type_text: str
    form: Form = Form.SAME
    losses: dict[str, str] = {}

    @classmethod
    def of(cls, column: ReadColumn, mapping: Mapping) -> Goal:
        """Return the goal of a column by its mapping to the target."""
        losses = {one.name: mapping.chosen.get(one.name, ERROR) for one in mapping.losses}
        losses |= mapping.chosen
        form = _FORMS.get(column.kind.base, Form.SAME)
        if TEXT in losses.values():
            form = Form.TEXT
        return cls(type_text=column.kind.text, form=form, losses=losses)

    @property
    def column(self) -> ReadColumn:
        """Column by which values are read."""
        column = ReadColumn.of("value", self.type_text)
        return column.as_text() if self.form is Form.TEXT else column

    @property
    def neutral(self) -> str:
        """Neutral type of the result."""
        return _NEUTRALS.get(self.form, self.column.neutral)


def reach(batch: pa.RecordBatch, goals: Sequence[Goal], *, first_row: int = 0) -> list[Any]:
    """Return the columns of a batch as their goals say.

    Args:
        batch: of the driver, selected by `select_expression` of the goals' columns.
        goals: of the columns, in order.
        first_row: number of rows before these, for errors.

    Raises CellUnfit for a value that the target's type does not hold, and CellBroken.
    """
    found: list[Any] = []
    at = 0
    for place, goal in enumerate(goals):
        values = batch.column(at)
        is_there = batch.column(at + 1) if goal.column.is_lob else None
        at += 2 if goal.column.is_lob else 1
        refuse = _refuser(place, first_row)
        try:
            found.append(_reach(values, is_there, goal, refuse))
        except (Malformed, FormatUnknown, pa.ArrowInvalid) as error:
            raise broken_column(parse_type(goal.type_text).text, place) from error
    return found


Refuse = Callable[[int, str], Exception]


def _refuser(place: int, first_row: int) -> Refuse:
    """Return the function that makes the error for a row of the batch."""
    return lambda row, reason: unfit(first_row + row + 1, place, reason)


def _reach(values: Any, is_there: Any, goal: Goal, refuse: Refuse) -> Any:
    if goal.form in (Form.TIMESTAMP, Form.MOMENT):
        return _moments(values, goal, refuse)
    try:
        made = convert(values, goal.column, is_there)
    except Unfit:
        made = convert(values, goal.column.as_text(), is_there)
    if goal.form is Form.TEXT:
        return made
    if NOT_A_NUMBER in goal.losses and pa.types.is_floating(made.type):
        return _finite(made, goal.losses[NOT_A_NUMBER], refuse)
    if DIGITS in goal.losses and pa.types.is_string(made.type):
        return _with_fewer_digits(made, goal.losses[DIGITS], refuse)
    if goal.losses.get(NUL_CHARACTERS) == REMOVE:
        return pc.replace_substring(made, _NUL, "")
    return made


def _finite(values: Any, choice: str, refuse: Refuse) -> Any:
    """Return floats without NaN and infinity."""
    is_unfit = pc.fill_null(pc.invert(pc.is_finite(values)), False)
    if not pc.any(is_unfit).as_py():
        return values
    if choice == NULL:
        return pc.if_else(is_unfit, pa.scalar(None, values.type), values)
    raise refuse(pc.index(is_unfit, True).as_py(), "it is not a number")


def _with_fewer_digits(values: Any, choice: str, refuse: Refuse) -> Any:
    """Return texts of numbers that decimal(65,30) holds."""
    shown = values.to_pylist()
    for row, text in enumerate(shown):
        if text is None:
            continue
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise refuse(row, f"it has more than {_WHOLE_MAX} digits before the point")
        if len((match[1] or "").rstrip("0")) <= _FRACTION_MAX:
            continue
        if choice != ROUND:
            raise refuse(row, f"it has more than {_FRACTION_MAX} digits after the point")
        rounded = Decimal(text).quantize(
            Decimal(1).scaleb(-_FRACTION_MAX), ROUND_HALF_UP, context=_EXACT
        )
        shown[row] = f"{rounded:f}"
    return pa.array(shown, values.type)


# -- dates and times -------------------------------------------------------------------------------


def _moments(values: Any, goal: Goal, refuse: Refuse) -> Any:
    """Return microseconds since 1970; in UTC where the type has a zone."""
    kind = pa.timestamp("us", "UTC" if goal.form is Form.MOMENT else None)
    column = goal.column
    if column.neutral != "string":
        try:
            found = convert(values, column)
        except Unfit:
            found = _one_by_one(values, goal, refuse).view(kind)
    else:
        found = _one_by_one(values, goal, refuse).view(kind)
    return _in_range(found, goal, refuse) if DATES in goal.losses else found


def _one_by_one(values: Any, goal: Goal, refuse: Refuse) -> Any:
    return pa.array(
        [
            None if text is None else _microseconds(parse_moment(text.encode()), goal, row, refuse)
            for row, text in enumerate(values.to_pylist())
        ],
        pa.int64(),
    )


def _microseconds(moment: Moment, goal: Goal, row: int, refuse: Refuse) -> int:
    late = 0
    if len(moment.fraction) > 6:
        if goal.losses.get(NANOSECONDS) != ROUND:
            raise refuse(row, "it is a time with nanoseconds")
        late = int(moment.fraction[6:7] >= b"5")
        moment = moment._replace(fraction=moment.fraction[:6])
    if moment.offset and goal.losses.get(OFFSETS) != UTC:
        raise refuse(row, "it is a time with an offset")
    try:
        return microseconds_of(moment) + late
    except Unfit as error:
        raise refuse(row, "its date is not one of the Gregorian calendar") from error


def _in_range(values: Any, goal: Goal, refuse: Refuse) -> Any:
    numbers = values.view(pa.int64())
    is_unfit = pc.fill_null(
        pc.or_(pc.less(numbers, _US_FIRST), pc.greater(numbers, _US_LAST)), False
    )
    if not pc.any(is_unfit).as_py():
        return values
    if goal.losses[DATES] == NULL:
        return pc.if_else(is_unfit, pa.scalar(None, values.type), values)
    raise refuse(pc.index(is_unfit, True).as_py(), "its date is outside of the years 1 to 9999")
