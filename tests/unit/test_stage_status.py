"""Status of target schemas: facts of the staging database and the target, or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.feeds.staging import SHOP, FakeStaging
from penstock.control.feeds import feed_status
from penstock.control.feeds.feed_show import (
    BackfillView,
    BarMeter,
    show_stage_lag,
    show_stage_status,
)
from penstock.control.feeds.feed_status import (
    GroupNote,
    Notes,
    Problem,
    SchemaStatus,
    StageStatus,
    StageStatusReader,
    read_note,
)
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.display import human_count
from penstock.host.clock import RealClock
from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.model.sections import StageMode
from penstock.ports.config import Config
from penstock.ports.feeds import (
    GroupState,
    Holder,
    Mutation,
    StagedRows,
    StagedTable,
    Window,
    batch_of,
    lease_of,
    position_behind,
)
from penstock.ports.target import Applied

ORDERS = StagedTable(SHOP, "orders")
NOW_S = 1_800_000_000
FILE = """
[pipeline]
name = "shop"
directory = "shop"
[staging]
url = "postgresql://stage@localhost:5432/_replicator"
[stage]
listen = "127.0.0.1:0"
MODE
[target]
url = "postgresql://loader@localhost:5432/shop"
"""


def at(second: int) -> Hlc:
    """Return the time so many seconds after the beginning of the day."""
    return Hlc((NOW_S + second) * 10**9)


def schema(**changed: Any) -> SchemaStatus:
    """Return ten rows, four of which wait; committed a second ago."""
    now = datetime.fromtimestamp(NOW_S, UTC)
    state = GroupState(
        window=Window(committed=at(-1), proposed=at(0)),
        holder=Holder(hostname="here", expires=now + timedelta(seconds=30)),
        applied_at=now,
        now=now,
        tables={
            ORDERS: StagedRows(rows=10, waiting=4, oldest=at(0), is_estimate=False, size_bytes=1000)
        },
    )
    of_state = {key: changed.pop(key) for key in list(changed) if hasattr(state, key)}
    whole = SchemaStatus(
        group=SHOP,
        state=replace(state, **of_state),
        mode_setting=StageMode.AUTO,
        loaded=at(-1),
        dead_letters=0,
        now_us=NOW_S * 10**6,
    )
    return replace(whole, **changed)


def rows(staged: int | None, waiting: int | None, **more: Any) -> dict[StagedTable, StagedRows]:
    """Return the tables of a schema: one."""
    found = {"oldest": None, "is_estimate": False, "size_bytes": None, **more}
    return {ORDERS: StagedRows(rows=staged, waiting=waiting, **found)}


def status(*schemas: SchemaStatus) -> StageStatus:
    """Return a status of these schemas."""
    return StageStatus(
        pipeline="shop",
        mode_setting=StageMode.AUTO,
        directory=Path("/nowhere"),
        schemas=schemas,
        outages=(),
        read_us=NOW_S * 10**6,
    )


def show_status(found: StageStatus, show: Any = show_stage_status) -> str:
    """Return what a terminal shows."""
    out = Console(width=200, force_terminal=False)
    with out.capture() as captured:
        show(found, out)
    return captured.get()


# --- one schema -----------------------------------------------------------------------------------


def test_what_is_not_known_is_not_zero() -> None:
    """This covers the lag of a group without checkpoints, and rows that could not be counted."""
    none = Window(committed=ZERO, proposed=ZERO)
    found = schema(window=none, tables=rows(None, None), dead_letters=None, applied_at=None)
    assert (found.lag_s, found.proposed_lag_s, found.rows, found.waiting) == (None,) * 4
    shape = found.as_dict()
    assert shape["lag_seconds"] is shape["waiting"] is shape["rows"] is None
    text = show_status(status(found))
    assert "unknown: no resolved timestamp has come; make the feed WITH resolved" in text
    assert "unknown rows, unknown waiting" in text
    assert status(found).lag_s is None


def test_a_first_checkpoint_of_a_partition_is_none() -> None:
    """The one that `ensure_partitions` writes is not a lag of half a century."""
    found = schema(window=Window(committed=Hlc(1, 1), proposed=at(-5)))
    assert (found.committed_time, found.lag_s, found.proposed_lag_s) == (None, None, 5.0)
    assert "nothing is committed yet" in show_status(status(found))


def test_the_lag_is_that_of_the_schema_furthest_behind() -> None:
    """The lag is unknown if one is unknown."""
    behind = schema(window=Window(committed=at(-70), proposed=at(0)))
    assert status(schema(), behind).lag_s == 70
    assert status(schema(), schema(window=Window(committed=ZERO, proposed=ZERO))).lag_s is None
    assert status().lag_s is None
    assert "nothing has been received yet" in status().why_no_lag
    assert "1 min 10 s" in show_status(status(schema(), behind), show_stage_lag)


def test_an_expired_lease_is_nobodys() -> None:
    """The staging server's clock decides."""
    now = datetime.fromtimestamp(NOW_S, UTC)
    assert schema().holder == "here"
    gone = schema(holder=Holder(hostname="there", expires=now - timedelta(seconds=1)))
    assert gone.holder == ""
    assert "that of there has expired" in show_status(status(gone))
    assert "no instance works on it" in show_status(status(schema(holder=None)))


