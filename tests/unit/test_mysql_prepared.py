"""Prepared XA transactions: their files are kept through any event until they are decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.faults.disk import Disk
from penstock.engines.mysql.source.prepared import PreparedFiles, Xid

PLACE = Path("/run/prepared")
ONE: Xid = (1, b"one", b"")
TWO: Xid = (1, b"two", b"")


def rows(number: int) -> bytes:
    """Return events of more than a page."""
    return bytes([number]) * 1500


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_survives_a_power_cut(seed: int) -> None:
    """Rows survive from the return of keep() on: the binlog has them only earlier."""
    disk = Disk(seed)
    prepared = PreparedFiles(PLACE, disk, ())
    for number, xid in enumerate((ONE, TWO), start=1):
        prepared.begin(number)
        prepared.append(rows(number)[:700])
        prepared.append(rows(number)[700:])
        prepared.keep(xid, number)
    held = prepared.held
    prepared.begin(3)
    prepared.append(rows(3))
    disk.power_cut()
    again = PreparedFiles(PLACE, disk, held)
    for number, one in enumerate(held, start=1):
        file = again.open_read(one)
        assert file.read(0, file.size_bytes) == rows(number)
    assert sorted(disk.listdir(PLACE)) == sorted(one.file for one in held)


def test_a_decided_files_stays_until_nothing_leads_back() -> None:
    """A restart before the decision meets it again."""
    disk = Disk()
    prepared = PreparedFiles(PLACE, disk, ())
    prepared.begin(1)
    prepared.append(rows(1))
    prepared.keep(ONE, 1)
    assert prepared.take(ONE, 20) is not None
    prepared.forget_decided(20)
    assert disk.listdir(PLACE) == ["1.prepared"]
    prepared.forget_decided(21)
    assert disk.listdir(PLACE) == []
