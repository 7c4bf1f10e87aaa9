"""Captured tables of a database, and the reasons why others are left out.

Partitioned tables are captured whole under the root's name; a single partition only if no table
above it is captured. Left out: views, foreign and unlogged tables, system schemas, penstock's
own. Not here: the patterns (`patterns.py`), definitions (`definitions.py`), shapes of rows
(`relations.py`), tables that change (`ddl_watch.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.relations import RelationResolver, relation_of
from penstock.engines.postgres.source.table_shape import (
    IDENTITY_COLUMNS,
    KEY_COLUMNS,
    identity_covers,
)
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection, TablePattern

__all__ = [
    "Excluded",
    "Exclusion",
    "PartitionNotSeparable",
    "RelationResolver",
    "Survey",
    "TableNotCapturable",
    "captured_tables",
    "open_catalog",
    "relation_of",
    "survey",
]

TAKE_OUT = "Remove the entry from [source] tables."
OWN_SCHEMA = "wirekite"  # progress, actions and merge tables, when a source is a target as well

# Names that begin with pg_ are PostgreSQL's: catalogue, TOAST, temporary tables of all sessions.
CANDIDATES = f"""
    select c.oid::bigint as id,
           n.nspname as schema,
           c.relname as name,
           c.relkind::text as kind,
           c.relpersistence::text as persistence,
           p.inhparent::bigint as parent,
           case when c.relispartition or c.relkind = 'p'
                then {IDENTITY_COLUMNS.format(table="c")} end as identity,
           case when c.relkind = 'p' then {KEY_COLUMNS.format(table="c")} end as key,
           exists (select from pg_attribute as a
                    where a.attrelid = c.oid and a.attnum > 0
                      and not a.attisdropped and a.attgenerated = '') as has_columns
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
      left join pg_inherits as p on p.inhrelid = c.oid and c.relispartition
     where c.relkind in ('r', 'p', 'f', 'v', 'm')
       and n.nspname !~ '^pg_'
       and n.nspname <> 'information_schema'
     order by n.nspname, c.relname
"""


class Exclusion(StrEnum):
    """Why a table that a pattern matches is not captured."""

    PATTERN = "a pattern excludes it"
    VIEW = "it is a view"
    MATERIALIZED_VIEW = "it is a materialized view: its changes are not in the server's log"
    FOREIGN = "it is a foreign table: its rows are on another server"
    UNLOGGED = "it is unlogged: its changes are not in the server's log"
    PARTITION = "it is a partition: its rows are captured under the partitioned table's name"
    PART_FOREIGN = "it has a partition that is a foreign table: its rows are on another server"
    PART_UNLOGGED = "it has an unlogged partition, whose changes are not in the server's log"
    NO_COLUMNS = "it has no columns, or only generated ones: nothing of its rows is sent"
    PART_IDENTITY = "it has a partition whose replica identity lacks columns of its own"
    OWN = "it is one of penstock's own tables"


class TableNotCapturable(PenstockError):
    """A table that the configuration names cannot be captured, or there is none of that name."""

    code = "PG42"
    retry = "operator"


class PartitionNotSeparable(PenstockError):
    """A pattern takes out a partition of a table that is captured whole."""

    code = "PG43"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A table that a pattern matches and that is not captured.

    related: the table that the reason names: the root of a partition, or the partition.
    pattern: the one that takes it out, or empty. fix: SQL that would make it capturable, or empty.
    is_named: a pattern names it alone.
    """

    name: TableName
    reason: Exclusion
    related: TableName | None = None
    pattern: str = ""
    fix: str = ""
    is_named: bool = False

    def __str__(self) -> str:
        """Return one line for people."""
        of = f" ({self.related})" if self.related else ""
        return f"{self.name}: {self.reason}{of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Tables of this database that the patterns match.

    Attributes:
        unmatched: patterns that name a table which does not exist.
        near: tables whose names differ from those only in case.
        gone: tables that a pattern names and that were dropped since they were followed.
    """

    tables: tuple[TableDefinition, ...]
    excluded: tuple[Excluded, ...] = ()
    unmatched: tuple[str, ...] = ()
    near: tuple[TableName, ...] = ()
    gone: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A relation of the database, with its place in a partition tree.

    identity, key: in a partition tree, the columns of its replica identity, None for NOTHING, and
    of its primary key. has_columns: others than generated ones.
    """

    id: int
    name: TableName
    kind: str
    persistence: str
    parent: int | None
    identity: list[str] | None
    key: list[str] | None
    has_columns: bool


