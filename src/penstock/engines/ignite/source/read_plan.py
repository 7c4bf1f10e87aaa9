"""Plan for writing the columns of a cache into lines; see `sql/read_plan.py`.

MySQL's LOAD DATA computes values in its statement. COPY computes nothing, so a reader does the
same (`bulk_reader.py`).
"""

from __future__ import annotations

from collections.abc import Mapping as Namespace
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import Mapping
from penstock.model import ColumnDefinition


class Exact(StrEnum):
    """Treatment of a time that the target's type cannot hold, or of a whole column of times.

    AS_IS: the target accepts or rounds the time. AS_TEXT: its text is written.
    """

    AS_IS = "as is"
    AS_TEXT = "as text"
    NULL = "null"
    REFUSED = "refused"


class ColumnRead(msgspec.Struct, frozen=True, kw_only=True):
    """Form of a column. neutral: its type in the log; prepare: see `codec.types.Write`."""

    neutral: str
    prepare: str = ""
    exact: Exact = Exact.AS_IS


def read_plan(
    columns: Sequence[ColumnDefinition], mappings: Namespace[str, Mapping], servers: ServerPair
) -> ReadPlan:
    """Return the plan for these columns; each template is for one column."""
    if servers.target.engine.is_mysql:
        reads = [ColumnRead(neutral=one.neutral) for one in columns]
    else:
        reads = [_into_postgres(one, mappings[one.name]) for one in columns]
    return _plan(columns, reads, [mappings[one.name].write.sql for one in columns])


def log_plan(columns: Sequence[ColumnDefinition]) -> ReadPlan:
    """Return the plan for these columns in the form of the log: for lines of LOAD DATA."""
    return _plan(columns, [ColumnRead(neutral=one.neutral) for one in columns], [])


def _plan(
    columns: Sequence[ColumnDefinition], reads: Sequence[ColumnRead], templates: Sequence[str]
) -> ReadPlan:
    return ReadPlan(
        columns=tuple(one.name for one in columns),
        expressions=tuple(msgspec.json.encode(one).decode() for one in reads),
        templates=tuple(templates),
    )


def _into_postgres(column: ColumnDefinition, mapping: Mapping) -> ColumnRead:
    return ColumnRead(
        neutral=column.neutral, prepare=mapping.write.prepare, exact=_exact(column, mapping)
    )


def _exact(column: ColumnDefinition, mapping: Mapping) -> Exact:
    if column.type_text != "timestamp":
        return Exact.AS_IS
    if mapping.target_type == "text":
        return Exact.AS_TEXT
    if column.neutral != "string":
        return Exact.AS_IS
    chosen = mapping.chosen.get("nanoseconds", "")
    return {"round": Exact.AS_IS, "null": Exact.NULL}.get(chosen, Exact.REFUSED)
