"""One fenced position: late rows, feeds that join, holders that lost their lease, going back.

For any order and with kills, see tests/property/test_stage_position.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.feeds.interleaved import LOG
from harness.feeds.row_target import GROUP
from harness.feeds.sequencer import row
from harness.feeds.stage_site import ALL_MODES, P, Place, Site, T
from harness.feeds.staging import FakeCatalog
from penstock.control.feeds.feed_rewind import RewindRefused, rewind
from penstock.feeds.apply.admission import FeedEarly, MutationLate
from penstock.feeds.metrics import Metrics
from penstock.feeds.position import (
    LeaseLost,
    Marking,
    PositionAhead,
    PositionMoved,
    advance_to,
    take_over,
)
from penstock.feeds.receiver.access import Everybody
from penstock.feeds.receiver.app import Receiver
from penstock.feeds.receiver.targets import TargetTables
from penstock.feeds.sessions import Sessions
from penstock.host import faults
from penstock.host.errors import ConnectionLost
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import (
    STUB,
    CheckpointMoved,
    batch_of,
    has_other_key_order,
    leases_of,
    position_behind,
    time_through,
)
from penstock.ports.target import Applied


@pytest.fixture
def site() -> Iterator[Site]:
    """Two empty databases."""
    with ExitStack() as stack:
        yield Site(stack)


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A pipeline."""
    return Place(site, monkeypatch)


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The actions at fault points, each done once."""
    plan: dict[str, Any] = {}
    monkeypatch.setattr(faults, "point", lambda name: plan.pop(name, lambda: None)())
    return plan


# --- resolved times of a feed ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_late_row_is_refused(site: Site, mode: StageMode) -> None:
    """A row that was sent before is accepted, the late one would never be applied. Nothing is
    staged.
    """
    site.post(mode, row(3, 1, v=3))
    site.resolve(5)
    site.apply(mode)
    assert site.values() == {"[1]": 3}
    assert site.post(mode, row(3, 1, v=3)) == (0, 1)
    for time in (4, 5):
        with pytest.raises(MutationLate, match=rf"key \[2\] at {time}\.0+ is new"):
            site.post(mode, row(6, 1, v=6), row(time, 2, v=time))
    assert site.waiting() == []
    assert site.values() == {"[1]": 3}
    assert site.post(mode, row(6, 2, v=6)) == (1, 0)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_late_row_of_a_window_that_is_not_applied_yet_is_refused(
    site: Site, mode: StageMode
) -> None:
    """The window may be loading, so that the row would be marked applied with it."""
    site.staging.feed_state(GROUP, "a")
    site.staging.stage({T: batch_of([row(3, 1, v=3)])}, partition="a")
    site.resolve(5)
    with pytest.raises(MutationLate):
        site.post(mode, row(4, 2, v=4))
    assert site.post(mode, row(3, 1, v=3)) == (0, 1)
    site.apply(mode)
    assert site.values() == {"[1]": 3}


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_row_that_a_later_one_has_replaced_is_left_out(site: Site, mode: StageMode) -> None:
    """A feed that goes back further than retireOffset does not restore old values."""
    site.post(mode, row(3, 1, v=3), row(9, 1, v=9))
    site.resolve(10)
    site.apply(mode)
    site.staging.retire(T, Hlc(5))
    assert site.post(mode, row(3, 1, v=3)) == (0, 1)
    site.apply(mode)
    assert site.values() == {"[1]": 9}
    assert site.waiting() == []


def test_a_time_that_is_resolved_while_rows_are_staged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are checked again, and refused."""
    stage = site.staging.stage

    def late(batches: Any, *, partition: str = "") -> Any:
        site.resolve(5)
        return stage(batches, partition=partition)

    monkeypatch.setattr(site.staging, "stage", late)
    with pytest.raises(MutationLate):
        site.post(StageMode.CONSISTENT, row(4, 1, v=4))
    with pytest.raises(CheckpointMoved):
        site.staging.stage_if_exists(T, batch_of([row(4, 1, v=4)]), partition="a")
    assert site.waiting() == []


