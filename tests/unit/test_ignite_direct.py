"""Consumers on a node's directory: calls and state files are, byte by byte, those of Ignite.

The recorded calls are those of CdcMain with a consumer that does what `Calls` does here.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from harness.ignite.recordings import (
    Calls,
    calls_of,
    cdc_of,
    data_segment,
    entry_bytes,
    events_of,
    node_pipeline,
    plain_event,
    record_bytes,
    sorted_call,
    unpack_recording,
)
from penstock.consume import run as run_consumer
from penstock.consume.direct import EntryNotRestored
from penstock.consume.metadata import MetadataNotDrained
from penstock.consume.position import SegmentsMissed
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigUrlInvalid, ConfigValueInvalid
from penstock.engines.ignite import state
from penstock.engines.ignite.directory import CdcDirectoryMissing, open_directory
from penstock.engines.ignite.lock import CdcLock, DirectoryTaken
from penstock.engines.ignite.state import CdcState, CdcStateBroken, DirectoryOfOtherLog
from penstock.ports.direct import DirectListing, LogPlace

ACTIVE = state._MODE_HEAD + b"CDC_UTILITY_ACTIVE"


def make_work(tmp_path: Path, segments: dict[int, bytes], *, active: bool = True) -> Path:
    """Return a work directory with these segments, of a node that does not run."""
    work = tmp_path / "work"
    for folder in ("db/n", "db/wal/cdc/n/state", "db/marshaller", "db/binary_meta/n"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    for number, data in segments.items():
        (cdc_of(work, "n") / f"{number:016}.wal").write_bytes(data)
    if active:
        (cdc_of(work, "n") / "state/cdc-mode.bin").write_bytes(ACTIVE)
    return work


def consume_all(tmp_path: Path, work: Path, **more: Any) -> Calls:
    """Run a consumer on a directory to its end."""
    calls = Calls(cdc_of(work, "n"), **more)
    run_consumer(node_pipeline(tmp_path, work, "n"), "all", calls, stop=calls.has_enough)
    return calls


@pytest.mark.parametrize(
    ("recording", "name", "node", "per_call"),
    [
        ("one", "one-0", "node-1", 0),
        ("one", "one-7", "node-1", 7),
        ("full", "full-0", "node-1", 0),
        ("two", "two-node-1", "node-1", 0),
        ("two", "two-node-2", "node-2", 0),
    ],
)
def test_calls_and_state_are_those_of_the_utility(
    tmp_path: Path, recording: str, name: str, node: str, per_call: int
) -> None:
    """The node was active first; the order of callbacks, events, and every saved byte are equal."""
    work = unpack_recording(recording, tmp_path / "work")
    cdc = cdc_of(work, node.replace("-", "_"))
    calls = Calls(cdc, per_call)
    run_consumer(node_pipeline(tmp_path, work, node), "all", calls)
    wanted = [sorted_call(call, is_recorded=True) for call in calls_of(name)]
    found = [sorted_call(call) for call in calls.told]
    assert [call["call"] for call in found] == [call["call"] for call in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == theirs
    last = struct.unpack(">qii", bytes.fromhex(found[-1]["state"]))[0]
    assert sorted(path.name for path in cdc.glob("*.wal")) == [f"{last:016}.wal"]


def test_nothing_is_lost_between_starts(tmp_path: Path) -> None:
    """A consumer that ends after each call resumes after it; after False, with the same events."""
    work = unpack_recording("one", tmp_path / "work")
    file = node_pipeline(tmp_path, work)
    events: list[dict[str, Any]] = []
    for start in range(60):
        calls = Calls(cdc_of(work), 7, answer=start % 3 != 1, calls=1)
        run_consumer(file, "all", calls, stop=calls.has_enough)
        assert len(calls.events) <= 7
        if start % 3 != 1:
            events += calls.events
    assert events == [plain_event(event) for event in events_of("one-0")]


def test_tables_are_caches(tmp_path: Path) -> None:
    """Names may have wildcards; changes of other caches move the state, too."""
    work = unpack_recording("one", tmp_path / "work")
    more = 'tables = ["pers*", "SQL_PUBLIC_*"]\n'
    calls = Calls(cdc_of(work))
    run_consumer(node_pipeline(tmp_path, work, more=more), "all", calls)
    assert {event["cacheId"] for event in calls.events} == {-991716523, 364331193}
    assert calls.told[-1]["state"] == calls_of("one-0")[-1]["state"]


def test_entries_of_one_record(tmp_path: Path) -> None:
    """The state says which is next; a state after the last entry is reported."""
    data = data_segment([[entry_bytes(key=bytes([1, n])) for n in range(5)]])
    work = make_work(tmp_path, {0: data})
    first = consume_all(tmp_path, work, per_call=3, calls=1)
    assert [event["key"] for event in first.events] == [["int", n] for n in range(3)]
    assert first.told[-1]["state"] == struct.pack(">qii", 0, 29, 3).hex()
    again = consume_all(tmp_path, work)
    assert [event["key"] for event in again.events] == [["int", 3], ["int", 4]]
    CdcState(cdc_of(work, "n")).save_place(LogPlace(0, 29, 9))
    with pytest.raises(EntryNotRestored, match=r"\[idx=9, rec=29\]: segment 0 has 5 entries"):
        consume_all(tmp_path, work)


def test_encrypted_caches_are_told_of(tmp_path: Path) -> None:
    """Each is reported once by name, and counted in the status file; others are passed on."""
    work = unpack_recording("forms", tmp_path / "work")
    calls = Calls(cdc_of(work), 1)
    with structlog.testing.capture_logs() as logs:
        file = node_pipeline(tmp_path, work, more='tables = ["shown"]\n')
        run_consumer(file, "all", calls)
    assert len(calls.events) == 6
    assert [log["event"] for log in logs if "encrypted cache" in log["event"]] == [
        "Changes of an encrypted cache are in the log. They are not read, as Ignite's utility does "
        "not read them [cache=hidden, grpId=-1217487446]"
    ]
    status = json.loads((tmp_path / "pipeline/run/consume-all.json").read_text())
    assert status["metrics"]["UnreadableRecords"]["value"] == 7


def test_an_encrypted_group_that_is_not_known(tmp_path: Path) -> None:
    """The group is reported by number; a record without a number is reported as such."""
    secret = struct.pack("<iqBii", 1, 9, 1, 5, 0) + b"k"
    more = [record_bytes(71, secret), record_bytes(71, secret), record_bytes(71, b"")]
    work = make_work(tmp_path, {0: data_segment([[entry_bytes()]], more=more)})
    with structlog.testing.capture_logs() as logs:
        assert len(consume_all(tmp_path, work).events) == 1
    warnings = [log["event"] for log in logs if log["log_level"] == "warning"]
    told = [text.split("[")[1] for text in warnings if "encrypted cache" in text]
    assert told == ["cache=not known, grpId=5]", "cache=not told, grpId=0]"]


def test_a_hole_ends_it_before_anything_is_given(tmp_path: Path) -> None:
    """The gap is inside the listing, or after the saved state."""
    segments = {n: data_segment([[entry_bytes()]], number=n) for n in (1, 2, 4)}
    work = make_work(tmp_path, segments)
    calls = Calls(cdc_of(work, "n"))
    with pytest.raises(SegmentsMissed) as caught:
        run_consumer(node_pipeline(tmp_path, work, "n"), "all", calls)
    assert caught.value.message == (
        "Found missed segments. Some events are missed. Exiting! [lastSegment=2, nextSegment=4]"
    )
    assert [call["call"] for call in calls.told] == ["start", "stop"]
    (cdc_of(work, "n") / f"{4:016}.wal").unlink()
    CdcState(cdc_of(work, "n")).save_place(LogPlace(0, 29, 0))
    with pytest.raises(SegmentsMissed, match=r"\[state=\(0, 29, 0\), segment=1\]"):
        consume_all(tmp_path, work)


def test_segments_that_are_younger_than_the_saved_state_are_kept(tmp_path: Path) -> None:
    """The node's disk was replaced, or its files deleted: its numbers begin again."""
    segments = {n: data_segment([[entry_bytes()]], number=n) for n in range(3)}
    work = make_work(tmp_path, segments)
    state = CdcState(cdc_of(work, "n"))
    state.save_place(LogPlace(2, 29, 0))
    saved = cdc_of(work, "n") / "state" / "cdc-wal-state.bin"
    before_s = saved.stat().st_mtime - 1
    for n in (0, 2):
        os.utime(cdc_of(work, "n") / f"{n:016}.wal", (before_s, before_s))
    younger = cdc_of(work, "n") / f"{1:016}.wal"
    os.utime(younger, (before_s + 2, before_s + 2))
    calls = Calls(cdc_of(work, "n"))
    with pytest.raises(DirectoryOfOtherLog, match=f"is past {younger.name}") as error:
        run_consumer(node_pipeline(tmp_path, work, "n"), "all", calls)
    assert error.value.hint.endswith(f"rm {saved}")
    assert (calls.events, len(list(cdc_of(work, "n").glob("*.wal")))) == ([], 3)
    os.utime(younger, (before_s, before_s))
    consume_all(tmp_path, work)
    assert [path.name for path in cdc_of(work, "n").glob("*.wal")] == [f"{2:016}.wal"]


