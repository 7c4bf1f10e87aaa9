"""Layout of a merge table of Oracle: names, types and order of its columns.

First a few columns of penstock, whose names begin with `wk$`, then the table's columns under their
own names, all nullable. It is a heap without indexes, into which several workers insert at the same
time. Every row carries the stamp of its filling, so that rows of a late worker are seen. A short
text is a VARCHAR2, which a key can be compared with; a long one is a CLOB. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_texts import TEXT, text_values
from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.types.oracle_held import COLUMNS_MAX, RAW_BYTES_MAX, VARCHAR_BYTES_MAX
from penstock.engines.oracle.connect import is_possible, quote
from penstock.engines.oracle.target.progress import OWNER
from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.ports.target import Layout, ShapeNotApplicable, ValueRefused

STAMP = "wk$stamp"
"""Column with the stamp, which has the same name in every merge table."""
ABSENT_LENGTH = COLUMNS_MAX
_TIMESTAMP = pa.timestamp("us")
_DAY_US = 86_400_000_000
_US_FIRST, _US_LAST = -719_162 * _DAY_US, 2_932_897 * _DAY_US - 1  # years 1 to 9999
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


class Staged(StrEnum):
    """Form in which a column's values are staged.

    Attributes:
        OWN: The neutral type.
        SHORT: Text of at most 4,000 bytes.
        LONG: Text of any length.
        RAW: At most 2,000 bytes.
        BLOB: Any number of bytes.
    """

    OWN = "own"
    SHORT = "short"
    LONG = "long"
    RAW = "raw"
    BLOB = "blob"


_SQL = {
    Staged.SHORT: f"VARCHAR2({VARCHAR_BYTES_MAX} BYTE)",
    Staged.LONG: "CLOB",
    Staged.RAW: f"RAW({RAW_BYTES_MAX})",
    Staged.BLOB: "BLOB",
}
_SENT = {
    Staged.SHORT: TEXT,
    Staged.LONG: pa.large_string(),
    Staged.RAW: pa.binary(),
    Staged.BLOB: pa.large_binary(),
}
"""Types in which the driver is given values: it binds the large ones as LONG, which a LOB takes."""
_OWN: dict[str, tuple[pa.DataType, str]] = {
    "bool": (pa.int8(), "NUMBER(1)"),
    "int16": (pa.int16(), "NUMBER(5)"),
    "int32": (pa.int32(), "NUMBER(10)"),
    "int64": (pa.int64(), "NUMBER(19)"),
    "uint32": (pa.uint32(), "NUMBER(10)"),
    "uint64": (pa.uint64(), "NUMBER(20)"),
    "float32": (pa.float32(), "BINARY_FLOAT"),
    "float64": (pa.float64(), "BINARY_DOUBLE"),
    "date": (pa.date32(), "DATE"),
    "timestamp": (_TIMESTAMP, "TIMESTAMP(6)"),
    "timestamptz": (_TIMESTAMP, "TIMESTAMP(6)"),
}
"""Types in which values of each neutral type are sent, and staged: moments in UTC."""
_TEXTS = (Staged.SHORT, Staged.LONG)


def staged_form(column: Column, form: Staged) -> tuple[pa.DataType, str]:
    """Return the types in which a column's values are sent, and staged."""
    if form is Staged.OWN:
        if match := _DECIMAL.match(column.neutral):
            return arrow_type(column.neutral), f"NUMBER({match[1]},{match[2]})"
        return _OWN[column.neutral]
    return _SENT[form], _SQL[form]


def default_form(column: Column) -> Staged:
    """Return the form of a column whose type in the target is not known."""
    if column.neutral == "binary":
        return Staged.BLOB
    is_own = column.neutral in _OWN or _DECIMAL.match(column.neutral)
    return Staged.OWN if is_own else Staged.LONG


def check_names(relation: Relation) -> None:
    """Raise ShapeNotApplicable for a column whose name Oracle cannot have."""
    for column in relation.columns:
        if not is_possible(column.name):
            raise ShapeNotApplicable(
                f"{relation.full_name} has a column {column.name!r}: a name of Oracle has no "
                "quotation mark",
                hint="Rename the column at the source, or leave the table out of [source] tables.",
                table=relation.full_name,
            )


