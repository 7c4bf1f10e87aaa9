"""Refusals before a stream starts, decided without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.source.slot import (
    PositionGone,
    SlotLost,
    SlotMissing,
    SlotState,
    SlotUnfit,
    check_slot,
)
from penstock.engines.postgres.source.source_identity import (
    ServerIdentity,
    SourceReplaced,
    TimelineForked,
    check_identity,
    check_timeline,
)
from penstock.engines.postgres.source.stream import StreamOptions, protocol_options
from penstock.model import FlushPoint, PenstockError

GOOD = SlotState(
    name="s",
    plugin="pgoutput",
    slot_type="logical",
    database="d",
    active_pid=0,
    confirmed_flush=100,
    restart=90,
    wal_status="reserved",
    two_phase=False,
    conflicting=False,
    invalidation_reason="",
)


@pytest.mark.parametrize("position", [0, 100, 101, 1000])
def test_good_slots_pass(position: int) -> None:
    """The position is the slot's, or after it."""
    check_slot(GOOD, "s", database="d", position=position)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"plugin": "test_decoding"}, SlotUnfit),
        ({"slot_type": "physical", "plugin": "", "database": ""}, SlotUnfit),
        ({"database": "other"}, SlotUnfit),
        ({"two_phase": True}, SlotUnfit),
        ({"wal_status": "lost"}, SlotLost),
        ({"conflicting": True}, SlotLost),
        ({"invalidation_reason": "idle_timeout"}, SlotLost),
        ({"invalidation_reason": "a reason of version 25"}, SlotLost),
        ({"confirmed_flush": 101}, PositionGone),
    ],
)
def test_unusable_slots_are_refused(change: dict[str, object], error: type[PenstockError]) -> None:
    """Each has a hint that says what to type; none is fixed silently."""
    state = replace(GOOD, **change)  # type: ignore[arg-type]
    with pytest.raises(error) as caught:
        check_slot(state, "s", database="d", position=100)
    assert caught.value.hint
    assert caught.value.retry == "operator"


@pytest.mark.parametrize("position", [0, 5])
def test_missing_slot(position: int) -> None:
    """A missing slot is an error, whether the log has content or not."""
    with pytest.raises(SlotMissing):
        check_slot(None, "s", database="d", position=position)


def test_unreserved_and_extended_slots_are_still_good() -> None:
    """The server may still remove the WAL, but has not done so."""
    for status in ("extended", "unreserved"):
        check_slot(replace(GOOD, wal_status=status), "s", database="d", position=100)


HISTORY = "1\t0/3000000\tno recovery target specified\n2\t0/5000000\treason\n"


@pytest.mark.parametrize(
    ("timeline", "position", "fine"),
    [
        (1, 0x3000000, True),
        (1, 0x3000001, False),
        (1, 0, True),
        (2, 0x5000000, True),
        (2, 0x4000000, True),
        (2, 0x5000001, False),
        (3, 0x9000000, True),
        (4, 0x1000000, False),  # the server is on an older timeline than the log has seen
    ],
)
def test_timelines(timeline: int, position: int, fine: bool) -> None:
    """All up to position must be on the way to the server's present timeline, which is 3."""
    if fine:
        check_timeline(timeline, 3, HISTORY, position)
    else:
        with pytest.raises(TimelineForked):
            check_timeline(timeline, 3, HISTORY, position)


@pytest.mark.parametrize("change", [{"system_id": "2"}, {"database": "other"}, {"database_id": 9}])
def test_other_servers_are_refused(change: dict[str, object]) -> None:
    """A clone keeps the system identifier, a recreated database its name: all three count."""
    ours = ServerIdentity(system_id="1", timeline=1, database="d", database_id=5)
    check_identity(ours, replace(ours, timeline=2))
    with pytest.raises(SourceReplaced):
        check_identity(ours, replace(ours, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("server", "version"), [(14, "2"), (15, "3"), (16, "4"), (17, "4"), (18, "4")]
)
def test_protocol_version_follows_the_server(server: int, version: str) -> None:
    """The server refuses a higher version; streaming and messages are always on."""
    options = dict(protocol_options(server, StreamOptions(slot="s", publication='p"q')))
    assert options["proto_version"] == version
    assert options["streaming"] == "on"
    assert options["messages"] == "true"
    assert options["publication_names"] == '"p""q"'
    assert "binary" not in options


def test_origin_is_asked_for_only_where_it_is_known() -> None:
    """Servers before 16 refuse the option."""
    options = StreamOptions(slot="s", publication="p", origin="none")
    assert "origin" not in dict(protocol_options(15, options))
    assert dict(protocol_options(16, options))["origin"] == "none"


def test_positions_print_as_postgresql_does() -> None:
    """START_REPLICATION gets this text."""
    assert str(Lsn(FlushPoint(position=0x1_0000_0010).position)) == "1/10"