# --- feeds that join ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_slower_of_two_feeds_loses_nothing(site: Site, mode: StageMode) -> None:
    """The slower feed is not refused either: its rows before the position are written at once.

    As soon as it has resolved a time, the others wait for it.
    """
    site.post(mode, row(20, 1, v=20))
    site.resolve(30)
    with pytest.raises(FeedEarly, match="is not applied yet"):
        site.post(mode, row(7, 5, v=7), table=P, feed="b")
    site.apply(mode)
    site.resolve(40)
    assert site.post(mode, row(7, 5, v=7), table=P, feed="b") == (1, 0)
    assert site.values("p") == {"[5]": 7}
    with pytest.raises(FeedEarly):
        site.post(mode, row(31, 6, v=31), table=P, feed="b")
    site.resolve(8, "b")
    site.resolve(50)
    assert site.staging.window(GROUP).proposed == Hlc(40)
    site.apply(mode)
    assert site.post(mode, row(9, 5, v=9), row(31, 6, v=31), table=P, feed="b") == (2, 0)
    assert site.post(mode, row(7, 5, v=7), row(41, 7, v=41), table=P, feed="b") == (1, 1)
    site.resolve(45, "b")
    site.apply(mode)
    assert site.values("p") == {"[5]": 9, "[6]": 31, "[7]": 41}
    assert site.staging.window(GROUP).committed == Hlc(45)
    assert site.waiting(P) == []
    with pytest.raises(MutationLate):
        site.post(mode, row(10, 8, v=10), table=P, feed="b")


def test_a_row_of_a_feed_that_joins_is_looked_at_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later row of its key may have been applied since it was admitted."""
    mode = StageMode.CONSISTENT
    site.post(mode, row(20, 1, v=20))
    site.resolve(30)
    site.apply(mode)
    read = site.target.read_position

    def late(log_id: str) -> Applied:
        site.staging.mark_applied(P, batch_of([row(25, 5, v=25)]))
        site.target.rows["p"]["[5]"] = {"id": 5, "v": 25}
        return read(log_id)

    monkeypatch.setattr(site.target, "read_position", late)
    assert site.post(mode, row(7, 5, v=7), table=P, feed="b") == (0, 1)
    assert site.values("p") == {"[5]": 25}


def test_a_feed_that_resolves_nothing_holds_nobody_up(site: Site) -> None:
    """The feed's rows are in the windows of the others, or are written at once."""
    site.post(StageMode.CONSISTENT, row(20, 1, v=20))
    site.post(StageMode.CONSISTENT, row(25, 5, v=25), table=P, feed="b")
    site.resolve(30)
    site.apply(StageMode.CONSISTENT)
    assert site.values("p") == {"[5]": 25}
    assert site.waiting(P) == []
    site.post(StageMode.CONSISTENT, row(24, 6, v=24), row(31, 7, v=31), table=P, feed="b")
    assert site.values("p") == {"[5]": 25, "[6]": 24}
    site.resolve(40)
    site.apply(StageMode.CONSISTENT)
    assert site.values("p")["[7]"] == 31


def test_a_feed_that_joins_is_refused_where_consumers_would_not_see_it() -> None:
    """Their log is further than the feed is."""
    with ExitStack() as stack:
        site = Site(stack, stages_all=True)
        site.post(StageMode.CONSISTENT, row(20, 1, v=20))
        site.resolve(30)
        site.apply(StageMode.CONSISTENT)
        with pytest.raises(FeedEarly, match="consumers"):
            site.post(StageMode.CONSISTENT, row(7, 5, v=7), table=P, feed="b")
        assert site.values("p") == {}