# --- bars -----------------------------------------------------------------------------------------


def far(staged: int, waiting: int, **more: Any) -> SchemaStatus:
    """Return a schema without a resolved time."""
    window = Window(committed=ZERO, proposed=ZERO)
    return schema(window=window, tables=rows(staged, waiting, **more))


def test_a_backfill_has_a_bar_with_rates_and_the_time_to_go() -> None:
    """The time to go ends when no row waits, at the pace of the last seconds."""
    meter = BarMeter()
    first = meter.add(100.0, [far(1000, 1000)])["shop.public"]
    assert (first.share, first.applied_per_s, first.eta_s) == (0.0, None, None)
    assert first.words.endswith("rows applied"), "a rate that is not known is not shown"
    second = meter.add(110.0, [far(1500, 800)])["shop.public"]
    assert (second.staged_per_s, second.applied_per_s, second.eta_s) == (50.0, 70.0, 40.0)
    assert second.words == f"700 of {human_count(1500)} rows applied, 70 rows/s, 40 s to go"
    third = meter.add(112.0, [far(9000, 5000, is_estimate=True)])["shop.public"]
    assert third.eta_s is None
    assert "of about 9" in third.words


def test_a_bar_is_full_only_when_nothing_waits() -> None:
    """The bar is not full as long as a single row waits."""
    meter = BarMeter()
    assert meter.add(0.0, [far(10**6, 1)])["shop.public"].share == 0.99
    done = meter.add(1.0, [far(10**6, 0)])["shop.public"]
    assert (done.share, done.eta_s, done.to_go) == (1.0, 0.0, "nothing waits")


def test_rows_that_are_retired_are_not_rows_taken_back() -> None:
    """The rate starts again."""
    meter = BarMeter()
    meter.add(0.0, [far(1000, 100)])
    assert meter.add(1.0, [far(500, 100)])["shop.public"].applied_per_s is None
    assert meter.add(2.0, [far(600, 100)])["shop.public"].applied_per_s == 100.0


def test_who_is_not_far_behind_has_no_bar() -> None:
    """One without rows, or with an unknown count, has no bar either."""
    behind = Window(committed=at(-61), proposed=at(0))

    def has_bar(found: SchemaStatus) -> bool:
        bar = BarMeter().add(0.0, [found]).get("shop.public")
        return bar is not None and bar.is_far_behind

    assert not has_bar(schema())
    assert has_bar(schema(window=behind))
    assert not has_bar(far(0, 0))
    assert not has_bar(schema(window=behind, tables=rows(None, 5)))
    assert "backfill" in show_status(status(schema(window=behind)))
    assert "backfill" not in show_status(status(schema()))


