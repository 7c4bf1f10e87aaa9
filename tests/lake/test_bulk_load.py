"""The bulk load into a lake: each row once, whatever ends it, and never a part of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.lake.copying import Copying
from harness.lake.fake_format import FakeTable
from harness.pipelines.bulk import ORDERS, fill_orders, rows, run
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import source_tables
from penstock.control.run.bulk_load import bulk_options
from penstock.engines.lake.bulk_writer import ChunkFiles
from penstock.engines.lake.chunk_records import ChunkRecord
from penstock.engines.lake.format import CommitRefused, LakeColumn, WriterSpec
from penstock.engines.lake.known_tables import decode_record
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.host.retry import Backoff
from penstock.load import chunk as chunks
from penstock.load.bulk import load_in_bulk
from penstock.load.ledger import TargetHoldsRows, read_ledger
from penstock.model import Column, PenstockError, Relation
from penstock.ports.bulk import ShapedRows, open_planner
from penstock.ports.target import TargetShapeDiffers, ValueRefused

COUNT = 30_000
MakeCopying = Callable[..., Copying]


@pytest.fixture
def make_copying(monkeypatch: pytest.MonkeyPatch, source_url: str, tmp_path: Path) -> MakeCopying:
    """Return a maker of the test's pipeline."""
    monkeypatch.setattr(chunks, "BACKOFF", Backoff(attempts=1))
    return lambda query="": Copying(monkeypatch, source_url, tmp_path, query)


@pytest.fixture
def copying(make_copying: MakeCopying, source_url: str) -> Copying:
    """Return a pipeline with one table of some chunks."""
    fill_orders(source_url, COUNT)
    return make_copying()


def check(copying: Copying, source_url: str) -> None:
    """Fail unless the lake has the source's rows, and no file that no version has."""
    expected = rows(source_url, "select id, note, total, at from public.orders order by id")
    found = [
        (row["id"], row["note"], row["total"], row["at"]) for row in copying.store.rows(ORDERS)
    ]
    assert sorted(found) == expected
    known = {
        file.name for version in copying.store.tables[ORDERS].versions for file in version.files
    }
    assert copying.files(ORDERS) == known
    assert copying.records.read_all(ORDERS, copying.mark(ORDERS).plan) == {}


# -- one load --------------------------------------------------------------------------------------


def test_all_rows_are_committed_at_once(copying: Copying, source_url: str) -> None:
    """All rows are committed at once."""
    result = copying.load()
    assert result.rows == {ORDERS: COUNT}
    check(copying, source_url)
    assert copying.store.tables[ORDERS].operations == ["create", "copy"]
    mark = copying.mark(ORDERS)
    assert mark.finished
    assert len(mark.done) > 2
    assert sum(mark.done.values()) == COUNT


def test_the_table_has_the_record_of_its_source(copying: Copying) -> None:
    """The table has the record of its source."""
    copying.load()
    record = decode_record(copying.store.newest(ORDERS).record, ORDERS)
    assert record is not None
    assert (record.source, record.made) == (ORDERS, True)
    assert record.columns is not None
    assert [name for name, _ in record.columns] == ["id", "note", "total", "at"]


def test_a_second_load_does_nothing(copying: Copying, source_url: str) -> None:
    """A second load does nothing."""
    copying.load()
    copying.load()
    check(copying, source_url)
    assert len(copying.store.tables[ORDERS].versions) == 2


def test_files_are_ended_at_their_size(tmp_path: Path) -> None:
    """Files are ended at their size."""
    relation = Relation(
        schema="public",
        name="orders",
        columns=(Column(name="id", source_type="bigint", neutral="int64"),),
        key=(0,),
    )
    spec = WriterSpec(
        table=ORDERS,
        target=ORDERS,
        relation=relation,
        source_engine="postgresql",
        columns=(LakeColumn(name="id", type="int64"),),
        data_folder=str(tmp_path / "copy"),
        side_folder="",
        stamp=0,
        token="",
    )
    files = ChunkFiles(spec, 4, file_bytes=2**19)
    numbers = np.random.default_rng(7).integers(0, 2**62, (10, 140_000))
    for some in numbers:
        files.add(ShapedRows(relation, pa.record_batch([pa.array(some)], names=["id"])))
    written = files.finish()
    assert len(written) == len(list(tmp_path.rglob("*.parquet"))) == 10
    assert sum(file.row_count for file in written) == numbers.size
    assert {Path(file.location).name.partition("-")[0] for file in written} == {"4"}
    read = [pq.read_table(file.location).column("id").to_numpy() for file in written]
    assert np.array_equal(np.concatenate(read), numbers.reshape(-1))


