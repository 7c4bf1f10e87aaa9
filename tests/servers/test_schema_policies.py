"""Changes of shape by policy, with PostgreSQL as target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from harness.pipelines.key_policies import LaterKeys
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import insert
from harness.pipelines.policies import (
    BASE,
    ID,
    NAME,
    Begin,
    EveryKind,
    InPlace,
    Leniently,
    N,
    begin_target,
    build_shape,
    record_of,
    settle,
)
from penstock.model import Column, Relation, TypeDefinition
from penstock.model.policies import Policies, Policy
from penstock.ports.target import ShapeNotApplicable


class PgApplying(Applying):
    """Applying for PostgreSQL; tests ask and act on a connection of their own."""

    def execute(self, sql: str) -> None:
        """Run SQL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows that another session sees."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def loaders() -> Iterator[list[PgApplying]]:
    """Loaders, closed at the end."""
    made: list[PgApplying] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def begin(target_url: str, log: LogMaker, loaders: list[PgApplying]) -> Begin:
    """Maker of tables and a loader."""

    def make(ddl: str, **more: Any) -> PgApplying:
        loaders.append(PgApplying(target_url, log.directory, **more))
        loaders[-1].execute(ddl)
        return loaders[-1]

    return make


@pytest.fixture
def again(loaders: list[PgApplying]) -> Callable[..., Applying]:
    """Maker of another loader of the same target and log."""

    def make(target: Applying, **more: Any) -> PgApplying:
        target.close()
        loaders.append(PgApplying(target.url, target.directory, **more))
        return loaders[-1]

    return make


class TestEveryKind(EveryKind):
    """Each kind of change under each policy."""


class TestLaterKeys(LaterKeys):
    """Tables that get a key later, or another one."""


class TestInPlace(InPlace):
    """Columns renamed without a reload."""


class TestLeniently(Leniently):
    """Promises of the policies for columns and values."""

    def test_a_column_that_a_view_needs(self, begin: Begin, log: LogMaker) -> None:
        """The column cannot be dropped under try_evolve, and stays."""
        target = begin_target(begin, log, Policies(default=Policy.TRY_EVOLVE))
        target.execute("create view v as select name from t")
        log.transaction(insert(build_shape(ID, N, version=2), 2, 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "a", 10), (2, None, 20)]
        (note,) = record_of(target).notes
        assert "column name was dropped" in note
        assert record_of(target).kept == ("name",)

    def test_a_type_that_the_target_lacks(self, begin: Begin, log: LogMaker) -> None:
        """A new column of such a type is text under lenient."""
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        strange = Column(name="s", source_type="public.strange", neutral="string", missing="x")
        log.transaction(insert(build_shape(ID, NAME, N, strange, version=2), 2, "b", 20, "(1,2)"))
        log.close_segment()
        settle(target, log)
        assert target.rows("select s from t order by id") == [("x",), ("(1,2)",)]

    def test_a_default_that_is_not_of_the_new_type(self, begin: Begin, log: LogMaker) -> None:
        """The default is dropped: rows have their values."""
        target = begin("create table t (id int primary key, name text, n int default 1)")
        log.transaction(insert(BASE, 1, "a", 10))
        other = replace(N, source_type="boolean", neutral="bool")
        log.transaction(insert(build_shape(ID, NAME, other, version=2), 2, "b", False))
        log.close_segment()
        settle(target, log)
        assert target.rows("select id, n from t order by id") == [(1, True), (2, False)]

    def test_a_type_that_cannot_be_cast(self, begin: Begin, log: LogMaker) -> None:
        """The table is copied again, in its new shape."""
        target = begin_target(begin, log)
        other = replace(N, source_type="integer[]", neutral="string")
        log.transaction(insert(build_shape(ID, NAME, other, version=2), 2, "b", "{1}"))
        log.close_segment()
        with pytest.raises(ShapeNotApplicable, match="column n became integer") as caught:
            settle(target, log)
        assert caught.value.hint.startswith("Run: penstock table resync FILE public.t;")


MOOD = Column(name="m", source_type="public.mood", neutral="string", missing="glad", id=4)
RANK = Column(name="r", source_type="public.rank", neutral="int32", base_type="integer", id=5)


def build_typed_shape(*types: TypeDefinition, version: int) -> Relation:
    """Return a shape with columns of the user's types."""
    return replace(build_shape(ID, NAME, N, MOOD, RANK, version=version), types=types)


def enum_of(*labels: str) -> TypeDefinition:
    """Return the enum as the source has it."""
    listed = ", ".join(f"'{label}'" for label in labels)
    sql = f"create type public.mood as enum ({listed})"
    return TypeDefinition(schema="public", name="mood", kind="e", create_sql=sql, labels=labels)


DOMAIN = TypeDefinition(
    schema="public", name="rank", kind="d", create_sql="create domain public.rank as integer"
)
LABELS = "select enumlabel from pg_enum order by enumsortorder"


class TestTypes:
    """Types that the source got after the target's tables were created."""

    def test_are_created_with_the_columns(self, begin: Begin, log: LogMaker) -> None:
        """Types are created in a target with an earlier log, too."""
        target = begin_target(begin, log, Policies())
        relation = build_typed_shape(enum_of("sad", "glad"), DOMAIN, version=2)
        log.transaction(insert(relation, 2, "b", 20, "sad", 3))
        log.close_segment()
        settle(target, log)
        assert target.rows("select m::text, r from t order by id") == [("glad", None), ("sad", 3)]

    def test_get_labels_at_their_places(self, begin: Begin, log: LogMaker) -> None:
        """A default may be a label that no row has had."""
        target = begin_target(begin, log, Policies())
        target.execute("create type public.mood as enum ('sad', 'own')")
        relation = build_typed_shape(enum_of("low", "sad", "glad"), DOMAIN, version=2)
        log.transaction(insert(relation, 2, "b", 20, "low", 3))
        log.close_segment()
        settle(target, log)
        assert target.rows(LABELS) == [("low",), ("sad",), ("glad",), ("own",)]
        assert target.rows("select m::text from t order by id") == [("glad",), ("low",)]

    def test_that_the_target_refuses_are_named(self, begin: Begin, log: LogMaker) -> None:
        """The column is refused by name, and the hint is the statement."""
        target = begin_target(begin, log, Policies())
        bad = replace(DOMAIN, create_sql="create domain public.rank as public.nowhere")
        log.transaction(
            insert(build_typed_shape(enum_of("sad", "glad"), bad, version=2), 2, "b", 20, "sad", 3)
        )
        log.close_segment()
        with pytest.raises(ShapeNotApplicable, match="rank"):
            settle(target, log)