class StoppedClock(RealClock):
    """A clock that moves when it is told to."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """Return the set time."""
        return self.now_s


def test_bars_in_a_terminal_and_as_lines() -> None:
    """Bars are redrawn in place, or a line is printed after a change; the end is shown once."""
    meter = BarMeter()
    told: list[dict[str, Any]] = []
    clock = StoppedClock()
    out = Console(width=120, force_terminal=False)
    lines = BackfillView(None, out, clock=clock)
    events = BackfillView(told.append, out, clock=clock)
    behind, done = meter.add(0.0, [far(1000, 600)]), meter.add(9.0, [schema()])
    with out.capture() as captured:
        for bars in (behind, behind, done, done):
            lines.show(bars)
            events.show(bars)
            clock.now_s += 60
    text = captured.get()
    assert text.count("backfill of shop.public: 40%, 400 of") == 1
    assert text.count("backfill of shop.public: caught up") == 1
    assert [one["progress"]["share"] for one in told] == [0.4, 0.6]
    terminal = Console(width=120, force_terminal=True)
    with terminal.capture() as captured:
        drawn = BackfillView(None, terminal)
        drawn.show(behind)
        drawn.show(done)
        drawn.close()
    assert "shop.public" in captured.get()
    assert "40%" in captured.get()


def test_what_holds_a_schema_is_printed_once() -> None:
    """The problem has its hint; another error, or applied rows in between, print it again."""
    told: list[dict[str, Any]] = []
    clock, out = StoppedClock(), Console(width=120, force_terminal=False)
    lines = BackfillView(None, out, clock=clock)
    events = BackfillView(told.append, out, clock=clock)
    began_us = clock.now_us() + 10**6

    def make_held(error: str, at_us: int, *, applied_us: int = 0) -> SchemaStatus:
        problem = Problem(at_us=at_us, code="ST50", error=error, hint="Alter the target table.")
        found = schema(note=GroupNote(problem=problem))
        applied = datetime.fromtimestamp(applied_us / 1e6, UTC) if applied_us else None
        return replace(found, state=replace(found.state, applied_at=applied))

    with out.capture() as captured:
        for one in (
            make_held("of an earlier run", began_us - 10**9),
            make_held("drift", began_us + 1),
            make_held("drift", began_us + 2),
            make_held("drift", began_us + 2, applied_us=began_us + 10**7),
            make_held("drift", began_us + 2 * 10**7, applied_us=began_us + 10**7),
        ):
            lines.tell_problems([one])
            events.tell_problems([one])
    assert captured.get() == 2 * (
        "schema shop.public is held: ST50 drift\n        > Alter the target table.\n"
    )
    assert [one["schema"] for one in told] == ["shop.public"] * 2
    assert told[0]["problem"]["error"] == "drift"


# --- notes ----------------------------------------------------------------------------------------


def test_a_worker_notes_its_mode_and_its_problem() -> None:
    """All instances see them; an unreadable note is ignored."""
    staging = FakeStaging()
    assert read_note(staging, SHOP) == GroupNote()
    notes = Notes(staging, SHOP, dead_letters="dead")  # type: ignore[arg-type]
    notes.mode_is(staging, "bestEffort")
    first = read_note(staging, SHOP)
    assert (first.mode, first.dead_letters, first.problem) == ("bestEffort", "dead", None)
    assert first.hostname
    notes.note_problem(PenstockError("it is broken", hint="Fix it."))
    notes.mode_is(staging, "consistent")
    found = read_note(staging, SHOP)
    assert found.mode == "consistent"
    assert found.problem is not None
    assert (found.problem.error, found.problem.hint) == ("it is broken", "Fix it.")
    notes.note_problem(PenstockError("it is broken again"))
    notes.mode_is(staging, "consistent")
    assert read_note(staging, SHOP).mode_us == found.mode_us
    staging.memo["stage shop.public"] = b"{"
    assert read_note(staging, SHOP) == GroupNote()


def test_a_note_that_cannot_be_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker continues, and its next note has the problem too."""
    staging = FakeStaging()
    notes = Notes(staging, SHOP, dead_letters="dead")  # type: ignore[arg-type]

    def fails(_key: str, _value: bytes) -> None:
        raise PenstockError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(staging, "put_memo", fails)
        notes.mode_is(staging, "consistent")
        notes.note_problem(PenstockError("it is broken"))
    assert staging.memo == {}
    notes.mode_is(staging, "consistent")
    found = read_note(staging, SHOP)
    assert found.problem is not None
    assert (found.mode, found.problem.error) == ("consistent", "it is broken")


def test_a_problem_is_over_when_something_was_applied_since() -> None:
    """The problem is still shown."""
    staging = FakeStaging()
    notes = Notes(staging, SHOP, dead_letters="dead")  # type: ignore[arg-type]
    notes.note_problem(PenstockError("it is broken", hint="Fix it."))
    note = read_note(staging, SHOP)
    later = datetime.now(UTC) + timedelta(hours=1)
    before = later - timedelta(hours=2)
    open_, over = schema(note=note, applied_at=before), schema(note=note, applied_at=later)
    assert (open_.problem_is_over, over.problem_is_over) == (False, True)
    assert "next: Fix it." in show_status(status(open_))
    assert "something was applied since" in show_status(status(over))


