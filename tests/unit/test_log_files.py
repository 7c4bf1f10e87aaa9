"""Files on the real disk, named fault points, small state files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import (
    REAL_FILES,
    DirectoryLock,
    DirectoryLocked,
    DiskFull,
    FileExists,
    FileFailed,
    FileMissing,
    replace,
)
from penstock.host.state_file import CheckpointCorrupt, StateFile

faults.declare("test.here", "test.there")


def test_parts_are_appended_in_order_whatever_their_kind(tmp_path: Path) -> None:
    """Parts are bytes, memoryview, Arrow buffers and empty ones, more than one writev accepts."""
    parts = [b"a", memoryview(b"bc"), pa.py_buffer(b"def"), b"", *(b"%d," % n for n in range(2000))]
    file = REAL_FILES.create(tmp_path / "f")
    file.append(parts)
    file.append([b"end"])
    file.fdatasync()
    expected = b"".join(bytes(memoryview(part)) for part in parts) + b"end"
    assert file.size_bytes == len(expected)
    file.close()
    file.close()
    assert REAL_FILES.read_whole(tmp_path / "f") == expected


def test_a_write_that_takes_only_part_is_repeated(tmp_path: Path) -> None:
    """The kernel may accept fewer bytes than given: with a pipe it does."""
    from penstock.host.files import _RealAppendFile

    file = _RealAppendFile(tmp_path / "f", (tmp_path / "f").open("wb", buffering=0))
    taken: list[bytes] = []

    def three_bytes(descriptor: int, views: list[memoryview], offset: int) -> int:
        chunk = b"".join(bytes(view) for view in views)[:3]
        taken.append(chunk)
        return len(chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", three_bytes)
        file.append([b"abcd", b"", b"efgh", b"i"])
    assert taken == [b"abc", b"def", b"ghi"]
    assert file.size_bytes == 9
    file.close()


def test_overwrite_and_truncate_leave_the_next_append_at_the_end(tmp_path: Path) -> None:
    """Recovery overwrites and truncates a segment before it appends."""
    file = REAL_FILES.create(tmp_path / "f")
    file.append([b"0123456789"])
    file.overwrite(2, b"xy")
    with pytest.raises(ValueError, match="inside"):
        file.overwrite(9, b"xy")
    file.truncate(5)
    file.fsync()
    file.append([b"Z"])
    file.close()
    reopened = REAL_FILES.open_append(tmp_path / "f")
    reopened.append([b"!"])
    reopened.close()
    found = REAL_FILES.open_read(tmp_path / "f")
    assert found.read(0, 100) == b"01xy4Z!"
    assert found.read(5, 1) == b"Z"
    assert found.read(50, 1) == b""
    found.close()


def test_failures_are_typed_and_name_the_path(tmp_path: Path) -> None:
    """Each kind that callers treat differently has a type."""
    REAL_FILES.create(tmp_path / "there").close()
    with pytest.raises(FileExists, match="cannot create"):
        REAL_FILES.create(tmp_path / "there")
    with pytest.raises(FileExists):
        REAL_FILES.link(tmp_path / "there", tmp_path / "there")
    for act in (
        lambda: REAL_FILES.open_read(tmp_path / "no"),
        lambda: REAL_FILES.open_append(tmp_path / "no"),
        lambda: REAL_FILES.read_whole(tmp_path / "no"),
        lambda: REAL_FILES.unlink(tmp_path / "no"),
        lambda: REAL_FILES.rename(tmp_path / "no", tmp_path / "new"),
        lambda: REAL_FILES.listdir(tmp_path / "no"),
        lambda: REAL_FILES.fsync_directory(tmp_path / "no"),
        lambda: REAL_FILES.replace(tmp_path / "no" / "f", b""),
    ):
        with pytest.raises(FileMissing, match="no"):
            act()
    with pytest.raises(FileFailed, match="cannot read"):
        REAL_FILES.read_whole(tmp_path)


def test_a_full_device_is_disk_full_with_path_and_free_space() -> None:
    """/dev/full refuses every write as a full disk does."""
    file = REAL_FILES.open_append(Path("/dev/full"))
    with pytest.raises(DiskFull, match=r"cannot write /dev/full: .* bytes free") as caught:
        file.append([b"x"])
    file.close()
    assert caught.value.retry == "operator"
    assert caught.value.fields["path"] == "/dev/full"
    assert caught.value.fields["free_bytes"] >= 0


def test_replace_leaves_the_old_or_the_new_content_and_nothing_beside(tmp_path: Path) -> None:
    """A reader sees one of them in full at any moment."""
    path = tmp_path / "state.json"
    replace(path, b"0" * 1000)
    stop = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        replace(path, b"%d" % (number % 10) * 1000)
    stop.set()
    reader.join()
    assert all(len(content) == 1000 and len(set(content)) == 1 for content in seen)
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    """Directories may already be there."""
    REAL_FILES.make_directory(tmp_path / "a" / "b")
    REAL_FILES.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert REAL_FILES.exists(tmp_path / "a")
    assert not REAL_FILES.exists(tmp_path / "c")
    assert REAL_FILES.free_bytes(tmp_path) > 0


def test_a_lock_ends_with_its_holder_and_names_it(tmp_path: Path) -> None:
    """The holder is killed or releases it; the file itself stays."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from penstock.host.files import DirectoryLock\n"
        "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid}") as caught:
            DirectoryLock(tmp_path)
        assert caught.value.fields["holder_pid"] == holder.pid
        holder.kill()
    with DirectoryLock(tmp_path):
        assert (tmp_path / "LOCK").read_text().strip() == str(os.getpid())
    DirectoryLock(tmp_path).release()


