"""Small state files: their bytes on disk, what a reader gets, and the errors for damaged ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from penstock.host.state_file import CheckpointCorrupt, StateFile, StatusFile, report_file
from penstock.load.isolation import read_isolations
from penstock.load.ledger import Ledger, LedgerUnreadable, read_ledger, write_ledger
from penstock.load.loader_state import Hold, write_hold
from penstock.model import PenstockError, TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """State of a test."""

    count: int


class Broken(PenstockError):
    """Error with the code of this test's state file."""

    code = "XX02"


def test_the_bytes_on_disk_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """An older directory can be read, and an older version reads new files."""
    path = tmp_path / "state.json"
    StateFile(path, Saved).save(Saved(count=3))
    assert path.read_bytes() == b'{"crc32c":"cc9735c2","state":{"count":3}}\n'
    StateFile(path, Saved, has_checksum=False).save(Saved(count=3))
    assert path.read_bytes() == b'{"count":3}\n'
    write_hold(tmp_path, Hold(nonce="n"))
    assert (tmp_path / "hold.json").read_bytes() == b'{"nonce":"n","until":null}\n'
    write_ledger(tmp_path, Ledger(copied=True))
    text = (tmp_path / "bulk.json").read_text()
    assert text.startswith('{\n "version": 1,\n "copied": true,\n')
    assert text.endswith("}\n")
    StatusFile(tmp_path / "extract.json").write({"pid": 1})
    assert (tmp_path / "extract.json").read_bytes() == b'{"pid":1}\n'


def test_files_of_yesterday_are_read(tmp_path: Path) -> None:
    """The files are as they were written before there was a `StateFile`."""
    state = (
        b'{"crc32c":"%s","state":{"tables":[{"table":["public","t"],"code":"TG32","error":"e",'
        b'"hint":"h"}]}}\n'
    )
    body = state[state.index(b'"state":') + 8 : -2]
    (tmp_path / "isolated.json").write_bytes(state % f"{google_crc32c.value(body):08x}".encode())
    assert read_isolations(tmp_path)[TableName("public", "t")].code == "TG32"
    (tmp_path / "bulk.json").write_bytes(b'{"version": 1, "finished": true, "plans": []}')
    assert read_ledger(tmp_path).finished
    (tmp_path / "load.json").write_bytes(b'{"count":4}')  # without the end of the line
    assert report_file(tmp_path / "load.json", Saved).load() == Saved(count=4)


def test_a_missing_file_is_none_and_a_removed_one_too(tmp_path: Path) -> None:
    """Removing a file tells whether there was one."""
    file = StateFile(tmp_path / "state.json", Saved)
    assert file.load() is None
    assert not file.remove()
    file.save(Saved(count=1))
    assert file.remove()
    assert file.load() is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"count":"x"}', b"\xff"])
def test_damage_names_place_cause_and_next_command(tmp_path: Path, damage: bytes) -> None:
    """The error has the class that a room has chosen; a damaged report for display counts as
    missing.
    """
    path = tmp_path / "state.json"
    path.write_bytes(damage)
    with pytest.raises(CheckpointCorrupt) as caught:
        StateFile(path, Saved, hint="Run this.").load()
    assert str(path) in caught.value.message
    assert caught.value.hint == f"Put {path} back from a copy. Without one: Run this."
    with pytest.raises(Broken, match=r"the plan .* is damaged"):
        StateFile(path, Saved, name="the plan", error=Broken, has_checksum=False).load()
    assert report_file(path, Saved).load() is None


def test_a_damaged_ledger_is_its_own_error(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "bulk.json").write_bytes(msgspec.json.encode({"plans": 3}))
    with pytest.raises(LedgerUnreadable, match=r"bulk\.json is damaged"):
        read_ledger(tmp_path)
