"""The consumer application: which events it passes on, when it saves, and when it removes links."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.consumer import NAME, Feed, Noting
from harness.pipelines.log import COMMIT_TIME_US, commit_position, truncate
from penstock import read_log
from penstock.consume.api import CdcConsumer, TruncateNotHandled
from penstock.consume.classes import ConsumerAnswerInvalid, ConsumerFailed
from penstock.consume.events import CdcEvent
from penstock.consume.lock import ConsumerLocked
from penstock.consume.position import (
    POSITION_FILE,
    ConsumerState,
    ConsumerStateCorrupt,
    Position,
    SegmentsMissed,
)
from penstock.consume.registration import StartUnsettled
from penstock.host.files import REAL_FILES
from penstock.log import links
from penstock.log.layout import load_state
from penstock.model import Marker, MarkerKind, TableName
from penstock.model.keeping import KEEP_NONE, Keeping
from penstock.model.sections import Start


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


def read_saved(feed: Feed) -> Position | None:
    """Return the consumer's saved position."""
    return ConsumerState(feed.directory).load()


@pytest.mark.promise
def test_every_change_comes_once_and_in_order(feed: Feed) -> None:
    """Every change comes once from closed segments and the open one, and over two starts."""
    for count in (3, 1, 4):
        feed.write(count)
    feed.write(2, rotate=False)
    first = Noting()
    feed.run(first)
    assert first.gsns == list(range(1, 11))
    assert first.seen[0] == "start"
    assert first.seen[-1] == "stop"
    feed.write(2)
    feed.write(1, rotate=False)
    second = Noting()
    feed.run(second)
    assert second.gsns == [11, 12, 13]


def test_the_open_segment_is_read_as_far_as_it_is_durable(feed: Feed) -> None:
    """Events read from it are not repeated when it is closed."""
    feed.write(2, rotate=False)
    noting = Noting()
    feed.run(noting)
    feed.write(2, rotate=False)
    feed.run(noting)
    feed.write(1)
    feed.run(noting)
    assert noting.gsns == [1, 2, 3, 4, 5]
    only_closed = Noting()
    feed.write(1, rotate=False)
    feed.run(only_closed, reads_open=False)
    assert only_closed.gsns == []


def test_true_saves_the_position_behind_the_last_event_read(feed: Feed) -> None:
    """An iterator that is not read to its end is continued with the next unread event."""
    feed.write(10)
    noting = Noting(take=4, answer=lambda call: call < 3)
    feed.run(noting)
    assert noting.gsns == list(range(1, 11))
    assert read_saved(feed) == Position(segment=0, gsn=8, log_id=_log_id(feed))
    again = Noting()
    feed.run(again)
    assert again.gsns == [9, 10]


def test_false_saves_nothing(feed: Feed) -> None:
    """All events are repeated after a restart, and no link is removed."""
    for _ in range(3):
        feed.write(2)
    before = read_saved(feed)
    noting = Noting(answer=lambda _: False)
    feed.run(noting)
    assert noting.gsns == [1, 2, 3, 4, 5, 6]
    assert read_saved(feed) == before
    assert feed.links() == ["0.ckt", "1.ckt", "2.ckt"]
    again = Noting()
    feed.run(again)
    assert again.gsns == noting.gsns
    assert feed.links() == ["2.ckt"], "the committed one stays"


@pytest.mark.parametrize("at", range(1, 7))
def test_an_exception_saves_nothing_and_stops_once(feed: Feed, at: int) -> None:
    """One typed error is raised; the saved state is that of the last True."""
    for _ in range(3):
        feed.write(2)

    class Failing(Noting):
        def on_events(self, events: Iterator[CdcEvent]) -> bool:
            for event in events:
                if event.gsn == at:
                    raise KeyError("boom")
                self.gsns.append(event.gsn)
            return True

    failing = Failing()
    with pytest.raises(ConsumerFailed, match=r"Failing\.on_events raised KeyError: 'boom'"):
        feed.run(failing)
    assert failing.seen == ["start", "stop"]
    again = Noting()
    feed.run(again)
    first = at if at % 2 else at - 1
    assert again.gsns == list(range(first, 7))


