"""Images of rows that servers of different engines compute alike: SQL for both sides of a table.

Each column is the text by which the table of types compares it (`codec.types`), so what a
pipeline holds to be equal is equal here. Texts are given their length, NULL is told from every
text, and long values enter as a digest: an image must stay below max_allowed_packet, beyond which
MySQL's concat() is NULL. Not here: hashing images (`checksum.py`, `checksum_mysql.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.codec.types import Engine, Mapping, filled
from penstock.codec.types.forms import Form, Kind
from penstock.control.checksum import Image, key_columns
from penstock.engines.postgres.connect import quoted as postgres_quoted
from penstock.model import ColumnDefinition, PenstockError, TableDefinition, TableName
from penstock.sql.read_plan import Ends, carried

# Kinds whose text can hold anything; of all others it is digits, letters and signs.
_ANY_TEXT = frozenset({Kind.TEXT, Kind.PADDED, Kind.PRINTED})
_LONG = frozenset(
    {
        "tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob",
        "json", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
        "multipolygon", "geometrycollection", "geomcollection",
    }
)  # fmt: skip
_BYTES = Form(kind=Kind.BYTES)
_SHOWN = 200  # characters of one column that name a row


class ColumnIncomparable(PenstockError):
    """The table of types has no way to carry a column, so there is nothing to compare it by."""

    code = "VF04"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A column on one side. text: template of its text.

    is_any: the text can hold anything. is_long: it enters as a digest; of its bytes as they are
    with is_bytes.
    """

    name: str
    text: str
    is_any: bool
    is_long: bool
    is_bytes: bool


def compared_columns(
    definition: TableDefinition, ends: Ends, present: Collection[str]
) -> list[ColumnDefinition]:
    """The columns that are compared: those that are carried, and computed ones that are there.

    present: names of the target's columns, in lower case for MySQL and MariaDB.
    """
    names = {column.name for column in carried(definition, ends)}
    if ends.source.engine.is_mysql:
        folded = ends.target.engine.is_mysql
        names |= {
            column.name
            for column in definition.columns
            if (column.name.lower() if folded else column.name) in present
        }
    return [column for column in definition.columns if column.name in names]


def shared_images(
    definition: TableDefinition,
    target: TableName,
    columns: Sequence[ColumnDefinition],
    ends: Ends,
) -> tuple[Image, Image]:
    """The images of a table's rows at the source and in the target. Raises ColumnIncomparable."""
    mappings = ends.mappings(definition)
    for column in columns:
        if refused := mappings[column.name].refused:
            raise ColumnIncomparable(
                f"column {column.name} of {definition.name} cannot be compared: {refused}",
                hint="Take the table out of [source] tables, or see `penstock plan`.",
                table=str(target),
            )
    key = [name for name in key_columns(definition) if name in {c.name for c in columns}]
    images = []
    for engine, is_source in ((ends.source.engine, True), (ends.target.engine, False)):
        cells = {
            column.name: _cell(column, mappings[column.name], ends, is_source=is_source)
            for column in columns
        }
        images.append(_image(cells, key, engine))
    return images[0], images[1]


def _cell(column: ColumnDefinition, mapping: Mapping, ends: Ends, *, is_source: bool) -> _Cell:
    own = [column.type_text] if ends.source.engine.is_mysql else []
    own += [mapping.target_type] if ends.target.engine.is_mysql else []
    source, target = mapping.equal.source, mapping.equal.target
    return _Cell(
        name=column.name,
        text=source if is_source else target,
        is_any=mapping.equal.name in _ANY_TEXT,
        is_long=any(_base(text) in _LONG for text in own),
        is_bytes=source == _BYTES.sql(ends.source.engine)
        and target == _BYTES.sql(ends.target.engine),
    )


def _base(type_text: str) -> str:
    return type_text.partition("(")[0].partition(" ")[0].lower()


def _image(cells: dict[str, _Cell], key: Sequence[str], engine: Engine) -> Image:
    make = _MySQL if engine.is_mysql else _Postgres
    row = make.joined([make.marked(cell) for cell in cells.values()])
    named = key or list(cells)
    return Image(
        key=make.joined([make.marked(cells[name]) for name in key]) if key else row,
        row=row,
        name=make.shown([make.text(cells[name]) for name in named]),
    )


class _Postgres:
    """The SQL of PostgreSQL."""

    @staticmethod
    def text(cell: _Cell) -> str:
        """A column's text."""
        return f"({filled(cell.text, postgres_quoted(cell.name))})"

    @staticmethod
    def marked(cell: _Cell) -> str:
        """A column as it enters the image."""
        text = _Postgres.text(cell)
        if cell.is_long and cell.is_bytes:
            text = f"encode(sha256({postgres_quoted(cell.name)}), 'hex')"
        elif cell.is_long:
            text = f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"
        elif cell.is_any:
            text = f"length({text}) || ':' || {text}"
        return f"coalesce({text}, 'N')"

    @staticmethod
    def joined(parts: Sequence[str]) -> str:
        """The image."""
        return f"""({" || '|' || ".join(parts)}) collate "C\""""

    @staticmethod
    def shown(texts: Sequence[str]) -> str:
        """A key for people."""
        listed = " || ',' || ".join(f"coalesce({text}, '')" for text in texts)
        return f"('(' || {listed} || ')')"


class _MySQL:
    """The SQL of MySQL and MariaDB."""

    @staticmethod
    def text(cell: _Cell) -> str:
        """A column's text."""
        from penstock.engines.mysql.connect import quoted  # with the driver: not all have it

        return f"({filled(cell.text, quoted(cell.name))})"

    @staticmethod
    def marked(cell: _Cell) -> str:
        """A column as it enters the image."""
        from penstock.engines.mysql.connect import quoted

        text = _MySQL.text(cell)
        if cell.is_long:
            digested = quoted(cell.name) if cell.is_bytes else text
            text = f"sha2({digested}, 256)"
        elif cell.is_any:
            text = f"concat(char_length({text}), ':', {text})"
        return f"coalesce({text}, 'N')"

    @staticmethod
    def joined(parts: Sequence[str]) -> str:
        """The image."""
        return f"concat({', '.join(_between(parts))})"

    @staticmethod
    def shown(texts: Sequence[str]) -> str:
        """A key for people."""
        listed = ", ".join(f"coalesce(left({text}, {_SHOWN}), '')" for text in texts)
        return f"concat('(', concat_ws(',', {listed}), ')')"


def _between(parts: Sequence[str]) -> list[str]:
    listed = [parts[0]]
    for part in parts[1:]:
        listed += ["'|'", part]
    return listed
