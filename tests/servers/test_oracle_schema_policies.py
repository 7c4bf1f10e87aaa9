"""Changes of shape by policy, with Oracle's model as target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from harness.pipelines.key_policies import LaterKeys
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import insert
from harness.pipelines.policies import (
    ID,
    NAME,
    Begin,
    EveryKind,
    InPlace,
    Leniently,
    N,
    begin_target,
    build_shape,
    column_fact,
    settle,
)
from harness.servers.oracle_place import SCHEMA, OraclePlace
from penstock.codec.types import Choices
from penstock.engines.oracle.target.progress import connect_progress
from penstock.host.faults import FaultInjected
from penstock.model.policies import Policies, Policy
from penstock.ports.target import Applied
from sim_oracle.texts import KnownTexts

CHOICES = Choices(by_scope={("empty values", ""): "error"})


class OraApplying(Applying):
    """Applying for Oracle; tests ask and act in a session of their own."""

    def __init__(self, place: OraclePlace, directory: Any, **more: Any) -> None:
        self.place = place
        more.setdefault("choices", CHOICES)
        super().__init__(place.url, directory, namespaces={"public": SCHEMA}, **more)

    def execute(self, sql: str) -> None:
        """Run SQL."""
        self.rows(sql)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows that another session sees; queries in Oracle's words stay as they are."""
        run = self.place.run_unchanged if query.startswith("SELECT") else self.place.run
        return run(query)

    def read_applied(self) -> Applied:
        """Return the position up to which the target has applied the log."""
        with closing(connect_progress(self.url, "test")) as progress:
            return progress.read_applied()


@pytest.fixture
def loaders() -> Iterator[list[OraApplying]]:
    """Loaders, closed at the end."""
    made: list[OraApplying] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def begin(log: LogMaker, loaders: list[OraApplying]) -> Iterator[Begin]:
    """Maker of tables and a loader."""
    with OraclePlace() as place:
        place.server.texts = KnownTexts(None)  # statements of shapes have many forms

        def make(ddl: str, **more: Any) -> OraApplying:
            place.run(ddl)
            loaders.append(OraApplying(place, log.directory, **more))
            return loaders[-1]

        yield make


@pytest.fixture
def again(loaders: list[OraApplying]) -> Callable[..., Applying]:
    """Maker of another loader of the same target and log."""

    def make(target: OraApplying, **more: Any) -> OraApplying:
        target.close()
        loaders.append(OraApplying(target.place, target.directory, **more))
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

    def test_a_change_of_type_that_was_begun_under_another_policy(
        self, begin: Begin, log: LogMaker, again: Callable[..., Applying]
    ) -> None:
        """The process ends once the new column is there, which then has the wrong type."""
        target = begin_target(begin, log)
        number = replace(NAME, source_type="integer", neutral="int32")
        log.transaction(insert(build_shape(ID, number, N, version=2), 2, 5, 20))
        log.close_segment()

        def end(text: str) -> None:
            if text.startswith('UPDATE "SHOP"."t"'):
                raise FaultInjected("killed")

        place = target.place  # type: ignore[attr-defined]
        place.server.on_statement = end
        with pytest.raises(FaultInjected):
            settle(target, log)
        place.server.on_statement = lambda _: None
        later = again(target, policies=Policies(default=Policy.LENIENT))
        settle(later, log)
        assert later.rows("select id, name, n from t order by id") == [(1, "a", 10), (2, "5", 20)]
        assert column_fact(later, "data_type", "name") == "CLOB"
