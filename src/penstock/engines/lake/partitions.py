"""Partitions of lake tables: `[target] partition`, transforms of values, rows by partition.

Transforms are those of Iceberg's specification. A value of a partition is text: digits of a number
(years, months, days and hours are counted from 1970), ISO dates and timestamps, `true` or `false`,
hexadecimal digits of bytes, a text as it is; None for NULL. The formats convert it. Pure. Not here:
files (`partitioned_files.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.codec.types import lake_arrow_type
from penstock.engines.lake.format import LakeColumn, Partition, PartitionField, Transform
from penstock.engines.lake.murmur3 import hash_bytes, hash_longs
from penstock.model import PenstockError, TableName
from penstock.ports.target import ValueRefused

ARGUMENT_MAX = 2**31 - 1
FIELDS_MAX = 32

_CALL = re.compile(r"\s*(\w+)\s*\((?:\s*(\d+)\s*,)?\s*(.+?)\s*\)\s*")
_TRANSFORMS = frozenset(map(str, Transform))
_WITH_ARGUMENT = (Transform.BUCKET, Transform.TRUNCATE)
_TIMES = (Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR)
_MOMENTS = ("timestamp", "timestamptz")
_EXACT = Context(prec=80)  # more digits than any decimal has
_HOUR_US = 3_600 * 1_000_000
_DAY_US = 24 * _HOUR_US


class PartitionUnfit(PenstockError):
    """A table cannot be partitioned as [target] partition says."""

    code = "LK12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of `[target] partition`, such as `bucket(16, id)`."""

    column: str
    transform: Transform
    argument: int = 0

    def __str__(self) -> str:
        """Return the term as it is written."""
        if self.transform is Transform.IDENTITY:
            is_plain = _CALL.fullmatch(self.column) is None
            return self.column if is_plain else f"identity({self.column})"
        argument = f"{self.argument}, " if self.argument else ""
        return f"{self.transform}({argument}{self.column})"


def parse_term(text: str) -> Term:
    """Return a term: the name of a column, or a transform of one. Raises ValueError."""
    call = _CALL.fullmatch(text)
    if call is None:
        if not text.strip():
            raise ValueError("must name columns")
        return Term(column=text.strip(), transform=Transform.IDENTITY)
    name, argument, column = call.groups()
    if name not in _TRANSFORMS:
        raise ValueError(
            f"has {name}, which is not a transform; known are {', '.join(Transform)}, as in "
            "day(created_at) and bucket(16, id)"
        )
    transform = Transform(name)
    if (argument is not None) != (transform in _WITH_ARGUMENT):
        needs = "a number first" if transform in _WITH_ARGUMENT else "no number"
        raise ValueError(f"has {text.strip()}, and {transform} takes {needs}")
    if argument is not None and not 1 <= int(argument) <= ARGUMENT_MAX:
        raise ValueError(f"has the number {argument}; it must be from 1 to {ARGUMENT_MAX}")
    return Term(column=column, transform=transform, argument=int(argument or 0))


def parse_terms(texts: Sequence[str], *, has_transforms: bool = True) -> tuple[Term, ...]:
    """Return the terms of one table. Raises ValueError.

    has_transforms: whether the format has others than columns as they are.
    """
    terms = tuple(parse_term(text) for text in texts)
    if not terms or len(terms) > FIELDS_MAX:
        raise ValueError(f"must have 1 to {FIELDS_MAX} terms")
    for term in terms:
        if term.transform is not Transform.IDENTITY and not has_transforms:
            raise ValueError(
                f"has {term}, and Delta Lake partitions by columns as they are; name a column, "
                "such as one of type date"
            )
    for one, other in combinations(terms, 2):
        both_times = one.transform in _TIMES and other.transform in _TIMES
        if one.column == other.column and (one.transform is other.transform or both_times):
            raise ValueError(f"has {one} and {other}, of which one is enough")
    return terms


def terms_of(fields: Iterable[PartitionField]) -> tuple[Term, ...]:
    """Return the terms that a table's fields are."""
    return tuple(
        Term(column=one.source.name, transform=one.transform, argument=one.argument)
        for one in fields
    )


def show_terms(terms: Iterable[Term]) -> str:
    """Return terms for messages."""
    return ", ".join(map(str, terms))


