"""A table that cannot be applied stops the loader, or is isolated while the others continue."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.loading import TABLES, Running, add, rows
from penstock.load.isolation import read_isolations
from penstock.model import PenstockError, TableName
from penstock.ports.target import ValueRefused

BAG = TableName("public", "bag")
REFUSES = "alter table public.bag add constraint no_three check (v <> 3)"
TABLE_SYNC = "select source_name, state, applied_gsn from wirekite.wirekite_apart"


@pytest.fixture
def target(target_url: str, tmp_path: Path) -> str:
    """A target that refuses a row of `bag` in the second of three segments, and these segments."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(REFUSES)
    log = LogMaker(tmp_path / "log")
    for number in range(6):
        add(log, number)
        if number % 2:
            log.close_segment()
    log.writer.finish()
    log.writer.close()
    return target_url


def test_it_stops_the_loader_by_default(target: str, tmp_path: Path) -> None:
    """Both tables end at the same commit."""
    with pytest.raises(ValueRefused):
        Running(target, tmp_path, max_files_per_batch=1).end()
    assert rows(target, "select id from public.t order by 1") == [(0,), (1,)]
    assert rows(target, "select v from public.bag order by 1") == [(0,), (1,)]


def test_it_is_left_behind_at_its_last_good_commit(target: str, tmp_path: Path) -> None:
    """The reason is on disk and reported; the next start leaves it there without
    keeping segments.
    """
    told: list[PenstockError] = []
    options = {"max_files_per_batch": 1, "isolates": True, "remove_files": True}
    Running(target, tmp_path, on_note=told.append, **options).end()
    assert rows(target, "select id from public.t order by 1") == [(n,) for n in range(6)]
    assert rows(target, "select v from public.bag order by 1") == [(0,), (1,)]
    assert rows(target, TABLE_SYNC) == [("bag", "isolated", 4)]
    assert [type(error) for error in told] == [ValueRefused]
    why = read_isolations(tmp_path / "state")[BAG]
    assert (why.code, "no_three" in why.hint) == ("TG32", True)
    assert not list((tmp_path / "log").glob("*.ckt"))
    Running(target, tmp_path, **options).end()
    assert rows(target, "select v from public.bag order by 1") == [(0,), (1,)]


def test_what_is_no_table_s_fault_stops_the_loader(target: str, tmp_path: Path) -> None:
    """An error that names no table stops all of them."""
    (tmp_path / "log" / "1.ckt").unlink()
    with pytest.raises(PenstockError) as caught:
        Running(target, tmp_path, max_files_per_batch=1, isolates=True).end()
    assert caught.value.code == "LG03"
    assert not rows(target, TABLE_SYNC)