def test_an_empty_table_has_no_files(make_copying: MakeCopying, source_url: str) -> None:
    """An empty table has no files."""
    fill_orders(source_url, 0)
    copying = make_copying()
    assert copying.load().rows == {ORDERS: 0}
    assert copying.live(ORDERS) == set()
    assert copying.mark(ORDERS).finished


def test_what_a_lake_cannot_have_is_named(make_copying: MakeCopying, source_url: str) -> None:
    """Parts that a lake cannot have are named."""
    run(
        source_url,
        "create table public.customers (id int primary key, mail text unique)",
        "create table public.orders (id int primary key, customer int references public.customers)",
    )
    notes = "\n".join(make_copying().load().notes)
    assert "orders_customer_fkey" in notes
    assert "customers_mail_key" in notes


# -- ends ------------------------------------------------------------------------------------------

POINTS = [
    ("lake.bulk.begin", 1),
    ("lake.bulk.file", 1),
    ("lake.bulk.file", 3),
    ("bulk.chunk.copied", 1),
    ("bulk.chunk.copied", 3),
    ("bulk.chunk.committed", 1),
    ("bulk.chunk.committed", 3),
    ("lake.bulk.commit.before", 1),
    ("lake.bulk.commit.after", 1),
    ("lake.bulk.marked", 1),
]


@pytest.mark.parametrize(("name", "nth"), POINTS)
def test_a_load_that_ends_anywhere_goes_on(
    copying: Copying, source_url: str, name: str, nth: int
) -> None:
    """A load that ends anywhere goes on."""
    with faults.arming(f"{name}:{nth}:error"), pytest.raises(FaultInjected):
        copying.load()
    copying.load()
    operations = copying.store.tables[ORDERS].operations
    assert operations == ["create", "copy"]
    check_ended(copying, source_url)


def check_ended(copying: Copying, source_url: str) -> None:
    """Check the rows; files may be left if the load ended after its finished mark."""
    expected = rows(source_url, "select id from public.orders order by id")
    assert sorted((row["id"],) for row in copying.store.rows(ORDERS)) == expected
    assert copying.live(ORDERS) <= copying.files(ORDERS)


def test_nothing_is_read_before_all_of_it_is_there(copying: Copying) -> None:
    """Rows are read only when all are there."""
    seen = []
    copying.session.before_task = lambda: seen.append(len(copying.store.rows(ORDERS)))
    copying.load()
    assert set(seen) == {0}


def test_a_commit_without_its_mark_is_not_repeated(copying: Copying, source_url: str) -> None:
    """A commit without its mark is not repeated."""
    with faults.arming("lake.bulk.commit.after:1:error"), pytest.raises(FaultInjected):
        copying.load()
    # A late task of the first attempt has written its chunk again meanwhile.
    plan = copying.mark(ORDERS).plan
    record = copying.records.read(ORDERS, plan, 1)
    assert record is not None
    folder = copying.store.tables[ORDERS].folder / f"copy-{plan}"
    late = folder / "1-late-0.parquet"
    late.write_bytes(Path(record.files[0].location).read_bytes())
    other = msgspec.structs.replace(
        record,
        files=tuple(
            type(one)(location=str(late), size_bytes=one.size_bytes, row_count=one.row_count)
            for one in record.files
        ),
    )
    copying.records.write(ORDERS, plan, 1, other)
    copying.load()
    check(copying, source_url)
    assert not late.exists()


def test_a_late_task_of_an_earlier_plan_changes_nothing(copying: Copying, source_url: str) -> None:
    """A late task of an earlier plan changes nothing."""
    with faults.arming("bulk.chunk.copied:2:error"), pytest.raises(FaultInjected):
        copying.load()
    before = copying.mark(ORDERS).plan
    assert copying.copies(ORDERS, before)
    # Its snapshot is gone, so the rows are copied from the beginning.
    ledger = copying.config.layout.state / "bulk.json"
    ledger.write_text(ledger.read_text().replace('"snapshot_id": "', '"snapshot_id": "0'))
    run(source_url, "delete from public.orders where id <= 10")
    late = copying.store.tables[ORDERS].folder / f"copy-{before}" / "9-late-0.parquet"

    def come_late() -> None:
        assert copying.mark(ORDERS).plan != before
        late.parent.mkdir(exist_ok=True)
        late.write_bytes(b"")
        copying.records.write(ORDERS, before, 9, ChunkRecord(row_count=5, files=()))

    copying.session.before_task = come_late
    copying.load()
    check(copying, source_url)
    assert copying.copies(ORDERS, before) == set()


