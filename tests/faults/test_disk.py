"""The disk below a running pipeline is full, or holds something else than what was written.

Full: the extractor stops with a typed error and continues when there is room. Damaged: the log is
recovered if nothing durable was lost; otherwise a typed error names the damage, and none of it
reaches the target.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.faults.kills import BankPipeline, Half
from harness.pipelines.bank import contents
from penstock.log import check, list_segments, open_segment

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DISK_FULL = "HS13"
SIZE_BYTES = 8 * 2**20
ROOM_LEFT_BYTES = 48 * 1024  # for a few flushes
# The file operation that fails for lack of room.
NO_ROOM = (
    "files.create:1",
    "files.write:4",
    "files.fdatasync:3",
    "files.rename:1",
    "files.replace:6",
)


def ended_with(half: Half, timeout_s: float = 60.0) -> dict[str, Any]:
    """Wait until the half ends without a signal, and return the last error that it printed."""
    assert half.finish(timeout_s) == 1, half.read_output()
    assert half.error, half.read_output()
    return half.error


@contextmanager
def small_file_system(path: Path) -> Iterator[Path | None]:
    """Mount a file system of eight megabytes at path; yield None if mounting is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(path)]
    mounted = os.geteuid() == 0 and not subprocess.run(command, check=False).returncode
    try:
        yield path if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, half: Half, timeout_s: float = 60.0) -> Path:
    """Fill nearly all room again and again, as segments are removed; return the file to remove."""
    ballast = path / "ballast"
    deadline = time.monotonic() + timeout_s
    with ballast.open("ab", buffering=0) as file:
        while half.running and time.monotonic() < deadline:
            found = os.statvfs(path)
            free = found.f_bavail * found.f_frsize
            file.write(bytes(max(free - ROOM_LEFT_BYTES, 0)))
            time.sleep(0.05)
    return ballast


def test_disk_full(tmp_path: Path) -> None:
    """The log fails twice with the same error without room; with room everything continues."""
    with (
        small_file_system(tmp_path / "bank" / "log") as small,
        BankPipeline(tmp_path, 1, sections={"changeLoader": {"removeFiles": True}}) as pipeline,
    ):
        pipeline.start()
        log = pipeline.directory / "log"
        for number in range(2):
            if small is not None:
                ballast = fill(small, pipeline.extract)
            else:  # mounting is not allowed: a fault point raises the operating system's error
                pipeline.extract.kill()
                pipeline.extract.start("files.write:40:error=ENOSPC")
            error = ended_with(pipeline.extract)
            assert error["code"] == DISK_FULL, error
            assert "room" in error["hint"]
            assert not [f for f in check(log) if f.severity == "error"]
            if small is not None and number:
                pipeline.extract.start()  # still no room: the same error again, and no harm is done
                ended_with(pipeline.extract)
            if small is not None:
                ballast.unlink()
            pipeline.extract.start()
            pipeline.transactions_go_on()
        for point in NO_ROOM:
            pipeline.extract.kill()
            pipeline.extract.start(f"{point}:error=ENOSPC")
            error = ended_with(pipeline.extract)
            assert error["code"] == DISK_FULL, (point, error)
        pipeline.extract.start()
        pipeline.finish()


# --- damage ---------------------------------------------------------------------------------------


def applied_segment(url: str) -> int:
    """Return the last segment that is wholly in the target; -1 if none is."""
    with psycopg.connect(url) as sql:
        row = sql.execute(
            "select max(substring(source from '^[0-9]+')::int) from wirekite.wirekite_progress"
            " where operation = 'CL' and finish_time is not null"
        ).fetchone()
    return -1 if row is None or row[0] is None else int(row[0])


