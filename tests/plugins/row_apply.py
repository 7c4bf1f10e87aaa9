"""Fixtures of targets to which mutations are applied row by row, the same for every engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from harness.servers.engines import ENGINES, Place, new_place
from penstock.model import TableDefinition
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Group, Mutation
from penstock.ports.row_apply import PLAIN, Conflict, RowRules, RowSession, row_target_at
from plugins.shared import SharedServers

NULL = object()


def upsert(after: dict[str, Any] | str, time: int = 1, before: Any = None, key: Any = None) -> Any:
    """Return a mutation that writes a row; its key is the row's id unless given."""
    document = after if isinstance(after, str) else json.dumps(after)
    found = [json.loads(document)["id"]] if key is None else key
    return Mutation(
        time=Hlc(time),
        key=json.dumps(found),
        after=document.encode(),
        before=None if before is None else json.dumps(before).encode(),
    )


def delete(*key: Any, time: int = 1) -> Mutation:
    """Return a mutation that deletes a row."""
    return Mutation(time=Hlc(time), key=json.dumps(list(key)), after=None)


class Rows:
    """A database with the tables of a test and a session that applies rows to them."""

    def __init__(self, place: Place, engine: str, stack: ExitStack) -> None:
        self.url, self.engine = place.url, engine
        self.is_postgres = engine.startswith("pg")
        database = place.url.rpartition("/")[2].partition("?")[0]
        self.group: Group = (database, "public") if self.is_postgres else (database,)
        self.session: RowSession = stack.enter_context(row_target_at(place.url).open_session())
        if self.is_postgres:
            self.run("set search_path = public")

    def run(self, *statements: str) -> None:
        """Run SQL that names tables without their schema."""
        for sql in statements:
            self.session.query(sql, ())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return list(self.session.query(sql, ()))

    def table(self, name: str = "t") -> TableDefinition:
        """Return the table's definition in the target now."""
        return self.session.tables(self.group)[name]

    def upsert(
        self, *mutations: Mutation, rules: RowRules = PLAIN, table: str = "t"
    ) -> list[Conflict]:
        """Write rows in one transaction."""
        definition = self.table(table)
        with self.session.transaction():
            return self.session.upsert(definition, rules, mutations)

    def delete(self, *mutations: Mutation, rules: RowRules = PLAIN, table: str = "t") -> int:
        """Delete rows in one transaction."""
        definition = self.table(table)
        with self.session.transaction():
            return self.session.delete(definition, rules, mutations)


@pytest.fixture(params=ENGINES)
def target(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Rows]:
    """An empty database of each engine."""
    with ExitStack() as stack:
        place = stack.enter_context(new_place(shared_servers, request.param))
        yield Rows(place, request.param, stack)


def documents(conflicts: Sequence[Conflict]) -> list[Any]:
    """Return the arguments of a merge function for each conflict: key, before, proposed, target."""
    return [
        (
            one.mutation.key,
            *(None if d is None else json.loads(d) for d in (one.before, one.proposed, one.target)),
        )
        for one in conflicts
    ]
