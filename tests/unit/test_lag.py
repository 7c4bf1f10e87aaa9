"""The lag in every state of a pipeline, compared with what is really outstanding."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from harness.pipelines.log import COMMIT_TIME_US, SOURCE, inserts, number_rows, run_of
from harness.pipelines.pipeline import pipeline
from harness.pipelines.readings import lag as shown_lag
from harness.pipelines.readings import reading, status
from penstock.codec.columns import transactions_batch
from penstock.control.pipeline import log_facts
from penstock.control.pipeline.display import console
from penstock.control.pipeline.log_facts import outstanding_commit_us, read_log_end
from penstock.control.status.lag import Lag, TargetState, assess_lag, lag_of
from penstock.control.status.live import change_line
from penstock.control.status.show import show_lag
from penstock.extract.extractor import STATUS_FILE
from penstock.extract.report import WATERMARK
from penstock.load.ledger import Ledger, write_ledger
from penstock.log import Writer
from penstock.log.layout import DURABLE_NAME, load_state, read_durable
from penstock.model import FlushPoint, Marker, MarkerKind, Run
from penstock.ports.config import Config
from penstock.ports.lag import LOOKS_MAX, LogEnd, SourceState, Unread, Watermark
from penstock.ports.target import Applied
from penstock.web.metrics import expose

URL = "postgresql://u@127.0.0.1:1/d"
NOW_US = 1_000_000_000
END = FlushPoint(position=5000, gsn=9, trx=4, commit_time_us=NOW_US - 100_000_000)
APPLIED = Applied(segment=0, gsn=9, trx=4, position=5000, commit_time_us=END.commit_time_us)
SOURCE_IDLE = SourceState(
    position=5000, now_us=NOW_US, slot_exists=True, slot_active=True, confirmed=5000
)
AHEAD = replace(SOURCE_IDLE, position=6000)
NEVER = LogEnd()
LOG = LogEnd(log_id="log", end=END)
BEHIND = replace(APPLIED, gsn=7, trx=3, position=4000)


def ago(seconds: float) -> int:
    """Return a moment so long ago."""
    return NOW_US - round(seconds * 1e6)


@dataclass(frozen=True, kw_only=True)
class State:
    """A state. truth: age of the oldest commit that is not in the target; 0 if there is none."""

    source: SourceState = SOURCE_IDLE
    log: LogEnd = LOG
    applied: Applied = APPLIED
    outstanding_s: float | None = None
    watermark_s: float | None = None
    truth: float
    told: float | None
    at_most: bool = False


STATES = {
    "idle, all applied": State(truth=0, told=0),
    "in the log, not applied": State(applied=BEHIND, outstanding_s=7, truth=7, told=7),
    "in the log and more behind it": State(
        source=AHEAD, applied=BEHIND, outstanding_s=7, watermark_s=1, truth=7, told=7
    ),
    "durable and not confirmed yet": State(
        source=replace(SOURCE_IDLE, confirmed=4000), truth=0, told=0
    ),
    "confirmed since the log was read": State(
        source=replace(AHEAD, confirmed=6000), watermark_s=3, truth=2, told=3, at_most=True
    ),
    "committed, not extracted, extractor there": State(
        source=AHEAD, watermark_s=3, truth=2, told=3, at_most=True
    ),
    "committed, not extracted, extractor away": State(
        source=replace(AHEAD, slot_active=False), truth=60, told=100, at_most=True
    ),
    "extractor away, only other databases wrote": State(
        source=replace(AHEAD, slot_active=False), watermark_s=30, truth=0, told=30, at_most=True
    ),
    "nothing was ever committed that we have, the source went on": State(
        source=AHEAD,
        log=replace(LOG, end=FlushPoint(position=5000)),
        applied=Applied(),
        truth=60,
        told=None,
    ),
    "the source knows its first commit behind the log": State(
        source=replace(AHEAD, unread=Unread(commit_us=ago(4))), truth=4, told=4, at_most=True
    ),
    "the source knows that it has none": State(
        source=replace(AHEAD, unread=Unread(commit_us=None)), truth=0, told=0
    ),
    "the source's clock is behind": State(
        source=replace(SOURCE_IDLE, now_us=ago(50)),
        applied=BEHIND,
        outstanding_s=7,
        truth=0,
        told=0,
    ),
}


def found_of(state: State) -> Lag:
    """Return the lag that is reported for a state."""
    return lag_of(
        state.source,
        state.log,
        state.applied,
        outstanding_us=None if state.outstanding_s is None else ago(state.outstanding_s),
        watermark_us=0 if state.watermark_s is None else ago(state.watermark_s),
    )


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_reported_as_it_is(name: str) -> None:
    """The lag is exact, an upper bound shown as such, or unknown: never less than the truth."""
    state = STATES[name]
    found = found_of(state)
    assert (found.seconds, found.at_most) == (state.told, state.at_most)
    if found.seconds is None:
        assert found.unknown
        assert found.words.startswith("unknown: ")
    else:
        assert found.seconds >= state.truth
        assert found.seconds == state.truth or found.at_most
        assert found.words.startswith("at most ") is state.at_most


def test_bytes_and_rows_are_reported_too() -> None:
    """Rows are the log's unapplied ones; bytes count from the log's end and the applied place."""
    found = found_of(STATES["in the log and more behind it"])
    assert (found.rows, found.slot_bytes, found.applied_bytes) == (2, 1000, 2000)
    idle = found_of(STATES["idle, all applied"])
    assert (idle.rows, idle.slot_bytes, idle.applied_bytes) == (0, 0, 0)


# -- the watermark -----------------------------------------------------------------------------


def test_the_watermark_is_the_last_look_that_the_log_has_reached() -> None:
    """A look counts once the log has reached the source's position of that look."""
    mark = Watermark()
    assert mark.note_reached(100) == 0
    mark.look(100, 10)
    mark.look(200, 20)
    assert mark.note_reached(99) == 0
    assert mark.note_reached(150) == 10
    mark.look(200, 30)  # the source stood still
    assert mark.note_reached(200) == 30
    mark.look(300, 40)
    assert mark.note_reached(200) == 30
    mark.look(250, 50)  # another server: looks at the previous one tell nothing about it
    assert mark.note_reached(260) == 50


