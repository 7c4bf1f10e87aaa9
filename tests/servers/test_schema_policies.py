"""Changes of shape by policy, with PostgreSQL as target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from fix_loader import Applying, LogMaker
from fix_merge import insert
from fix_policies import (
    ID,
    NAME,
    Begin,
    EveryKind,
    InPlace,
    Leniently,
    N,
    begun,
    record_of,
    settle,
    shaped,
)
from penstock.model import Column
from penstock.ports.policies import Policies, Policy


class PgApplying(Applying):
    """As Applying; what tests ask and do goes over a connection of their own."""

    def execute(self, sql: str) -> None:
        """Run SQL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What another session sees."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def opened() -> Iterator[list[PgApplying]]:
    """Loaders, closed in the end."""
    made: list[PgApplying] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def begin(target_url: str, log: LogMaker, opened: list[PgApplying]) -> Begin:
    """Make tables and a loader."""

    def make(ddl: str, **more: Any) -> PgApplying:
        opened.append(PgApplying(target_url, log.directory, **more))
        opened[-1].execute(ddl)
        return opened[-1]

    return make


@pytest.fixture
def again(opened: list[PgApplying]) -> Callable[..., Applying]:
    """Another loader of the same target and log."""

    def make(target: Applying, **more: Any) -> PgApplying:
        target.close()
        opened.append(PgApplying(target.url, target.directory, **more))
        return opened[-1]

    return make


class TestEveryKind(EveryKind):
    """Each kind of change under each policy."""


class TestInPlace(InPlace):
    """Columns renamed without a reload."""


class TestLeniently(Leniently):
    """What the policies promise of columns and values."""

    def test_a_column_that_a_view_needs(self, begin: Begin, log: LogMaker) -> None:
        """try_evolve: it cannot be dropped, and stays."""
        target = begun(begin, log, Policies(default=Policy.TRY_EVOLVE))
        target.execute("create view v as select name from t")
        log.transaction(insert(shaped(ID, N, version=2), 2, 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "a", 10), (2, None, 20)]
        (note,) = record_of(target).notes
        assert "column name was dropped" in note
        assert record_of(target).kept == ("name",)

    def test_a_type_that_the_target_lacks(self, begin: Begin, log: LogMaker) -> None:
        """lenient: a new column of such a type is text."""
        target = begun(begin, log, Policies(default=Policy.LENIENT))
        strange = Column(name="s", source_type="public.strange", neutral="string", missing="x")
        log.transaction(insert(shaped(ID, NAME, N, strange, version=2), 2, "b", 20, "(1,2)"))
        log.close_segment()
        settle(target, log)
        assert target.rows("select s from t order by id") == [("x",), ("(1,2)",)]