def test_a_consumer_that_exits_has_failed(feed: Feed) -> None:
    """sys.exit(0) in a callback would otherwise give an exit code of 0 with nothing saved."""
    feed.write(2)

    class Exiting(Noting):
        def on_events(self, events: Iterator[CdcEvent]) -> bool:
            sys.exit(0)

    exiting = Exiting()
    with pytest.raises(ConsumerFailed, match=r"Exiting\.on_events raised SystemExit"):
        feed.run(exiting)
    assert exiting.seen == ["start", "stop"]


def test_the_consumer_is_called_at_least_once_per_segment(feed: Feed) -> None:
    """The consumer is called for a segment without events, too: it may have something to finish."""
    feed.write(2)
    feed.write(2)
    noting = Noting()
    feed.run(noting, takes=lambda table: table == TableName("public", "other"))
    assert (noting.gsns, noting.calls) == ([], 2)
    assert read_saved(feed) == Position(segment=1, gsn=4, log_id=_log_id(feed))


def test_rows_of_other_tables_move_the_position_alone(feed: Feed) -> None:
    """Rows of other tables move the position in the open segment too, and are not read again."""
    feed.write(2, rotate=False)
    noting = Noting()
    feed.run(noting, takes=lambda table: table.name == "other")
    assert (noting.gsns, noting.calls) == ([], 0)
    assert read_saved(feed) == Position(segment=0, gsn=2, log_id=_log_id(feed))


def test_batches_are_saved_like_events(feed: Feed) -> None:
    """Each is saved, over a restart; a rewritten class gets the half-read batch again."""
    feed.write(3)
    feed.write(2)

    class Batched(CdcConsumer):
        def __init__(self, count: int) -> None:
            self.count, self.tables, self.gsns = count, set[str](), list[int]()

        def on_batches(self, batches: Iterator[Any]) -> bool:
            for found in batches:
                self.tables.add(found.table)
                self.gsns += found.batch.column("gsn").to_pylist()
                self.count -= 1
                if not self.count:
                    raise RuntimeError("enough")
                break
            return True

    first = Batched(2)
    with pytest.raises(ConsumerFailed, match="enough"):
        feed.run(first)
    assert (first.gsns, first.tables) == ([1, 2, 3, 4, 5], {"public.item"})
    again = Noting()
    feed.run(again)
    assert again.gsns == [4, 5]
    feed.write(1)
    last = Batched(9)
    feed.run(last)
    assert last.gsns == [6]
    ConsumerState(feed.directory).save(Position(segment=2, gsn=5, entries=1, unit="on_batches"))
    rewritten = Noting()
    feed.run(rewritten)
    assert rewritten.gsns == [6]


def test_an_answer_that_is_no_bool_is_refused(feed: Feed) -> None:
    """The answer None is a forgotten return: the position would never be saved."""
    feed.write(1)
    with pytest.raises(ConsumerAnswerInvalid, match="returned NoneType, not True or False"):
        feed.run(Noting(answer=lambda _: None))  # type: ignore[arg-type,return-value]


# -- markers ---------------------------------------------------------------------------------


def test_a_table_that_is_emptied_is_told_between_the_events(feed: Feed) -> None:
    """The marker is told in its place, once, over a restart too."""
    feed.write(2, markers=(truncate(1, 1, "item"), truncate(2, 1, "item", "other")))
    feed.write(1, rotate=False)
    noting = Noting()
    feed.run(noting)
    told = ("truncate", "public.item")
    assert noting.seen == ["start", 1, told, 2, told, ("truncate", "public.other"), 3, "stop"]
    again = Noting()
    feed.run(again)
    assert again.seen == ["start", "stop"]


def test_a_truncate_is_never_passed_over_silently(feed: Feed) -> None:
    """A class that does not define its reaction is stopped in front of the TRUNCATE."""
    feed.write(3, markers=(truncate(2, 1, "item"),))

    class Plain(Noting):
        on_truncate = CdcConsumer.on_truncate

    plain = Plain()
    with pytest.raises(TruncateNotHandled, match=r"public\.item was emptied") as caught:
        feed.run(plain)
    assert "on_truncate" in caught.value.hint
    assert "penstock consume FILE NAME" in caught.value.hint
    assert plain.gsns == [1, 2]
    again = Noting()
    feed.run(again)
    assert again.seen == ["start", ("truncate", "public.item"), 3, "stop"]


