"""Plan for converting the columns of a COPY to lines for another engine; see `sql/read_plan.py`.

Not here: the walk over the lines (`codec.postgres.copytext`).
"""

from __future__ import annotations

from collections.abc import Mapping as Namespace
from collections.abc import Sequence

from penstock.codec.lines import LineCell, LineForm
from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import Engine, Mapping, SourceType
from penstock.model import ColumnDefinition
from penstock.sql.read_plan import AS_IS

_LINE_FORMS = {
    "boolean": LineForm.BOOL, "bytea": LineForm.BYTES, "date": LineForm.DATE,
    "timestamp": LineForm.DATE, "timestamptz": LineForm.ZONED, "numeric": LineForm.NUMBER,
    "real": LineForm.NUMBER, "double precision": LineForm.NUMBER, "smallint": LineForm.PLAIN,
    "integer": LineForm.PLAIN, "bigint": LineForm.PLAIN, "oid": LineForm.PLAIN,
    "uuid": LineForm.PLAIN, "time": LineForm.PLAIN, "bit": LineForm.PLAIN,
}  # fmt: skip
_REFUSED_HERE = {
    LineForm.DATE: "dates out of range",
    LineForm.ZONED: "dates out of range",
    LineForm.NUMBER: "not a number",
}


def read_plan(
    columns: Sequence[ColumnDefinition], mappings: Namespace[str, Mapping], servers: ServerPair
) -> ReadPlan:
    """Return the plan for reading these columns; each template is for one column."""
    found = [_from_postgres(column, mappings[column.name], servers) for column in columns]
    return ReadPlan(
        columns=tuple(column.name for column in columns),
        lines=tuple(cell for cell, _ in found),
        templates=tuple(template for _, template in found),
    )


def _from_postgres(
    column: ColumnDefinition, mapping: Mapping, servers: ServerPair
) -> tuple[LineCell, str]:
    kind = SourceType.of(column, servers.source.engine)
    form = LineForm.TEXT if kind.is_array else _LINE_FORMS.get(kind.base, LineForm.TEXT)
    if kind.base == "char" and not kind.is_array:
        return LineCell(form=LineForm.TEXT), mapping.write.sql
    if form is LineForm.TEXT or mapping.target_type.startswith(("longtext", "varchar")):
        return LineCell(form=LineForm.TEXT), AS_IS
    loss = _REFUSED_HERE.get(form, "")
    cell = LineCell(form=form, unfit_is_null=mapping.chosen.get(loss) == "null")
    # Values that LOAD DATA does not compute are refused by the walk or, with a warning, by the
    # server.
    is_computed = kind.base in ("real", "bit") or "digits" in mapping.chosen
    if kind.base == "uuid" and servers.target.engine is Engine.MARIADB:
        # An existing column may be a UUID, which accepts 36 characters but not 36 bytes.
        return cell, "convert({} using utf8mb4)"
    return cell, mapping.write.sql if is_computed else AS_IS


def log_plan(columns: Sequence[ColumnDefinition]) -> None:
    """Return no plan: the stream sends columns as COPY writes them."""
    del columns