def _full_identities(root: _Candidate, leaves: Sequence[_Candidate]) -> str:
    """Return the SQL by which all changes of a partitioned table identify their rows."""
    key = root.key or ()
    lacking = [one for one in leaves if not identity_covers(one.identity, root.identity, key)]
    if not root.identity and not key:  # then its consumers could not identify its rows either
        lacking.insert(0, root)
    return " ".join(f"alter table {quote(*one.name)} replica identity full;" for one in lacking)


def open_catalog(url: str, *, application_name: str = "penstock catalog") -> psycopg.Connection:
    """Return a connection on which the functions of this package may read the catalogue and rows.

    Autocommit, EXACT_TEXT_SETTINGS. Raises what `penstock.engines.postgres.connect.connect` does.
    """
    return connect(url, application_name=application_name, options=EXACT_TEXT_SETTINGS)


def captured_tables(
    connection: psycopg.Connection,
    patterns: Sequence[str],
    *,
    dropped: Collection[TableName] = (),
) -> list[TableDefinition]:
    """Return the tables that the patterns match, with their definitions, ordered by name.

    connection: from `open_catalog`. dropped: tables of which a pattern may name one that does not
    exist. Raises PatternInvalid; TableNotCapturable when a pattern names another table that does
    not exist, or one that cannot be captured; PartitionNotSeparable. A pattern with wildcards may
    match nothing: the result may be empty.
    """
    result = survey(connection, patterns, dropped=dropped)
    for excluded in result.excluded:
        if excluded.is_named and excluded.reason is not Exclusion.PATTERN:
            raise TableNotCapturable(
                f"{excluded.name} cannot be captured: {excluded.reason}"
                + (f" ({excluded.related})" if excluded.related else ""),
                hint=f"Run: {excluded.fix}" if excluded.fix else "Take it out of [source] tables.",
                table=str(excluded.name),
            )
    if result.unmatched:
        near = f"; there is {', '.join(map(str, result.near))}" if result.near else ""
        raise TableNotCapturable(
            f"no table {result.unmatched[0]} in the source{near}",
            hint="Write names as the catalogue has them (case counts), or remove the entry from "
            "[source] tables.",
        )
    return list(result.tables)


def survey(
    connection: psycopg.Connection,
    patterns: Sequence[str],
    *,
    dropped: Collection[TableName] = (),
) -> Survey:
    """Return the tables that the patterns select, and those that they match but are left out,
    and why.

    dropped: tables that may have been dropped since they were followed. Raises PatternInvalid
    for a pattern that cannot be read, and PartitionNotSeparable.
    """
    selection = Selection.parse(patterns)
    candidates = _candidates(connection)
    picked = _Pick(selection, candidates)
    definitions = definitions_of(connection, picked.taken)
    names = [candidate.name for candidate in candidates.values()]
    unmatched = [p for p in selection.patterns if _names_nothing(p, names)]
    gone = sorted(name for name in dropped if any(p.matches(name) for p in unmatched))
    unmatched = [p for p in unmatched if not any(p.matches(name) for name in gone)]
    return Survey(
        tables=tuple(sorted(definitions.values(), key=lambda definition: definition.name)),
        excluded=tuple(picked.excluded),
        unmatched=tuple(pattern.text for pattern in unmatched),
        gone=tuple(gone),
        near=tuple(name for name in names if any(p.nearly_matches(name) for p in unmatched)),
    )


def taken_names(connection: psycopg.Connection, patterns: Sequence[str]) -> dict[TableName, int]:
    """Return the tables that the patterns match, with their oids; no definition is read.

    Raises PatternInvalid, PartitionNotSeparable.
    """
    candidates = _candidates(connection)
    picked = _Pick(Selection.parse(patterns), candidates)
    return {candidates[id_].name: id_ for id_ in picked.taken}


def _candidates(connection: psycopg.Connection) -> dict[int, _Candidate]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return {
            row["id"]: _Candidate(
                id=row["id"],
                name=TableName(row["schema"], row["name"]),
                kind=row["kind"],
                persistence=row["persistence"],
                parent=row["parent"],
                identity=row["identity"],
                key=row["key"],
                has_columns=row["has_columns"],
            )
            for row in cursor.execute(CANDIDATES).fetchall()
        }