def refuse_type(term: Term, kind: str, *, is_delta: bool = False) -> str:
    """Return why a column of a lake's type cannot have this term; empty if it can.

    is_delta: the format is Delta Lake, whose partitions are texts in the log.
    """
    transform = term.transform
    if transform in _TIMES:
        fits = kind in _MOMENTS or (kind == "date" and transform is not Transform.HOUR)
        suited = "timestamps" if transform is Transform.HOUR else "dates and timestamps"
    elif transform is Transform.TRUNCATE:
        fits = kind in ("int32", "int64", "string", "binary") or kind.startswith("decimal")
        suited = "integers, decimals, texts and bytes"
    elif transform is Transform.BUCKET:
        fits = kind not in ("bool", "float32", "float64")
        suited = "all types but booleans and floats"
    elif is_delta:
        fits = kind in ("bool", "int32", "int64", "date", "string") or kind.startswith("decimal")
        suited = "booleans, integers, decimals, dates and texts"
    else:
        fits = kind not in ("float32", "float64")
        suited = "all types but floats"
    shown = f"identity({term.column})" if transform is Transform.IDENTITY else str(term)
    return "" if fits else f"{shown} is for {suited}, and {term.column} is {kind}"


def find_problems(
    terms: Iterable[Term], kinds: Mapping[str, str], *, is_delta: bool
) -> Iterator[str]:
    """Yield why a table cannot be partitioned so. kinds: the lake's type of each column."""
    for term in terms:
        kind = kinds.get(term.column)
        if kind is None:
            yield f"{term} names the column {term.column}, which the table does not have"
        elif why := refuse_type(term, kind, is_delta=is_delta):
            yield why


def resolve_terms(
    terms: Sequence[Term], columns: Sequence[LakeColumn], table: TableName, *, is_delta: bool
) -> tuple[PartitionField, ...]:
    """Return the fields of a new table.

    table: its source's name. Raises PartitionUnfit.
    """
    by_name = {column.name: column for column in columns}
    kinds = {column.name: column.type for column in columns}
    if problems := list(find_problems(terms, kinds, is_delta=is_delta)):
        raise PartitionUnfit(
            f"[target] partition of {table}: {'; '.join(problems)}",
            hint=f'Correct the entry "{table}" below [target] partition, or remove it.',
            table=str(table),
        )
    return tuple(
        PartitionField(source=by_name[one.column], transform=one.transform, argument=one.argument)
        for one in terms
    )


def same_fields(one: Sequence[PartitionField], other: Sequence[PartitionField]) -> bool:
    """Return whether files partitioned by these fields are files of those."""
    return [_facts(field) for field in one] == [_facts(field) for field in other]


def _facts(field: PartitionField) -> tuple[int | str, Transform, int]:
    return _identity(field.source), field.transform, field.argument


# -- rows by partition -----------------------------------------------------------------------------


def split_rows(
    fields: Sequence[PartitionField],
    columns: Sequence[LakeColumn],
    arrays: Sequence[pa.Array],
    *,
    table: TableName,
) -> Iterator[tuple[Partition, Sequence[pa.Array]]]:
    """Yield the rows of each partition, in their order.

    Args:
        fields: The table's.
        columns: Of the rows. A column of a field that is missing is NULL.
        arrays: One for each column.
        table: The source's table, for messages.

    Raises ValueRefused for a text that the format cannot have as a partition.
    """
    if not len(arrays[0]):
        return
    here = {_identity(column): values for column, values in zip(columns, arrays, strict=True)}
    codes = np.zeros(len(arrays[0]), np.int64)
    texts: list[tuple[npt.NDArray[np.int64], list[str | None]]] = []
    for field in fields:
        values = here.get(_identity(field.source))
        if values is None:
            values = pa.nulls(len(codes), lake_arrow_type(field.source.type))
        own, names = _encode(field, values)
        lost = next((name for name in _READ_AS_NULL if name in names), None)
        if field.empty_is_null and lost is not None:
            raise _refuse_lost(field, table, lost)
        texts.append((own, names))
        _, codes = np.unique(codes * len(names) + own, return_inverse=True)
    count = int(codes.max()) + 1
    if count == 1:
        yield tuple(names[own[0]] for own, names in texts), arrays
        return
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        rows = order[start:end]
        partition = tuple(names[own[rows[0]]] for own, names in texts)
        at = pa.array(rows)
        yield partition, [values.take(at) for values in arrays]


# Texts that stand for NULL in the names of folders, which Delta's own OPTIMIZE makes.
_READ_AS_NULL = ("", "__HIVE_DEFAULT_PARTITION__")


def _identity(column: LakeColumn) -> int | str:
    """Return what a column keeps when it is renamed."""
    return column.field_id or column.file_name