def test_another_writer_is_waited_for(copying: Copying, source_url: str) -> None:
    """Another writer is waited for."""
    touches = iter(range(3))

    def touch(name: Any) -> None:
        if next(touches, None) is not None:
            copying.store.touch(name)

    copying.store.before_commit = touch
    copying.load()
    check(copying, source_url)


def test_a_writer_that_is_always_faster_ends_the_load(copying: Copying) -> None:
    """A writer that is always faster ends the load."""
    copying.store.before_commit = copying.store.touch
    with pytest.raises(CommitRefused):
        copying.load()
    assert copying.live(ORDERS) == set()


# -- tables that are there -------------------------------------------------------------------------


def resync(copying: Copying) -> None:
    """Copy again, as `penstock table resync` does: with a ledger of its own."""
    config = copying.config
    options = replace(
        bulk_options(config),
        state_directory=config.layout.copies / "7",
        run_directory=config.layout.run / "copies" / "7",
        replaces=True,
        adds_foreign_keys=False,
        beside=True,
    )
    session: Any = copying.session
    with open_planner(config) as planner:
        load_in_bulk(session, options, source_tables(config), planner)


def test_the_previous_rows_stay_readable_until_the_copy_is_whole(
    copying: Copying, source_url: str
) -> None:
    """The previous rows stay readable until the copy is whole."""
    copying.load()
    run(source_url, "update public.orders set total = -1", "delete from public.orders where id = 7")
    before = copying.store.rows(ORDERS)
    seen = []
    copying.session.before_task = lambda: seen.append(copying.store.rows(ORDERS) == before)
    copying.store.before_commit = lambda name: seen.append(copying.store.rows(name) == before)
    resync(copying)
    assert seen
    assert all(seen)
    check(copying, source_url)
    assert {row["total"] for row in copying.store.rows(ORDERS)} == {Decimal("-1.00")}
    # Readers of the previous version still find its files.
    assert len(copying.store.rows(ORDERS, version=1)) == COUNT


@pytest.mark.parametrize(("name", "nth"), POINTS)
def test_a_copy_that_ends_anywhere_goes_on(
    copying: Copying, source_url: str, name: str, nth: int
) -> None:
    """A copy that ends anywhere goes on."""
    copying.load()
    run(source_url, "update public.orders set total = -1")
    with faults.arming(f"{name}:{nth}:error"), pytest.raises(FaultInjected):
        resync(copying)
    assert len(copying.store.rows(ORDERS)) == COUNT
    resync(copying)
    check_ended(copying, source_url)
    assert {row["total"] for row in copying.store.rows(ORDERS)} == {Decimal("-1.00")}
    assert copying.store.tables[ORDERS].operations == ["create", "copy", "copy"]


def test_rows_of_others_are_not_removed(copying: Copying) -> None:
    """Rows of others are not removed."""
    copying.load()
    (copying.config.layout.state / "bulk.json").unlink()
    with pytest.raises(TargetHoldsRows, match=r"public\.orders") as caught:
        copying.load()
    assert "delete from delta.`" in (caught.value.hint or "")
    assert len(copying.store.rows(ORDERS)) == COUNT


ALTER = (
    "alter table public.orders add column extra int not null default 5",
    "alter table public.orders drop column note",
    "alter table public.orders alter column total type text using 'n' || total",
)


def test_a_table_of_ours_gets_its_new_shape_with_its_rows(
    copying: Copying, source_url: str
) -> None:
    """A table of ours gets its new shape with its rows."""
    copying.load()
    before = copying.store.rows(ORDERS)
    run(source_url, *ALTER)
    seen = []
    copying.store.before_commit = lambda name: seen.append(copying.store.rows(name) == before)
    resync(copying)
    assert seen == [True]
    check_altered(copying, source_url)
    assert copying.store.tables[ORDERS].operations == ["create", "copy", "copy"]


