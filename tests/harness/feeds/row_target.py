"""A target in memory to which mutations are applied row by row; it keeps shared positions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.model import ForeignKey, TableDefinition, TableName
from penstock.ports.feeds import Group, Mutation, StagedTable
from penstock.ports.row_apply import Conflict, RowRules, reference_missing
from penstock.ports.target import Applied, AppliedByAnother

GROUP = ("shop", "public")
CHILDREN = {"c": "p"}


def definition(name: str) -> TableDefinition:
    """Return a table with the key id; c refers to p by its column p."""
    keys = tuple(
        ForeignKey(
            name="fk",
            columns=("p",),
            target=TableName("public", above),
            target_columns=("id",),
            definition="",
        )
        for child, above in CHILDREN.items()
        if child == name
    )
    return TableDefinition(
        name=TableName("public", name),
        source_id=1,
        columns=(),
        primary_key=("id",),
        foreign_keys=keys,
    )


@dataclass
class FakeRowTarget:
    """A target, its one row session, and the session with its shared progress in one object.

    Attributes:
        rows: Rows of each table by the text of their keys.
        counts: Number of writes of each key.
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=lambda: {"p": {}, "c": {}, "t": {}})
    counts: dict[str, int] = field(default_factory=dict)
    positions: dict[str, Applied] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def open_session(self) -> Iterator[FakeRowTarget]:
        """Yield the target: it is its own session."""
        yield self

    def close(self) -> None:
        """Do nothing: the rows are in memory."""

    # -- rows

    def tables(self, _group: Group) -> Mapping[str, TableDefinition]:
        return {name: definition(name) for name in self.rows}

    @contextmanager
    def exclusive(self, _tables: Collection[StagedTable]) -> Iterator[None]:
        yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = deepcopy((self.rows, self.counts, self.positions))
        try:
            yield
        except BaseException:
            self.rows, self.counts, self.positions = before
            raise

    def upsert(
        self, table: TableDefinition, _rules: RowRules, mutations: Sequence[Mutation]
    ) -> list[Conflict]:
        for one in mutations:
            row = json.loads(one.after or b"")
            above = CHILDREN.get(table.name.name)
            if above is not None and json.dumps([row["p"]]) not in self.rows[above]:
                raise reference_missing(f"no row {row['p']} of {above}")
            self.rows[table.name.name][one.key] = row
            self.counts[one.key] = self.counts.get(one.key, 0) + 1
        return []

    def delete(
        self, table: TableDefinition, _rules: RowRules, mutations: Sequence[Mutation]
    ) -> int:
        for one in mutations:
            for child, above in CHILDREN.items():
                if above == table.name.name and any(
                    json.dumps([row["p"]]) == one.key for row in self.rows[child].values()
                ):
                    raise reference_missing(f"{child} still refers to {one.key}")
            self.rows[table.name.name].pop(one.key, None)
        return len(mutations)

    # -- positions

    def read_position(self, log_id: str) -> Applied:
        return self.positions.setdefault(log_id, Applied())

    def locked_position(self, log_id: str, *, is_shared: bool = False) -> Applied:
        return self.positions.get(log_id, Applied())

    def advance(self, log_id: str, *, before: Applied, after: Applied) -> None:
        if not self.locked_position(log_id).is_at(before):
            raise AppliedByAnother("moved", hint="")
        self.positions[log_id] = after

    def take_over(self, log_id: str, holder: str) -> Applied:
        there = self.positions.get(log_id)
        moved = Applied() if there is None else replace(there, segment=there.segment + 1)
        self.positions[log_id], self.holders[log_id] = moved, holder
        return moved

    def holder(self, log_id: str) -> str:
        return self.holders.get(log_id, "")

    def read_shared(self, log_id: str) -> Applied:
        return self.locked_position(log_id)