def test_real_clock_measures_and_waits() -> None:
    """Wall time is in microseconds; sleep returns at once for zero or less."""
    assert abs(REAL_CLOCK.now_us() / 1e6 - time.time()) < 5
    started = REAL_CLOCK.monotonic_s()
    REAL_CLOCK.sleep(0.01)
    REAL_CLOCK.sleep(-1)
    assert REAL_CLOCK.monotonic_s() - started >= 0.01


# --- fault points -----------------------------------------------------------------------------


def test_a_fault_fires_at_the_nth_time_and_once() -> None:
    """Counting restarts when a plan is armed."""
    with faults.arming("test.here:2:error,test.there:1:error=ENOSPC"):
        faults.point("test.here")
        with pytest.raises(faults.FaultInjected, match=r"test\.here"):
            faults.point("test.here")
        faults.point("test.here")
        with pytest.raises(OSError, match="No space left") as caught:
            faults.point("test.there")
        assert caught.value.errno == errno.ENOSPC
    faults.point("test.here")


def test_a_sleep_waits_and_goes_on() -> None:
    """The action serves tests that look from outside meanwhile."""
    with faults.arming("test.here:1:sleep=0.02"):
        started = time.monotonic()
        faults.point("test.here")
        assert time.monotonic() - started >= 0.02


@pytest.mark.parametrize(
    "spec",
    ["x", "x:1", "x:0:kill", "x:a:kill", ":1:kill", "x:1:stop", "x:1:error=EWHAT", "x:1:kill=9"],
)
def test_a_plan_that_cannot_be_read_is_refused(spec: str) -> None:
    """A typo must not result in a test that tests nothing."""
    with pytest.raises(faults.FaultPlanInvalid):
        faults.parse(spec)


def test_a_point_nobody_declared_is_refused_while_armed() -> None:
    """Tests iterate over the declared names: all must be declared."""
    with (
        faults.arming("test.here:1:error"),
        pytest.raises(faults.FaultPlanInvalid, match="not declared"),
    ):
        faults.point("test.nowhere")
    assert {"test.here", "test.there"} <= set(faults.names())


def test_the_environment_arms_a_process_which_is_then_killed() -> None:
    """The process is killed by SIGKILL: no code after the point runs."""
    script = (
        "from penstock.host import faults; faults.declare('a.b')\n"
        "print('before', flush=True); faults.point('a.b'); print('behind')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PENSTOCK_FAULT": "a.b:1:kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, "before\n")


def test_an_unarmed_point_costs_next_to_nothing() -> None:
    """A point is in the hot path: it takes well below a microsecond."""
    started = time.process_time()
    for _ in range(100_000):
        faults.point("test.here")
    assert time.process_time() - started < 0.1


# --- small state files ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """State of a test."""

    name: str
    number: int = 0


def test_a_checkpoint_comes_back_or_is_refused(tmp_path: Path) -> None:
    """A missing one is None; a single other byte is an error."""
    path = tmp_path / "state.json"
    file = StateFile(path, Small)
    assert file.load() is None
    file.save(Small(name="ä", number=2**63))
    assert file.load() == Small(name="ä", number=2**63)
    content = path.read_bytes()
    damaged = 0
    for index in range(len(content) - 1):
        path.write_bytes(content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :])
        try:
            assert file.load() == Small(name="ä", number=2**63)
        except CheckpointCorrupt:
            damaged += 1
    assert damaged > len(content) - 3
    for other in (b"", b"{}", b"[1]", content[:-5], b"\xff"):
        path.write_bytes(other)
        with pytest.raises(CheckpointCorrupt, match="damaged"):
            file.load()