def check_altered(copying: Copying, source_url: str) -> None:
    """Fail unless the lake has the rows of the altered table."""
    expected = rows(source_url, "select id, total, at, extra from public.orders order by id")
    names = [column.name for column in copying.store.newest(ORDERS).columns]
    assert sorted(names) == ["at", "extra", "id", "total"]
    found = [tuple(row[n] for n in ("id", "total", "at", "extra")) for row in
             copying.store.rows(ORDERS)]  # fmt: skip
    assert sorted(found) == expected
    record = decode_record(copying.store.newest(ORDERS).record, ORDERS)
    assert record is not None
    assert record.columns is not None
    assert dict(record.columns)["total"] == "text"


def test_a_table_that_cannot_get_its_shape_is_recreated(
    copying: Copying, source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that cannot get its shape is recreated."""
    copying.load()
    run(source_url, *ALTER)
    monkeypatch.setattr(FakeTable, "refuse_change", lambda *_: "not in this lake")
    resync(copying)
    check_altered(copying, source_url)
    assert copying.store.tables[ORDERS].operations == ["create", "copy"]


def test_a_table_that_is_altered_meanwhile_is_copied_again(
    copying: Copying, source_url: str
) -> None:
    """A table that is altered meanwhile is copied again."""
    times = iter(range(1))

    def alter() -> None:
        if next(times, None) is not None:
            newest = copying.store.newest(ORDERS)
            other = replace(newest, columns=newest.columns[:-1])
            copying.store.put(ORDERS, other, "foreign")

    copying.session.before_task = alter
    with pytest.raises(TargetShapeDiffers, match="altered meanwhile"):
        copying.load()
    copying.load()
    check(copying, source_url)


def test_a_foreign_table_of_another_shape_is_left(copying: Copying, source_url: str) -> None:
    """A foreign table of another shape is left."""
    copying.load()
    newest = copying.store.newest(ORDERS)
    copying.store.put(ORDERS, replace(newest, record=""), "foreign")
    run(source_url, "alter table public.orders add column extra int")
    with pytest.raises(TargetShapeDiffers, match="extra is missing, expected int32"):
        resync(copying)
    assert len(copying.store.rows(ORDERS)) == COUNT


# -- values ----------------------------------------------------------------------------------------


def test_a_value_that_does_not_fit_is_refused_by_name(
    make_copying: MakeCopying, source_url: str
) -> None:
    """A value that does not fit is refused by name."""
    run(
        source_url,
        "create table public.orders (id int primary key, due date)",
        "insert into public.orders values (1, '2026-01-01'), (2, 'infinity')",
    )
    copying = make_copying()
    with pytest.raises(ValueRefused, match=r"column due of public\.orders .*1 value") as caught:
        copying.load()
    assert '"public.orders.due dates out of range" = "null"' in (caught.value.hint or "")
    assert caught.value.fields["table"] == "public.orders"


@pytest.mark.parametrize(
    ("choice", "expected"), [("text", {1: "2026-01-01", 2: "infinity"}), ("null", None)]
)
def test_a_choice_keeps_it(
    make_copying: MakeCopying, source_url: str, choice: str, expected: Any
) -> None:
    """A choice keeps it."""
    run(
        source_url,
        "create table public.orders (id int primary key, due date)",
        "insert into public.orders values (1, '2026-01-01'), (2, 'infinity')",
    )
    copying = make_copying()
    file = copying.config.path
    file.write_text(f'{file.read_text()}\n[target.types]\n"dates out of range" = "{choice}"\n')
    copying.config = load_config(file)
    copying.load()
    found = {row["id"]: row["due"] for row in copying.store.rows(ORDERS)}
    if expected is None:
        assert found[2] is None
        assert str(found[1]) == "2026-01-01"
    else:
        assert found == expected


def test_an_error_of_a_chunk_ends_the_load_with_its_table(copying: Copying) -> None:
    """An error of a chunk ends the load with its table."""
    with faults.arming("bulk.chunk.copied:2:error=ENOSPC"), pytest.raises((PenstockError, OSError)):
        copying.load()
    assert copying.live(ORDERS) == set()
    assert read_ledger(copying.config.layout.state).plan_of(ORDERS) is not None