def test_a_feed_with_a_query_is_its_table() -> None:
    """Two of them into one schema resolve separately, in every form of a path."""
    with ExitStack() as stack:
        site = Site(stack)
        receiver = Receiver(
            sessions=Sessions(site.staging, 4),
            tables=TargetTables(FakeCatalog({GROUP: {"t": ("id",), "p": ("id",)}})),
            access=Everybody(),
            metrics=Metrics(),
            accept=site.sequencers[StageMode.CONSISTENT].accept,
        )
        client = TestClient(receiver.app)

        def post(path: str, body: str) -> int:
            return client.post(f"/shop/public{path}", content=body).status_code

        line = '{{"payload":[{{"after":{{"id":{0},"v":{1}}},"key":[{0}],"updated":"{1}.0"}}]}}'
        assert post("/t", line.format(1, 20)) == 200
        assert post("/P", line.format(1, 7)) == 200
        assert post("/p", '{"resolved":"10.0"}') == 200
        assert post("/t", '{"resolved":"30.0"}') == 200
        assert post("/p", line.format(2, 9)) == 400
        assert post("/p", line.format(2, 11)) == 200
        assert site.staging.window(GROUP).proposed == Hlc(10)
        marker = "/p/1970-01-01/197001010000000000000250000000000.RESOLVED"
        assert post(marker, "") == 200
        assert site.staging.window(GROUP).proposed == Hlc(25)
        partitions = {name for name, _, _ in site.staging.checkpoints["shop.public"]}
        assert partitions == {"shop.public.t", "shop.public.p"}
        assert post("/nothing", '{"resolved":"40.0"}') == 400


# --- writers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [StageMode.BEST_EFFORT, StageMode.IMMEDIATE])
def test_a_sweep_that_was_taken_over_writes_nothing(
    site: Site, mode: StageMode, at_point: dict[str, Any]
) -> None:
    """The sweep marks no row either: the new holder has loaded more meanwhile."""
    staged = [row(3, 1, v=3), row(4, 1, v=4)]
    site.staging.feed_state(GROUP, "a")
    site.staging.stage({T: batch_of(staged)})
    site.resolve(5)
    old = take_over(LOG, site.target)
    new = take_over(LOG, site.target)
    with pytest.raises(LeaseLost):
        site.apply(mode, old)
    assert site.values() == {}
    assert site.waiting() == [3, 4]
    site.apply(StageMode.CONSISTENT, new)
    assert site.values() == {"[1]": 4}
    at_point["stage.sweep.applied"] = lambda: take_over(LOG, site.target)
    site.staging.stage({T: batch_of([row(6, 1, v=6)])})
    site.resolve(7)
    with pytest.raises(LeaseLost):
        site.apply(mode, new)
    assert time_through(site.target.positions[LOG].position) == Hlc(5)
    assert site.staging.window(GROUP).committed == Hlc(5)


@pytest.mark.parametrize("mode", [StageMode.BEST_EFFORT, StageMode.IMMEDIATE])
def test_a_sweep_moves_the_position(site: Site, mode: StageMode) -> None:
    """The next holder, in any mode, begins after it; a crash loses no mark."""
    site.staging.feed_state(GROUP, "a")
    site.staging.stage({T: batch_of([row(3, 1, v=3)])})
    site.resolve(5)
    site.apply(mode)
    there = site.target.positions[LOG]
    assert there.position == position_behind(Hlc(5))
    site.staging.rewind(GROUP, Hlc(2))
    site.resolve(5)
    site.target.rows["t"].clear()
    site.apply(mode)
    assert site.values() == {}, "it was swept again"
    assert site.waiting() == []
    assert site.staging.window(GROUP).committed == Hlc(5)