def test_each_of_several_markers_at_one_place_is_told_once(feed: Feed) -> None:
    """The state counts them: a failed one is the first after the restart."""
    feed.write(1, markers=(truncate(1, 1, "a"), truncate(1, 1, "b"), truncate(1, 1, "c")))

    class Second(Noting):
        def on_truncate(self, table: str, gsn: int) -> None:
            if table == "public.b":
                raise RuntimeError("not now")
            super().on_truncate(table, gsn)

    with pytest.raises(ConsumerFailed, match="not now"):
        feed.run(Second())
    again = Noting()
    feed.run(again)
    assert again.seen == ["start", ("truncate", "public.b"), ("truncate", "public.c"), "stop"]


def test_rows_that_are_resent_are_announced(feed: Feed) -> None:
    """on_reload is called before them."""
    reload = Marker(
        kind=MarkerKind.RELOAD,
        gsn=0,
        trx=1,
        position=commit_position(1),
        commit_time_us=COMMIT_TIME_US,
        tables=(("public", "item"),),
    )
    feed.write(2, markers=(reload,))
    noting = Noting()
    feed.run(noting)
    assert noting.seen == ["start", ("reload", "public.item"), 1, 2, "stop"]


# -- gaps, locks, other logs -----------------------------------------------------------------


def test_a_hole_is_found_before_anything_of_the_listing_is_given(feed: Feed) -> None:
    """The error has the published text, and the state is unchanged."""
    for _ in range(4):
        feed.write(1)
    (feed.directory / "2.ckt").unlink()
    noting = Noting()
    with pytest.raises(SegmentsMissed) as caught:
        feed.run(noting)
    assert caught.value.message == (
        "Found missed segments. Some events are missed. Exiting! [lastSegment=1, nextSegment=3]"
    )
    assert "delete-lost-segment-links" in caught.value.hint
    assert noting.seen == ["start", "stop"]


def test_a_hole_behind_the_saved_state_is_found(feed: Feed) -> None:
    """The error is the other published text."""
    for _ in range(3):
        feed.write(1)
    for number in (0, 1):
        (feed.directory / f"{number}.ckt").unlink()
    with pytest.raises(SegmentsMissed) as caught:
        feed.run(Noting())
    assert caught.value.message == (
        "Found segment greater then saved state. Some events are missed. Exiting! "
        "[state=0, segment=2]"
    )


@pytest.mark.parametrize("reads_open", [True, False])
def test_a_hole_before_the_open_segment_is_a_hole(feed: Feed, reads_open: bool) -> None:
    """The open segment is never read instead of a skipped link."""
    feed.write(1)
    links.disable(feed.directory)
    feed.write(1)
    links.enable(feed.directory)
    feed.write(1, rotate=False)
    noting = Noting()
    if not reads_open:
        feed.run(noting, reads_open=False)
        feed.writer.rotate()
    with pytest.raises(SegmentsMissed, match=r"lastSegment=0, nextSegment=2"):
        feed.run(noting, reads_open=reads_open)


def test_a_disabled_consumer_waits(feed: Feed) -> None:
    """The consumer gets no new events, without an error until it is enabled again."""
    feed.write(1)
    noting = Noting()
    feed.run(noting)
    links.disable(feed.directory)
    feed.write(1)
    feed.write(1, rotate=False)
    feed.run(noting)
    assert noting.gsns == [1]
    links.enable(feed.directory)
    with pytest.raises(SegmentsMissed, match=r"lastSegment=0, nextSegment=2"):
        feed.run(noting)


def test_links_that_the_state_is_past_are_removed_unread(feed: Feed) -> None:
    """A crash happened between saving the state and removing them."""
    for _ in range(3):
        feed.write(1)
    ConsumerState(feed.directory).save(Position(segment=2, gsn=2))
    noting = Noting()
    feed.run(noting)
    assert noting.gsns == [3]
    assert feed.links() == ["2.ckt"]


