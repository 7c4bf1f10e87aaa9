"""Select the tables of an Oracle database that a pipeline captures, with reasons for the rest.

Left out are tables whose changes LogMiner does not show, those that the server keeps for its own
features, and penstock's own. A user sees only tables on which it has rights. Follows sections 1 and
1b.11 of the reference. Not here: patterns (`model.patterns`), definitions (`definitions.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from penstock.codec.oracle.types import explain_refusal, parse_type
from penstock.codec.types import Engine, Server
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.reading.definitions import TableRow, definitions_of
from penstock.engines.oracle.reading.statements import SPECIAL_TABLES, TABLES
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection, TablePattern

OWN_SCHEMA = "WIREKITE"
NAME_BYTES_MAX = 30
"""Longest name of a table or column that LogMiner shows (19c Utilities, "Using LogMiner")."""

_OF_FEATURES = re.compile(
    r"MLOG\$_|RUPD\$_|CMP[0-9]\$|SYS_IOT_(?:OVER|MAP)_|MDRT_|MDRS_|MDXT_|DR\$|DBMS_TABCOMP_TEMP_"
    r"|AQ\$_|SYS_FBA_|SYS_EXPORT_|SYS_IMPORT_"
)


class Exclusion(StrEnum):
    """Reason why a table that a pattern matches is not captured."""

    PATTERN = "a pattern excludes it"
    OWN = "it is one of penstock's own tables"
    DROPPED = "it is in the recycle bin"
    FEATURE = "the server keeps it for one of its features"
    TEMPORARY = "it is temporary, and the log does not have its rows"
    VIEW = "it has the rows of a materialized view, which the server writes"
    EXTERNAL = "its rows are files outside of the database"
    QUEUE = "it is a queue"
    OBJECT = "it is a table of objects or XML, whose statements LogMiner does not show"
    NESTED = "it has the rows of a nested table"
    OVERFLOW = "it has parts of another table's rows"
    LONG_NAME = "LogMiner shows no names of more than 30 bytes"
    COLUMN = "it has a column that the log does not show"


_KINDS = {
    "view": Exclusion.VIEW,
    "external": Exclusion.EXTERNAL,
    "queue": Exclusion.QUEUE,
    "object": Exclusion.OBJECT,
}


class TableNotCapturable(PenstockError):
    """A table that the configuration names cannot be captured, or does not exist."""

    code = "OR04"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A table that a pattern matches and that is not captured.

    Attributes:
        pattern: the pattern that excludes it, or empty.
        is_named: a pattern names it alone.
        detail: the column and why, or empty.
    """

    name: TableName
    reason: Exclusion
    pattern: str = ""
    is_named: bool = False
    detail: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.name}: {self.reason}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Tables of the database that the patterns match.

    Attributes:
        unmatched: patterns that name a table that does not exist, or on which the user has no
            rights.
        near: tables whose names differ from those only in case.
    """

    tables: tuple[TableDefinition, ...]
    excluded: tuple[Excluded, ...] = ()
    unmatched: tuple[str, ...] = ()
    near: tuple[TableName, ...] = ()


def read_server(connection: Connection) -> Server:
    """Return the server, with the parts of its version: (19, 22, 0, 0, 0)."""
    return Server(engine=Engine.ORACLE, version=connection.version)


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
            hint="Write names as ALL_TABLES has them (usually in upper case), and let the user see "
            "the table: GRANT SELECT, FLASHBACK ON OWNER.TABLE TO USER;",
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
    taken: dict[TableName, tuple[TablePattern, TableRow]] = {}
    excluded: list[Excluded] = []
    for name, row in candidates.items():
        pattern = selection.taken_by(name)
        if pattern is None:
            continue
        out = _exclusion_of(selection, pattern, row)
        if out is None:
            taken[name] = (pattern, row)
        else:
            excluded.append(out)
    tables = []
    for one in definitions_of(connection, {name: row for name, (_, row) in taken.items()}):
        detail = refused_column(one)
        if not detail:
            tables.append(one)
            continue
        is_named = taken[one.name][0].exact
        excluded.append(
            Excluded(name=one.name, reason=Exclusion.COLUMN, is_named=is_named, detail=detail)
        )
    unmatched = [p for p in selection.patterns if _names_nothing(p, [*candidates, *dropped])]
    return Survey(
        tables=tuple(tables),
        excluded=tuple(sorted(excluded, key=lambda one: one.name)),
        unmatched=tuple(pattern.text for pattern in unmatched),
        near=tuple(name for name in candidates if any(p.nearly_matches(name) for p in unmatched)),
    )


def taken_names(connection: Connection, patterns: Sequence[str]) -> dict[TableName, bool]:
    """Return all tables that the user sees, and whether the patterns capture them.

    Tables with columns that the log does not show are not told from others, because no definition
    is read. Raises PatternInvalid.
    """
    selection = Selection.parse(patterns)
    return {
        name: selection.takes(name) and unfit(row) is None
        for name, row in read_tables(connection).items()
    }


def read_tables(connection: Connection) -> dict[TableName, TableRow]:
    """Return the tables of the container, ordered by name."""
    special = {
        TableName(str(owner), str(name)): str(kind)
        for owner, name, kind in connection.execute(SPECIAL_TABLES)
    }
    found = {
        row.name: row
        for row in (
            TableRow.of(one, special.get(TableName(str(one[0]), str(one[1])), ""))
            for one in connection.execute(TABLES)
        )
    }
    for name, kind in special.items():  # tables of objects are not in ALL_TABLES
        if kind == "object" and name not in found:
            found[name] = TableRow(name=name, kind=kind)
    return dict(sorted(found.items()))


def read_definitions(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableDefinition]:
    """Return the definitions of these tables; those that do not exist are left out."""
    tables: Mapping[TableName, TableRow] = read_tables(connection)
    there = {name: tables[name] for name in names if name in tables}
    return {one.name: one for one in definitions_of(connection, there)}


def unfit(row: TableRow) -> Exclusion | None:
    """Return why a table is never captured, whatever columns it has; None if it can be."""
    owner, name = row.name
    if owner.upper() == OWN_SCHEMA:
        return Exclusion.OWN
    if name.startswith("BIN$"):
        return Exclusion.DROPPED
    if row.is_nested:
        return Exclusion.NESTED
    if row.iot_type not in ("", "IOT"):
        return Exclusion.OVERFLOW
    if row.is_secondary or _OF_FEATURES.match(name):
        return Exclusion.FEATURE
    if row.is_temporary:
        return Exclusion.TEMPORARY
    if row.kind:
        return _KINDS[row.kind]
    is_long = len(owner.encode()) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX
    return Exclusion.LONG_NAME if is_long else None


def refused_column(definition: TableDefinition) -> str:
    """Return the first column that LogMiner does not show, and why; empty if there is none."""
    for column in definition.columns:
        if column.generated:
            continue  # the log has no values of it
        kind = parse_type(column.type_text)
        if len(column.name.encode()) > NAME_BYTES_MAX:
            return f"{column.name}, because {Exclusion.LONG_NAME}"
        reason = explain_refusal(kind)
        if reason:
            return f"{column.name} {kind.text}: {reason}"
    return ""


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
