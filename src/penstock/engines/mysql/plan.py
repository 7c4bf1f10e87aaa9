"""Questions of a plan to MySQL and MariaDB servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

from penstock.codec.types import Engine, Server
from penstock.engines.mysql.connect import Connection, connect, quote, rows
from penstock.engines.mysql.source.catalog import Exclusion, open_catalog, survey
from penstock.engines.mysql.strict_values import convert_sql, strict_refusal
from penstock.host.errors import StatementFailed
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import PLAN_APPLICATION, SourceFacts


def read_source(
    config: Config,
    *,
    dropped: Collection[TableName],  # noqa: ARG001 - the port's
) -> SourceFacts:
    """Return the source and its captured tables.

    Raises the errors of connecting and of the catalogue.
    """
    with closing(open_catalog(config.source.url, application_name=PLAN_APPLICATION)) as session:
        found = survey(session, config.source.tables)
        out = [one for one in found.excluded if one.reason is not Exclusion.PATTERN]
        return SourceFacts(
            server=_server(session),
            tables=found.tables,
            left_out=tuple(map(str, out)),
            problems=(
                *(f"no table {name} in the source" for name in found.unmatched),
                *(f"{one}, and [source] tables names it" for one in out if one.is_named),
                *(_warn_of_versioned(found.tables) if config.pipeline.mode.has_change else ()),
            ),
        )


def _warn_of_versioned(definitions: Iterable[TableDefinition]) -> list[str]:
    return [
        f"{definition.name} is system-versioned: the binlog holds its past rows as rows of their "
        "own, under the keys of the present ones"
        for definition in definitions
        if definition.is_versioned
    ]


def problems_between(
    config: Config, tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Find generated columns whose values a strict target would refuse for some rows.

    The target computes them again in strict mode, although the source may have stored the rows in
    another mode: a warning of a SELECT is an error there. This takes one pass over each table that
    has such columns, and none once its bulk load has been planned.
    """
    found: list[str] = []
    with closing(open_catalog(config.source.url, application_name=PLAN_APPLICATION)) as session:
        for table in tables:
            computed = [column for column in table.columns if column.generated and column.default]
            if not computed or table.is_versioned or table.name in planned:
                continue
            found += _find_refused_rows(session, table, computed)
            if next(_warnings(session, table, computed), None) is None:
                continue
            found += [
                f"{table.name}.{column.name} is generated, and its expression gives "
                f'"{first}" for a row of the table: a strict server refuses that row'
                for column in computed
                if (first := next(_warnings(session, table, [column]), None)) is not None
            ]
    return found


def _find_refused_rows(
    session: Connection, table: TableDefinition, columns: Sequence[ColumnDefinition]
) -> Iterator[str]:
    """Look for rows whose computed values a column's type refuses in strict mode."""
    conditions = [(column, strict_refusal(column)) for column in columns]
    asked = [(column, one) for column, one in conditions if one]
    if not asked:
        return
    sums = ", ".join(f"coalesce(sum({one}), 0) as c{place}" for place, (_, one) in enumerate(asked))
    doing = f"computing generated columns of {table.name}"
    try:
        counts = rows(session, f"select {sums} from {quote(*table.name)}", doing=doing)[0]
    except StatementFailed:
        return  # the expression itself fails for a row, which `_warnings` reports
    for place, (column, condition) in enumerate(asked):
        if count := int(counts[f"c{place}"]):
            yield (
                f"{table.name}.{column.name} is generated, and its expression gives {count} values "
                f"that {column.type_text} does not hold: a strict server refuses these rows; "
                f"select * from {quote(*table.name)} where {condition} lists them"
            )


def _warnings(
    session: Connection, table: TableDefinition, columns: Sequence[ColumnDefinition]
) -> Iterator[str]:
    """Yield the server's warnings when it computes these columns for all rows."""
    doing = f"computing generated columns of {table.name}"
    counts = ", ".join(f"count({convert_sql(column)})" for column in columns)
    try:
        rows(session, f"select {counts} from {quote(*table.name)}", doing=doing)
    except StatementFailed as error:
        yield error.message
        return
    for row in rows(session, "show warnings", doing=doing):
        yield str(row["message"])


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target, and its lower_case_table_names. Raises the errors of connecting."""
    with closing(connect(config.target.url, application_name=PLAN_APPLICATION)) as session:
        found = rows(
            session,
            "select @@lower_case_table_names as folding",
            doing="asking the target how it keeps names",
        )
        return _server(session), int(found[0]["folding"])


def _server(session: Connection) -> Server:
    found = session.server
    return Server(engine=Engine(found.flavour.value), version=found.number)
