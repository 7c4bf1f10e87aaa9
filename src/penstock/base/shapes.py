"""Conversion of rows of one version of a table to the shape of a later one. Pure, vectorized.

A column is found by its identity. If the old shape has no identities, it is found by the name that
it had where the rows were copied, or by its present name if that place is not noted. A new column
has the value that earlier rows have for it. A change of type is accepted only if every value stays
the same; if the server has computed new values, the rows have to be read again (`ShapeUnfit`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.base.manifest import rows_batch
from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.copy_rows import column_of
from penstock.codec.exact_text import exact_texts
from penstock.model import Column, PenstockError, Relation

_TIME = re.compile(r"(?P<kind>\w+)(?:\((?P<digits>\d)\))?(?P<zone> with(?:out)? time zone)?")
_DIGITS_MAX = 6
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")
_WHOLE = ("int16", "int32", "int64", "uint32", "uint64")
_ANY_WHOLE = pa.decimal128(20, 0)
# Neutral types whose values stay the same if the source's type changes in length or name.
_SAME_VALUES = (*_WHOLE, "string", "binary", "uuid", "bool")

Convert = Callable[[Any], Any]


class ShapeUnfit(PenstockError):
    """Rows of the base do not have the values that a changed table has. Fields: table, column."""

    code = "BA02"
    retry = "backoff"


def widest(newest: Relation, others: Iterable[Relation]) -> Relation:
    """Return a shape in which a column is text if another shape kept it as exact text.

    Such a text may be of a value that the column's own type cannot hold.
    """
    texts = set()
    for one in others:
        for column, place in zip(newest.columns, places_in(one, newest), strict=True):
            if place is None:
                continue
            old = one.columns[place]
            if old.neutral == "string" and old.source_type == column.source_type:
                texts.add(column.name)
    columns = tuple(
        column.as_text() if column.name in texts else column for column in newest.columns
    )
    return newest if columns == newest.columns else replace(newest, columns=columns)


def places_in(old: Relation, new: Relation) -> list[int | None]:
    """Return for each column of a shape its place in an older one; None if it is new."""
    has_ids = old.source_id == new.source_id and all(
        column.id for column in (*old.columns, *new.columns)
    )
    if has_ids:
        ids = {column.id: place for place, column in enumerate(old.columns)}
        return [ids.get(column.id) for column in new.columns]
    names = {column.name: place for place, column in enumerate(old.columns)}
    position = copied_at(old)
    if position is None:
        return [names.get(column.name) for column in new.columns]
    # A name that is only spelled in another case since then is the same one.
    folded = {name.lower(): place for name, place in names.items()}
    then = [column.name_at(position) or "" for column in new.columns]
    return [names.get(name, folded.get(name.lower())) for name in then]


def keeps_rows(old: Relation, new: Relation) -> bool:
    """Return whether rows of an old shape are rows of a new one as they are.

    Shapes of copied rows have no identities of columns, so none is equal to that of a change.
    """

    def kinds(relation: Relation) -> list[tuple[str, ...]]:
        return [(one.name, one.neutral, one.source_type) for one in relation.columns]

    is_same_table = (old.source_id, old.key) == (new.source_id, new.key)
    is_in_order = places_in(old, new) == list(range(len(old.columns)))
    return is_same_table and is_in_order and kinds(old) == kinds(new)


def note_copied(relation: Relation, position: int) -> Relation:
    """Return the shape of copied rows with the position of the copy, in the log's units.

    Returns the shape unchanged if its columns have identities, which say more than the position.
    """
    if all(column.id for column in relation.columns):
        return relation
    columns = tuple(replace(one, names=((position, one.name),)) for one in relation.columns)
    return replace(relation, columns=columns)


def copied_at(relation: Relation) -> int | None:
    """Return the position that `note_copied` noted; None if there is none."""
    if any(column.id for column in relation.columns):
        return None
    return next((column.names[-1][0] for column in relation.columns if column.names), None)


def as_kind(values: Any, old: str, new: str) -> Any:
    """Return values of a neutral type as another type; as their exact texts if it is text."""
    if old != new and new == "string":
        return pa.array(exact_texts(cast_exactly(values, arrow_type(old)), old), pa.string())
    return cast_exactly(values, arrow_type(new))


def convert_rows(batch: pa.RecordBatch, old: Relation, new: Relation) -> pa.RecordBatch:
    """Return rows of an old shape in a new one. Raises ShapeUnfit."""
    if old.columns == new.columns:
        return batch
    arrays = []
    for column, place in zip(new.columns, places_in(old, new), strict=True):
        if place is None:
            arrays.append(_missing(column, batch.num_rows))
        else:
            arrays.append(_convert_column(batch.column(place), old.columns[place], column, new))
    return rows_batch(new, arrays)


def _missing(column: Column, count: int) -> Any:
    kind = arrow_type(column.neutral)
    if column.missing is None:
        return pa.nulls(count, kind)
    (value,) = column_of([column.missing.encode()], column.neutral)
    return cast_exactly(pa.repeat(value, count), kind)


def _convert_column(values: Any, old: Column, new: Column, table: Relation) -> Any:
    if old.neutral == new.neutral:
        is_kept = _same_values(old.neutral) or _has_digits(old.source_type, new.source_type)
        if old.source_type != new.source_type and not is_kept:
            raise _unfit(old, new, table)
        return values
    if new.neutral == "string":
        if old.source_type != new.source_type and old.neutral not in _WHOLE:
            raise _unfit(old, new, table)
        return pa.array(exact_texts(values, old.neutral), pa.string())
    are_numbers = _is_number(old.neutral) and _is_number(new.neutral)
    if not are_numbers and (old.neutral, new.neutral) != ("float32", "float64"):
        raise _unfit(old, new, table)
    if are_numbers and old.neutral in _WHOLE and new.neutral not in _WHOLE:
        values = cast_exactly(values, _ANY_WHOLE)  # Arrow asks for digits that no value has
    try:
        return cast_exactly(values, arrow_type(new.neutral))
    except pa.ArrowInvalid as error:
        raise _unfit(old, new, table) from error


def _is_number(neutral: str) -> bool:
    return neutral in _WHOLE or _DECIMAL.fullmatch(neutral) is not None


def _same_values(neutral: str) -> bool:
    return neutral in _SAME_VALUES or neutral.startswith("decimal")


def _has_digits(old: str, new: str) -> bool:
    """Return whether the new type is that of a time with as many digits of a second, or more.

    A type in SQL's words (`timestamp without time zone`) has six if it names none.
    """
    kinds: list[tuple[str, int]] = []
    for text in (old, new):
        found = _TIME.fullmatch(text.lower())
        if found is None:
            return False
        digits = int(found["digits"] or (_DIGITS_MAX if found["zone"] else 0))
        kinds.append((f"{found['kind']}{found['zone'] or ''}", digits))
    (before, fewer), (after, more) = kinds
    return before == after and before.startswith(("time", "datetime")) and fewer <= more


def _unfit(old: Column, new: Column, table: Relation) -> ShapeUnfit:
    return ShapeUnfit(
        f"column {new.name} of {table.full_name} has changed from {old.source_type} to "
        f"{new.source_type}, and the values that earlier rows have now are not in the log",
        hint="Nothing to do: the base reads the table again.",
        table=table.full_name,
        column=new.name,
    )