def test_the_watermark_needs_little_memory_however_far_the_log_is_behind() -> None:
    """Looks are thinned out; no later moment is ever reported than one that was reached."""
    mark = Watermark()
    for number in range(20 * LOOKS_MAX):
        mark.look(number, number)
    assert len(mark._looks) <= LOOKS_MAX
    for reached in (0, 1, 777, 5 * LOOKS_MAX, 20 * LOOKS_MAX):
        assert mark.note_reached(reached) <= reached
    assert mark.note_reached(20 * LOOKS_MAX) > 19 * LOOKS_MAX


# -- from files --------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A pipeline of changes without servers."""
    return pipeline(tmp_path, URL, URL, mode="change")


def make_truncate(trx: int, *, gsn: int) -> Run:
    """Return a transaction that only has a TRUNCATE."""
    at, commit_us = trx * 100, COMMIT_TIME_US + trx
    marker = Marker(
        kind=MarkerKind.TRUNCATE,
        gsn=gsn,
        trx=trx,
        position=at,
        commit_time_us=commit_us,
        tables=(("public", "item"),),
    )
    told = transactions_batch([(at, at + 8, commit_us, trx)])
    end = FlushPoint(position=at + 8, gsn=gsn, trx=trx, commit_time_us=commit_us)
    return Run(markers=(marker,), transactions=told, end=end)


def with_log(config: Config) -> LogEnd:
    """Write rows into a closed segment, and a TRUNCATE into the open one."""
    with Writer.open(config.layout.log, log_id=None, source=SOURCE) as writer:
        writer.write(run_of(number_rows([inserts(3)])[0]))
        writer.rotate()
        writer.write(make_truncate(2, gsn=3))
        writer.flush()
        return read_log_end(config)


def test_a_truncate_is_outstanding_too(config: Config) -> None:
    """A TRUNCATE has no rows; transactions are counted."""
    log = with_log(config)
    assert (log.end.trx, log.end.gsn) == (2, 3)
    applied = Applied(segment=0, gsn=3, trx=1)
    assert outstanding_commit_us(config, applied) == COMMIT_TIME_US + 2
    assert outstanding_commit_us(config, replace(applied, trx=2)) is None
    assert outstanding_commit_us(config, Applied()) is not None
    source = replace(
        SOURCE_IDLE, position=208, confirmed=208, now_us=COMMIT_TIME_US + 2 + 5_000_000
    )
    found = assess_states(config, source=source, target=TargetState(applied=applied))
    assert (found.seconds, found.at_most, found.rows) == (5.0, False, 0)


def test_the_watermark_of_the_extractor_is_read(config: Config) -> None:
    """Any process may have written it, running or not; before the first there is none."""
    with_log(config)
    assert read_log_end(config).watermark_us == 0
    config.layout.run.mkdir(parents=True)
    path = config.layout.run / STATUS_FILE
    path.write_bytes(msgspec.json.encode({WATERMARK: 17, "pid": 1}))
    assert read_log_end(config).watermark_us == 17
    path.write_bytes(b"")  # a crash of the machine may leave this
    assert read_log_end(config).watermark_us == 0


