"""`penstock ignite`: it deletes segments before a gap as Ignite does, and calls control.sh."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.ignite.recordings import node_pipeline
from penstock import cli
from penstock.engines.ignite.commands import delete_below_hole, resend
from penstock.host.files import RealFiles
from penstock.model.segment_order import lost_count
from penstock.ports.commands import UsageWrong

HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
os.pwrite(lock, b"[consumerId=cdc.lock, proc=7@there]", 1)
print("taken", flush=True)
sys.stdin.read()
"""


def node(work: Path, *segments: int, name: str = "node_1") -> Path:
    """Return a CDC directory with these segments and a saved place; some files are not segments."""
    made = work / "db/wal/cdc" / name
    (made / "state").mkdir(parents=True)
    (made / "state" / "cdc-wal-state.bin").write_bytes(struct.pack(">qii", 2, 29, 0))
    (made / "state" / "cdc-mode.bin").write_bytes(b"mode")
    for segment in segments:
        (made / f"{segment:016}.wal").write_bytes(b"x")
    (made / f"{5:016}.wal.tmp").write_bytes(b"x")
    return made


def read_left(directory: Path) -> tuple[list[int], bool]:
    """Return the present segments, and whether a place is saved."""
    there = sorted(int(path.stem) for path in directory.glob("*.wal"))
    assert (directory / f"{5:016}.wal.tmp").exists()
    assert (directory / "state" / "cdc-mode.bin").exists()
    return there, (directory / "state" / "cdc-wal-state.bin").exists()


