"""Changes of shape by policy, with MySQL and MariaDB as targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.pipelines.key_policies import LaterKeys
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import insert
from harness.pipelines.policies import (
    ID,
    IN_PLACE,
    NAME,
    Begin,
    EveryKind,
    InPlace,
    Leniently,
    N,
    begin_target,
    build_shape,
    settle,
)
from penstock.host.faults import FaultInjected, arming
from penstock.model import Column
from penstock.model.policies import Policies, Policy
from plugins.mysql_loader import MyApplying, MyStart


@pytest.fixture
def begin(my_start: MyStart) -> Begin:
    """Maker of tables and a loader."""
    return my_start


@pytest.fixture
def again() -> Iterator[Callable[..., Applying]]:
    """Maker of another loader of the same target and log."""
    opened = []

    def make(target: MyApplying, **more: Any) -> Applying:
        target.close()
        opened.append(MyApplying(target.place, target.directory, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


class TestEveryKind(EveryKind):
    """Each kind of change under each policy."""


class TestLaterKeys(LaterKeys):
    """Tables that get a key later, or another one."""


class TestInPlace(InPlace):
    """Columns renamed without a reload."""

    @pytest.mark.parametrize("place", ["load.alter.between", "load.alter.after"])
    @pytest.mark.parametrize("policy", [Policy.EVOLVE, Policy.LENIENT], ids=str)
    def test_cut_off_and_repeated(
        self,
        begin: Begin,
        log: LogMaker,
        place: str,
        policy: Policy,
        again: Callable[..., Applying],
    ) -> None:
        """The second attempt finds it done, and each value in its column."""
        target = begin_target(begin, log, Policies(default=policy))
        log.transaction(insert(IN_PLACE, 2, "b", 20))
        log.close_segment()
        with arming(f"{place}:1:error"), pytest.raises(FaultInjected):
            settle(target, log)
        later = again(target, policies=Policies(default=policy))
        settle(later, log)
        assert later.rows("select id, title, n from t order by id") == [(1, "a", 10), (2, "b", 20)]


class TestLeniently(Leniently):
    """Promises of the policies for columns and values."""

    def test_a_loss_that_nobody_has_chosen_for(self, begin: Begin, log: LogMaker) -> None:
        """A new column of such a type is text under lenient, which loses nothing."""
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        real = Column(name="r", source_type="real", neutral="float32")
        log.transaction(insert(build_shape(ID, NAME, N, real, version=2), 2, "b", 20, float("nan")))
        log.close_segment()
        settle(target, log)
        assert target.rows("select r from t order by id") == [(None,), ("nan",)]

    @pytest.mark.parametrize("place", ["load.alter.between", "load.alter.after"])
    def test_cut_off_and_repeated(
        self, begin: Begin, log: LogMaker, place: str, again: Callable[..., Applying]
    ) -> None:
        """Columns are dropped, added and converted under lenient: the second attempt
        finds it done.
        """
        target = begin_target(begin, log, Policies(default=Policy.LENIENT))
        uuid = Column(name="n", source_type="uuid", neutral="uuid")
        log.transaction(insert(build_shape(ID, uuid, version=2), 2, b"\1" * 16))
        log.close_segment()
        with arming(f"{place}:1:error"), pytest.raises(FaultInjected):
            settle(target, log)
        later = again(target, policies=Policies(default=Policy.LENIENT))
        settle(later, log)
        assert later.rows("select id, name, n from t order by id") == [
            (1, "a", "10"),
            (2, None, "01010101-0101-0101-0101-010101010101"),
        ]
