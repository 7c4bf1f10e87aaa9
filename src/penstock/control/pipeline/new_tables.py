"""New tables: those that match a pattern and that the pipeline does not follow yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.control.pipeline.servers import followed_tables
from penstock.control.pipeline.table_requests import read_requests
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import as_pattern, parse_pattern
from penstock.model.table_requests import Capture
from penstock.ports.checks import Finding, Severity, Side
from penstock.ports.config import Config, NewTables


class NewTable(PenstockError):
    """A table was created at the source that matches a pattern, and newTables is "stop"."""

    code = "CT68"
    retry = "operator"


class LeftOut(PenstockError):
    """A table was created at the source that matches a pattern, and newTables is "leave"."""

    code = "CT69"
    retry = "operator"


def without_new(config: Config, tables: Iterable[TableDefinition]) -> list[TableDefinition]:
    """Return those of these tables that are followed or requested; all, if extraction has not
    begun.

    A table that is created after penstock has looked waits for the next look.
    """
    known = followed_tables(config)
    if known is None or not config.pipeline.mode.has_change:
        return list(tables)
    asked = {
        request.table
        for request in read_requests(config).tables
        if request.capture is Capture.ADDED
    }
    return [
        table for table in tables if known.has(table.name, table.source_id) or table.name in asked
    ]


def new_findings(
    config: Config, tables: Sequence[TableDefinition]
) -> tuple[tuple[TableDefinition, ...], list[Finding]]:
    """Return for doctor the tables that concern a start, and the findings about the new ones."""
    kept = {table.name for table in without_new(config, tables)}
    kept |= named_alone(config.source.tables, [table.name for table in tables])
    names = [table.name for table in tables if table.name not in kept]
    shown = tuple(table for table in tables if table.name in kept)
    if not names or config.source.new_tables is NewTables.ADD:
        return shown, []
    is_error = config.source.new_tables is NewTables.STOP
    error = stop_error(config, names) if is_error else left_out(config, names[0])
    severity = Severity.ERROR if is_error else Severity.WARNING
    why = "the pipeline would not start" if is_error else "its changes do not arrive"
    finding = Finding(
        code=error.code,
        severity=severity,
        side=Side.SOURCE,
        what=error.message,
        why=why,
        command=error.hint,
    )
    return shown, [finding]


def named_alone(patterns: Sequence[str], tables: Collection[TableName]) -> set[TableName]:
    """Return the tables that a pattern without wildcards names, and that are therefore certainly
    wanted.
    """
    exact = [one for one in map(parse_pattern, patterns) if one.exact and not one.excludes]
    return {table for table in tables if any(one.matches(table) for one in exact)}


def stop_error(config: Config, tables: Sequence[TableName]) -> NewTable:
    """Return the error for newTables = "stop"."""
    first = tables[0]
    return NewTable(
        f"new at the source, and a pattern matches it: {', '.join(map(str, tables))}",
        hint=f"Add it (penstock table add {config.path.name} {first}), or exclude it "
        f'("!{as_pattern(first)}" in [source] tables), and start again; newTables = "add" adds '
        "what is new.",
        tables=[str(table) for table in tables],
    )


def left_out(config: Config, table: TableName) -> LeftOut:
    """Return the reason for leaving out a new table if newTables is "leave"."""
    return LeftOut(
        f'{table} is new at the source and left out: newTables is "leave"',
        hint=f"Add it: penstock table add {config.path.name} {table}",
    )