def call_ignite(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of `penstock ignite ...`."""
    code = 0
    try:
        cli.run_guarded(["ignite", *map(str, arguments)])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [
        ((2, 3, 8, 10, 11), 3),
        ((), 0),
        ((7,), 0),
        ((1, 2, 3), 0),
        ((1, 3), 1),
        ((1, 2, 9), 2),
        ((1, 3, 5, 6, 7), 2),
    ],
)
def test_the_run_at_the_top_stays(numbers: tuple[int, ...], lost: int) -> None:
    """Segments below the last gap are lost, as published."""
    assert lost_count(numbers) == lost


def test_lost_segments_are_deleted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The published example loses its saved place, too; the second call deletes nothing."""
    directory = node(tmp_path / "work", 2, 3, 8, 10, 11)
    file = node_pipeline(tmp_path, tmp_path / "work")
    found = call_ignite(capsys, "delete-lost-segment-links", file, "--yes")
    assert found == (0, "node_1: Lost segment CDC links successfully removed.\n", "")
    assert read_left(directory) == ([10, 11], False)
    (directory / "state" / "cdc-wal-state.bin").write_bytes(b"\0" * 16)
    code, out, _ = call_ignite(capsys, "delete-lost-segment-links", file, "--yes", "--json")
    assert code == 0
    wanted = {"message": "Lost segment CDC links were not found.", "node": "node_1", "segments": []}
    assert json.loads(out) == wanted
    assert read_left(directory) == ([10, 11], True)


def test_one_node_of_several(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--node-id gives its consistent id; without one, all nodes of the directory are handled."""
    first, second = (node(tmp_path / "w", 1, 3, name=name) for name in ("node_1", "node_2"))
    file = node_pipeline(tmp_path, tmp_path / "w")
    file.write_text(file.read_text().replace("?consistentId=node-1", ""))
    code, out, _ = call_ignite(
        capsys, "delete-lost-segment-links", file, "--yes", "--node-id", "node-2"
    )
    assert (code, out.split(":")[0]) == (0, "node_2")
    assert (read_left(first), read_left(second)) == (([1, 3], True), ([3], False))
    code, out, _ = call_ignite(capsys, "delete-lost-segment-links", file, "--yes")
    assert [line.split(":")[0] for line in out.splitlines()] == ["node_1", "node_2"]
    assert read_left(first) == ([3], False)


def test_a_directory_that_is_read_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The published text names the process that holds the lock; nothing is deleted."""
    directory = node(tmp_path / "work", 1, 3)
    file = node_pipeline(tmp_path, tmp_path / "work")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        code, out, err = call_ignite(capsys, "delete-lost-segment-links", file, "--yes")
        child.communicate(b"")
    assert (code, out) == (1, "")
    assert (
        "error IG61: Failed to delete lost segment CDC links. Unable to acquire lock to lock CDC "
        f"folder. Make sure a CDC app is shut down [dir={directory}, reason=Failed to acquire file "
        f"lock [holder=[consumerId=cdc.lock, proc=7@there], time=0 sec, path={directory / 'lock'}]]"
    ) in err
    assert read_left(directory) == ([1, 3], True)


def test_no_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error has the published text and shows which directories are there."""
    node(tmp_path / "work", 1, 3)
    file = node_pipeline(tmp_path, tmp_path / "work", "other")
    code, _, err = call_ignite(capsys, "delete-lost-segment-links", file, "--yes")
    assert code == 1
    assert "error IG60: CDC is not configured." in err
    assert "node_1" in err


def test_it_asks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a no nothing is deleted; programs have to pass --yes."""
    directory = node(tmp_path / "work", 1, 3)
    file = node_pipeline(tmp_path, tmp_path / "work")
    monkeypatch.setattr("click.confirm", lambda _question: False)
    code, out, _ = call_ignite(capsys, "delete-lost-segment-links", file)
    assert (code, out) == (1, "nothing was changed\n")
    assert call_ignite(capsys, "delete-lost-segment-links", file, "--json")[0] == 2
    assert read_left(directory) == ([1, 3], True)


class _Dies(RealFiles):
    """Files that die at the first segment to be deleted."""

    def unlink(self, path: Path) -> None:
        """Raise KeyboardInterrupt for a segment; remove any other file."""
        if path.suffix == ".wal":
            raise KeyboardInterrupt
        super().unlink(path)


def test_a_crash_leaves_nothing_that_stops_consumers(tmp_path: Path) -> None:
    """The saved place is deleted first: without its segments it could never be reached again."""
    directory = node(tmp_path, 1, 3)
    with pytest.raises(KeyboardInterrupt):
        delete_below_hole(directory, _Dies())
    assert read_left(directory) == ([1, 3], False)
    assert delete_below_hole(directory) == [1]


def control(tmp_path: Path, status: int, text: str = "") -> Path:
    """Return a control.sh that prints its arguments."""
    script = tmp_path / "bin" / "control.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\necho "$@"\necho "{text}" >&2\nexit {status}\n')
    script.chmod(0o755)
    return script


def test_resend_calls_control_sh(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is in IGNITE_HOME or named, gets the arguments after --; its lines are shown."""
    file = node_pipeline(tmp_path, tmp_path)
    wanted = "--cdc resend --caches a,b --enable-experimental --yes"
    script = control(tmp_path, 0, "Successfully resent all cache data to CDC.")
    monkeypatch.setenv("IGNITE_HOME", str(tmp_path))
    found = call_ignite(capsys, "resend", file, "--caches", "a, b,")
    assert found == (0, f"{wanted}\nSuccessfully resent all cache data to CDC.\n", "")
    monkeypatch.delenv("IGNITE_HOME")
    more = ("--", "--host", "far", "--port", "10801")
    _, out, _ = call_ignite(
        capsys, "resend", file, "--caches", "a,b", "--control", script, "--json", *more
    )
    assert json.loads(out.splitlines()[0]) == {"line": f"--host far --port 10801 {wanted}"}
    file.write_text(file.read_text().replace("node-1", "node-1&address=near:10802,other"))
    options = ("--caches", "a,b", "--control", script)
    _, out, _ = call_ignite(capsys, "resend", file, *options)
    assert out.splitlines()[0] == f"--host near --port 10802 {wanted}"
    one, two = "ignite:///a?consistentId=a", "ignite:///b?consistentId=b&address=near"
    text = file.read_text()
    file.write_text(re.sub("url = .*", f'url = ["{one}", "{two}"]', text))
    _, out, _ = call_ignite(capsys, "resend", file, *options)
    assert out.splitlines()[0] == f"--host near --port 10800 {wanted}"
    file.write_text(text)
    _, out, _ = call_ignite(capsys, "resend", file, *options, *more)
    assert out.splitlines()[0] == f"--host far --port 10801 {wanted}"


@pytest.mark.parametrize(
    ("status", "code", "wanted"),
    [
        (1, 2, "does not take these arguments"),
        (2, 1, "cannot connect to the cluster"),
        (3, 1, "does not accept the user and password"),
        (4, 1, "ended with 4: CDC cache data resend cancelled. Rebalance sheduled"),
    ],
)
def test_what_control_sh_ends_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, status: int, code: int, wanted: str
) -> None:
    """The exit status is translated to one of ours; the text is shown in any case."""
    file = node_pipeline(tmp_path, tmp_path)
    text = "CDC cache data resend cancelled. Rebalance sheduled [topVer=3]"
    script = control(tmp_path, status, text)
    found, out, err = call_ignite(capsys, "resend", file, "--caches", "a", "--control", script)
    assert found == code
    assert text in out
    assert wanted in err
    assert ("error IG63" in err) == (status != 1)


def test_resend_that_cannot_begin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache, no script, a script that cannot run, and another engine's pipeline are refused."""
    file = node_pipeline(tmp_path, tmp_path)
    monkeypatch.delenv("IGNITE_HOME", raising=False)
    with pytest.raises(UsageWrong):
        next(resend((), "", None, ()))
    code, _, err = call_ignite(capsys, "resend", file, "--caches", " , ")
    assert code == 2
    assert "Caches are not specified." in err
    code, _, err = call_ignite(capsys, "resend", file, "--caches", "a")
    assert code == 1
    assert "error IG62" in err
    assert "IGNITE_HOME" in err
    code, _, err = call_ignite(capsys, "resend", file, "--caches", "a", "--control", tmp_path)
    assert code == 1
    assert f"{tmp_path} cannot be run" in err
    file.write_text(
        '[pipeline]\nname = "a"\ndirectory = "a"\n[source]\n'
        'url = "postgresql://u@h/d"\ntables = ["*.*"]\n'
    )
    code, _, err = call_ignite(capsys, "resend", file, "--caches", "a")
    assert code == 2
    assert "is not Apache Ignite" in err