@pytest.mark.parametrize("mode", [StageMode.BEST_EFFORT, StageMode.IMMEDIATE])
def test_a_request_looks_again_where_the_position_has_moved(
    site: Site, mode: StageMode, at_point: dict[str, Any]
) -> None:
    """While it looked, the row was sent again, staged with a later one, and both were loaded."""

    def meanwhile() -> None:
        site.post(StageMode.CONSISTENT, row(3, 1, v=3), row(4, 1, v=4))
        site.resolve(5)
        with site.target.transaction():
            before = site.target.locked_position(LOG)
            site.target.rows["t"]["[1]"] = {"id": 1, "v": 4}
            after = Applied(segment=9, position=position_behind(Hlc(5)))
            site.target.advance(LOG, before=before, after=after)
        Marking(site.staging, GROUP, LOG, target=lambda: site.target).mark(
            site.staging, site.target
        )

    at_point["stage.direct.looked"] = meanwhile
    assert site.post(mode, row(3, 1, v=3)) == (0, 1)
    assert at_point == {}
    assert site.values() == {"[1]": 4}


@pytest.mark.parametrize("mode", [StageMode.BEST_EFFORT, StageMode.IMMEDIATE])
def test_a_row_waits_behind_staged_ones_of_its_key(site: Site, mode: StageMode) -> None:
    """The sweep would otherwise write the older row over it."""
    site.post(StageMode.CONSISTENT, row(3, 1, v=3))
    assert site.post(mode, row(4, 1, v=4), row(5, 2, v=5)) == (2, 0)
    assert site.values() == {"[2]": 5}
    assert site.waiting() == [3, 4]
    site.resolve(6)
    site.apply(mode)
    assert site.values() == {"[1]": 4, "[2]": 5}
    assert site.waiting() == []


def test_a_position_never_goes_back() -> None:
    """The position stays, whatever rows a sweep has found waiting."""
    there = Applied(segment=4, position=position_behind(Hlc(9)))
    assert advance_to(there, Hlc(5)) == there
    assert advance_to(there, Hlc(11)) == Applied(segment=4, position=position_behind(Hlc(11)))


def test_what_is_written_directly_is_kept_whole_for_consumers() -> None:
    """Such rows are marked at once, so that no crash leaves them staged and applied."""
    with ExitStack() as stack:
        site = Site(stack, stages_all=True)
        site.post(StageMode.IMMEDIATE, row(3, 1, v=3))
        (kept,) = site.staging.tables[T].values()
        assert kept.applied
        assert kept.mutation == row(3, 1, v=3)


def test_an_error_of_the_target_is_not_taken_for_a_lost_lease(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is retried at once; a lost lease, and a position that has moved, are not."""
    tries: list[int] = []
    upsert = site.target.upsert

    def broken(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionLost("gone", hint="")
        return upsert(*arguments)

    monkeypatch.setattr(site.target, "upsert", broken)
    site.post(StageMode.IMMEDIATE, row(3, 1, v=3))
    assert site.values() == {"[1]": 3}


# --- marks, and going back ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES)
def test_checkpoints_that_were_deleted_mark_nothing(site: Site, mode: StageMode) -> None:
    """Rows that are sent again wait until the operator rewinds the target's position, too."""
    site.post(StageMode.CONSISTENT, row(3, 1, v=3))
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)
    site.staging.checkpoints.clear()
    site.staging.tables[T].clear()
    site.post(StageMode.CONSISTENT, row(4, 2, v=4))
    site.resolve(4)
    with pytest.raises(PositionAhead) as caught:
        site.apply(mode)
    assert "--rewind" in caught.value.hint
    marking = Marking(site.staging, GROUP, LOG, target=lambda: site.target)
    with pytest.raises(PositionAhead):
        marking.mark(site.staging, site.target)
    assert site.waiting() == [4]
    marking._settled = site.target.positions[LOG]
    with pytest.raises(PositionAhead):
        marking.mark(site.staging, site.target)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_schema_goes_back(site: Site, place: Place, mode: StageMode) -> None:
    """Later staged rows are applied again, and so are rows that the feed sends again."""
    site.post(mode, row(3, 1, v=3))
    site.resolve(5)
    site.post(mode, row(6, 1, v=6))
    site.staging.mark_applied(T, batch_of([row(7, 2, v=7)]))
    site.resolve(8)
    site.apply(mode)
    old = take_over(LOG, site.target)
    site.target.rows["t"].clear()
    with pytest.raises(RewindRefused, match="before 9"):
        rewind(place.config, "", Hlc(9))
    assert rewind(place.config, "", Hlc(4)) == "shop.public"
    kept = {time.nanos: one for (time, _), one in site.staging.tables[T].items()}
    assert all(one.mutation.after != STUB for time, one in kept.items() if time > 4)
    assert site.post(mode, row(6, 1, v=6), row(7, 2, v=7))[1] in (0, 1)
    site.resolve(8)
    with pytest.raises(LeaseLost):
        site.apply(mode, old)
    site.apply(mode)
    assert site.values() == {"[1]": 6, "[2]": 7}
    assert site.staging.window(GROUP).committed == Hlc(8)
    assert site.waiting() == []


