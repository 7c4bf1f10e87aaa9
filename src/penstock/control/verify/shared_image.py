"""Images of rows that servers of different engines compute alike: SQL for both sides of a table.

Each column is the text by which the table of types compares it (`codec.types`), so values that a
pipeline considers equal are equal here. Each text is preceded by its length, NULL differs from
every text, and long values enter as a digest if an engine cannot make texts of any length. Not
here: the SQL of images and of hashing them (`ports.verify.Dialect`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Mapping
from penstock.codec.types.forms import Form, Kind
from penstock.model import ColumnDefinition, PenstockError, TableDefinition, TableName
from penstock.ports.verify import ComparedCell, Dialect, Image, key_columns
from penstock.sql.read_plan import copied_columns

# Kinds whose text can hold anything; the text of all others is digits, letters and signs.
_ANY_TEXT = frozenset({Kind.TEXT, Kind.PADDED, Kind.PRINTED})
_BYTES = Form(kind=Kind.BYTES)


class ColumnIncomparable(PenstockError):
    """The table of types has no translation for a column, so there is no text to compare it by."""

    code = "VF04"


def compared_columns(
    definition: TableDefinition,
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
    *,
    present: Collection[str],
) -> list[ColumnDefinition]:
    """Return the compared columns: loaded ones, and generated ones that the target has.

    Servers of one engine compute generated columns alike. present: names of the
    target's columns, as it has them.
    """
    names = {column.name for column in copied_columns(definition, servers)}
    source, target = dialects
    if source is target:
        names |= {
            column.name
            for column in definition.columns
            if target.column_name(column.name) in present
        }
    return [column for column in definition.columns if column.name in names]


def shared_images(
    definition: TableDefinition,
    target: TableName,
    columns: Sequence[ColumnDefinition],
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
) -> tuple[Image, Image]:
    """Return the images of a table's rows at source and target. Raises ColumnIncomparable."""
    mappings = servers.mappings(definition)
    for column in columns:
        if refused := mappings[column.name].refused:
            raise ColumnIncomparable(
                f"column {column.name} of {definition.name} cannot be compared: {refused}",
                hint="Take the table out of [source] tables, or see `penstock plan`.",
                table=str(target),
            )
    cells = {
        column.name: _cells(column, mappings[column.name], servers, dialects) for column in columns
    }
    key = [cells[name] for name in key_columns(definition) if name in cells]
    source, into = dialects
    return (
        source.image([one for one, _ in cells.values()], [one for one, _ in key]),
        into.image([one for _, one in cells.values()], [one for _, one in key]),
    )


def _cells(
    column: ColumnDefinition,
    mapping: Mapping,
    servers: ServerPair,
    dialects: tuple[Dialect, Dialect],
) -> tuple[ComparedCell, ComparedCell]:
    """Return a column at the source and in the target."""
    source, target = mapping.equal.source, mapping.equal.target
    cell = ComparedCell(
        name=column.name,
        text=source,
        is_any=mapping.equal.name in _ANY_TEXT,
        is_long=dialects[0].is_long(column.type_text) or dialects[1].is_long(mapping.target_type),
        is_bytes=source == _BYTES.sql(servers.source.engine)
        and target == _BYTES.sql(servers.target.engine),
    )
    return cell, replace(cell, text=target)
