"""Typed errors for refusals of the target while a batch is applied, with the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import psycopg

from penstock.engines.postgres.connect import TARGET_TYPES, choice_hint, quote, statement_error
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.model import PenstockError, TableName
from penstock.ports.target import (
    SCHEMA,
    ForeignKeyBlocked,
    ShapeNotApplicable,
    UniqueBlocked,
    ValueRefused,
)

# Types whose values are names: of relations, functions, operators, types and so on.
_NAMING = re.compile(
    r"reg(class|proc|procedure|oper|operator|type|role|namespace|collation|config|dictionary|database)"
    r"(\[\])*\Z"
)
# What their input functions say of an unknown or ambiguous name.
_NAMELESS = frozenset({"42P01", "42883", "42725", "42704", "3F000", "42602", "3D000"})


def grant_replica(user: str) -> str:
    """Return the statement that lets a role switch foreign keys and triggers off in its session."""
    return (
        f"As a superuser, run: grant set on parameter session_replication_role to {quote(user)}; "
        "(PostgreSQL 15 or newer)"
    )


def naming_objects(layout: MergeLayout) -> list[tuple[str, str]]:
    """Return the columns whose values name objects of their database: regclass and the like.

    Each has its reference in the merge table.
    """
    return [
        (column.name, layout.reference(index))
        for index, column in enumerate(layout.relation.columns)
        if _NAMING.match(column.base_type or column.source_type)
    ]


def apply_error(
    error: psycopg.Error,
    table: TableName,
    *,
    user: str,
    naming: Mapping[str, Sequence[tuple[str, str]]],
    section: str = TARGET_TYPES,
) -> PenstockError:
    """Return the typed error for the target's answer to an apply statement.

    naming: for each merge table of this table its columns of `naming_objects`. section: the one
    that has the choices for its values.
    """
    state, said = error.sqlstate, error.diag.message_primary or type(error).__name__
    fields = {"table": str(table), "sqlstate": state}
    message = f"applying to {table}: {said}"
    if state == "23503":
        return ForeignKeyBlocked(message, hint=grant_replica(user), **fields)
    if state in ("23505", "23P01"):
        return UniqueBlocked(
            message,
            hint=f"{grant_replica(user)}; if the role has it, the target holds rows of its own: "
            "run `penstock verify`.",
            **fields,
        )
    if state in _NAMELESS and error.diag.statement_position is None and any(naming.values()):
        return _name_refused(said, table, naming, fields)
    if state is not None and (state.startswith("22") or state in ("23502", "23514", "42804")):
        # The value itself follows the colon: rows do not belong into messages.
        choice = choice_hint(state, said, section=section)
        make = f"{choice} Otherwise make" if choice else "Make"
        return ValueRefused(
            f"applying to {table}: {said.partition(':')[0]}",
            hint=f"{make} the column or constraint of {quote(*table)} as it is in the source"
            f"{_loosening(error, table)}, then run again: nothing of the batch was applied.",
            **fields,
        )
    if state == "42704":
        return ShapeNotApplicable(
            message,
            hint="Make in the target what it lacks, as the source has it: create type ... or "
            "create extension ...; then run again: nothing of the batch was applied.",
            **fields,
        )
    if state == "42501":
        return statement_error_with_grant(error, table, user)
    typed = statement_error(f"applying to {table}", error)
    typed.fields.setdefault("table", str(table))
    return typed


def _loosening(error: psycopg.Error, table: TableName) -> str:
    """Return the statement that drops a constraint that the source cannot have, since it has such
    rows.
    """
    column, constraint = error.diag.column_name, error.diag.constraint_name
    if error.sqlstate == "23502" and column and error.diag.table_name == table.name:
        return f" (alter table {quote(*table)} alter column {quote(column)} drop not null;)"
    if error.sqlstate == "23514" and constraint and error.diag.table_name == table.name:
        return f" (alter table {quote(*table)} drop constraint {quote(constraint)};)"
    if error.sqlstate == "23514" and constraint and error.diag.datatype_name:
        domain = quote(error.diag.schema_name or table.schema, error.diag.datatype_name)
        return f" (alter domain {domain} drop constraint {quote(constraint)};)"
    return ""


def _name_refused(
    said: str,
    table: TableName,
    naming: Mapping[str, Sequence[tuple[str, str]]],
    fields: dict[str, str | None],
) -> ValueRefused:
    """Return the name itself is a row's value: the statement in the hint shows all of them."""
    staging, columns = next((name, found) for name, found in naming.items() if found)
    shown = ", ".join(reference for _, reference in columns)
    alters = " ".join(
        f"alter table {quote(*table)} alter column {quote(name)} type text;" for name, _ in columns
    )
    nameless = re.sub(r'"[^"]*"|\S+\(.*\)', "...", said)
    return ValueRefused(
        f"applying to {table}: {nameless}, which a value of "
        f"{', '.join(name for name, _ in columns)} names",
        hint=f"Make in the target what the values name; they are in the merge table: select "
        f"distinct {shown} from {quote(SCHEMA, staging)}; or keep the names as text: {alters} "
        "Then run again: nothing of the batch was applied.",
        **fields,
    )


def statement_error_with_grant(error: psycopg.Error, table: TableName, user: str) -> PenstockError:
    """Return a PrivilegeMissing that names the GRANT."""
    plain = statement_error(f"applying to {table}", error)
    plain.fields.setdefault("table", str(table))
    plain.hint = (
        f"Run: grant usage on schema {quote(table.schema)} to {quote(user)}; grant select, "
        f"insert, update, delete, truncate on {quote(*table)} to {quote(user)}; changes of "
        "shape need the table's owner."
    )
    return plain
