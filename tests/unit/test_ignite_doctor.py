"""Doctor on an Ignite node's directories: every state that stops or loses changes is found."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.ignite.recordings import (
    cdc_of,
    data_segment,
    entry_bytes,
    node_pipeline,
    seal_record,
    unpack_recording,
)
from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.config import load_config
from penstock.engines.ignite.checks.node_checks import SILENT_S_MAX
from penstock.engines.ignite.state import CdcState
from penstock.ports.checks import Finding, Severity
from penstock.ports.direct import LogPlace

HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
os.pwrite(lock, b"[consumerId=cdc.lock, proc=7@there]", 1)
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The work directory of a node without faults: its segments are archived and linked."""
    work = unpack_recording("one", tmp_path / "work")
    archive = work / "db/wal/archive/node_1"
    shutil.copytree(cdc_of(work), archive, copy_function=os.link)
    (work / "db/wal/node_1").mkdir()
    (work / "db/wal/node_1" / f"{0:016}.wal").write_bytes(data_segment([[entry_bytes()]]))
    for path in archive.iterdir():
        os.utime(path)
    newest = max(cdc_of(work).glob("*.wal"))
    (cdc_of(work) / "state").mkdir()
    CdcState(cdc_of(work)).save_place(LogPlace(int(newest.stem), 29, 0))
    CdcState(cdc_of(work)).save_active()
    return work


def find_findings(work: Path, *codes: str, patterns: str = "*") -> list[Finding]:
    """Return what doctor finds about a node."""
    file = node_pipeline(work.parent, work)
    file.write_text(file.read_text().replace('tables = ["*"]', f'tables = ["{patterns}"]'))
    report = examine(load_config(file))
    return [one for one in report.findings if one.code.startswith("IG")]


def one(work: Path, code: str, severity: Severity, *said: str) -> Finding:
    """Return the only finding, which contains these words."""
    [finding] = find_findings(work)
    assert (finding.code, finding.severity) == (code, severity), finding
    text = f"{finding.what}; {finding.why}; {finding.command}"
    for words in said:
        assert words in text
    return finding


def segments(work: Path) -> list[int]:
    """Return the segments of its CDC directory."""
    return sorted(int(path.stem) for path in cdc_of(work).glob("*.wal"))


def add_segment(work: Path, number: int, *, is_linked: bool = True, **more: object) -> Path:
    """Add an archived segment."""
    path = work / "db/wal/archive/node_1" / f"{number:016}.wal"
    path.write_bytes(data_segment([], number=number, **more))
    if is_linked:
        os.link(path, cdc_of(work) / path.name)
    return path


def test_a_node_without_faults(node: Path) -> None:
    """The node has no finding."""
    assert find_findings(node) == []
    assert examine(load_config(node_pipeline(node.parent, node))).errors == ()


def test_nothing_is_changed(node: Path) -> None:
    """Neither a file nor the lock is changed."""

    def there() -> dict[str, bytes]:
        return {str(one): one.read_bytes() for one in node.rglob("*") if one.is_file()}

    before = there()
    find_findings(node)
    assert there() == before


def test_cdc_is_off(node: Path) -> None:
    """There is no directory for consumers."""
    shutil.rmtree(cdc_of(node))
    one(node, "IG01", Severity.ERROR, "change data capture is off", "cdcEnabled")


def test_no_directory_of_the_node(node: Path) -> None:
    """The URL has another consistent id, or another directory."""
    shutil.rmtree(node / "db/node_1")
    one(node, "IG01", Severity.ERROR, "not a work directory of this node", "consistentId")
    file = node_pipeline(node.parent, node)
    file.write_text(file.read_text().replace("?consistentId=node-1", ""))
    shutil.rmtree(node / "db/wal/cdc")
    [finding] = [one for one in examine(load_config(file)).findings if one.code == "IG52"]
    assert "Can't find the folder" in finding.what


