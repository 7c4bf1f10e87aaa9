"""Constraints, indexes and triggers of tables, and the checks at the end of a statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim_oracle.columns import Row, Value
from sim_oracle.errors import Blocked, OraError

if TYPE_CHECKING:
    from sim_oracle.tables import Table
    from sim_oracle.transactions import Done, Transaction

Key = tuple[Value, ...]


@dataclass(slots=True)
class Constraint:
    """A constraint other than NOT NULL.

    Attributes:
        kind: P, U, R (foreign key) or C.
        columns: Its columns; those that a check reads.
        condition: Text of a check.
        parent: Table to which a foreign key refers.
        parent_columns: The parent's columns.
        on_delete: NO ACTION, CASCADE or SET NULL.
        is_deferrable: Whether a session may defer it.
        is_deferred: Whether it is deferred without SET CONSTRAINTS.
        is_enabled: Whether it is checked.
        is_validated: Whether all rows are known to satisfy it.
        is_generated: Whether the server chose its name.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    condition: str | None = None
    parent: Table | None = None
    parent_columns: tuple[str, ...] = ()
    on_delete: str = "NO ACTION"
    is_deferrable: bool = False
    is_deferred: bool = False
    is_enabled: bool = True
    is_validated: bool = True
    is_generated: bool = False

    def key_of(self, row: Row) -> Key | None:
        """Return the row's key; None if the constraint does not hold for it."""
        key = tuple(row.get(name) for name in self.columns)
        is_null = [value is None for value in key]
        if all(is_null) or (self.kind == "R" and any(is_null)):
            return None
        return key


@dataclass(slots=True)
class Index:
    """An index.

    Attributes:
        columns: Columns or expressions.
        status: VALID or UNUSABLE.
    """

    name: str
    columns: tuple[str, ...]
    is_unique: bool = False
    status: str = "VALID"


@dataclass(slots=True)
class Trigger:
    """A trigger, which the model does not run.

    Attributes:
        kind: TRIGGER_TYPE, e.g. BEFORE EACH ROW.
        event: TRIGGERING_EVENT, e.g. INSERT OR UPDATE.
    """

    name: str
    kind: str
    event: str
    is_enabled: bool = True


def check_changes(
    transaction: Transaction, changes: Iterable[Done], deferred: frozenset[str] | None
) -> None:
    """Check the constraints of changed rows.

    Args:
        transaction: Transaction that made the changes.
        changes: Its changes.
        deferred: Names of deferred constraints, which are left out; None checks all.

    Raises:
        OraError: 1, 2291 or 2292.
        Blocked: Another transaction holds a row on which the check depends.
    """
    tables: dict[Table, list[Done]] = {}
    for done in changes:
        tables.setdefault(done.table, []).append(done)
    for table, listed in tables.items():
        for constraint in table.constraints.values():
            if _is_due(constraint, deferred):
                _check_own(transaction, table, constraint, listed)
        for child, constraint in list(table.children()):
            if _is_due(constraint, deferred):
                _check_children(transaction, table, child, constraint, listed)


def _is_due(constraint: Constraint, deferred: frozenset[str] | None) -> bool:
    return constraint.is_enabled and (deferred is None or constraint.name not in deferred)


def _full_name(table: Table, constraint: Constraint) -> str:
    return f"{table.version.owner}.{constraint.name}"


def _check_own(
    transaction: Transaction, table: Table, constraint: Constraint, changes: list[Done]
) -> None:
    if constraint.kind not in ("U", "R"):
        return
    for done in changes:
        row = table.rows.get(done.row_id)
        key = None if row is None else constraint.key_of(row)
        if key is None:
            continue
        if constraint.kind == "U":
            others = table.find(constraint.name, key) - {done.row_id}
            _block(transaction, table, others)
            if others:
                raise OraError(1, _full_name(table, constraint))
        else:
            parent = constraint.parent
            assert parent is not None
            rows = parent.find_rows(constraint.parent_columns, key)
            _block(transaction, parent, rows)
            if not rows:
                raise OraError(2291, _full_name(table, constraint))


def _check_children(
    transaction: Transaction,
    table: Table,
    child: Table,
    constraint: Constraint,
    changes: list[Done],
) -> None:
    for done in changes:
        if done.before is None:
            continue
        key = tuple(done.before.get(name) for name in constraint.parent_columns)
        if any(value is None for value in key) or table.find_rows(constraint.parent_columns, key):
            continue
        rows = set(child.find(constraint.name, key))
        if not rows:
            continue
        _block(transaction, child, rows)
        if done.kind == "D" and constraint.on_delete == "CASCADE":
            transaction.delete_many(child, sorted(rows))
            check_changes(transaction, transaction.changes[-len(rows) :], None)
        elif done.kind == "D" and constraint.on_delete == "SET NULL":
            for row_id in sorted(rows):
                transaction.update(child, row_id, dict.fromkeys(constraint.columns))
        else:
            raise OraError(2292, _full_name(child, constraint))


def _block(transaction: Transaction, table: Table, rows: Iterable[str]) -> None:
    for row_id in rows:
        holder: Any = table.locks.get(row_id)
        if holder is not None and holder is not transaction:
            raise Blocked(row_id)


def violations(table: Table, constraint: Constraint) -> Iterator[str]:
    """Yield the row ids that violate a unique constraint or a foreign key."""
    seen: set[Key] = set()
    for row_id, row in table.rows.items():
        key = constraint.key_of(row)
        if key is None:
            continue
        if constraint.kind in ("U", "P") and key in seen:
            yield row_id
        elif constraint.kind == "R":
            assert constraint.parent is not None
            if not constraint.parent.find_rows(constraint.parent_columns, key):
                yield row_id
        seen.add(key)