def flip(path: Path, share: float) -> None:
    """Flip one bit at this share of the file's length."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x10
    path.write_bytes(data)


class Segments:
    """Segments that the loader still has to read, with a copy from before the damage."""

    def __init__(self, log: Path, safe: Path) -> None:
        self.log = log
        self.safe = safe

    def save(self) -> None:
        """Copy the log as it is."""
        shutil.copytree(self.log, self.safe, dirs_exist_ok=True)

    def restore(self) -> None:
        """Restore the copy."""
        for path in self.log.glob("*.ckt"):
            path.unlink()
        for path in self.safe.glob("*.ckt"):
            shutil.copy2(path, self.log)

    def damage(self, kind: str, number: int) -> None:
        """Damage segment `number` in this way."""
        path = self.log / f"{number}.ckt"
        if kind == "flipped bit":
            with open_segment(path) as segment:  # accounts: no later TRUNCATE discards them
                rows = [
                    frame
                    for frame in segment.row_frames()
                    if segment.relation(frame.relation_id).name == "account"
                ][-1]
                offset = rows.offset_bytes + rows.length_bytes // 2
            flip(path, offset / path.stat().st_size)
        elif kind == "flipped bit in the header":
            flip(path, 40 / path.stat().st_size)
        elif kind == "torn tail":
            os.truncate(path, path.stat().st_size - 100)
        elif kind == "emptied":
            os.truncate(path, 0)
        elif kind == "missing":
            path.unlink()
        elif kind == "two names exchanged":
            other = self.log / f"{number + 1}.ckt"
            path.rename(self.log / "x")
            other.rename(path)
            (self.log / "x").rename(other)
        else:
            assert kind == "renamed"
            path.rename(self.log / f"{number + 500}.ckt")


EVERYDAY = ("flipped bit", "missing")
ALL = (
    *EVERYDAY,
    "flipped bit in the header",
    "torn tail",
    "emptied",
    "two names exchanged",
    "renamed",
)


@pytest.mark.parametrize(
    "kinds", [EVERYDAY, pytest.param(ALL, marks=pytest.mark.long)], ids=["everyday", "all"]
)
def test_damaged_segments_are_named_and_not_applied(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """The loader ends with an error that names the file, and the target stays unchanged."""
    with BankPipeline(tmp_path, 1) as pipeline:
        pipeline.start()
        pipeline.until(lambda: applied_segment(pipeline.target_url) >= 0, "a batch in the target")
        assert pipeline.load.stop() == 0
        log = pipeline.directory / "log"
        before = contents(pipeline.target_url, pipeline.namespace)
        first = applied_segment(pipeline.target_url)
        while len(list_segments(log)) == 0 or list_segments(log)[-1].number < first + 4:
            pipeline.transactions_go_on()
        assert pipeline.extract.stop() == 0
        segments = Segments(log, tmp_path / "safe")
        segments.save()
        for kind in kinds:
            segments.damage(kind, first + 1)
            pipeline.load.start()
            error = ended_with(pipeline.load)
            assert error["code"].startswith(("LG", "LD")), (kind, error)
            assert ".ckt" in error["error"], (kind, error)
            assert contents(pipeline.target_url, pipeline.namespace) == before, kind
            segments.restore()
        pipeline.finish()


@pytest.mark.parametrize(
    "share",
    [0.999, pytest.param(0.7, marks=pytest.mark.long), pytest.param(0.4, marks=pytest.mark.long)],
)
def test_damaged_open_segment_is_recovered_or_named(tmp_path: Path, share: float) -> None:
    """A torn tail is cut and read again, unless the server no longer has its changes."""
    with BankPipeline(tmp_path, 1) as pipeline:
        extract, log = pipeline.extract, pipeline.directory / "log"
        assert pipeline.kill_at(extract, "stream.acknowledge.after:3")
        for time in range(6):
            assert pipeline.kill_at(extract, f"log.fdatasync.after:{2 + time % 3}")
            found = sorted(log.glob("*.ckt_"))
            if not found:
                continue
            shutil.copytree(log, tmp_path / f"safe{time}")
            if time % 2:
                flip(found[0], share)
            else:
                os.truncate(found[0], int(found[0].stat().st_size * share))
            number = int(found[0].stem)
            extract.start()
            while extract.running and not any(s.number > number for s in list_segments(log)):
                pipeline.transactions_go_on(5)
            if extract.running:  # recovered, and streaming again
                extract.kill()
                continue
            assert extract.error["code"].startswith(("LG", "PG")), extract.read_output()
            shutil.rmtree(log)  # as the hint says: restore it from a copy
            shutil.copytree(tmp_path / f"safe{time}", log)
        extract.start()
        pipeline.load.start()
        pipeline.until_read()
        pipeline.finish()