def _encode(
    field: PartitionField, values: pa.Array
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Return each row's number among the field's values, and the texts of the values."""
    encoded = apply_transform(field, values).dictionary_encode(null_encoding="encode")
    names = texts_of(encoded.dictionary)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), names


def _refuse_lost(field: PartitionField, table: TableName, lost: str) -> ValueRefused:
    name, what = field.source.name, f"the text {lost}" if lost else "an empty text"
    return ValueRefused(
        f"column {name} of {table} has {what}, and Delta Lake reads it as NULL in a column by "
        "which a table is partitioned",
        hint=f"Change the value at the source; or remove {name} from [target] partition, and copy "
        f"the table again: penstock table resync FILE {table}",
        table=str(table),
        column=name,
    )


def texts_of(values: pa.Array) -> list[str | None]:
    """Return the texts of a field's values."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64()).cast(pa.timestamp("us"))
        return [None if one is None else one.isoformat("T", "microseconds") for one in _py(values)]
    if pa.types.is_boolean(kind):
        return [None if one is None else str(one).lower() for one in _py(values)]
    if pa.types.is_decimal(kind):
        return [None if one is None else format(one, "f") for one in _py(values)]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if one is None else one.hex() for one in _py(values)]
    return [None if one is None else str(one) for one in _py(values)]


def _py(values: pa.Array) -> list[Any]:
    found: list[Any] = values.to_pylist()
    return found


def constant_array(text: str | None, kind: str, count: int) -> pa.Array:
    """Return a column with one value of a partition in all rows. kind: the lake's type."""
    arrow = lake_arrow_type(kind)
    if text is None:
        return pa.nulls(count, arrow)
    if kind == "timestamptz":
        text += "Z"
    read = pa.array([bytes.fromhex(text) if kind == "binary" else text])
    return pa.repeat(cast_exactly(read, arrow)[0], count)


# -- transforms ------------------------------------------------------------------------------------


def apply_transform(field: PartitionField, values: pa.Array) -> pa.Array:
    """Return the field's value of each row: integers, or values of the column's type."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if field.transform is Transform.IDENTITY:
        return values
    if field.transform is Transform.BUCKET:
        return _number_buckets(values, field.argument)
    if field.transform is Transform.TRUNCATE:
        return _truncate(values, field.argument)
    return _count_units(values, field.transform)


def _mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _longs(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers, days or microseconds; 0 for NULL."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        values = values.cast(pa.date32()).cast(pa.int32())
    filled = pc.fill_null(values.cast(pa.int64()), 0)
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _count_units(values: pa.Array, transform: Transform) -> pa.Array:
    """Return years, months, days or hours since 1970; they are negative before."""
    longs = _longs(values)
    is_date = pa.types.is_date(values.type)
    if transform is Transform.HOUR:
        counted = longs // _HOUR_US
    else:
        counted = longs if is_date else longs // _DAY_US
    if transform in (Transform.YEAR, Transform.MONTH):
        unit = "M8[Y]" if transform is Transform.YEAR else "M8[M]"
        counted = counted.astype("M8[D]").astype(unit).astype(np.int64)
    return pa.array(counted, pa.int64(), mask=_mask(values))


def _number_buckets(values: pa.Array, count: int) -> pa.Array:
    kind = values.type
    mask = _mask(values)
    if pa.types.is_decimal(kind):
        hashes = hash_bytes([_minimal_bytes(one, kind.scale) for one in _py(values)])
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = hash_bytes([one or b"" for one in _py(values.cast(pa.binary()))])
    else:
        hashes = hash_longs(_longs(values))
    return pa.array((hashes & 0x7FFFFFFF).astype(np.int64) % count, pa.int64(), mask=mask)


def _minimal_bytes(value: Any, scale: int) -> bytes:
    """Return a decimal's digits as the shortest big-endian number with a sign."""
    if value is None:
        return b""
    number = _as_integer(value, scale)
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def _as_integer(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    factor: int = 10 ** (exponent + scale)
    number = int("".join(map(str, digits)) or "0") * factor
    return -number if sign else number


def _truncate(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        return pa.array([_truncate_decimal(one, width, kind.scale) for one in _py(values)], kind)
    longs = _longs(values)
    # A number below the smallest of the type wraps around, as it does in Iceberg's own Java.
    truncated = longs - longs % width
    return pa.array(truncated.astype(kind.to_pandas_dtype()), kind, mask=_mask(values))


def _truncate_decimal(value: Any, width: int, scale: int) -> Any:
    if value is None:
        return None
    number = _as_integer(value, scale)
    return Decimal(number - number % width).scaleb(-scale, _EXACT)