def test_a_number_that_appears_late_is_a_hole(tmp_path: Path) -> None:
    """A running consumer does not skip segments of another life of the node."""
    work = make_work(tmp_path, {n: data_segment([[entry_bytes()]], number=n) for n in (5, 6)})
    listing = DirectListing(
        open_directory(f"ignite://{work}?consistentId=n"),
        lambda text, last, following: SegmentsMissed(text, last=last, next=following),
    )
    listing.load()
    assert listing.new() == [5, 6]
    assert listing.new() == []
    make_work(tmp_path, {0: data_segment([[entry_bytes()]])})
    with pytest.raises(SegmentsMissed, match=r"\[lastSegment=6, nextSegment=0\]"):
        listing.new()


def test_a_node_that_is_active_itself(tmp_path: Path) -> None:
    """Saved states are adopted without events; from where it stopped, all are passed on."""

    def node_state(segment: int, offset: int) -> bytes:
        return record_bytes(79, struct.pack("<qiii", segment, offset, 0, 0))

    segments = {
        0: data_segment([[entry_bytes(key=b"\x01\x00")]]),
        1: data_segment([[entry_bytes(key=b"\x01\x01")]], number=1, more=[node_state(1, 29)]),
        2: data_segment([[entry_bytes(key=b"\x01\x02")]], number=2, more=[record_bytes(80, b"")]),
    }
    work = make_work(tmp_path, {n: segments[n] for n in (0, 1)}, active=False)
    passive = consume_all(tmp_path, work)
    assert passive.events == []
    assert passive.told[-1]["state"] == struct.pack(">qii", 1, 29, 0).hex()
    assert passive.told[-1]["mode"] == ""
    assert [path.name for path in cdc_of(work, "n").glob("*.wal")] == [f"{1:016}.wal"]
    make_work(tmp_path, {2: segments[2]}, active=False)
    active = consume_all(tmp_path, work)
    assert [event["key"] for event in active.events] == [["int", 1], ["int", 2]]
    assert active.told[-1]["mode"] == ACTIVE.hex()


