"""Content of tables of any shape: relations, and cells of rows as PostgreSQL prints them."""

from __future__ import annotations

import math
import string
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from harness.twins.pgoutput import UNCHANGED, column, relation
from harness.twins.pgoutput_twins import NEUTRALS
from penstock.model import Identity, Relation

if TYPE_CHECKING:
    from collections.abc import Callable

Cells = list[Any]


def _decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    def format_decimal(number: int) -> str:
        digits = str(abs(number)).rjust(scale + 1, "0")
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return "-" + text if number < 0 else text

    top = 10**precision - 1
    return st.one_of(
        st.integers(-top, top).map(format_decimal),
        st.sampled_from(["NaN", "Infinity", "-Infinity"]),
    )


def _dates() -> st.SearchStrategy[str]:
    def format_date(year: int, days: int) -> str:
        month_day = (date(2000 + year % 400, 1, 1) + timedelta(days)).strftime("-%m-%d")
        return f"{year:04d}{month_day}" if year > 0 else f"{1 - year:04d}{month_day} BC"

    return st.builds(format_date, st.integers(-4712, 300_000), st.integers(0, 364))


def _moments(zoned: bool) -> st.SearchStrategy[str]:
    zones = st.sampled_from(["+00", "-04", "+05:30", "-04:56:02"]) if zoned else st.just("")

    def format_moment(day: str, seconds: int, micro: int, zone: str) -> str:
        day, space, era = day.partition(" ")
        time = str(timedelta(seconds=seconds)).rjust(8, "0")
        fraction = f".{micro:06d}".rstrip("0") if micro else ""
        return f"{day} {time}{fraction}{zone}{space}{era}"

    return st.one_of(
        st.builds(format_moment, _dates(), st.integers(0, 86_399), st.integers(0, 999_999), zones),
        st.sampled_from(["infinity", "-infinity"]),
    )


def _floats(width: int) -> st.SearchStrategy[str]:
    def format_float(value: float) -> str:
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return repr(value)

    return st.floats(width=width).map(format_float)  # type: ignore[arg-type]


TEXTS: dict[str, st.SearchStrategy[str]] = {
    "bool": st.sampled_from("tf"),
    "int16": st.integers(-(2**15), 2**15 - 1).map(str),
    "int32": st.integers(-(2**31), 2**31 - 1).map(str),
    "int64": st.integers(-(2**63), 2**63 - 1).map(str),
    "uint32": st.integers(0, 2**32 - 1).map(str),
    "uint64": st.integers(0, 2**64 - 1).map(str),
    "float32": _floats(32),
    "float64": _floats(64),
    "decimal(5,2)": _decimals(5, 2),
    "decimal(38,10)": _decimals(38, 10),
    "decimal(20,0)": _decimals(20, 0),
    "date": st.one_of(_dates(), st.sampled_from(["infinity", "-infinity"])),
    "time": st.times().map(str) | st.just("24:00:00"),
    "timestamp": _moments(zoned=False),
    "timestamptz": _moments(zoned=True),
    "uuid": st.uuids().map(str),
    "binary": st.binary(max_size=40).map(lambda value: "\\x" + value.hex()),
    "string": st.text(max_size=40),
}


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    """Draw a relation of up to twelve columns of any neutral types and any identity."""
    neutrals = draw(st.lists(st.sampled_from(NEUTRALS), max_size=12))
    names = st.text(string.ascii_letters + "äß語 ", min_size=1, max_size=8)
    columns = [column(f"{draw(names)}{index}", neutral) for index, neutral in enumerate(neutrals)]
    identity = draw(st.sampled_from(Identity))
    before: tuple[int, ...] = ()
    if identity is Identity.FULL:
        before = tuple(range(len(columns)))
    elif columns and identity is not Identity.NOTHING:
        before = tuple(draw(st.permutations(range(len(columns))))[: draw(st.integers(1, 3))])
    return relation(*columns, before=before, identity=identity)


@st.composite
def row_cells(
    draw: st.DrawFn,
    shape: Relation,
    texts: Callable[[str], st.SearchStrategy[str]],
    unchanged: bool = False,
) -> Cells:
    """Draw a value, NULL or "unchanged" per column."""
    cells: Cells = []
    for one in shape.columns:
        choice = draw(st.integers(0, 9))
        if choice == 0:
            cells.append(None)
        elif choice == 1 and unchanged:
            cells.append(UNCHANGED)
        else:
            cells.append(draw(texts(one.neutral)))
    return cells


def proper(neutral: str) -> st.SearchStrategy[str]:
    """Return a strategy of texts as PostgreSQL prints them."""
    return TEXTS[neutral]