def test_what_came_into_the_log_meanwhile_is_not_taken_for_applied(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read, then a row arrives that is durable, confirmed and below the watermark."""
    with_log(config)
    log = read_log_end(config)
    ahead = replace(SOURCE_IDLE, position=900, confirmed=900, now_us=log.end.commit_time_us + 9)
    found = assess_states(config, source=ahead, log=log)
    assert (found.seconds, found.at_most) == (9e-6, True)

    config.layout.run.mkdir(parents=True)
    path = config.layout.run / STATUS_FILE
    real = load_state

    def slow(directory: Path) -> Any:
        """Append while the log is being read."""
        found = real(directory)
        path.write_bytes(msgspec.json.encode({WATERMARK: 17}))
        return found

    monkeypatch.setattr(log_facts, "load_state", slow)
    assert read_log_end(config).watermark_us == 0


def test_the_open_segments_end_is_what_its_writer_says_is_durable(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is not scanned then; the mark of another file of its number does not count."""
    directory = config.layout.log
    with Writer.open(directory, log_id=None, source=SOURCE) as writer:
        one, two = number_rows([inserts(3), inserts(2)])
        writer.write(run_of(one))
        writer.flush()
        said = (directory / DURABLE_NAME).read_bytes()
        writer.write(run_of(two))
        writer.flush()
        with monkeypatch.context() as patched:
            patched.setattr(log_facts, "open_segment", None)
            assert read_log_end(config).end.trx == 2
        (directory / DURABLE_NAME).write_bytes(said)
        assert read_log_end(config).end.trx == 1, "what is durable counts, not what is written"
        mine = read_durable(directory)
        assert mine is not None
        monkeypatch.setattr(
            log_facts, "read_durable", lambda _: replace(mine, file_id=str(uuid4()))
        )
        assert read_log_end(config).end.trx == 2


def assess_states(
    config: Config,
    *,
    source: SourceState = SOURCE_IDLE,
    log: LogEnd | None = None,
    target: TargetState | None = None,
) -> Lag:
    """Return the lag of a pipeline with these states."""
    target = target or TargetState(applied=Applied(segment=0, gsn=3, trx=2, position=208))
    return assess_lag(config, source, log or read_log_end(config), target)


def test_what_cannot_be_known_is_unknown_with_the_reason(config: Config, tmp_path: Path) -> None:
    """Reasons are a missing first run, slot or tables of ours, another log, or a gap."""
    idle = replace(SOURCE_IDLE, position=208, confirmed=208)
    before = assess_states(config, source=idle, target=TargetState(present=False))
    assert (before.seconds, before.unknown) == (None, "nothing is extracted yet")
    log = with_log(config)
    assert assess_states(config, source=idle).seconds == 0
    slotless = assess_states(config, source=replace(idle, slot_exists=False))
    assert slotless.seconds is None
    assert "slot" in slotless.unknown
    absent = assess_states(config, source=idle, target=TargetState(present=False))
    assert (absent.seconds, absent.unknown) == (None, "nothing is loaded yet")
    ahead = TargetState(applied=Applied(segment=5, gsn=90, trx=80))
    another = assess_states(config, source=idle, target=ahead)
    assert another.seconds is None
    assert "another" in another.unknown
    (config.layout.log / "0.ckt").unlink()
    hole = assess_states(config, source=idle, log=log, target=TargetState())
    assert hole.seconds is None
    assert "does not have" in hole.unknown
    loads = pipeline(tmp_path, URL, URL, mode="data+change")
    loading = assess_states(loads, source=idle)
    assert (loading.seconds, loading.unknown) == (None, "the tables are not loaded yet")
    write_ledger(loads.layout.state, Ledger(finished=True))
    assert assess_states(loads, source=idle).seconds == 0


def test_a_target_that_went_on_since_the_log_was_read_is_not_of_another_log(
    config: Config,
) -> None:
    """The log is read first, and again if the target has more."""
    log = with_log(config)
    idle = replace(SOURCE_IDLE, position=208, confirmed=208)
    earlier = replace(log, end=replace(log.end, trx=1))
    assert assess_states(config, source=idle, log=earlier).seconds == 0


# -- as it is shown ----------------------------------------------------------------------------

UNKNOWN = replace(shown_lag(0.0), seconds=None, unknown="nothing is loaded yet")
AT_MOST = replace(shown_lag(2.5), at_most=True)


def test_unknown_is_shown_everywhere_and_no_number_stands_for_it() -> None:
    """Terminal, JSON, the page's values and the metrics show that it is unknown."""
    found = replace(status(), lag=UNKNOWN)
    assert found.why_no_lag == "nothing is loaded yet"
    assert "lag unknown: nothing is loaded yet" in change_line(found, 0.0, 0.0)
    assert found.lag_dict()["lag_seconds"] is None
    assert found.lag_dict()["lag_unknown"] == "nothing is loaded yet"
    page = expose([("shop", reading(found))]).decode()
    assert "penstock_lag_seconds{" not in page
    assert "penstock_lag_bytes{" in page
    out = io.StringIO()
    show_lag(UNKNOWN, console(out))
    assert "0.0 s" not in out.getvalue()


def test_at_most_is_shown_as_such() -> None:
    """The bound is shown in words, in JSON and as a metric beside the seconds."""
    found = replace(status(), lag=AT_MOST)
    assert "lag at most 2.5 s" in change_line(found, 0.0, 0.0)
    assert found.lag_dict()["lag_is_at_most"] is True
    page = expose([("shop", reading(found))]).decode()
    assert 'penstock_lag_seconds{pipeline="shop"} 2.5' in page
    assert 'penstock_lag_at_most{pipeline="shop"} 1.0' in page
    assert 'penstock_lag_at_most{pipeline="shop"} 0.0' in expose([("shop", reading())]).decode()
