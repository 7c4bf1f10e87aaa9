"""NOT NULL that the source has dropped since the target's table was created.

Only tables that penstock created are altered: their NOT NULL is a copy of the source's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.target.catalog import (
    TargetColumn,
    TargetIndex,
    TargetTable,
    read_target_tables,
)
from penstock.engines.sqlserver.target.indexes import create_index, drop_index
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.progress import name_work, transaction
from penstock.engines.sqlserver.target.translation import Translation
from penstock.ports.target import SCHEMA, MergeSpec

logger = structlog.get_logger(__name__)


def allow_null(connection: Connection, specs: Iterable[MergeSpec], translation: Translation) -> int:
    """Drop NOT NULL of columns for which filled merge tables hold a NULL; return their number.

    specs: of tables that penstock created. Call it outside a transaction.
    """
    specs = list(specs)
    tables = read_target_tables(connection, [spec.table for spec in specs])
    altered = 0
    with name_work("allowing NULL"):
        for spec in specs:
            table = tables.get(spec.table)
            columns = [] if table is None else _with_null(connection, spec, table, translation)
            if table is None or not columns:
                continue
            with transaction(connection):
                for sql in loosen_columns(table, columns):
                    connection.run(sql)
            names = [column.name for column in columns]
            logger.warning("columns may be null from now on", table=str(spec.table), columns=names)
            altered += len(columns)
    return altered


def loosen_columns(table: TargetTable, columns: Sequence[TargetColumn]) -> list[str]:
    """Return the statements that let columns be NULL, in several rows of a unique index too.

    Such an index is created again without these rows, as for a column that was never NOT NULL: SQL
    Server takes two NULLs for equal. A unique constraint, and an index that foreign keys may refer
    to, cannot leave rows out and stay as they are.
    """
    names = [column.name for column in columns]
    uniques = [
        index
        for index in table.indexes
        if index.is_unique
        and not index.is_constraint
        and not {*names}.isdisjoint(index.columns)
        and not table.is_referred_to
    ]
    return [
        *(drop_index(table, index) for index in uniques),
        *(alter_column(table, column, not_null=False) for column in columns),
        *(
            sql
            for index in uniques
            for sql in create_index(table, replace(index, where=_without_null(index, names)))
        ),
    ]


def _without_null(index: TargetIndex, names: Iterable[str]) -> str:
    given = index.where.removeprefix("(").removesuffix(")")  # the server's own pair
    there = (f"{quote(name)} IS NOT NULL" for name in names if name in index.columns)
    return " AND ".join(filter(None, (given, *there)))


def alter_column(table: TargetTable, column: TargetColumn, *, not_null: bool) -> str:
    """Return the statement that changes only whether a column may be NULL."""
    collation = f" COLLATE {column.collation}" if column.is_text and column.collation else ""
    null = "NOT NULL" if not_null else "NULL"
    return (
        f"ALTER TABLE {table.sql_name} ALTER COLUMN {quote(column.name)} {column.type_text}"
        f"{collation} {null}"
    )


def _with_null(
    connection: Connection, spec: MergeSpec, table: TargetTable, translation: Translation
) -> list[TargetColumn]:
    layout = MergeLayout(spec.relation, as_text=translation.as_text(spec.relation))
    key = table.primary.columns if table.primary is not None else ()
    places = {
        place: found
        for place, column in enumerate(spec.relation.columns)
        if (found := table.column(column.name)) is not None
        and found.not_null
        and found.name not in key
        and not found.is_generated
    }
    if not places:
        return []
    counts = ", ".join(
        f"COUNT_BIG(CASE WHEN {_is_null(layout, place)} THEN 1 END)" for place in places
    )
    (row,) = connection.execute(
        f"SELECT {counts} FROM {quote(SCHEMA, spec.staging)} AS m WHERE m.{quote(layout.count)} > 0"
    )
    return [column for column, count in zip(places.values(), row, strict=True) if count]


def _is_null(layout: MergeLayout, place: int) -> str:
    value = f"{layout.reference(place)} IS NULL"
    if not layout.relation.key:
        return value
    absent, byte, bit = f"m.{quote(layout.absent)}", place // 8 + 1, 1 << place % 8
    sent = f"CAST(SUBSTRING({absent}, {byte}, 1) AS int) & {bit} = 0"
    return f"{value} AND ({absent} IS NULL OR {sent})"
