"""Readers of a node's directory: destroyed caches, only one reader, keys, plain dates."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import structlog

from harness.ignite.recordings import Calls, cdc_of, data_segment, entry_bytes, node_pipeline
from harness.ignite.source import extract, make_work_directory, rows_of, source_pipeline
from penstock.codec.ignite.types import cache_id
from penstock.codec.ignite.values import (
    BinaryObject,
    Date,
    JavaList,
    JavaMap,
    SqlDate,
    Timestamp,
    with_plain_dates,
)
from penstock.consume import run as run_consumer
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigValueInvalid
from penstock.engines.ignite.lock import CdcLock, DirectoryTaken, holder, reader_of

GONE = cache_id("orders")


def segment_of(*caches: str, number: int = 0) -> bytes:
    """Return a segment with one change of each of these caches."""
    entries = [[entry_bytes(cache=cache_id(cache), key=b"\x03\x01\0\0\0")] for cache in caches]
    return data_segment(entries, number=number)


# -- destroyed caches ------------------------------------------------------------------------


def consume_all(tmp_path: Path, work: Path, tables: str, more: str = "") -> tuple[Calls, list[str]]:
    """Run a consumer on a node's directory to its end, and note its warnings."""
    calls = Calls(cdc_of(work, "n"))
    file = node_pipeline(tmp_path, work, "n", more=f"tables = [{tables}]\n{more}")
    with structlog.testing.capture_logs() as logs:
        run_consumer(file, "all", calls, stop=calls.has_enough)
    return calls, [log["event"] for log in logs if "passed over" in log["event"]]


@pytest.mark.parametrize("tables", ['"orders"', '"*", "!words"', '"orders", "or*"'])
def test_changes_of_a_destroyed_cache_that_is_named_come(tmp_path: Path, tables: str) -> None:
    """The log has the cache's id, which follows from its name."""
    work = make_work_directory(tmp_path, {0: segment_of("orders", "words", "orders")}, "words")
    calls, warnings = consume_all(tmp_path, work, tables)
    assert [event["cacheId"] for event in calls.events] == [GONE, GONE]
    assert not warnings


def test_changes_of_a_destroyed_cache_that_no_name_tells_are_warned_of(tmp_path: Path) -> None:
    """There is one warning: the name is not known any more."""
    work = make_work_directory(tmp_path, {0: segment_of("orders", "words", "orders")}, "words")
    calls, warnings = consume_all(tmp_path, work, '"wor*", "ord*"')
    assert [event["cacheId"] for event in calls.events] == [cache_id("words")]
    assert [text for text in warnings if f"[cacheId={GONE}]" in text] == warnings
    assert len(warnings) == 1


def test_a_cache_that_is_destroyed_while_its_changes_are_read_keeps_its_name(
    tmp_path: Path,
) -> None:
    """Later changes of the cache still match a wildcard."""
    segments = {n: segment_of("orders", number=n) for n in range(2)}
    work = make_work_directory(tmp_path, segments, "orders")

    class Destroying(Calls):
        def on_events(self, events: Any) -> bool:
            rmtree(work / "db/n/cache-orders", ignore_errors=True)
            return super().on_events(events)

    calls = Destroying(cdc_of(work, "n"))
    file = node_pipeline(tmp_path, work, "n", more='tables = ["ord*"]\n')
    run_consumer(file, "all", calls, stop=calls.has_enough)
    assert [event["cacheId"] for event in calls.events] == [GONE, GONE]


def test_a_log_has_the_changes_of_a_destroyed_cache_that_is_named(tmp_path: Path) -> None:
    """Changes have its name, and columns from their values; other such caches give a warning."""
    work = make_work_directory(
        tmp_path, {0: segment_of("orders", "words", "others", "others")}, "words"
    )
    path = source_pipeline(tmp_path, work, "n", tables='"orders", "wor*"')
    with structlog.testing.capture_logs() as logs:
        extract(path)
    assert [row.table for row in rows_of(load_config(path))] == ["orders", "words"]
    warned = [log["cache_id"] for log in logs if "skipped" in log["event"]]
    assert warned == [cache_id("others")]


def test_a_log_knows_the_caches_that_it_has_rows_of(tmp_path: Path) -> None:
    """After a restart, too, a wildcard matches changes that were unread when the cache was
    destroyed.
    """
    work = make_work_directory(tmp_path, {0: segment_of("orders")}, "orders")
    path = source_pipeline(tmp_path, work, "n", tables='"ord*"')
    extract(path)
    rmtree(work / "db/n/cache-orders")
    make_work_directory(tmp_path, {1: segment_of("orders", number=1)})
    extract(path)
    assert [row.table for row in rows_of(load_config(path))] == ["orders"] * 2