class MergeLayout(Layout):
    """Merge table of one relation version.

    Attributes:
        count: Name of the column with GONE, UPSERT or NEW; in a table without a key the number of
            copies to insert or, if it is negative, to delete.
        absent: Name of the column with the unsent columns, a text of 0 and 1 for each column, or
            NULL.
        origin: Names of the columns with the key under which the target has a row with unsent ones.
    """

    def __init__(self, relation: Relation, forms: Sequence[Staged] = (), *, stamp: int = 0) -> None:
        """Derive the layout. forms: of the columns. Raises ShapeNotApplicable for more columns than
        a table can have, and for names that it cannot have.
        """
        prefix = "wk$"
        while any(column.name.lower().startswith(prefix) for column in relation.columns):
            prefix += "$"
        self.relation = relation
        self.forms = tuple(forms) or tuple(map(default_form, relation.columns))
        self.count = f"{prefix}n"
        self.absent = f"{prefix}absent"
        self.origin = tuple(f"{prefix}key{place}" for place in range(1, len(relation.key) + 1))
        self._check_names()
        self._stamp = stamp
        own: list[tuple[str, pa.DataType, str]] = [(self.count, pa.int64(), "NUMBER(19)")]
        if relation.key:
            own.append((self.absent, TEXT, f"VARCHAR2({ABSENT_LENGTH} BYTE)"))
        for name, index in zip(self.origin, relation.key, strict=True):
            own.append((name, *staged_form(relation.columns[index], self.forms[index])))
        columns = [
            *own,
            *(
                (column.name, *staged_form(column, form))
                for column, form in zip(relation.columns, self.forms, strict=True)
            ),
            (STAMP, pa.int64(), "NUMBER(19)"),
        ]
        if len(columns) > COLUMNS_MAX:
            raise ShapeNotApplicable(
                f"{relation.full_name} has {len(relation.columns)} columns, and its merge table "
                f"would have {len(columns)}: a table of Oracle has at most {COLUMNS_MAX:,}",
                hint=f"Leave the table out of [source] tables. {LOAD_AFRESH}",
                table=relation.full_name,
            )
        self.schema = pa.schema([(name, kind) for name, kind, _ in columns])
        self.sql_columns = tuple((name, sql) for name, _, sql in columns)

    def _check_names(self) -> None:
        check_names(self.relation)
        if any(column.name == STAMP for column in self.relation.columns):
            raise ShapeNotApplicable(
                f"{self.relation.full_name} has a column {STAMP}, which merge tables have, too",
                hint="Rename the column at the source, or leave the table out of [source] tables.",
                table=self.relation.full_name,
            )

    def reference(self, index: int, alias: str = "m") -> str:
        """Return the relation's column of this index, quoted."""
        return f"{alias}.{quote(self.relation.columns[index].name)}"

    def create(self, name: str) -> str:
        """Return the statement that creates the merge table of this name."""
        columns = ",\n    ".join(f"{quote(column)} {sql} NULL" for column, sql in self.sql_columns)
        return f"CREATE TABLE {quote(OWNER, name)} (\n    {columns}\n)"

    def insert(self, name: str) -> str:
        """Return the statement that inserts one row into the merge table of this name."""
        names = ", ".join(quote(column) for column, _ in self.sql_columns)
        binds = ", ".join(f":{place}" for place in range(1, len(self.sql_columns) + 1))
        return f"INSERT INTO {quote(OWNER, name)} ({names}) VALUES ({binds})"

    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """Return one batch, ready to be sent; a column given as None is all null.

        Raises ValueRefused for a moment that the driver cannot send.
        """
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(self._flags(bitmaps))
            keys = origin if origin is not None else [None] * len(self.origin)
            arrays += [
                self._convert(index, values)
                for index, values in zip(self.relation.key, keys, strict=True)
            ]
        arrays += [self._convert(index, values) for index, values in enumerate(columns)]
        arrays.append(pa.array(np.full(size, self._stamp, dtype=np.int64)))
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, field.type) if values is None else values
                for values, field in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )

    def _flags(self, bitmaps: Any) -> Any:
        """Return bitmaps, whose lowest bit is the first column, as texts of 0 and 1."""
        if bitmaps is None:
            return None
        count = len(self.relation.columns)
        texts = [
            None
            if one is None
            else "".join(
                map(
                    str,
                    np.unpackbits(np.frombuffer(one, np.uint8), bitorder="little")[:count].tolist(),
                )
            )
            for one in bitmaps.to_pylist()
        ]
        return pa.array(texts, TEXT)

    def _convert(self, index: int, values: Any) -> Any:
        if values is None:
            return None
        column = self.relation.columns[index]
        return convert_values(values, column, self.forms[index], self.relation)


def convert_values(values: Any, column: Column, form: Staged, relation: Relation) -> Any:
    """Return a column of the log, prepared, as it is sent.

    Raises ValueRefused for a moment outside of the years 1 to 9999, which the driver cannot send.
    """
    kind, _ = staged_form(column, form)
    if form in _TEXTS:
        return cast_exactly(text_values(values), kind)
    if form is not Staged.OWN:
        return cast_exactly(values, kind)
    values = cast_exactly(values, arrow_type(column.neutral))
    if pa.types.is_timestamp(values.type):
        _check_years(values, column, relation)
        return cast_exactly(values, _TIMESTAMP)  # the moment in UTC
    return cast_exactly(values, kind)


def _check_years(values: Any, column: Column, relation: Relation) -> None:
    found = pc.min_max(values.view(pa.int64()))
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < _US_FIRST or high > _US_LAST):
        raise ValueRefused(
            f"column {column.name} of {relation.full_name} has a moment outside of the years 1 to "
            "9999, which the driver cannot send",
            hint="Change the value at the source, or leave the table out of [source] tables.",
            table=relation.full_name,
        )
