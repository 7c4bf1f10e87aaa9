"""Rules by which Delta and Iceberg tables hold the types of the sources.

A lake has fewer types than a database: what has no counterpart is kept as the exact text that the
source prints. No column loses a value by default. A value that a column cannot hold (infinity, a
year outside 1 to 9999, MySQL's zero dates, NaN in a decimal) stops the load by name unless
`[target.types]` has a choice for it.

A type of a lake is named as in the log (`date`, `timestamptz`, `decimal(12,2)`), because both
formats have the same ones under different names (`format_type`). Not here: the conversion of values
(`lake_values.py`), field ids and physical names (the engines).
"""

from __future__ import annotations

import re
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.codec.columns import DECIMAL_PRECISION_MAX
from penstock.codec.types.mapping import (
    ERROR,
    LOSSES,
    NO_CHOICES,
    TEXT,
    Choices,
    Loss,
    Mapping,
    column_scope,
)
from penstock.codec.types.source_type import GEOMETRIES, Engine, SourceType
from penstock.model import Column, ColumnDefinition, TableDefinition, TableName


class TableFormat(StrEnum):
    """Format of a lake's tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


UNSIGNED_64 = "decimal(20,0)"
"""Type for unsigned integers of 64 bits, which no lake has."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_BIT_WIDTH_SIGNED = 63
_PG = {
    "boolean": "bool",
    "smallint": "int32",
    "integer": "int32",
    "bigint": "int64",
    "oid": "int64",
    "xid": "int64",
    "cid": "int64",
    "xid8": UNSIGNED_64,
    "real": "float32",
    "double precision": "float64",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}
_MYSQL = {
    "float": "float32",
    "double": "float64",
    "year": "int32",
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
}
_MYSQL_INTEGERS = {
    ("tinyint", False): "int32",
    ("tinyint", True): "int32",
    ("smallint", False): "int32",
    ("smallint", True): "int32",
    ("mediumint", False): "int32",
    ("mediumint", True): "int32",
    ("int", False): "int32",
    ("int", True): "int64",
    ("bigint", False): "int64",
    ("bigint", True): UNSIGNED_64,
}
_IGNITE = {
    "boolean": "bool",
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "real": "float32",
    "double": "float64",
    "binary": "binary",
    "other": "binary",
    "date": "date",
    "timestamp": "timestamptz",
}
_NEUTRAL = {
    "int16": "int32",
    "uint32": "int64",
    "uint64": UNSIGNED_64,
    "time": "string",
    "uuid": "string",
}
_TEMPORALS = ("date", "timestamp", "timestamptz")
_NOTES = {
    "numeric": "text: values have more digits, or different scales",
    "decimal": "text: values have more digits, or different scales",
    "time": "text: a lake has no type for times that Spark reads",
    "timetz": "text: a lake has no type for times that Spark reads",
    "interval": "text: a lake has no such type",
    "uuid": "text of 36 characters",
    "json": "the document's text, unchanged",
    "jsonb": "the document's text",
}
_FORMAT_NAMES = {
    TableFormat.DELTA: {
        "bool": "boolean",
        "int32": "integer",
        "int64": "long",
        "float32": "float",
        "float64": "double",
        "date": "date",
        "timestamp": "timestamp_ntz",
        "timestamptz": "timestamp",
        "string": "string",
        "binary": "binary",
    },
    TableFormat.ICEBERG: {
        "bool": "boolean",
        "int32": "int",
        "int64": "long",
        "float32": "float",
        "float64": "double",
        "date": "date",
        "timestamp": "timestamp",
        "timestamptz": "timestamptz",
        "string": "string",
        "binary": "binary",
    },
}
_FEATURES = {(TableFormat.DELTA, "timestamp"): "timestampNtz"}


def format_type(type_name: str, table_format: TableFormat) -> str:
    """Return the name that a format has for a lake's type, as in its schema."""
    if _DECIMAL.match(type_name):
        return type_name
    return _FORMAT_NAMES[table_format][type_name]