def test_permissions(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreadable and unwritable files are found; root has access to all, so it is simulated."""
    real = os.access

    def refusing(*names: str) -> Callable[..., bool]:
        def access(path: Path, mode: int) -> bool:
            return real(path, mode) and not (path.name in names and mode & os.W_OK)

        return access

    monkeypatch.setattr(os, "access", refusing("node_1", "state"))
    finding = one(node, "IG02", Severity.ERROR, "cannot write", "setfacl")
    assert str(cdc_of(node)) in finding.what
    newest = max(cdc_of(node).glob("*.wal")).name
    monkeypatch.setattr(os, "access", lambda path, _: path.name != newest)
    one(node, "IG02", Severity.ERROR, "cannot read", newest)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_state_is_of_another_user(node: Path) -> None:
    """The state of a penstock that ran as root excludes Ignite's own utility."""
    os.chown(cdc_of(node), 12345, 12345)
    one(node, "IG03", Severity.WARNING, "state", "chown -R --reference=")


def test_links_over_file_systems(node: Path, tmp_path: Path) -> None:
    """The CDC directory is on another device than the archive."""
    other = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/run")
    if other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one file system")
    place = other / f"penstock-test-{os.getpid()}"
    shutil.move(cdc_of(node), place)
    try:
        cdc_of(node).symlink_to(place)
        one(node, "IG04", Severity.ERROR, "another file system", "cdcWalPath")
    finally:
        shutil.rmtree(place)


def test_links_are_skipped(node: Path) -> None:
    """The archive grows, and the CDC directory does not."""
    newest = segments(node)[-1]
    add_segment(node, newest + 1, is_linked=False)
    one(node, "IG05", Severity.WARNING, f"archived segment {newest + 1}", "cdc.disabled")
    (cdc_of(node) / f"{newest:016}.wal").unlink()  # the saved place counts, too
    one(node, "IG05", Severity.WARNING, f"archived segment {newest + 1}")
    CdcState(cdc_of(node)).drop_place()
    found_of = {finding.code: finding.severity for finding in find_findings(node)}
    assert found_of["IG05"] is Severity.ERROR  # otherwise the gap would stay unnoticed


def test_a_hole(node: Path) -> None:
    """The gap is between segments, or after the saved place; a gap in read segments is ignored."""
    newest = segments(node)[-1]
    add_segment(node, newest + 2)
    wanted = f"{newest} is followed by {newest + 2}"
    holes = [one for one in find_findings(node) if one.code == "IG06"]
    assert [one.severity for one in holes] == [Severity.ERROR]
    assert wanted in holes[0].what
    assert "penstock ignite delete-lost-segment-links node.toml" in holes[0].command
    CdcState(cdc_of(node)).save_place(LogPlace(newest + 2, 29, 0))
    assert find_findings(node) == []


def test_lag(node: Path) -> None:
    """An hour is worth a warning; less is information."""
    newest = segments(node)[-1]
    path = add_segment(node, newest + 1)
    finding = one(node, "IG07", Severity.INFO, "1 segment,", "0 minutes")
    assert finding.command == ""
    os.utime(path, (0, path.stat().st_mtime - 7300))
    one(node, "IG07", Severity.WARNING, "122 minutes", "penstock consume node.toml")


@contextmanager
def holding(node: Path, *program: object) -> Iterator[int]:
    """Yield the pid of a process that holds the lock."""
    command = [sys.executable, *map(str, program), cdc_of(node) / "lock", "/srv/penstock/my.xml"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.communicate(b"")


def test_another_reader(node: Path) -> None:
    """The lock's holder is named and keeps it; a path does not count as the program's name."""
    with holding(node, "-c", HOLDER) as pid:
        one(node, "IG08", Severity.WARNING, f"process {pid} reads", "proc=7@there")
        one(node, "IG08", Severity.WARNING, f"kill {pid}")
    assert find_findings(node) == []


def test_a_reader_of_ours(node: Path, tmp_path: Path) -> None:
    """Another reader of ours is fine; no process has to be killed."""
    for folder, words in (("script", ()), ("module", ("-m",))):
        script = tmp_path / folder / ("penstock.py" if words else "penstock")
        script.parent.mkdir()
        script.write_text(HOLDER)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(script.parent)
            with holding(node, *words, "penstock"):
                assert one(node, "IG08", Severity.INFO).command == ""


def test_mode(node: Path) -> None:
    """Without the record that ends the mode, consumers would wait for ever."""
    (cdc_of(node) / "state" / "cdc-mode.bin").unlink()
    assert find_findings(node) == []  # the first segment has the record
    for path in (*cdc_of(node).glob("*.wal"), *(node / "db/wal/archive/node_1").iterdir()):
        path.unlink()
    add_segment(node, 7)
    CdcState(cdc_of(node)).save_place(LogPlace(7, 29, 0))
    one(node, "IG09", Severity.WARNING, "IGNITE_NODE_ACTIVE", "restart the node")
    (cdc_of(node) / "state" / "cdc-mode.bin").write_bytes(b"nonsense")
    one(node, "IG09", Severity.ERROR, "names no mode of Ignite's utility")


def test_form_of_segments(node: Path) -> None:
    """Another serializer, a compacted segment, and a file that is not a segment are found."""
    newest = segments(node)[-1]
    path = cdc_of(node) / f"{newest:016}.wal"
    path.unlink()
    path.write_bytes(seal_record(struct.pack("<BqiQi", 5, newest, 0, 0xB0D045ACE7ED045A, 1)))
    one(node, "IG10", Severity.ERROR, "serializer version 1", path.name)
    path.write_bytes(b"")
    one(node, "IG10", Severity.ERROR, "its header has 29")


def test_no_cache_of_that_name(node: Path) -> None:
    """A pattern may have no cache."""
    assert find_findings(node, patterns="person") == []
    [finding] = find_findings(node, patterns="persons")
    assert (finding.code, finding.severity) == ("IG12", Severity.WARNING)
    assert "called persons" in finding.what


def test_a_segment_that_stays_open(node: Path) -> None:
    """The active one is written, and none is closed."""
    active = node / "db/wal/node_1" / f"{0:016}.wal"
    newest = max(path.stat().st_mtime for path in (node / "db/wal/archive/node_1").iterdir())
    os.utime(active, (0, newest + SILENT_S_MAX - 1))
    assert find_findings(node) == []
    os.utime(active, (0, newest + 2 * SILENT_S_MAX))
    one(node, "IG13", Severity.WARNING, "for 10 minutes", "walForceArchiveTimeout")


def test_no_log_at_all(node: Path) -> None:
    """WAL mode NONE writes no log."""
    for folder in (cdc_of(node), node / "db/wal/node_1", node / "db/wal/archive/node_1"):
        for path in folder.glob("*.wal"):
            path.unlink()
    one(node, "IG14", Severity.ERROR, "writes no log", "walMode")
    (node / "db/wal/node_1" / f"{0:016}.wal").write_bytes(data_segment([]) + bytes(99))
    one(node, "IG14", Severity.ERROR, "writes no log", "walMode")


def test_it_is_shown(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock doctor` works on a node, as for any source."""
    from penstock import cli

    shutil.rmtree(cdc_of(node))
    with pytest.raises(SystemExit) as ended:
        cli.run_guarded(["doctor", str(node_pipeline(node.parent, node)), "--json"])
    assert ended.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in told["findings"] if one["severity"] == "E"] == ["IG01"]
