"""Select the tables of a SQL Server database that a pipeline captures, with reasons for the rest.

Left out: tables without rows of their own, the history of temporal tables, and penstock's own
tables. An account sees only tables on which it has rights. Not here: patterns (`model.patterns`),
definitions (`definitions.py`), and whether changes of a table are captured (`source`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from penstock.codec.types import Engine, Server
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading.definitions import TableRow, definitions_of
from penstock.engines.sqlserver.reading.statements import SERVER, TABLES
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection, TablePattern
from penstock.model.whole_number import parse_whole

OWN_SCHEMA = "wirekite"
CDC_SCHEMA = "cdc"
_HISTORY = 1  # temporal_type


class Exclusion(StrEnum):
    """Reason why a table that a pattern matches is not captured."""

    PATTERN = "a pattern excludes it"
    OWN = "it is one of penstock's own tables"
    CDC = "it belongs to change data capture"
    MEMORY = "it is memory-optimised, and SQL Server does not capture its changes"
    HISTORY = "it is the history of a temporal table, which the server writes"
    EXTERNAL = "its rows are kept on another server"
    FILES = "it is a FileTable: its rows are files"


class TableNotCapturable(PenstockError):
    """A table that the configuration names cannot be captured, or does not exist."""

    code = "MS40"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A table that a pattern matches and that is not captured.

    Attributes:
        pattern: the pattern that excludes it, or empty.
        is_named: a pattern names it alone.
    """

    name: TableName
    reason: Exclusion
    pattern: str = ""
    is_named: bool = False

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Tables of the database that the patterns match.

    Attributes:
        unmatched: patterns that name a table that does not exist, or on which the account has no
            rights.
        near: tables whose names differ from those only in case.
    """

    tables: tuple[TableDefinition, ...]
    excluded: tuple[Excluded, ...] = ()
    unmatched: tuple[str, ...] = ()
    near: tuple[TableName, ...] = ()


def read_server(connection: Connection) -> Server:
    """Return the server, with the parts of its version: (16, 0, 4135, 4) is SQL Server 2022."""
    version = str(connection.execute(SERVER)[0][0])
    parts = (parse_whole(part) for part in version.split("."))
    known = tuple(part for part in parts if part is not None)
    return Server(engine=Engine.SQLSERVER, version=known)


def server_at(url: str) -> Server:
    """Return the server at a URL. Raises the errors of connecting."""
    with closing(connect(url)) as connection:
        return read_server(connection)


def captured_tables(
    connection: Connection, patterns: Sequence[str], *, dropped: Collection[TableName] = ()
) -> list[TableDefinition]:
    """Return the tables that the patterns capture, with their definitions, ordered by name.

    dropped: tables that were followed; a pattern may name one that no longer exists.

    Raises PatternInvalid, and TableNotCapturable if a pattern names a table that does not exist or
    cannot be captured. A pattern with wildcards may match nothing: the result may be empty.
    """
    result = survey(connection, patterns, dropped=dropped)
    for excluded in result.excluded:
        if excluded.is_named and excluded.reason is not Exclusion.PATTERN:
            raise TableNotCapturable(
                f"cannot be captured: {excluded}",
                hint="Remove the entry from [source] tables.",
                table=str(excluded.name),
            )
    if result.unmatched:
        near = f"; there is {', '.join(map(str, result.near))}" if result.near else ""
        raise TableNotCapturable(
            f"no table {result.unmatched[0]} in the source{near}",
            hint="Write names as sys.tables has them (case counts), and let the account see the "
            "table: GRANT SELECT ON [SCHEMA].[TABLE] TO [USER];",
        )
    return list(result.tables)


def survey(
    connection: Connection, patterns: Sequence[str], *, dropped: Collection[TableName] = ()
) -> Survey:
    """Return the captured tables, and those that match but are left out, with the reasons.

    dropped: as for `captured_tables`. Raises PatternInvalid for a pattern that cannot be read.
    """
    selection = Selection.parse(patterns)
    candidates = read_tables(connection)
    taken: dict[TableName, TableRow] = {}
    excluded: list[Excluded] = []
    for name, row in candidates.items():
        pattern = selection.taken_by(name)
        if pattern is None:
            continue
        out = _exclusion_of(selection, pattern, row)
        if out is None:
            taken[name] = row
        else:
            excluded.append(out)
    unmatched = [p for p in selection.patterns if _names_nothing(p, [*candidates, *dropped])]
    return Survey(
        tables=tuple(definitions_of(connection, taken)),
        excluded=tuple(sorted(excluded, key=lambda one: one.name)),
        unmatched=tuple(pattern.text for pattern in unmatched),
        near=tuple(name for name in candidates if any(p.nearly_matches(name) for p in unmatched)),
    )


def taken_names(connection: Connection, patterns: Sequence[str]) -> dict[TableName, bool]:
    """Return all tables that the account sees, and whether the patterns capture them.

    Reads no definition. Raises PatternInvalid.
    """
    selection = Selection.parse(patterns)
    return {
        name: selection.takes(name) and unfit(row) is None
        for name, row in read_tables(connection).items()
    }


def read_tables(connection: Connection) -> dict[TableName, TableRow]:
    """Return the tables of the database, ordered by name."""
    found = map(TableRow.of, connection.execute(TABLES))
    return {row.name: row for row in found}


def read_definitions(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableDefinition]:
    """Return the definitions of these tables; those that do not exist are left out.

    Case of letters is ignored in names, as by the usual collations.
    """
    tables = read_tables(connection)
    folded: Mapping[tuple[str, str], TableRow] = {_fold(name): row for name, row in tables.items()}
    rows = {name: tables.get(name) or folded.get(_fold(name)) for name in names}
    there = {row.name: row for row in rows.values() if row is not None}
    found = {one.name: one for one in definitions_of(connection, there)}
    return {name: found[row.name] for name, row in rows.items() if row is not None}


def _fold(name: TableName) -> tuple[str, str]:
    return name.schema.lower(), name.name.lower()


def unfit(row: TableRow) -> Exclusion | None:
    """Return why a table is never captured; None if it can be."""
    if row.name.schema == OWN_SCHEMA:
        return Exclusion.OWN
    if row.name.schema == CDC_SCHEMA:
        return Exclusion.CDC
    if row.is_memory_optimized:
        return Exclusion.MEMORY
    if row.temporal_type == _HISTORY:
        return Exclusion.HISTORY
    if row.is_external:
        return Exclusion.EXTERNAL
    return Exclusion.FILES if row.is_filetable else None


def _names_nothing(pattern: TablePattern, names: Sequence[TableName]) -> bool:
    taking_one = pattern.exact and not pattern.excludes
    return taking_one and not any(pattern.matches(name) for name in names)


def _exclusion_of(selection: Selection, taking: TablePattern, row: TableRow) -> Excluded | None:
    out = selection.excluded_by(row.name)
    if out is not None:
        return Excluded(
            name=row.name, reason=Exclusion.PATTERN, pattern=out.text, is_named=taking.exact
        )
    reason = unfit(row)
    if reason is None:
        return None
    return Excluded(name=row.name, reason=reason, is_named=taking.exact)