def feature_of(type_name: str, table_format: TableFormat) -> str:
    """Return the feature that a table needs for a type; empty if it needs none.

    Readers that do not know the feature cannot read the table.
    """
    return _FEATURES.get((table_format, type_name), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMapping:
    """Mapping of one column to a lake.

    Attributes:
        source_type: type as the source prints it.
        type: type in the lake, named as in the log.
        losses: values that the type cannot hold.
        chosen: loss to choice; `error` where the user has none.
        note: for the reader of a plan.
        fraction: digits after the second in texts of times; None: as many as a value has.
        zone: text behind a timestamptz that is kept as text.
        refused: reason why no mapping is possible.
    """

    source_type: str
    type: str
    losses: tuple[Loss, ...] = ()
    chosen: AbstractMapping[str, str] = field(default_factory=dict)
    note: str = ""
    fraction: int | None = None
    zone: str = ""
    refused: str = ""

    def shown(self, table_format: TableFormat) -> Mapping:
        """Return the mapping in the form that plans show."""
        return Mapping(
            source_type=self.source_type,
            target_type="" if self.refused else format_type(self.type, table_format),
            losses=self.losses,
            chosen=self.chosen,
            refused=self.refused,
            note=self.note,
        )


def map_lake_column(
    column: ColumnDefinition | Column,
    source_engine: str,
    *,
    choices: Choices = NO_CHOICES,
    table: TableName | None = None,
    identifies: bool = False,
) -> LakeMapping:
    """Return the mapping of one column to a lake.

    Args:
        column: from the source's catalogue or from the log. The type at the source determines the
            result, so it is the same if a relation keeps the values as text.
        source_engine: engine whose types the source has, as a log names it. Columns of an unknown
            engine are mapped by their neutral types.
        choices: of [target.types].
        table: the source's table, for the choices of one column.
        identifies: whether rows are found by the column, so that no value may become NULL.
    """
    engine = _engine(source_engine)
    if engine is None:
        shown = column.source_type if isinstance(column, Column) else column.type_text
        return LakeMapping(source_type=shown, type=_of_neutral(column.neutral))
    kind = SourceType.of(column, engine)
    mapping = _hold(kind)
    scope = column_scope(table, column.name)
    chosen = {
        loss.name: choice if (choice := choices.get(loss.name, kind, scope)) else ERROR
        for loss in mapping.losses
    }
    mapping = replace(mapping, chosen=chosen)
    if TEXT in chosen.values():
        return replace(mapping, type="string", note="the text that the source prints")
    if identifies and mapping.shown(TableFormat.DELTA).may_be_null:
        return replace(
            mapping,
            refused="NULL was chosen for some of its values, and rows are found by it: choose "
            f'otherwise for "{scope}"',
        )
    return mapping


def map_lake_table(
    definition: TableDefinition, source_engine: str, *, choices: Choices = NO_CHOICES
) -> dict[str, LakeMapping]:
    """Return the mapping of each column of a table by name, in the table's order."""
    return {
        column.name: map_lake_column(
            column,
            source_engine,
            choices=choices,
            table=definition.name,
            identifies=column.name in definition.row_key,
        )
        for column in definition.columns
    }


def _engine(name: str) -> Engine | None:
    try:
        return Engine(name or "postgresql")
    except ValueError:
        return None


def _of_neutral(neutral: str) -> str:
    return _NEUTRAL.get(neutral, neutral)


def _hold(kind: SourceType) -> LakeMapping:
    if kind.engine is Engine.POSTGRESQL:
        return _hold_postgres(kind)
    if kind.engine is Engine.IGNITE:
        return _hold_ignite(kind)
    return _hold_mysql(kind)


def _plain(kind: SourceType, name: str, *losses: str) -> LakeMapping:
    note = _NOTES.get(kind.base, "") if name == "string" and kind.is_builtin else ""
    if name == UNSIGNED_64:
        note = "a lake has no unsigned integers"
    if name == "timestamptz":
        note = "in UTC"
    return LakeMapping(
        source_type=kind.text,
        type=name,
        losses=tuple(_offer(LOSSES[loss], name) for loss in losses),
        note=note,
    )


def _offer(loss: Loss, name: str) -> Loss:
    """Return a loss with the choices that a type of the lake allows."""
    if name in _TEMPORALS or _DECIMAL.match(name):
        return loss
    return replace(loss, choices={k: v for k, v in loss.choices.items() if k != TEXT})


def _hold_postgres(kind: SourceType) -> LakeMapping:
    if kind.neutral == "binary" and kind.base != "bytea":
        note = "bytes: the source's database does not say which encoding it has"
        return replace(_plain(kind, "binary"), note=note)
    if kind.is_array or not kind.is_builtin:
        return replace(_plain(kind, "string"), note="the text that PostgreSQL prints")
    if kind.base == "numeric":
        return _numeric(kind)
    name = _PG.get(kind.base, "string")
    if name in _TEMPORALS:
        zone = "+00" if name == "timestamptz" else ""
        return replace(_plain(kind, name, "dates out of range"), zone=zone)
    return _plain(kind, name)


def _numeric(kind: SourceType) -> LakeMapping:
    if not kind.arguments:
        return _plain(kind, "string")
    precision, scale = (*kind.arguments, 0)[:2]
    if scale < 0:
        precision, scale = precision - scale, 0  # numeric(5,-2) keeps whole hundreds
    precision = max(precision, scale)
    if precision > DECIMAL_PRECISION_MAX:
        return _plain(kind, "string")
    return _plain(kind, f"decimal({precision},{scale})", "not a number")


def _hold_mysql(kind: SourceType) -> LakeMapping:
    if (kind.base, kind.unsigned) in _MYSQL_INTEGERS:
        return _plain(kind, _MYSQL_INTEGERS[kind.base, kind.unsigned])
    if kind.base == "decimal":
        precision, scale = kind.decimal
        fits = precision <= DECIMAL_PRECISION_MAX
        return _plain(kind, f"decimal({precision},{scale})" if fits else "string")
    if kind.base == "bit":
        is_signed = (kind.length or 1) <= _BIT_WIDTH_SIGNED
        note = "the number of the bits"
        return replace(_plain(kind, "int64" if is_signed else UNSIGNED_64), note=note)
    if kind.base in GEOMETRIES:
        return replace(_plain(kind, "string"), note="EWKB in hexadecimal digits")
    if kind.base == "time":
        return replace(_plain(kind, "string"), fraction=kind.fraction)
    name = _MYSQL.get(kind.base, "string")
    if name in _TEMPORALS:
        mapping = _plain(kind, name, "zero dates", "dates out of range")
        return replace(mapping, fraction=0 if kind.base == "date" else kind.fraction)
    if name == "string" and kind.neutral == "binary":
        note = "bytes: penstock does not know the character set"
        return replace(_plain(kind, "binary"), note=note)
    return _plain(kind, name)


def _hold_ignite(kind: SourceType) -> LakeMapping:
    if kind.base == "decimal":
        return _numeric(replace(kind, base="numeric"))
    name = _IGNITE.get(kind.base, "string")
    if name == "timestamptz":
        mapping = _plain(kind, name, "nanoseconds", "dates out of range")
        return replace(mapping, zone="+00")
    if name == "date":
        return _plain(kind, name, "dates out of range")
    return _plain(kind, name)
