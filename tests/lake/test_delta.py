"""Delta's catalogue, live files and commits, with readers of three makes: delta-rs, polars and
Spark.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from harness.lake.delta import (
    append,
    delete_rows,
    mark_at,
    read_actions,
    read_all,
    read_rust,
    read_spark,
    run_sql,
    write_file,
)
from harness.lake.spark import lake_session
from penstock.engines.delta import log as delta_log
from penstock.engines.delta.catalogue import FORMAT, DeltaCatalogue
from penstock.engines.delta.table import DeltaTable
from penstock.engines.lake.bulk import find_refusals, plan_shape
from penstock.engines.lake.format import (
    Change,
    ChangeKind,
    Commit,
    CommitRefused,
    FeatureNeeded,
    FeatureUnknown,
    LakeColumn,
    LakeForeign,
    Mark,
    MarkNotNewer,
    Snapshot,
)
from penstock.load.session import Session
from penstock.model import PenstockError, TableName
from plugins.shared import SharedSpark

ORDERS = TableName("public", "orders")
COLUMNS = (
    LakeColumn(name="id", type="int64", nullable=False),
    LakeColumn(name="note", type="string"),
)


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with Delta's classes."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark")) as running:
        yield running


class Lake:
    """Lake of a test."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.folder = folder

    def open(self) -> DeltaCatalogue:
        """Return the catalogue, as a loader opens it."""
        return cast(DeltaCatalogue, FORMAT.open(f"delta+file://{self.folder}", self.session, {}))

    def create(self, columns: tuple[LakeColumn, ...] = COLUMNS, **more: Any) -> DeltaTable:
        """Return a new table orders."""
        return cast(DeltaTable, self.open().create(ORDERS, columns, key=["id"], **more))

    def find(self, name: TableName = ORDERS) -> DeltaTable:
        """Return a table, as another loader finds it."""
        found = self.open().find(name)
        assert found is not None
        return cast(DeltaTable, found)

    def sql(self, statement: str) -> None:
        """Run a statement on orders, as another writer. It has {} for the table."""
        run_sql(self.session, self.find(), statement)

    def delete_as_another(self, place: int) -> None:
        """Delete a row of the first file, as a writer that has no mark."""
        other = self.find()
        snapshot = other.snapshot()
        deletes = delete_rows(other, {snapshot.files[0].name: [place]})
        other.commit(Commit(base_version=snapshot.version, deletes=deletes))

    def insert_as_another(self, number: int) -> None:
        """Insert a row, as a writer that has no mark."""
        other = self.find()
        snapshot = other.snapshot()
        new = write_file(other, rows_of(number), snapshot.columns)
        other.commit(Commit(base_version=snapshot.version, adds=(new,)))

    def check(
        self, table: DeltaTable, rows: dict[str, list[Any]], *, with_spark: bool = False
    ) -> None:
        """Fail unless all readers read these rows, and the cached version is the true one.

        with_spark: read by Spark too, which takes a hundred times longer than the others.
        """
        known = table.snapshot()
        assert by_name(known) == by_name(self.find().snapshot())
        for reader, read in read_all(table, self.session if with_spark else None).items():
            assert sorted(read.column_names) == sorted(c.name for c in known.columns), reader
            by_id = read.select(list(rows)).sort_by("id").to_pydict()
            assert by_id == rows, reader