def test_a_segment_without_changes_moves_the_state(tmp_path: Path) -> None:
    """The consumer is called once; the place is after its last record."""
    data = data_segment([], more=[record_bytes(46, b"x")])
    work = make_work(tmp_path, {0: data})
    calls = consume_all(tmp_path, work)
    assert [call["events"] for call in calls.told if "events" in call] == [[]]
    assert calls.told[-1]["state"] == struct.pack(">qii", 0, len(data), 0).hex()


def test_a_broken_segment_ends_it_with_its_place(tmp_path: Path) -> None:
    """Events before it are passed on and saved; none is invented at the break."""
    data = data_segment([[entry_bytes()], [entry_bytes()]])
    work = make_work(tmp_path, {0: data[:-1] + b"\0"})
    calls = Calls(cdc_of(work, "n"), 1)
    with pytest.raises(Exception, match=rf"{0:016}\.wal, offset \d+: the checksum") as caught:
        run_consumer(node_pipeline(tmp_path, work, "n"), "all", calls)
    assert caught.value.__class__.__name__ == "WalBroken"
    assert calls.told[-1]["call"] == "stop"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Java respects the lock, which is on byte 0; the holder's name follows it."""
    work = make_work(tmp_path, {})
    cdc = cdc_of(work, "n")
    code = (
        "import sys; from pathlib import Path; from penstock.engines.ignite.lock import CdcLock\n"
        f"lock = CdcLock(Path({str(cdc)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        text = (cdc / "lock").read_bytes()
        assert text.startswith(f"\0[consumerId=cdc.lock, proc={other.pid}@".encode())
        with pytest.raises(DirectoryTaken, match="Can't acquire lock for Change Data Capture"):
            consume_all(tmp_path, work)
        other.communicate()
    lock = CdcLock(cdc)
    assert f"proc={os.getpid()}@" in lock.path.read_text()
    lock.release()
    assert consume_all(tmp_path, work).told[-1]["call"] == "stop"


def test_iterators_of_metadata_are_read_to_their_end(tmp_path: Path) -> None:
    """No unread metadata is saved, as published."""

    class Lazy(Calls):
        def on_types(self, types: Iterator[Any]) -> None:
            next(types)

    work = unpack_recording("one", tmp_path / "work")
    with pytest.raises(MetadataNotDrained, match="Consumer should handle all changed types"):
        run_consumer(node_pipeline(tmp_path, work), "all", Lazy(cdc_of(work)))
    assert not (cdc_of(work) / "state/penstock-types.json").exists()


def test_caches_that_go_are_told_once(tmp_path: Path) -> None:
    """Caches of a group are told by their own names."""
    work = make_work(tmp_path, {})
    for path in ("cache-person/cache_data.dat", "cacheGroup-g/onecache_data.dat"):
        (work / "db/n" / path).parent.mkdir()
        (work / "db/n" / path).write_bytes(b"java")
    calls = consume_all(tmp_path, work)
    changes = [call["caches"] for call in calls.told if call["call"] == "onCacheChange"]
    assert sorted(changes[0]) == [[-991716523, "person"], [110182, "one"]]
    assert not any(changes[1:])
    (work / "db/n/cache-person/cache_data.dat").unlink()
    calls = consume_all(tmp_path, work)
    assert [call["caches"] for call in calls.told if call["call"] == "onCacheDestroy"] == [
        [-991716523]
    ]


def test_state_files(tmp_path: Path) -> None:
    """A file that is too short counts as missing, as for Ignite; another mode is reported."""
    work = make_work(tmp_path, {}, active=False)
    log = open_directory(f"ignite://{work}")
    folder = cdc_of(work, "n") / "state"
    assert log.load_place() is None
    (folder / "cdc-wal-state.bin").write_bytes(b"\0" * 15)
    assert log.load_place() is None
    log.save_place(LogPlace(2, 5208, 0))
    assert (folder / "cdc-wal-state.bin").read_bytes() == bytes.fromhex(
        "00000000000000020000145800000000"
    )
    assert log.load_place() == (2, 5208, 0)
    assert not log.is_active()
    log.save_active()
    assert (folder / "cdc-mode.bin").read_bytes().hex() == calls_of("one-0")[-1]["mode"]
    assert log.is_active()
    (folder / "cdc-mode.bin").write_bytes(b"other")
    with pytest.raises(CdcStateBroken, match="names no mode"):
        log.is_active()
    (folder / "penstock-types.json").write_bytes(b"{")
    with pytest.raises(CdcStateBroken, match="is damaged"):
        log.load_told("types")


def test_directories_that_are_not_there(tmp_path: Path) -> None:
    """The error has the published text, and says which one is missing."""
    work = make_work(tmp_path, {})
    text = r"Can't find the folder to read WAL segments from! \[workDir="
    with pytest.raises(CdcDirectoryMissing, match=text) as caught:
        open_directory(f"ignite://{work}?consistentId=other-1")
    assert caught.value.fields["path"] == str(work / "db/other_1")
    (work / "db/wal/cdc/m").mkdir()
    with pytest.raises(CdcDirectoryMissing, match="consistentId=null"):
        open_directory(f"ignite://{work}")
    with pytest.raises(CdcDirectoryMissing):
        open_directory(f"ignite://{tmp_path}/nowhere")


@pytest.mark.parametrize(
    "url", ["ignite://host/work", "ignite:///", "ignite:///w?x=1", "ignite:///w?consistentId="]
)
def test_urls_that_name_no_directory(tmp_path: Path, url: str) -> None:
    """Such URLs are refused when the file is read."""
    file = tmp_path / "node.toml"
    file.write_text(
        f'[pipeline]\nname = "n"\ndirectory = "n"\n[source]\nurl = "{url}"\ntables = ["*"]\n'
    )
    with pytest.raises(ConfigUrlInvalid):
        load_config(file)


def test_direct_needs_a_directory(tmp_path: Path) -> None:
    """The source must write its log into one."""
    file = tmp_path / "shop.toml"
    file.write_text(
        '[pipeline]\nname = "n"\ndirectory = "n"\n[source]\nurl = "postgresql://u@h/d"\n'
        'tables = ["public.*"]\n'
        '[consumers.all]\nclass = "m:C"\ndirect = true\n'
    )
    with pytest.raises(ConfigValueInvalid, match="direct needs a source"):
        load_config(file)


def test_the_command(tmp_path: Path) -> None:
    """`penstock consume` passes the events to a class beside the file."""
    work = unpack_recording("two", tmp_path / "work")
    file = node_pipeline(tmp_path, work, "node-2")
    (tmp_path / "seen.py").write_text(
        "from penstock.consume import CdcConsumer\n"
        "class Seen(CdcConsumer):\n"
        "    left = 3\n"
        "    def on_events(self, events):\n"
        "        self.left = 3\n"
        "        for event in events:\n"
        "            print(event.op, event.table, event.key, event.value and event.value['name'])\n"
        "        return True\n"
        "    def alive(self):\n"
        "        self.left -= 1\n"
        "        return self.left > 0\n"
    )
    file.write_text(file.read_text().replace("none:None", "seen:Seen"))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "consume", str(file), "all", "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert json.loads(last)["stopped"]
    assert len(lines) == len(events_of("two-node-2"))
    assert "U both 0 Both 0" in lines
    status = json.loads((tmp_path / "pipeline/run/consume-all.json").read_text())
    assert (status["state"], status["metrics"]["EventsCount"]["value"]) == ("stopped", 50)
