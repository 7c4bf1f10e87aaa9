"""A SQL Server target for unit tests: tables from short texts, and a connection that records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.connect import Connection
from penstock.engines.sqlserver.target.catalog import (
    TargetColumn,
    TargetForeignKey,
    TargetIndex,
    TargetTable,
)
from penstock.engines.sqlserver.target.merge import Merge, MergeSql
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.target import Counts

BINARY = "Latin1_General_100_BIN2"
LOOSE = "SQL_Latin1_General_CP1_CI_AS"


def column(text: str, *, collation: str = BINARY, **more: Any) -> TargetColumn:
    """Return a column of a text like `id int not null`."""
    name, _, kind = text.partition(" ")
    bare = kind.removesuffix(" not null").removesuffix(" identity")
    found = parse_type(bare)
    is_text = found.base in ("char", "varchar", "nchar", "nvarchar")
    return TargetColumn(
        name=name,
        kind=found,
        not_null="not null" in kind,
        is_identity=" identity" in kind,
        collation=collation if is_text else "",
        **more,
    )


def table(
    *columns: str,
    name: str = "t",
    key: Sequence[str] = ("id",),
    collation: str = BINARY,
    **more: Any,
) -> TargetTable:
    """Return a table of columns given as texts. key: of its primary key."""
    primary = TargetIndex(
        name=f"pk_{name}",
        columns=tuple(key),
        is_primary=True,
        is_unique=True,
        is_constraint=True,
        is_clustered=True,
    )
    indexes = (*((primary,) if key else ()), *more.pop("indexes", ()))
    return TargetTable(
        name=TableName("dbo", name),
        columns=tuple(column(one, collation=collation) for one in columns),
        indexes=indexes,
        **more,
    )


def foreign_key(child: str, parent: str, on_delete: str = "NO_ACTION") -> TargetForeignKey:
    """Return an enabled foreign key between two tables."""
    return TargetForeignKey(
        name=f"fk_{child}",
        child=TableName("dbo", child),
        parent=TableName("dbo", parent),
        on_delete=on_delete,
    )


def merge_of(shape: Relation, target: TargetTable, **more: Any) -> MergeSql:
    """Return the statements of a merge."""
    counts = more.pop("counts", Counts())
    staging = f"{target.name.name}_wkm"
    return MergeSql(Merge(relation=shape, table=target, staging=staging, counts=counts, **more))


class FakeConnection(Connection):
    """Connection that records statements and answers by patterns.

    Attributes:
        ran: Statements in order, with BEGIN, COMMIT and ROLLBACK.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.place = "fake"
        self._is_closed = False
        self._answers: list[tuple[re.Pattern[str], Any]] = []

    def answer(self, pattern: str, what: Any) -> None:
        """Answer statements that match with rows, a number of rows, or an error, once each.

        The newest pattern counts. what: a list of answers is used up one after the other.
        """
        self._answers.insert(0, (re.compile(pattern, re.DOTALL), what))

    def _answer_to(self, sql: str, otherwise: Any) -> Any:
        for pattern, what in self._answers:
            if pattern.search(sql):
                one = what.pop(0) if isinstance(what, Answers) and what else what
                if isinstance(one, Answers):
                    continue
                if isinstance(one, PenstockError):
                    raise one
                return one
        return otherwise

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Record a statement; return its rows, or none."""
        del parameters
        self.ran.append(" ".join(sql.split()))
        found: list[tuple[Any, ...]] = self._answer_to(sql, [])
        return found

    def run(self, sql: str, *parameters: Any) -> int:
        """Record a statement; return its number of rows, or 1."""
        del parameters
        self.ran.append(" ".join(sql.split()))
        return int(self._answer_to(sql, 1))

    def close(self) -> None:
        """Close it."""
        self._is_closed = True

    def matching(self, pattern: str) -> list[str]:
        """Return the recorded statements that match."""
        return [sql for sql in self.ran if re.search(pattern, sql)]


class Answers(list[Any]):
    """Answers that are used once each."""