def by_name(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with its files in the order of their names."""
    return replace(snapshot, files=tuple(sorted(snapshot.files, key=lambda file: file.name)))


@pytest.fixture
def lake(session: Session, tmp_path: Path) -> Lake:
    """Lake in a folder."""
    return Lake(session, tmp_path / "lake")


def rows_of(*ids: int, note: str = "n") -> pa.Table:
    """Return rows of orders."""
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "note": pa.array([f"{note}{i}" for i in ids])}
    )


def notes_of(*ids: int, note: str = "n") -> dict[str, list[Any]]:
    """Return the columns of rows of orders."""
    columns: dict[str, list[Any]] = rows_of(*ids, note=note).to_pydict()
    return columns


class TestRows:
    @pytest.mark.parametrize("is_inline", [False, True])
    def test_batches_are_read_as_equal(self, lake: Lake, is_inline: bool) -> None:
        table = lake.create()
        assert table.snapshot().version == 0
        append(table, rows_of(1, 2, 3, 4), 10)
        lake.check(table, notes_of(1, 2, 3, 4))
        # A batch updates 2 and deletes 4.
        snapshot = table.snapshot()
        name = snapshot.files[0].name
        new = write_file(table, rows_of(2, note="new"), snapshot.columns)
        deletes = delete_rows(table, {name: [1, 3]}, is_inline=is_inline)
        after = table.commit(
            Commit(base_version=snapshot.version, adds=(new,), deletes=deletes, mark=mark_at(20))
        )
        assert after.mark == mark_at(20)
        lake.check(table, {"id": [1, 2, 3], "note": ["n1", "new2", "n3"]})
        # The next one deletes 3 from the first file, and the only row of the second.
        second = next(file.name for file in after.files if file.name != name)
        deletes = delete_rows(table, {name: [1, 2, 3], second: [0]}, is_inline=is_inline)
        after = table.commit(Commit(base_version=after.version, deletes=deletes, mark=mark_at(30)))
        assert {file.name: file.dead_count for file in after.files} == {name: 3}
        lake.check(table, notes_of(1), with_spark=True)

    def test_all_rows_are_replaced_in_one_commit(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2, 3), 10)
        snapshot = table.snapshot()
        deletes = delete_rows(table, {snapshot.files[0].name: [0]})
        table.commit(Commit(base_version=snapshot.version, deletes=deletes, mark=mark_at(20)))
        snapshot = table.snapshot()
        new = write_file(table, rows_of(7, 8), snapshot.columns)
        after = table.commit(
            Commit(base_version=snapshot.version, adds=(new,), removes_all=True, mark=mark_at(30))
        )
        assert len(after.files) == 1
        lake.check(table, notes_of(7, 8))
        table.commit(Commit(base_version=after.version, removes_all=True, mark=mark_at(40)))
        lake.check(table, notes_of())

    def test_rows_of_a_new_file_are_deleted_in_its_own_commit(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        snapshot = table.snapshot()
        new = write_file(table, rows_of(5, 6, 7), snapshot.columns)
        table.commit(
            Commit(
                base_version=snapshot.version,
                adds=(new,),
                deletes=delete_rows(table, {new.location: [1]}),
                removes_all=True,
                mark=mark_at(20),
            )
        )
        lake.check(table, notes_of(5, 7))

    def test_files_are_joined_without_a_mark(self, lake: Lake) -> None:
        table = lake.create()
        for number in range(1, 4):
            append(table, rows_of(number), number * 10)
        snapshot = table.snapshot()
        joined = write_file(table, rows_of(1, 2, 3), snapshot.columns)
        after = table.commit(
            Commit(
                base_version=snapshot.version,
                adds=(joined,),
                removes=tuple(file.name for file in snapshot.files),
                operation="compact",
            )
        )
        assert after.mark == mark_at(30)
        assert len(after.files) == 1
        lake.check(table, notes_of(1, 2, 3))
        changes = [
            next(iter(action.values())).get("dataChange")
            for action in read_actions(table, after.version)
            if "add" in action or "remove" in action
        ]
        assert changes == [False] * 4

    def test_every_type_with_its_extremes_is_read_as_equal(self, lake: Lake) -> None:
        rows = extreme_rows()
        columns = tuple(
            LakeColumn(name=field.name, type=TYPES[field.name.rpartition("_")[0]])
            if field.name != "id"
            else COLUMNS[0]
            for field in rows.schema
        )
        table = lake.create(columns)
        append(table, rows, 10)
        snapshot = table.snapshot()
        deletes = delete_rows(table, {snapshot.files[0].name: [5]})
        table.commit(Commit(base_version=snapshot.version, deletes=deletes, mark=mark_at(20)))
        expected = comparable(rows.slice(0, 5))
        for reader, read in read_all(table, lake.session).items():
            assert comparable(read) == expected, reader
        assert len(columns) == 31
        assert lake.find().snapshot() == table.snapshot()

    def test_conditions_skip_no_file_that_has_their_rows(self, lake: Lake) -> None:
        rows = extreme_rows().slice(0, 5)
        table = lake.create(
            tuple(
                LakeColumn(name=field.name, type=TYPES[field.name.rpartition("_")[0]])
                if field.name != "id"
                else COLUMNS[0]
                for field in rows.schema
            )
        )
        for number in range(5):
            append(table, rows.slice(number, 1), number + 1)
        for where, ids in CONDITIONS.items():
            if where in ODD:
                spark = read_spark(lake.session, table, where).column("id").to_pylist()
                assert sorted(spark) == ids, where
            rust = read_rust(table, where).column("id").to_pylist()
            assert sorted(rust) == ids, where


TYPES = {
    "bool": "bool",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
    "d9": "decimal(9,2)",
    "d38": "decimal(38,10)",
    "u64": "decimal(20,0)",
    "day": "date",
    "at": "timestamp",
    "atz": "timestamptz",
    "text": "string",
    "bytes": "binary",
}
CONDITIONS = {
    "i64_a = 9223372036854775807": [2],
    "i64_a < -9223372036854775807": [1],
    "d38_a > 0": [1, 4],
    "u64_a = 18446744073709551615": [1, 4],
    "text_b like 'zzz%'": [2],
    "text_b > 'a'": [2, 4],
    "day_a = date '0001-01-01'": [1],
    "day_a >= date '9999-12-31'": [2],
    "at_a = timestamp '1899-12-31 23:59:59.999999'": [2],
    "bool_a": [1, 4],
    "i32_b is null": [3],
}


# Those that Spark, too, is asked for: each takes seconds.
ODD = tuple(list(CONDITIONS)[index] for index in (2, 4, 6, 8))


def extreme_rows() -> pa.Table:
    """Return rows of all types: least, greatest, NULL, common, odd values, and one to delete."""
    us = [
        _at("0001-01-01"),
        _at("1899-12-31T23:59:59.999999"),
        None,
        _at("1582-10-10T12:00"),
        _at("9999-12-31T23:59:59.999999"),
        _at("2026-01-01"),
    ]
    days = [date(1, 1, 1), date(9999, 12, 31), None, date(1582, 10, 10), date(1970, 1, 1), None]
    long = "z" * 31 + "\U0001f600" + "z" * 40
    nines = "9" * 28 + "." + "9" * 10
    d38, low38, u64 = Decimal(nines), Decimal(f"-{nines}"), Decimal(2**64 - 1)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "bool": (pa.bool_(), [True, False, None, True, False, None]),
        "i32": (pa.int32(), [-(2**31), 2**31 - 1, None, 0, -1, 1]),
        "i64": (pa.int64(), [-(2**63), 2**63 - 1, None, 0, -1, 1]),
        "f32": (pa.float32(), [-3.4028234663852886e38, 1.5, None, math.inf, -0.0, 1]),
        "f64": (pa.float64(), [-1.7976931348623157e308, 5e-324, None, math.nan, -math.inf, 1]),
        "d9": (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01"), None, 1, 0, 1]),
        "d38": (pa.decimal128(38, 10), [d38, low38, None, Decimal("1E-10"), Decimal(0), 1]),
        "u64": (pa.decimal128(20, 0), [u64, 0, None, u64, 1, 1]),
        "day": (pa.date32(), days),
        "at": (pa.timestamp("us"), us),
        "atz": (
            pa.timestamp("us", tz="UTC"),
            [moment and moment.replace(tzinfo=UTC) for moment in us],
        ),
        "text": (pa.string(), ["", long, None, "\U0010ffff" * 40, "\x00\x01", "x"]),
        "bytes": (pa.binary(), [b"", b"\xff" * 40, None, b"\x00", b"abc", b"x"]),
    }
    columns: dict[str, Any] = {"id": pa.array(range(1, 7), pa.int64())}
    for name, (kind, data) in values.items():
        columns[f"{name}_a"] = pa.array(data, kind)
        columns[f"{name}_b"] = pa.array(data, kind)
    for name in ("d9", "i64", "text", "atz"):
        kind, data = values[name]
        columns[f"{name}_c"] = pa.array([data[4], *data[1:4], data[0], data[5]], kind)
    return pa.table(columns)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def comparable(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows by id as texts that tell -0.0 from 0.0 and moments apart."""
    rows = rows.select(sorted(rows.column_names)).sort_by("id")
    return [tuple(map(_text, row.values())) for row in rows.to_pylist()]


def _text(value: Any) -> str:
    return repr(value)


class TestMarks:
    def test_a_mark_goes_with_the_commit_and_only_a_newer_one_follows(self, lake: Lake) -> None:
        table = lake.create()
        assert table.snapshot().mark is None
        append(table, rows_of(1), 10)
        version = table.snapshot().version
        for mark in (mark_at(10), mark_at(9)):
            with pytest.raises(MarkNotNewer, match="up to gsn"):
                table.commit(Commit(base_version=version, removes_all=True, mark=mark))
        lake.check(table, notes_of(1))
        assert lake.find().snapshot().mark == mark_at(10)

    @pytest.mark.parametrize("position", [0, 2**63 - 1, 2**63, 2**64 - 1, 2**100 + 3, 2**127 - 1])
    def test_positions_of_sixteen_bytes_are_kept(self, lake: Lake, position: int) -> None:
        table = lake.create()
        mark = Mark(log_id="b", segment=-1, gsn=1, trx=2**62, position=position, commit_time_us=-5)
        assert table.commit(Commit(base_version=0, mark=mark)).mark == mark
        assert lake.find().snapshot().mark == mark

    def test_a_mark_without_rows_follows_a_foreign_commit(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2, 3), 10)
        version = table.snapshot().version
        lake.delete_as_another(1)
        after = table.commit(Commit(base_version=version, mark=mark_at(20)))
        assert after.mark == mark_at(20)
        assert after.files[0].dead_count == 1
        lake.check(table, notes_of(1, 3))

    def test_a_mark_survives_foreign_commits_and_checkpoints(self, lake: Lake) -> None:
        table = lake.create(record="columns")
        append(table, rows_of(1, 2, 3), 10)
        table.commit(Commit(base_version=1, record="columns now", mark=mark_at(11)))
        for number in range(4, 7):
            lake.insert_as_another(number)
        lake.session.jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            lake.session.spark, table.location
        ).checkpoint()
        lake.insert_as_another(7)
        assert list((lake.folder / "public/orders/_delta_log").glob("*.checkpoint*.parquet"))
        fresh_table = lake.find()
        fresh = fresh_table.snapshot()
        assert (fresh.mark, fresh.record) == (mark_at(11), "columns now")
        known = table.snapshot(refresh=True)
        assert by_name(known) == by_name(fresh)
        lake.check(fresh_table, notes_of(*range(1, 8)))

    def test_the_mark_of_the_log_that_wrote_last_counts(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 50)
        other = mark_at(5, "another-log")
        assert table.commit(Commit(base_version=1, mark=other)).mark == other
        assert lake.find().snapshot().mark == other

    def test_the_history_of_the_table_tells_the_batch(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        info = read_actions(table, 1)[0]["commitInfo"]
        assert info["operation"] == "STREAMING UPDATE"
        assert '"penstock": "batch"' in info["userMetadata"]
        assert info["isBlindAppend"] is False


class TestOthers:
    def test_a_second_loader_is_refused(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        zombie = lake.find()
        looked_at = zombie.snapshot()
        append(table, rows_of(2), 20)
        late = write_file(zombie, rows_of(3), looked_at.columns)
        again = Commit(base_version=looked_at.version, adds=(late,), mark=mark_at(20))
        with pytest.raises(MarkNotNewer):
            zombie.commit(again)
        with pytest.raises(CommitRefused, match="was looked at"):
            zombie.commit(Commit(base_version=looked_at.version, adds=(late,), mark=mark_at(30)))
        lake.check(table, notes_of(1, 2))
        assert zombie.snapshot() == table.snapshot()

    @pytest.mark.parametrize("with_rows", [True, False])
    def test_a_loader_that_is_faster_during_the_commit_wins(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch, with_rows: bool
    ) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        zombie = lake.find()
        version = zombie.snapshot().version
        late = (write_file(zombie, rows_of(3), COLUMNS),) if with_rows else ()
        between(monkeypatch, lambda: append(table, rows_of(2), 20))
        with pytest.raises(CommitRefused, match="another writer was faster"):
            zombie.commit(Commit(base_version=version, adds=late, mark=mark_at(20)))
        lake.check(table, notes_of(1, 2))
        # It looks again, and finds that its batch is there.
        assert zombie.snapshot(refresh=True).mark == mark_at(20)

    @pytest.mark.parametrize(
        "act",
        [
            lambda lake: lake.insert_as_another(2),
            lambda lake: lake.delete_as_another(0),
            lambda lake: lake.sql("optimize {}"),
            lambda lake: lake.sql("alter table {} add columns (more string)"),
        ],
        ids=["insert", "delete", "optimize", "alter"],
    )
    def test_a_foreign_commit_refuses_rows(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch, act: Callable[[Lake], None]
    ) -> None:
        table = lake.create()
        for number in (1, 5, 6):
            append(table, rows_of(number), number * 10)
        version = table.snapshot().version
        new = write_file(table, rows_of(9), COLUMNS)
        commit = Commit(base_version=version, adds=(new,), mark=mark_at(90))
        between(monkeypatch, lambda: act(lake))
        with pytest.raises(CommitRefused):
            table.commit(commit)
        with pytest.raises(CommitRefused):  # not only while it runs
            table.commit(commit)
        again = table.snapshot(refresh=True)
        assert again.mark == mark_at(60)
        assert again.version > version
        table.commit(Commit(base_version=again.version, adds=(new,), mark=mark_at(90)))
        assert 9 in read_rust(table).column("id").to_pylist()

    def test_a_foreign_commit_during_a_mark_does_not_refuse_it(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        between(monkeypatch, lambda: lake.insert_as_another(2))
        after = table.commit(Commit(base_version=1, mark=mark_at(20)))
        assert (after.version, after.mark) == (3, mark_at(20))
        lake.check(table, notes_of(1, 2))

    def test_a_commit_follows_one_that_this_jvm_has_not_seen(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        log = Path(table.location.removeprefix("file://")) / "_delta_log"
        action = {"txn": {"appId": "another program", "version": 1}}
        (log / f"{2:020d}.json").write_text(json.dumps(action) + "\n")
        after = table.commit(Commit(base_version=1, mark=mark_at(20)))
        assert (after.version, after.mark) == (3, mark_at(20))
        lake.check(table, notes_of(1))

    def test_a_table_whose_log_was_removed_gets_no_version(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        log = Path(table.location.removeprefix("file://")) / "_delta_log"
        shutil.rmtree(log)
        new = write_file(table, rows_of(2), COLUMNS)
        with pytest.raises(PenstockError):
            table.commit(Commit(base_version=1, adds=(new,), mark=mark_at(20)))
        assert not list(log.glob("*.json"))

    def test_positions_in_a_file_that_is_gone_are_refused(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2), 10)
        snapshot = table.snapshot()
        deletes = delete_rows(table, {"gone.parquet": [0]})
        with pytest.raises(CommitRefused, match=r"gone\.parquet is not live"):
            table.commit(Commit(base_version=snapshot.version, deletes=deletes, mark=mark_at(20)))

    def test_files_and_deletion_vectors_of_spark_are_known(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(*range(1, 101)), 10)
        lake.sql("delete from {} where id % 10 = 3")
        lake.sql("insert into {} select id, concat('n', id) from range(101, 103)")
        file = table.snapshot(refresh=True).files[0]
        assert (file.dead_count, file.row_count) == (10, 100)
        ref = file.deletes[0]
        assert ref.inline is not None or Path(ref.location).is_file()
        assert file.bounds["id"] == (1, 100)
        assert sum(one.row_count for one in table.snapshot().files) == 102
        lake.check(table, notes_of(*(i for i in range(1, 103) if i % 10 != 3)))

    @pytest.mark.parametrize(
        ("statement", "feature"),
        [
            (
                "alter table {} set tblproperties ('delta.enableChangeDataFeed' = 'true')",
                "changeDataFeed",
            ),
            ("alter table {} add constraint positive check (id > 0)", "checkConstraints"),
            ("alter table {} set tblproperties ('delta.appendOnly' = 'true')", "appendOnly"),
        ],
    )
    def test_a_feature_that_penstock_does_not_write_is_refused_by_name(
        self, lake: Lake, statement: str, feature: str
    ) -> None:
        table = lake.create()
        lake.sql(statement)
        with pytest.raises(FeatureUnknown, match=feature):
            table.commit(Commit(base_version=0, mark=mark_at(10)))
        with pytest.raises(FeatureUnknown, match=feature):
            lake.find().snapshot()


def between(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action once, after the next commit has begun its transaction and before it ends."""
    real = delta_log.DeltaLog.commit
    calls: list[int] = []

    def act(self: Any, *arguments: Any, **more: Any) -> int:
        if not calls:
            calls.append(1)
            action()
        return real(self, *arguments, **more)

    monkeypatch.setattr(delta_log.DeltaLog, "commit", act)


class TestShape:
    def test_a_table_begins_with_no_feature_that_it_does_not_need(self, lake: Lake) -> None:
        table = lake.create()
        assert table.snapshot().features == {"appendOnly", "deletionVectors", "invariants"}
        assert table.snapshot().columns == COLUMNS
        assert table.snapshot().next_field_id == 0

    @pytest.mark.parametrize("kind", ["int32", "timestamp"])
    def test_a_column_is_added_together_with_rows(self, lake: Lake, kind: str) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        before = table.snapshot()
        added = table.plan_column("more", kind, field_id=before.next_field_id, initial="7")
        value: Any = 5 if kind == "int32" else _at("2026-01-01")
        arrow = pa.int32() if kind == "int32" else pa.timestamp("us")
        rows = rows_of(2).append_column("more", pa.array([value], arrow))
        new = write_file(table, rows, (*before.columns, added))
        after = table.commit(
            Commit(
                base_version=before.version,
                adds=(new,),
                changes=(Change(kind=ChangeKind.ADD, name="more", column=added, after="id"),),
                mark=mark_at(20),
            )
        )
        assert [column.name for column in after.columns] == ["id", "more", "note"]
        assert ("timestampNtz" in after.features) == (kind == "timestamp")
        assert "columnMapping" not in after.features
        lake.check(table, {"id": [1, 2], "note": ["n1", "n2"], "more": [None, value]})

    def test_a_column_is_renamed_one_dropped_and_one_added_under_its_name(self, lake: Lake) -> None:
        columns = (*COLUMNS, LakeColumn(name="gone", type="int32"))
        table = lake.create(columns)
        with_gone = rows_of(1).append_column("gone", pa.array([9], pa.int32()))
        append(table, with_gone, 10)
        before = table.snapshot()
        again = table.plan_column("gone", "string", field_id=before.next_field_id, initial=None)
        assert again == table.plan_column("gone", "string", field_id=0, initial=None)
        text = LakeColumn(name="text", type="string", physical=before.columns[1].file_name)
        rows = pa.table({"id": [2], "text": ["n2"], "gone": ["here"]})
        new = write_file(table, rows, (before.columns[0], text, again))
        after = table.commit(
            Commit(
                base_version=before.version,
                adds=(new,),
                changes=(
                    Change(kind=ChangeKind.RENAME, name="note", column=text),
                    Change(kind=ChangeKind.DROP, name="gone"),
                    Change(kind=ChangeKind.ADD, name="gone", column=again),
                ),
                mark=mark_at(20),
            )
        )
        assert "columnMapping" in after.features
        lake.check(table, {"id": [1, 2], "text": ["n1", "n2"], "gone": [None, "here"]})
        # From now on columns have ids and names of their own in files.
        more = table.plan_column("more", "int64", field_id=after.next_field_id, initial=None)
        assert (more.field_id, more.physical) == (5, "col-5")
        rows = pa.table({"id": [3], "text": ["n3"], "gone": [None], "more": [7]})
        rows = rows.set_column(2, "gone", pa.array([None], pa.string()))
        new = write_file(table, rows, (*after.columns, more))
        deletes = delete_rows(table, {after.files[0].name: [0]})
        change = Change(kind=ChangeKind.ADD, name="more", column=more)
        after = table.commit(
            Commit(
                base_version=after.version,
                adds=(new,),
                deletes=deletes,
                changes=(change,),
                mark=mark_at(30),
            )
        )
        assert after.column("more") == more
        assert after.files[-1].bounds["more"] == (7, 7)
        read = read_rust(table).sort_by("id").to_pydict()
        assert read["more"][-1] == 7
        assert read["text"][-1] == "n3"
        names = ("id", "text", "gone", "more")
        lake.check(table, {name: read[name] for name in names}, with_spark=True)

    @pytest.mark.parametrize(
        ("before", "after", "low", "high"),
        [
            ("int32", "int64", 2**31 - 1, 2**40),
            ("decimal(5,2)", "decimal(10,2)", Decimal("999.99"), Decimal("12345678.90")),
            ("float32", "float64", 1.5, 1e300),
        ],
    )
    def test_a_column_is_widened_together_with_rows(
        self, lake: Lake, before: str, after: str, low: Any, high: Any
    ) -> None:
        arrow = {
            "int32": pa.int32(),
            "int64": pa.int64(),
            "float32": pa.float32(),
            "float64": pa.float64(),
            "decimal(5,2)": pa.decimal128(5, 2),
            "decimal(10,2)": pa.decimal128(10, 2),
        }
        table = lake.create((*COLUMNS, LakeColumn(name="v", type=before)))
        append(table, rows_of(1).append_column("v", pa.array([low], arrow[before])), 10)
        snapshot = table.snapshot()
        wide = LakeColumn(name="v", type=after)
        change = Change(kind=ChangeKind.WIDEN, name="v", column=wide)
        assert table.refuse_change(change, snapshot) == ""
        rows = rows_of(2).append_column("v", pa.array([high], arrow[after]))
        new = write_file(table, rows, (*COLUMNS, wide))
        table.commit(
            Commit(base_version=snapshot.version, adds=(new,), changes=(change,), mark=mark_at(20))
        )
        lake.check(table, {"id": [1, 2], "v": [low, high]}, with_spark=True)

    def test_a_type_is_changed_with_all_rows_and_no_feature(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2), 10)
        before = table.snapshot()
        number = table.plan_column("note", "int32", field_id=0, initial=None, is_emptied=True)
        assert number == LakeColumn(name="note", type="int32")
        rows = pa.table({"id": [3], "note": pa.array([7], pa.int32())})
        new = write_file(table, rows, (before.columns[0], number))
        changes = (
            Change(kind=ChangeKind.DROP, name="note"),
            Change(kind=ChangeKind.ADD, name="note", column=number),
        )
        after = table.commit(
            Commit(
                base_version=before.version,
                adds=(new,),
                removes_all=True,
                changes=changes,
                mark=mark_at(20),
            )
        )
        assert after.features == before.features
        lake.check(table, {"id": [3], "note": [7]})

    @pytest.mark.parametrize("name", ["v", "w"])
    def test_a_copy_replaces_the_only_column(self, lake: Lake, name: str) -> None:
        table = lake.create((LakeColumn(name="v", type="int32"),))
        append(table, pa.table({"v": pa.array([1], pa.int32())}), 10)
        before = table.snapshot()
        wanted = [LakeColumn(name=name, type="string"), LakeColumn(name="id", type="int64")]
        assert find_refusals(table, before, wanted) == []
        shape = plan_shape(table, before, wanted)
        new = write_file(table, pa.table({name: ["x"], "id": [1]}), shape.columns)
        table.commit(
            Commit(
                base_version=before.version,
                adds=(new,),
                removes_all=True,
                changes=shape.changes,
                mark=mark_at(20),
            )
        )
        lake.check(table, {name: ["x"], "id": [1]})

    def test_changes_that_delta_cannot_make_in_place_are_refused(self, lake: Lake) -> None:
        table = lake.create()
        snapshot = table.snapshot()
        for kind in ("int32", "string", "decimal(18,0)"):
            change = Change(
                kind=ChangeKind.WIDEN, name="id", column=LakeColumn(name="id", type=kind)
            )
            assert "in place" in table.refuse_change(change, snapshot)

    def test_names_with_spaces_are_mapped_from_the_start(self, lake: Lake) -> None:
        columns = (COLUMNS[0], LakeColumn(name="a note, (odd)=", type="string"))
        table = lake.create(columns)
        append(table, pa.table({"id": [1], "a note, (odd)=": ["x"]}), 10)
        assert table.snapshot().columns[1].physical == "col-2"
        lake.check(table, {"id": [1], "a note, (odd)=": ["x"]})

    def test_names_that_differ_in_case_alone_are_refused(self, lake: Lake) -> None:
        with pytest.raises(FeatureNeeded, match="id and Id"):
            lake.create((COLUMNS[0], LakeColumn(name="Id", type="string")))


class TestCatalogue:
    def test_tables_are_listed_found_created_and_dropped(self, lake: Lake) -> None:
        catalogue = lake.open()
        assert catalogue.tables() == ()
        assert catalogue.find(ORDERS) is None
        names = [
            TableName("", "bare"),
            TableName("Ünï code", "a=b/c%41:[x]~41 \U0001f600"),
            TableName("_penstock", ".hidden"),
            ORDERS,
        ]
        for name in names:
            table = catalogue.create(name, COLUMNS, key=["id"])
            append(table, rows_of(1), 10)
        (lake.folder / "_penstock").mkdir()
        (lake.folder / "_penstock/state.json").write_text("{}")
        assert sorted(catalogue.tables()) == sorted(names)
        for name in names:
            assert catalogue.find(name) is catalogue.find(name)
            again = lake.find(name)
            for reader, rows in read_all(again).items():
                assert rows.to_pydict() == notes_of(1), reader
            assert again.snapshot().files[0].row_count == 1
        with pytest.raises(LakeForeign, match="exists already"):
            lake.create()
        catalogue.drop(ORDERS)
        assert catalogue.find(ORDERS) is None
        assert ORDERS not in catalogue.tables()
        assert not (lake.folder / "public/orders").exists()
        catalogue.drop(ORDERS)
        append(lake.create(), rows_of(2), 10)
        lake.check(lake.find(), notes_of(2))

    def test_a_table_that_was_removed_under_us_is_named(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        lake.open().drop(ORDERS)
        lake.create()
        with pytest.raises(CommitRefused):
            table.commit(Commit(base_version=1, removes_all=True, mark=mark_at(20)))