# -- only one reader -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "other"),
    [
        ('[consumers.two]\nclass = "m:C"\n', "consumer all"),
        ('[consumers.two]\nclass = "m:C"\ndirect = true\n', "consumer all"),
        ('[consumers.two]\nclass = "m:C"\ndirect = false\n', "the extraction"),
        ('direct = true\n[target]\nurl = "postgresql://u@h/d"\n', "the extraction"),
    ],
)
def test_two_readers_of_a_directory_are_refused(tmp_path: Path, more: str, other: str) -> None:
    """Each would remove segments that the other one has not read."""
    path = node_pipeline(tmp_path, make_work_directory(tmp_path, {}), "n", more=more)
    path.write_text(path.read_text().replace("[pipeline]", '[pipeline]\nmode = "change"'))
    with pytest.raises(ConfigValueInvalid, match=f"cannot be true: {other}") as caught:
        load_config(path)
    assert "Set direct = false for every consumer" in caught.value.message


def test_any_number_of_consumers_reads_a_change_log(tmp_path: Path) -> None:
    """The consumers set direct = false."""
    more = 'direct = false\n[consumers.two]\nclass = "m:C"\ndirect = false\n'
    config = load_config(node_pipeline(tmp_path, make_work_directory(tmp_path, {}), "n", more=more))
    assert set(config.consumers) == {"all", "two"}


def test_the_lock_excludes_within_one_process(tmp_path: Path) -> None:
    """Two consumers in threads of one program are two readers."""
    cdc = cdc_of(make_work_directory(tmp_path, {}), "n")
    lock = CdcLock(cdc)
    with pytest.raises(BlockingIOError):
        CdcLock(cdc)
    with pytest.raises(DirectoryTaken):
        consume_all(tmp_path, cdc.parents[3], '"*"')
    lock.release()
    lock.release()
    CdcLock(cdc).release()


def test_a_look_at_the_holder_does_not_let_others_in(tmp_path: Path) -> None:
    """A POSIX lock is released when its process closes any descriptor of the file."""
    cdc = cdc_of(make_work_directory(tmp_path, {}), "n")
    code = (
        "import sys; from pathlib import Path; from penstock.engines.ignite.lock import CdcLock\n"
        f"CdcLock(Path({str(cdc)!r}))"
    )
    lock = CdcLock(cdc)
    assert f"proc={reader_of(cdc)}@" in holder(cdc)
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr
    lock.release()
    assert reader_of(cdc) == 0
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- keys of the section ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        'start = "now"',
        'start = "snapshot"',
        "cdcWalDirectoryMaxSize = 5",
        "walForceArchiveTimeout = 9",
    ],
)
def test_keys_that_a_direct_consumer_would_ignore_are_errors(tmp_path: Path, line: str) -> None:
    """The keys belong to a change log and its links."""
    work = make_work_directory(tmp_path, {})
    with pytest.raises(ConfigValueInvalid, match=f"{line.split()[0]} has no effect"):
        load_config(node_pipeline(tmp_path, work, "n", more=f"{line}\n"))
    load_config(node_pipeline(tmp_path, work, "n", more=f"{line}\ndirect = false\n"))


UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
MS = 1_767_323_045_678
TOO_LATE = 1 << 60


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Date(MS), MOMENT),
        (SqlDate(MS), MOMENT),
        (Timestamp(MS, 9_000), MOMENT + datetime.timedelta(microseconds=9)),
        (Timestamp(MS, 9_001), Timestamp(MS, 9_001)),
        (Date(TOO_LATE), Date(TOO_LATE)),
        ([Date(MS), None, 3], [MOMENT, None, 3]),
        ("text", "text"),
    ],
)
def test_dates_are_datetime_where_python_can_hold_them(value: Any, plain: Any) -> None:
    """No date loses digits by the conversion."""
    found = with_plain_dates(value)
    assert (found, type(found)) == (plain, type(plain))


def test_dates_within_objects_are_plain_too() -> None:
    """Dates are plain in fields, collections, maps, and in an object that contains itself."""
    items = JavaList([Date(MS)])
    items.kind = "ARR_LIST"
    fields: dict[str, Any] = {
        "at": Date(MS),
        "items": items,
        "map": JavaMap("HASH_MAP", [(Date(MS), Date(MS))]),
    }
    value = BinaryObject("Order", 7, 1, fields, fields, None)
    fields["self"] = value
    found = with_plain_dates(value)
    assert (found["at"], found["items"], found["items"].kind) == (MOMENT, [MOMENT], "ARR_LIST")
    assert found["map"].pairs == [(MOMENT, MOMENT)]
    assert found["self"] is found
    assert value["at"] == Date(MS), "the value itself stays as it is"


@pytest.mark.parametrize(("line", "kind"), [("", Date), ("keepBinary = false", datetime.datetime)])
def test_keep_binary_holds_for_a_direct_consumer(tmp_path: Path, line: str, kind: type) -> None:
    """Values are those of Ignite by default."""
    date = b"\x0b" + MS.to_bytes(8, "little")
    data = data_segment([[entry_bytes(cache=cache_id("words"), value=date)]])
    work = make_work_directory(tmp_path, {0: data}, "words")
    seen: list[Any] = []

    class Seeing(Calls):
        def on_events(self, events: Any) -> bool:
            self._idle = 0
            seen.extend((event.key, event.value) for event in events)
            return True

    calls = Seeing(cdc_of(work, "n"))
    run_consumer(node_pipeline(tmp_path, work, "n", more=f"{line}\n"), "all", calls)
    ((key, value),) = seen
    assert (key, type(value)) == (1, kind)
