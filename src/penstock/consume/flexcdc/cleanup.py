"""Removal of rows older than log_retention_interval from changelogs and units of work."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from penstock.consume.flexcdc.state import State
from penstock.model import PenstockError, TableName
from penstock.ports.changelog import UOW_ID

UNITS_PER_STEP = 1_000  # number of units whose rows one statement removes
STEPS_PER_COMMIT = 10
_INTERVAL = re.compile(r"\s*(\d+)\s*([A-Za-z]+?)S?\s*\Z")
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


class IntervalInvalid(PenstockError):
    """The value of log_retention_interval is not a number and a unit of time."""

    code = "FX40"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Result of a cleanup.

    Attributes:
        uow_id: rows were removed up to this unit; 0 if none is old enough.
        rows: number of removed rows, by table.
    """

    uow_id: int
    rows: dict[str, int]


def interval_before(now: datetime.datetime, text: str) -> datetime.datetime:
    """Return the moment that is an interval like `10 DAY` earlier. Raises IntervalInvalid."""
    match = _INTERVAL.match(text)
    unit = match[2].upper() if match is not None else ""
    if match is None or unit not in {*_SECONDS, *_MONTHS}:
        raise IntervalInvalid(
            f"log_retention_interval is {text!r}",
            hint=f"Write a number and a unit, as in 10 DAY: {', '.join((*_SECONDS, *_MONTHS))}.",
        )
    try:
        return _earlier(now, int(match[1]), unit)
    except (ValueError, OverflowError) as error:
        raise IntervalInvalid(
            f"log_retention_interval is {text[:40]!r}: no calendar goes back that far",
            hint="To keep everything, do not run `cleanup`; else write a shorter interval, as in "
            "10 DAY.",
        ) from error


def _earlier(now: datetime.datetime, count: int, unit: str) -> datetime.datetime:
    """Return the moment that is `count` units earlier. Raises ValueError, OverflowError."""
    if unit in _SECONDS:
        return now - datetime.timedelta(seconds=count * _SECONDS[unit])
    months = now.year * 12 + now.month - 1 - count * _MONTHS[unit]
    year, month = divmod(months, 12)
    if year < datetime.MINYEAR:
        raise OverflowError("before the first year")
    for day in range(now.day, 0, -1):
        try:
            return now.replace(year=year, month=month + 1, day=day)
        except ValueError:  # the month is shorter
            continue
    raise AssertionError("every month has a first day")


def clean(state: State, before: datetime.datetime) -> Cleaned:
    """Remove rows of all units committed at this moment (UTC) or earlier, except the newest unit.

    The newest unit has the last number. Each transaction removes the rows of some units; after a
    crash the next cleanup removes the rest.
    """
    session, names = state.session, state.names
    units = session.quote(*names.table(names.mview_uow))
    doing = "removing old changes"
    last = state.last_unit().uow_id
    found = session.rows(
        f"select min(uow_id) as low, max(uow_id) as high from {units}"
        " where commit_time <= %s and uow_id < %s",
        (before, last),
        doing=doing,
    )[0]
    rows: dict[str, int] = {}
    if found["high"] is None:
        return Cleaned(uow_id=0, rows=rows)
    high = int(found["high"])
    for mvlog in state.mvlogs():
        table = names.table(mvlog.name)
        if session.shape(table) is not None:
            rows[str(mvlog.table)] = _remove(state, table, high)
    session.begin()
    rows[names.mview_uow] = session.run(
        f"delete from {units} where uow_id <= %s", (high,), doing=doing
    )
    session.commit()
    return Cleaned(uow_id=high, rows=rows)


def _remove(state: State, table: TableName, high: int) -> int:
    session, doing = state.session, "removing old changes"
    name, uow = session.quote(*table), session.quote(UOW_ID)
    low = session.rows(
        f"select min({uow}) as low from {name} where {uow} <= %s", (high,), doing=doing
    )[0]["low"]
    removed = 0
    while low is not None:
        session.begin()
        for _ in range(STEPS_PER_COMMIT):
            through = min(int(low) + UNITS_PER_STEP - 1, high)
            removed += session.run(
                f"delete from {name} where {uow} between %s and %s", (low, through), doing=doing
            )
            found = session.rows(
                f"select min({uow}) as low from {name} where {uow} <= %s", (high,), doing=doing
            )
            low = found[0]["low"]
            if low is None:
                break
        session.commit()
    return removed
