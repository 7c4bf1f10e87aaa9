"""Changes of shape by policy, with a simulated SQL Server as target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    record_of,
    settle,
)
from penstock.codec.types.prepare import ValueRefused
from penstock.engines.sqlserver.target.progress import SQLServerProgress
from penstock.model import Column
from penstock.model.policies import Policies, Policy
from penstock.ports.target import Applied
from plugins.sqlserver import SimServer


class MsApplying(Applying):
    """Applying for SQL Server; tests ask and act on connections of their own."""

    def __init__(self, server: SimServer, database: str, directory: Any, **more: Any) -> None:
        self.place = (server, database)
        super().__init__(server.url(database), directory, namespaces={"public": "dbo"}, **more)

    def execute(self, sql: str) -> None:
        """Run SQL."""
        self.rows(sql)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows that another session sees."""
        server, database = self.place
        return server.execute(query, database)

    def read_applied(self) -> Applied:
        """Return the position up to which the target has applied the log."""
        return SQLServerProgress(self.target.connection).read_applied()


@pytest.fixture
def loaders() -> Iterator[list[MsApplying]]:
    """Loaders, closed at the end."""
    made: list[MsApplying] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def begin(
    sqlserver: SimServer, sqlserver_database: str, log: LogMaker, loaders: list[MsApplying]
) -> Begin:
    """Maker of tables and a loader."""

    def make(ddl: str, **more: Any) -> MsApplying:
        loaders.append(MsApplying(sqlserver, sqlserver_database, log.directory, **more))
        loaders[-1].execute(ddl)
        return loaders[-1]

    return make


@pytest.fixture
def again(loaders: list[MsApplying]) -> Callable[..., Applying]:
    """Maker of another loader of the same target and log."""

    def make(target: MsApplying, **more: Any) -> MsApplying:
        target.close()
        loaders.append(MsApplying(*target.place, target.directory, **more))
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
        target.execute("alter table t add constraint c check (name <> 'x')")
        log.transaction(insert(build_shape(ID, N, version=2), 2, 20))
        log.close_segment()
        settle(target, log)
        assert target.rows("select * from t order by id") == [(1, "a", 10), (2, None, 20)]
        (note,) = record_of(target).notes
        assert "column name was dropped" in note
        assert record_of(target).kept == ("name",)

    def test_a_value_that_the_target_lacks(self, begin: Begin, log: LogMaker) -> None:
        """Not a number is refused by column under lenient, too: a choice is needed."""
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        real = Column(name="r", source_type="real", neutral="float32")
        log.transaction(insert(build_shape(ID, NAME, N, real, version=2), 2, "b", 20, float("nan")))
        log.close_segment()
        with pytest.raises(ValueRefused, match=r"column r of public\.t.*not a number"):
            settle(target, log)
        assert target.rows("select * from t") == [(1, "a", 10)]