# --- reading --------------------------------------------------------------------------------------


class FakeTarget:
    """A target: its position, and its dead letters."""

    def __init__(self) -> None:
        self.fail: PenstockError | None = None
        self.letters: int | None = 3

    @contextmanager
    def open_session(self) -> Iterator[FakeTarget]:
        """Return itself as session."""
        if self.fail is not None:
            raise self.fail
        yield self

    def read_shared(self, log_id: str) -> Applied:
        """Return the position at a second."""
        assert log_id.endswith("shop/shop.public")
        return Applied(position=position_behind(at(-2)))

    def tables(self, _group: Any) -> dict[str, None]:
        """Return one table, or also that of dead letters."""
        return {"orders": None} | ({} if self.letters is None else {"replicator_dlq": None})

    def quote(self, *names: str) -> str:
        """Return the names, joined by dots and unquoted."""
        return ".".join(names)

    def query(self, sql: str, _parameters: Any) -> list[tuple[int]]:
        """Return the number of dead letters."""
        assert "from public.replicator_dlq limit" in sql
        assert self.letters is not None
        return [(self.letters,)]

    def close(self) -> None:
        """Do nothing: the session is the target itself, which has no connection."""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeStaging, FakeTarget]:
    """Staging database and target of the reader."""
    staging, target = FakeStaging(), FakeTarget()
    monkeypatch.setattr(feed_status, "staging_at", lambda _url: staging)
    monkeypatch.setattr(feed_status, "row_target_at", lambda _url: target)
    monkeypatch.setattr(feed_status, "open_shared_progress", lambda _url, **_more: target)
    return staging, target


def config_of(tmp_path: Path, mode: str = "") -> Config:
    """Return a pipeline."""
    path = tmp_path / "cockroach.toml"
    path.write_text(FILE.replace("MODE", mode), encoding="utf-8")
    return load_config(path, {})


def test_it_is_read_from_both_databases(
    tmp_path: Path, servers: tuple[FakeStaging, FakeTarget]
) -> None:
    """This covers a schema without a resolved time, too, but not one of another target."""
    staging, target = servers
    reader = StageStatusReader(config_of(tmp_path))
    assert reader.read().schemas == ()
    change = Mutation(time=at(1), key="[1]", after=b"{}")
    staging.stage({ORDERS: batch_of([change])})
    staging.stage({StagedTable(("bank", "public"), "orders"): batch_of([change])})
    (found,) = reader.read().schemas or ()
    assert (found.rows, found.waiting, found.lag_s, found.mode) == (1, 1, None, "")
    assert (found.loaded, found.dead_letters) == (at(-2), 3)
    staging.advance(SHOP, "shop.public", at(2))
    staging.applied_through(SHOP)
    staging.acquire([lease_of(SHOP)], 60, "here")
    (found,) = reader.read().schemas or ()
    assert (found.waiting, found.committed_time, found.holder) == (0, at(2), "here")
    target.letters = None
    other = StageStatusReader(config_of(tmp_path, 'mode = "immediate"')).read()
    assert other.schemas is not None
    assert (other.schemas[0].dead_letters, other.schemas[0].mode) == (0, "immediate")


def test_a_server_that_is_away_is_named(
    tmp_path: Path, servers: tuple[FakeStaging, FakeTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that only it knows are unknown; it is asked again."""
    staging, target = servers
    staging.advance(SHOP, "shop.public", at(2))
    reader = StageStatusReader(config_of(tmp_path))
    target.fail = ConnectFailed("no answer", hint="Start it.")
    found = reader.read()
    assert found.schemas is not None
    assert (found.schemas[0].loaded, found.schemas[0].dead_letters) == (None, None)
    assert [one.words for one in found.outages] == ["target unreachable"]
    target.fail = None
    assert reader.read().outages == ()

    def away(*_: Any) -> None:
        raise ConnectFailed("no answer", hint="Start it.")

    with monkeypatch.context() as patched:
        patched.setattr(staging, "look", away)
        found = reader.read()
    assert (found.schemas, found.lag_s) == (None, None)
    assert found.why_no_lag == "staging database unreachable"
    assert found.lag_dict()["schemas"] is None
    assert "staging database unreachable" in show_status(found)
    assert reader.read().schemas is not None
    reader.close()