def test_one_process_at_a_time(feed: Feed) -> None:
    """The second process gives up after lockTimeout, with the next command."""
    lock = REAL_FILES.lock(feed.directory, "lock")
    noting = Noting()
    with pytest.raises(ConsumerLocked) as caught:
        feed.run(noting, lock_timeout_ms=30)
    assert caught.value.message == (
        f"another process runs consumer {NAME}: it holds {feed.directory / 'lock'}"
    )
    assert "--standby" in caught.value.hint
    assert noting.seen == []
    lock.release()
    feed.run(noting)
    assert noting.seen == ["start", "stop"]


def test_a_state_file_that_was_cut_is_refused(feed: Feed) -> None:
    """No event is passed on, no link removed."""
    feed.write(1)
    path = feed.directory / "state" / POSITION_FILE
    path.write_bytes(path.read_bytes()[:-9])
    noting = Noting()
    with pytest.raises(ConsumerStateCorrupt, match="is damaged") as caught:
        feed.run(noting)
    assert "penstock consumers" in caught.value.hint
    assert noting.seen == []
    assert feed.links() == ["0.ckt"]


def test_left_overs_of_replaced_files_go(feed: Feed) -> None:
    """A kill in the middle of a save leaves one."""
    (feed.directory / "state" / "cdc-wal-state.json.1.tmp").write_text("half")
    feed.run(Noting())
    assert [p.name for p in (feed.directory / "state").glob("*.tmp")] == []


# -- the rest --------------------------------------------------------------------------------


def test_a_consumer_that_is_not_alive_ends_in_order(feed: Feed) -> None:
    """The consumer is asked before each look."""
    feed.write(1)
    noting = Noting()
    noting.alive = lambda: not noting.gsns  # type: ignore[method-assign]
    feed.run(noting, stop=lambda: False)
    assert noting.seen == ["start", 1, "stop"]


def test_the_application_ends_when_the_log_is_finished(feed: Feed) -> None:
    """exitWhenIdle: CHANGE.DONE is there, and everything is read."""
    feed.write(2)
    feed.write(1)
    feed.writer.finish()
    noting = Noting()
    feed.run(noting, stop=lambda: False, exit_when_done=True)
    assert noting.gsns == [1, 2, 3]


def test_the_published_metrics_tell_what_was_read(feed: Feed) -> None:
    """Metrics have the published names."""
    feed.write(3)
    feed.write(2)
    report = feed.run(Noting())
    shown = {name: m.get("value") for name, m in report.metrics.registry.as_dict().items()}
    assert (shown["CurrentSegmentIndex"], shown["CommittedSegmentIndex"]) == (1, 1)
    assert shown["CommittedSegmentOffset"] == (feed.directory / "1.ckt").stat().st_size
    assert shown["EventsCount"] == 5
    again = feed.run(Noting()).metrics
    assert again.committed_offset.value == shown["CommittedSegmentOffset"], "also over a restart"
    assert set(shown) == {
        "CurrentSegmentIndex",
        "CommittedSegmentIndex",
        "CommittedSegmentOffset",
        "LastSegmentConsumptionTime",
        "MetadataUpdateTime",
        "EventCaptureTime",
        "SegmentConsumingTime",
        "EventsCount",
        "LastEventTime",
        "UnreadableRecords",
    }


# -- registration ----------------------------------------------------------------------------


def test_a_new_consumer_begins_now(tmp_path: Path) -> None:
    """The consumer begins after the durable events, in the middle of the open segment and its
    markers.
    """
    feed = Feed(tmp_path)
    feed.write(2)
    feed.write(2, rotate=False, markers=(truncate(4, 2, "item"),))
    feed.register()
    feed.write(1, markers=(truncate(4, 3, "item"),))
    noting = Noting()
    feed.run(noting)
    assert noting.seen == ["start", ("truncate", "public.item"), 5, "stop"]
    feed.close()


