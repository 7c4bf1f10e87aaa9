"""Select the tables of a MySQL or MariaDB server that a pipeline captures, with reasons for the
rest.

A schema is what these servers call a database; a pipeline may take tables of several. Left out:
views, sequences, tables whose rows are elsewhere or have types that are not supported, the server's
own schemas, penstock's own. An account sees only tables on which it has rights. Not here: the
patterns (`model.patterns`: the same for every engine), definitions (`definitions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.engines.mysql.connect import Connection, connect, rows
from penstock.engines.mysql.source.definitions import definitions_of
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection, TablePattern

OWN_SCHEMA = "wirekite"
SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")
# Rows that are written through these engines are kept somewhere else, or nowhere.
ELSEWHERE = frozenset({"FEDERATED", "SPIDER", "CONNECT", "S3"})
NOWHERE = frozenset({"BLACKHOLE"})
NOT_CARRIED = ("vector",)

CANDIDATES = f"""
    select table_schema, table_name, table_type, engine, create_options, table_rows, data_length,
           unix_timestamp(create_time) as changed_s
      from information_schema.tables
     where table_schema not in ({", ".join(f"'{schema}'" for schema in SYSTEM_SCHEMAS)})
     order by table_schema, table_name
"""


class Exclusion(StrEnum):
    """Reason why a table that a pattern matches is not captured."""

    PATTERN = "a pattern excludes it"
    VIEW = "it is a view"
    SEQUENCE = "it is a sequence: it has no rows"
    ELSEWHERE = "its rows are kept on another server"
    NOWHERE = "its engine keeps no rows"
    TYPE = "it has a column of an unsupported type"
    OWN = "it is one of penstock's own tables"
    BROKEN = "the server cannot open it"


class TableNotCapturable(PenstockError):
    """A table that the configuration names cannot be captured, or does not exist."""

    code = "MY40"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A table that a pattern matches and that is not captured.

    Attributes:
        detail: the column that the reason names, and its type; or the storage engine.
        pattern: the pattern that excludes it, or empty.
        is_named: a pattern names it alone.
    """

    name: TableName
    reason: Exclusion
    detail: str = ""
    pattern: str = ""
    is_named: bool = False

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.name}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Tables of this server that the patterns match.

    Attributes:
        unmatched: patterns that name a table that does not exist, or on which the account has no
            rights.
        near: tables whose names differ from those only in case.
    """

    tables: tuple[TableDefinition, ...]
    excluded: tuple[Excluded, ...] = ()
    unmatched: tuple[str, ...] = ()
    near: tuple[TableName, ...] = ()


def open_catalog(url: str, *, application_name: str = "penstock catalog") -> Connection:
    """Open a connection on which the functions of this package may read the catalogue and rows."""
    return connect(url, application_name=application_name)


def captured_tables(
    connection: Connection, patterns: Sequence[str], *, with_create_sql: bool = False
) -> list[TableDefinition]:
    """Return the tables that the patterns capture, with their definitions, ordered by name.

    Raises PatternInvalid, and TableNotCapturable if a pattern names a table that does not exist or
    cannot be captured. A pattern with wildcards may match nothing: the result may be empty.
    """
    result = survey(connection, patterns, with_create_sql=with_create_sql)
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
            hint="Write names as `show tables` does (case counts), and let the account see the "
            "table: grant select on DATABASE.* to 'USER'@'HOST';",
        )
    return list(result.tables)


def survey(
    connection: Connection, patterns: Sequence[str], *, with_create_sql: bool = False
) -> Survey:
    """Return the captured tables, and those that match but are left out, with the reasons.

    Raises PatternInvalid for a pattern that cannot be read.
    """
    selection = Selection.parse(patterns)
    candidates = _candidates(connection)
    taken: dict[TableName, dict[str, Any]] = {}
    excluded: list[Excluded] = []
    for name, row in candidates.items():
        pattern = selection.taken_by(name)
        if pattern is None:
            continue
        out = _exclusion_of(selection, pattern, name, row)
        if out is None:
            taken[name] = row
        else:
            excluded.append(out)
    definitions = definitions_of(connection, taken, with_create_sql=with_create_sql)
    tables = []
    for definition in definitions.values():
        out = _not_captured(definition, selection)
        if out is None:
            tables.append(definition)
        else:
            excluded.append(out)
    unmatched = [p for p in selection.patterns if _names_nothing(p, list(candidates))]
    return Survey(
        tables=tuple(sorted(tables, key=lambda definition: definition.name)),
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
        name: selection.takes(name) and _unfit(name, row) is None
        for name, row in _candidates(connection).items()
    }


def _candidates(connection: Connection) -> dict[TableName, dict[str, Any]]:
    return {
        TableName(row["table_schema"], row["table_name"]): row
        for row in rows(connection, CANDIDATES, doing="reading the catalogue")
    }


def _names_nothing(pattern: TablePattern, names: Sequence[TableName]) -> bool:
    taking_one = pattern.exact and not pattern.excludes
    return taking_one and not any(pattern.matches(name) for name in names)


def _exclusion_of(
    selection: Selection, taking: TablePattern, name: TableName, row: dict[str, Any]
) -> Excluded | None:
    out = selection.excluded_by(name)
    if out is not None:
        return Excluded(
            name=name, reason=Exclusion.PATTERN, pattern=out.text, is_named=taking.exact
        )
    reason = _unfit(name, row)
    if reason is None:
        return None
    engine = str(row["engine"] or "") if reason in (Exclusion.ELSEWHERE, Exclusion.NOWHERE) else ""
    return Excluded(name=name, reason=reason, detail=engine, is_named=taking.exact)


def _unfit(name: TableName, row: dict[str, Any]) -> Exclusion | None:
    engine = str(row["engine"] or "").upper()
    if name.schema == OWN_SCHEMA:
        return Exclusion.OWN
    if "VIEW" in row["table_type"]:
        return Exclusion.VIEW
    if row["table_type"] == "SEQUENCE":
        return Exclusion.SEQUENCE
    if engine in ELSEWHERE:
        return Exclusion.ELSEWHERE
    if engine in NOWHERE:
        return Exclusion.NOWHERE
    return Exclusion.BROKEN if not engine else None


def _not_captured(definition: TableDefinition, selection: Selection) -> Excluded | None:
    for column in definition.columns:
        if column.type_text.lower().startswith(NOT_CARRIED):
            taking = selection.taken_by(definition.name)
            return Excluded(
                name=definition.name,
                reason=Exclusion.TYPE,
                detail=f"{column.name} {column.type_text}",
                is_named=taking is not None and taking.exact,
            )
    return None