def test_a_rewind_that_was_interrupted_holds_everything_up(
    site: Site, place: Place, at_point: dict[str, Any]
) -> None:
    """The rewind must be repeated: the target is further than the staging database knows."""
    site.post(StageMode.CONSISTENT, row(3, 1, v=3))
    site.resolve(5)
    site.apply(StageMode.CONSISTENT)

    def die() -> None:
        raise KeyboardInterrupt

    at_point["stage.rewind.staged"] = die
    with pytest.raises(KeyboardInterrupt):
        rewind(place.config, "shop.public", Hlc(2))
    with pytest.raises(PositionAhead):
        site.apply(StageMode.BEST_EFFORT)
    rewind(place.config, "shop.public", Hlc(2))
    site.resolve(5)
    site.target.rows["t"].clear()
    site.apply(StageMode.CONSISTENT)
    assert site.values() == {"[1]": 3}


def test_a_schema_in_use_does_not_go_back(site: Site, place: Place) -> None:
    """A schema without a feed does not either."""
    site.resolve(5)
    with pytest.raises(RewindRefused, match="no feed of target schema other"):
        rewind(place.config, "other", Hlc(2))
    site.staging.acquire(leases_of(GROUP, ["p"])[1:], 60, "here")
    with pytest.raises(RewindRefused, match="an instance works on shop"):
        rewind(place.config, "shop.public", Hlc(2))


def test_leases_are_those_of_replicator() -> None:
    """Two of any kinds never work on a schema at the same time."""
    assert leases_of(("Shop", "public"), ["B", "a"]) == [
        "sequtil.Lease.Shop.public",
        "sequtil.Lease.shop.public.a",
        "sequtil.Lease.shop.public.b",
    ]


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "image", "is_other"),
    [
        ("[1,2]", b'{"a":1,"b":2}', False),
        ("[2,1]", b'{"a":1,"b":2}', True),
        ('["x", 1]', b'{"b":"x","a":1,"c":3}', True),
        ("[1,1]", b'{"a":1,"b":1}', False),
        ("[3,4]", b'{"a":1,"b":2}', False),  # a user's module may have changed the row
        ("[2]", b'{"a":1,"b":2}', False),
        ("[2,1]", b"3", False),
        ("x", b'{"a":1,"b":2}', False),
        ("[2,1]", None, False),
    ],
)
def test_a_key_in_another_order_is_seen(key: str, image: bytes | None, is_other: bool) -> None:
    """The row that is sent with it shows it."""
    assert has_other_key_order(("a", "b"), key, image) is is_other
    assert not has_other_key_order(("a",), key, image)


def test_a_moved_position_passes() -> None:
    """The caller retries after a moved position; an operator must act on one that is ahead."""
    assert PositionMoved("x", hint="").retry == LeaseLost("x", hint="").retry == "backoff"
    assert PositionAhead("x", hint="").retry == MutationLate("x", hint="").retry == "operator"