def test_a_new_consumer_begins_with_the_oldest_segment_there_is(tmp_path: Path) -> None:
    """The oldest segment is in the log or in another consumer's directory."""
    feed = Feed(tmp_path)
    feed.write(1)
    feed.register(name="other")
    for _ in range(3):
        feed.write(1)
    for number in (0, 1, 2):
        (tmp_path / "log" / f"{number}.ckt").unlink()
    feed.register(Start.BEGINNING)
    feed.write(1, rotate=False)
    noting = Noting()
    feed.run(noting)
    assert noting.gsns == [2, 3, 4, 5]
    feed.close()


def test_registering_again_changes_nothing(feed: Feed) -> None:
    """The position is kept; a registration that a crash interrupted is repeated."""
    feed.write(2)
    feed.run(Noting())
    before = read_saved(feed)
    feed.register(Start.BEGINNING)
    assert read_saved(feed) == before
    links.save_consumer(feed.directory, links.Consumer(start="now"))
    feed.write(2)
    feed.register()
    assert read_saved(feed) == Position(segment=2, gsn=4, log_id=_log_id(feed))


def test_without_a_loader_a_segment_goes_once_consumers_have_it(tmp_path: Path) -> None:
    """The last link is the consumer's; removing it frees the disk."""
    feed = Feed(tmp_path, keeping=KEEP_NONE)
    feed.write(1)
    assert [p.name for p in (tmp_path / "log").glob("*.ckt")] == ["0.ckt"], "it is not held"
    feed.register(Start.BEGINNING)
    feed.write(1)
    assert list((tmp_path / "log").glob("*.ckt")) == []
    assert feed.links() == ["0.ckt", "1.ckt"]
    assert (feed.directory / "0.ckt").stat().st_nlink == 1
    noting = Noting()
    feed.run(noting)
    assert noting.gsns == [1, 2]
    feed.close()


def test_without_a_loader_linked_segments_are_kept_within_the_limits(tmp_path: Path) -> None:
    """`read_log` still has what the consumer has read, until the limits are exceeded."""
    feed = Feed(tmp_path, keeping=Keeping(age_s=3600.0))
    feed.register()
    for _ in range(3):
        feed.write(1)
    feed.run(Noting())
    assert feed.links() == ["2.ckt"], "the consumer has read everything"
    assert [change.gsn for change in read_log(tmp_path)] == [1, 2, 3]
    feed.close()
    two_hours_ago_s = time.time() - 7200
    for number in (0, 1):
        os.utime(tmp_path / "log" / f"{number}.ckt", (two_hours_ago_s, two_hours_ago_s))
    Feed(tmp_path, keeping=Keeping(age_s=3600.0)).close()
    assert [change.gsn for change in read_log(tmp_path)] == [3]


def test_cdc_disabled_stops_all_links(feed: Feed) -> None:
    """The command removes no link."""
    feed.write(1)
    links.disable_all(feed.root / "cdc")
    feed.write(1)
    links.enable_all(feed.root / "cdc")
    feed.write(1)
    assert feed.links() == ["0.ckt", "2.ckt"]
    assert links.registered_consumers(feed.root / "cdc") == [NAME]


def _log_id(feed: Feed) -> str:
    state = load_state(feed.root / "log")
    assert state is not None
    return state.log_id


def test_a_place_that_is_never_found_is_an_error(tmp_path: Path) -> None:
    """DURABLE names an open segment that is missing, each time."""
    feed = Feed(tmp_path)
    feed.write(1, rotate=False)
    (tmp_path / "log" / "0.ckt_").unlink()
    with pytest.raises(StartUnsettled, match="could not be found"):
        feed.register()
    feed.close()


def test_who_waits_to_register_sees_that_another_has(feed: Feed) -> None:
    """The other holds the lock as long as it runs the consumer: registration does not wait for
    that.
    """
    links.save_consumer(feed.directory, links.Consumer(start="now"))
    lock = REAL_FILES.lock(feed.directory, "lock")
    waiting = threading.Thread(target=feed.register)
    waiting.start()
    time.sleep(0.3)
    links.save_consumer(feed.directory, links.Consumer())
    waiting.join(5)
    assert not waiting.is_alive()
    lock.release()