def _names_nothing(pattern: TablePattern, names: Sequence[TableName]) -> bool:
    taking_one = pattern.exact and not pattern.excludes
    return taking_one and not any(pattern.matches(name) for name in names)


class _Pick:
    """Goes through all relations from the top of each partition tree down."""

    def __init__(self, selection: Selection, candidates: dict[int, _Candidate]) -> None:
        self.taken: list[int] = []
        self.excluded: list[Excluded] = []
        self._selection = selection
        self._candidates = candidates
        self._children: dict[int, list[_Candidate]] = {}
        for candidate in candidates.values():
            if candidate.parent is not None:
                self._children.setdefault(candidate.parent, []).append(candidate)
        for candidate in candidates.values():
            if candidate.parent is None:
                self._visit(candidate, above=None)

    def _visit(self, candidate: _Candidate, above: Excluded | None) -> None:
        """Decide one relation, then those below it. above: whether a table above was excluded."""
        excluded = self._judge(candidate, above)
        if excluded is None and self._selection.taken_by(candidate.name):
            self.taken.append(candidate.id)
            self._leave_parts(candidate, candidate)
            return
        if excluded is not None:
            self.excluded.append(excluded)
        out = excluded or above
        for child in self._children.get(candidate.id, ()):
            self._visit(child, out)

    def _judge(self, candidate: _Candidate, above: Excluded | None) -> Excluded | None:
        taking = self._selection.taken_by(candidate.name)
        if taking is None:
            # A pattern may exclude a partitioned table whose partitions another one matches.
            return None
        named = taking.exact
        out = self._selection.excluded_by(candidate.name)
        if out is not None:
            return Excluded(
                name=candidate.name, reason=Exclusion.PATTERN, pattern=out.text, is_named=named
            )
        if above is not None and not named:
            return Excluded(
                name=candidate.name,
                reason=above.reason,
                related=above.name,
                pattern=above.pattern,
            )
        if candidate.name.schema == OWN_SCHEMA:
            return Excluded(name=candidate.name, reason=Exclusion.OWN, is_named=named)
        return self._unfit(candidate, named)

    def _unfit(self, candidate: _Candidate, named: bool) -> Excluded | None:
        by_kind = {
            "v": Exclusion.VIEW,
            "m": Exclusion.MATERIALIZED_VIEW,
            "f": Exclusion.FOREIGN,
        }
        name = candidate.name
        if candidate.kind in by_kind:
            return Excluded(name=name, reason=by_kind[candidate.kind], is_named=named)
        if candidate.persistence != "p" and candidate.kind == "r":
            fix = f"alter table {quote(*name)} set logged;"
            return Excluded(name=name, reason=Exclusion.UNLOGGED, fix=fix, is_named=named)
        if not candidate.has_columns:
            return Excluded(name=name, reason=Exclusion.NO_COLUMNS, is_named=named)
        leaves = self._leaves(candidate)
        for leaf in leaves:
            if leaf.kind == "f":
                reason, fix = Exclusion.PART_FOREIGN, ""
            elif leaf.persistence != "p":
                reason = Exclusion.PART_UNLOGGED
                fix = f"alter table {quote(*leaf.name)} set logged;"
            elif not identity_covers(leaf.identity, candidate.identity, candidate.key or ()):
                reason = Exclusion.PART_IDENTITY
                fix = _full_identities(candidate, leaves)
            else:
                continue
            return Excluded(name=name, reason=reason, related=leaf.name, fix=fix, is_named=named)
        return None

    def _leaves(self, candidate: _Candidate) -> list[_Candidate]:
        result: list[_Candidate] = []
        for child in self._children.get(candidate.id, ()):
            result.extend([child] if child.kind != "p" else self._leaves(child))
        return result

    def _leave_parts(self, root: _Candidate, candidate: _Candidate) -> None:
        for child in self._children.get(candidate.id, ()):
            out = self._selection.excluded_by(child.name)
            if out is not None:
                raise PartitionNotSeparable(
                    f"{out.text!r} takes out {child.name}, a partition of {root.name}, "
                    "which is captured whole",
                    hint=f"Take out {root.name} and name its other partitions one by one, or "
                    f"drop {out.text!r} from [source] tables.",
                )
            taking = self._selection.taken_by(child.name)
            if taking is not None:
                # Named beside its root it is not an error: its rows are captured under the root.
                self.excluded.append(
                    Excluded(name=child.name, reason=Exclusion.PARTITION, related=root.name)
                )
            self._leave_parts(root, child)
