"""Iceberg's catalogue, live files and commits, with readers of three makes: pyiceberg, polars and
Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from harness.lake.iceberg import (
    Place,
    append,
    delete_rows,
    hadoop_place,
    mark_at,
    postgres_place,
    read_all,
    read_pyiceberg,
    read_summary,
    rest_place,
    run_sql,
    sqlite_place,
    write_file,
)
from harness.lake.rest_catalogue import serve_rest_catalogue
from harness.lake.spark import lake_session
from penstock.engines.iceberg import java
from penstock.engines.iceberg.catalogue import FORMAT, IcebergCatalogue
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.deletions import Deleted, write_deleted
from penstock.engines.lake.format import (
    Change,
    ChangeKind,
    Commit,
    CommitRefused,
    Expiry,
    FeatureNeeded,
    FeatureUnknown,
    LakeColumn,
    LakeForeign,
    LakeUnreachable,
    Mark,
    MarkNotNewer,
    Snapshot,
)
from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS, class_path, find_repository
from penstock.host.errors import UrlInvalid
from penstock.load.session import Session
from penstock.model import TableName
from plugins.postgres import first_server, versions
from plugins.shared import SharedServers, SharedSpark

ORDERS = TableName("public", "orders")
COLUMNS = (LakeColumn(name="id", type="int64"), LakeColumn(name="note", type="string"))
DRIVER_JARS = (
    find_repository() / "org/postgresql/postgresql/42.7.7/postgresql-42.7.7.jar",
    find_repository() / "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar",
)
FORMAT_VERSIONS = pytest.mark.parametrize("version", [2, 3])
GIVEN = pytest.mark.parametrize("many", [java.MANY, 1], ids=["one by one", "by a loop in Java"])
"""How a commit's files are given to Iceberg: see `Iceberg.give_files`."""


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats and the drivers of catalogues."""
    shared_spark.close()
    jars = [class_path((*DELTA_JARS, *ICEBERG_JARS)), *map(str, DRIVER_JARS)]
    conf = {"spark.driver.extraClassPath": ":".join(jars)}
    with lake_session(tmp_path_factory.mktemp("spark"), conf) as running:
        yield running


class Lake:
    """Lake of a test."""

    def __init__(self, session: Session, place: Place) -> None:
        self.session = session
        self.place = place
        place.register(session)

    def open(self, version: int = 3) -> IcebergCatalogue:
        """Return the catalogue, as a loader opens it."""
        return cast(IcebergCatalogue, FORMAT.open(self.place.url(version), self.session, {}))

    def create(self, version: int = 3, columns: tuple[LakeColumn, ...] = COLUMNS) -> IcebergTable:
        """Return a new table orders."""
        return cast(IcebergTable, self.open(version).create(ORDERS, columns, key=["id"]))

    def find(self) -> IcebergTable:
        """Return table orders, as another loader finds it."""
        found = self.open().find(ORDERS)
        assert found is not None
        return cast(IcebergTable, found)

    def check(
        self, table: IcebergTable, rows: dict[str, list[Any]], *, by_all: bool = False
    ) -> None:
        """Fail unless pyiceberg reads these rows, and the cached version is the true one.

        by_all: polars and Spark must read them, too.
        """
        read = read_pyiceberg(table).select(list(rows)).sort_by("id").to_pydict()
        assert read == rows
        if by_all:
            self.check_readers(table, rows)
        known, true = table.snapshot(), self.find().snapshot()
        assert by_name(known.files) == by_name(true.files)
        assert replace(known, files=()) == replace(true, files=())

    def check_readers(self, table: IcebergTable, rows: dict[str, list[Any]]) -> None:
        """Fail unless all readers read these rows."""
        for reader, read in read_all(self.session, self.place, table).items():
            by_id = read.select(list(rows)).sort_by("id").to_pydict()
            assert by_id == rows, reader


def by_name(files: Any) -> list[Any]:
    """Return live files in a fixed order."""
    return sorted(files, key=lambda file: file.name)


@pytest.fixture
def lake(session: Session, tmp_path: Path) -> Lake:
    """Lake in a folder."""
    return Lake(session, hadoop_place(tmp_path / "warehouse"))


@pytest.fixture(params=["hadoop", "sqlite", "postgres", "rest"])
def any_lake(
    request: pytest.FixtureRequest,
    session: Session,
    tmp_path: Path,
    shared_servers: SharedServers,
) -> Iterator[Lake]:
    """Lake in each kind of catalogue."""
    warehouse = tmp_path / "warehouse"
    if request.param == "hadoop":
        yield Lake(session, hadoop_place(warehouse))
    elif request.param == "sqlite":
        yield Lake(session, sqlite_place(tmp_path))
    elif request.param == "rest":
        with serve_rest_catalogue(session, warehouse) as uri:
            yield Lake(session, rest_place(warehouse, uri))
    else:
        server = first_server(shared_servers, versions()[-1])
        yield Lake(session, postgres_place(tmp_path, server.make_database("iceberg")))


def rows_of(*ids: int, note: str = "n") -> pa.Table:
    """Return rows with these ids."""
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "note": pa.array([f"{note}{i}" for i in ids])}
    )


def notes_of(*ids: int, note: str = "n") -> dict[str, list[Any]]:
    """Return the columns of the rows with these ids."""
    columns: dict[str, list[Any]] = rows_of(*ids, note=note).to_pydict()
    return columns


class TestRows:
    def test_batches_are_read_as_equal_in_every_catalogue(self, any_lake: Lake) -> None:
        self._apply_batches(any_lake, 3)

    def test_batches_are_read_as_equal_in_format_2(self, lake: Lake) -> None:
        self._apply_batches(lake, 2)

    @FORMAT_VERSIONS
    def test_batches_are_read_as_equal_if_files_are_given_by_java(
        self, lake: Lake, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(java, "MANY", 1)
        self._apply_batches(lake, version)

    def _apply_batches(self, any_lake: Lake, version: int) -> None:
        table = any_lake.create(version)
        assert table.snapshot().version == 0
        first = append(table, rows_of(1, 2, 3, 4), 10)
        any_lake.check(table, notes_of(1, 2, 3, 4))
        # A batch updates 2 and deletes 4.
        snapshot = table.snapshot()
        name = snapshot.files[0].name
        new = write_file(table, rows_of(2, note="new"), snapshot.columns)
        deletes = delete_rows(table, {name: [1, 3]})
        after = table.commit(
            Commit(base_version=snapshot.version, adds=(new,), deletes=deletes, mark=mark_at(20))
        )
        assert after.mark == mark_at(20)
        any_lake.check(table, {"id": [1, 2, 3], "note": ["n1", "new2", "n3"]})
        # The next one deletes 3 from the first file and 2 from the second.
        second = next(file.name for file in after.files if file.name != name)
        deletes = delete_rows(table, {name: [1, 2, 3], second: [0]})
        after = table.commit(Commit(base_version=after.version, deletes=deletes, mark=mark_at(30)))
        assert {file.name: file.dead_count for file in after.files} == {name: 3, second: 1}
        any_lake.check(table, notes_of(1), by_all=True)
        assert Path(first.location).parent == Path(table.data_folder)

    @GIVEN
    @FORMAT_VERSIONS
    def test_all_rows_are_replaced_in_one_commit(
        self, lake: Lake, version: int, many: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(java, "MANY", many)
        table = lake.create(version)
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
        lake.check(table, notes_of(7, 8), by_all=True)
        after = table.commit(Commit(base_version=after.version, removes_all=True, mark=mark_at(40)))
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
        lake.check(table, notes_of(5, 7), by_all=True)

    @GIVEN
    @FORMAT_VERSIONS
    def test_files_are_joined_without_a_mark(
        self, lake: Lake, version: int, many: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(java, "MANY", many)
        table = lake.create(version)
        for number in range(3):
            append(table, rows_of(number), 10 + number)
        snapshot = table.snapshot()
        victim = snapshot.files[0].name
        deletes = delete_rows(table, {victim: [0]})
        snapshot = table.commit(
            Commit(base_version=snapshot.version, deletes=deletes, mark=mark_at(20))
        )
        left = read_pyiceberg(table).sort_by("id")
        joined = write_file(table, left, snapshot.columns)
        after = table.commit(
            Commit(
                base_version=snapshot.version,
                adds=(joined,),
                removes=tuple(file.name for file in snapshot.files),
                operation="compact",
            )
        )
        assert len(after.files) == 1
        assert after.mark == mark_at(20)
        lake.check(table, left.to_pydict(), by_all=True)

    def test_a_file_is_removed_beside_others(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2), 10)
        append(table, rows_of(3), 11)
        snapshot = table.snapshot()
        victim = next(file for file in snapshot.files if file.row_count == 2)
        new = write_file(table, rows_of(9), snapshot.columns)
        table.commit(
            Commit(
                base_version=snapshot.version,
                adds=(new,),
                removes=(victim.name,),
                mark=mark_at(12),
            )
        )
        lake.check(table, notes_of(3, 9))

    def test_names_may_have_any_character(self, session: Session, tmp_path: Path) -> None:
        lake = Lake(session, hadoop_place(tmp_path / "ware house%20#1"))
        catalogue = lake.open()
        name = TableName("my schema", "order items ü%")
        table = cast(
            IcebergTable, catalogue.create(name, (*COLUMNS, LakeColumn(name="a.b c", type="int32")))
        )
        rows = rows_of(1, 2).append_column("a.b c", pa.array([5, 6], pa.int32()))
        append(table, rows, 10)
        snapshot = table.snapshot()
        table.commit(
            Commit(
                base_version=snapshot.version,
                deletes=delete_rows(table, {snapshot.files[0].name: [0]}),
                mark=mark_at(11),
            )
        )
        for reader, read in read_all(session, lake.place, table).items():
            assert read.to_pydict() == {"id": [2], "note": ["n2"], "a.b c": [6]}, reader
        assert lake.open().tables() == [name]


class TestTypes:
    @FORMAT_VERSIONS
    def test_extremes_of_every_type_are_read_as_equal(self, lake: Lake, version: int) -> None:
        utc = [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ]
        nines = "9" * 28 + "." + "9" * 10
        big, small = Decimal(nines), Decimal(f"-{nines}")
        values: dict[str, tuple[pa.DataType, list[Any]]] = {
            "bool": (pa.bool_(), [True, False, None]),
            "int32": (pa.int32(), [-(2**31), 2**31 - 1, 0]),
            "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
            "float32": (pa.float32(), [float("inf"), float("-inf"), -0.0]),
            "float64": (pa.float64(), [1.7976931348623157e308, 5e-324, -0.0]),
            "decimal(38,10)": (pa.decimal128(38, 10), [big, small, None]),
            "decimal(20,0)": (pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(0), None]),
            "decimal(5,2)": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01"), None]),
            "date": (pa.date32(), [date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)]),
            "timestamp": (pa.timestamp("us"), [one.replace(tzinfo=None) for one in utc]),
            "timestamptz": (pa.timestamp("us", "UTC"), utc),
            "string": (pa.string(), ["", "\x00z", "\U0010ffff" * 40]),
            "binary": (pa.binary(), [b"", b"\x00\xff", b"\xff" * 40]),
        }
        columns = [LakeColumn(name="id", type="int64")]
        arrays = {"id": pa.array([1, 2, 3], pa.int64())}
        for kind, (arrow, cells) in values.items():
            columns.append(LakeColumn(name=f"c {kind}", type=kind))
            arrays[f"c {kind}"] = pa.array(cells, arrow)
        rows = pa.table(arrays)
        table = lake.create(version, tuple(columns))
        append(table, rows, 10)
        expected = rows.to_pydict()
        for reader, read in read_all(lake.session, lake.place, table).items():
            cast_rows = read.cast(rows.schema).sort_by("id").to_pydict()
            assert cast_rows == expected, reader
            zero = cast_rows["c float64"][2]
            assert str(zero) == "-0.0", reader
        assert lake.find().snapshot() == table.snapshot()
        bounds = table.snapshot().files[0].bounds
        assert bounds["c int64"] == (-(2**63), 2**63 - 1)
        assert bounds["c timestamptz"] == (utc[0], utc[2])
        assert bounds["c decimal(38,10)"] == (small, big)
        assert "c string" not in bounds  # no text of 16 characters is greater

    def test_nan_is_not_a_bound(self, lake: Lake) -> None:
        table = lake.create(columns=(COLUMNS[0], LakeColumn(name="f", type="float64")))
        nan = float("nan")
        rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "f": pa.array([nan, 1.5, -2.5])})
        append(table, rows, 10)
        assert table.snapshot().files[0].bounds["f"] == (-2.5, 1.5)
        for reader, read in read_all(lake.session, lake.place, table).items():
            assert str(read.sort_by("id").column("f").to_pylist()) == "[nan, 1.5, -2.5]", reader


class TestExpiry:
    def test_live_deletions_outlive_old_versions(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2, 3), 10)
        append(table, rows_of(4, 5, 6), 11)
        first, second = by_name(table.snapshot().files)
        after = self._delete(table, {first.name: [0], second.name: [0]}, 12)
        self._delete(table, {first.name: [0, 1]}, 13)
        appended = append(table, rows_of(7), 14)
        table._java.updateProperties().set("history.expire.min-snapshots-to-keep", "1").commit()
        replaced = {ref.location for file in after.files for ref in file.deletes}
        left = read_pyiceberg(table).sort_by("id").to_pydict()
        table.expire(Expiry(before_us=time.time_ns() // 1000))
        lake.check(table, left, by_all=True)
        present = {str(path) for path in Path(table.data_folder).iterdir()}
        assert len(replaced & present) == 1  # one vector was replaced, the other is live
        assert appended.location in present
        append(table, rows_of(8), 15)

    def _delete(self, table: IcebergTable, positions: dict[str, list[int]], gsn: int) -> Snapshot:
        """Commit deletions as workers write them."""
        snapshot = table.snapshot()
        files = {file.name: file for file in snapshot.files}
        deleted = [
            Deleted(file=files[name], positions=np.array(places, np.int64), added=1)
            for name, places in positions.items()
        ]
        new = write_deleted(deleted, table.delete_form, table.deletes_folder, "token", {})
        return table.commit(Commit(base_version=snapshot.version, deletes=new, mark=mark_at(gsn)))


class TestOneWriter:
    def test_a_slower_writer_is_refused_and_leaves_nothing(self, any_lake: Lake) -> None:
        table = any_lake.create()
        append(table, rows_of(1, 2, 3), 10)
        zombie = any_lake.find()
        base = zombie.snapshot()
        snapshot = table.snapshot()
        deletes = delete_rows(table, {snapshot.files[0].name: [0]})
        table.commit(Commit(base_version=snapshot.version, deletes=deletes, mark=mark_at(20)))
        stale = Commit(
            base_version=base.version,
            adds=(write_file(zombie, rows_of(1, note="z"), base.columns),),
            deletes=delete_rows(zombie, {base.files[0].name: [0]}),
            mark=mark_at(30),
        )
        with pytest.raises(CommitRefused):
            zombie.commit(stale)
        with pytest.raises(MarkNotNewer):
            zombie.commit(Commit(base_version=base.version, mark=mark_at(20)))
        any_lake.check(table, notes_of(2, 3))
        # It looks again, and then may commit.
        base = zombie.snapshot(refresh=True)
        assert by_name(base.files) == by_name(table.snapshot().files)
        zombie.commit(Commit(base_version=base.version, adds=stale.adds, mark=stale.mark))
        any_lake.check(zombie, {"id": [1, 2, 3], "note": ["z1", "n2", "n3"]})

    def test_a_writer_that_began_first_and_commits_last_is_refused(
        self, any_lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = any_lake.create()
        append(table, rows_of(1), 10)
        rival = any_lake.find()
        base = rival.snapshot()
        files_before = set(Path(table.location).rglob("*.avro"))
        new = write_file(rival, rows_of(3), base.columns)
        change_properties = rival._change_properties

        def commit_first(transaction: Any, commit: Commit) -> None:
            change_properties(transaction, commit)
            append(table, rows_of(2), 20)

        # The last step before the metadata is replaced.
        monkeypatch.setattr(rival, "_change_properties", commit_first)
        with pytest.raises(CommitRefused):
            rival.commit(Commit(base_version=base.version, adds=(new,), mark=mark_at(30)))
        any_lake.check(table, notes_of(1, 2))
        written = set(Path(table.location).rglob("*.avro")) - files_before
        assert len(written) == 2  # the manifest and the list of the commit that won

    def test_a_mark_without_rows_and_after_foreign_commits(self, lake: Lake) -> None:
        table = lake.create()
        after = table.commit(Commit(base_version=0, mark=mark_at(5)))
        assert after.mark == mark_at(5)
        assert after.version != 0
        append(table, rows_of(1), 10)
        run_sql(lake.session, f"insert into {lake.place.sql_name(table)} values (2, 'n2')")
        with pytest.raises(CommitRefused):
            table.commit(Commit(base_version=table.snapshot().version, mark=mark_at(20)))
        snapshot = table.snapshot(refresh=True)
        assert snapshot.mark == mark_at(10)
        after = table.commit(Commit(base_version=snapshot.version, mark=mark_at(20)))
        lake.check(table, notes_of(1, 2), by_all=True)
        assert after.version != snapshot.version
        summary = read_summary(table)
        assert summary["penstock.mark"] == mark_at(20).text
        assert summary["penstock.operation"] == "batch"
        assert Mark(log_id="other", gsn=1).is_newer(after.mark)

    def test_a_foreign_rewrite_is_survived(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1, 2), 10)
        append(table, rows_of(3, 4), 11)
        old = table.snapshot()
        deletes = delete_rows(table, {old.files[0].name: [0], old.files[1].name: [0]})
        run_sql(
            lake.session,
            f"call {lake.place.name}.system.rewrite_data_files(table => "
            f"'{lake.place.namespace}.public.orders', options => "
            "map('rewrite-all', 'true', 'min-input-files', '1'))",
        )
        stale = Commit(base_version=old.version, deletes=deletes, mark=mark_at(20))
        with pytest.raises(CommitRefused):
            table.commit(stale)
        new = table.snapshot(refresh=True)
        assert new.version != old.version
        assert len(new.files) == 1
        table.commit(
            Commit(
                base_version=new.version,
                deletes=delete_rows(table, {new.files[0].name: [0, 2]}),
                mark=mark_at(20),
            )
        )
        assert sum(file.row_count - file.dead_count for file in table.snapshot().files) == 2
        lake.check(table, notes_of(*read_pyiceberg(table).sort_by("id")["id"].to_pylist()))


class TestShape:
    def test_columns_change_together_with_rows(self, lake: Lake) -> None:
        table = lake.create(
            columns=(
                *COLUMNS,
                LakeColumn(name="price", type="decimal(5,2)"),
                LakeColumn(name="n", type="int32"),
            )
        )
        rows = rows_of(1).append_column("price", pa.array([Decimal("1.50")], pa.decimal128(5, 2)))
        append(table, rows.append_column("n", pa.array([4], pa.int32())), 10)
        snapshot = table.snapshot()
        rate = table.plan_column("rate", "int32", field_id=snapshot.next_field_id, initial="7")
        day = table.plan_column("day", "date", field_id=snapshot.next_field_id + 1, initial=None)
        changes = (
            Change(kind=ChangeKind.ADD, name="rate", column=rate, after="id"),
            Change(kind=ChangeKind.ADD, name="day", column=day),
            Change(
                kind=ChangeKind.RENAME, name="note", column=column(snapshot, "note", name="remark")
            ),
            Change(
                kind=ChangeKind.WIDEN,
                name="price",
                column=column(snapshot, "price", type="decimal(9,2)"),
            ),
            Change(kind=ChangeKind.DROP, name="n"),
        )
        assert [table.refuse_change(change, snapshot) for change in changes] == [""] * 5
        price = column(snapshot, "price", type="decimal(9,2)")
        written = (
            column(snapshot, "id"),
            rate,
            column(snapshot, "note", name="remark"),
            price,
            day,
        )
        new = pa.table(
            {
                "id": pa.array([2], pa.int64()),
                "rate": pa.array([9], pa.int32()),
                "remark": ["two"],
                "price": pa.array([Decimal("1234567.00")], pa.decimal128(9, 2)),
                "day": pa.array([date(2026, 1, 1)]),
            }
        )
        file = write_file(table, new, written)
        after = table.commit(
            Commit(base_version=snapshot.version, adds=(file,), changes=changes, mark=mark_at(20))
        )
        assert after.columns == written
        assert "remark" in after.files[0].bounds
        lake.check(
            table,
            {
                "id": [1, 2],
                "rate": [7, 9],
                "remark": ["n1", "two"],
                "price": [Decimal("1.50"), Decimal("1234567.00")],
                "day": [None, date(2026, 1, 1)],
            },
            by_all=True,
        )

    def test_older_rows_have_the_value_of_an_added_column(self, lake: Lake) -> None:
        east = "2026-02-03 04:05:06+02"
        added: dict[str, tuple[str, Any]] = {
            "bool": ("true", True),
            "int64": ("-9223372036854775808", -(2**63)),
            "float64": ("1.5", 1.5),
            "decimal(12,2)": ("7", Decimal("7.00")),
            "date": ("2026-02-03", date(2026, 2, 3)),
            "timestamp": (east[:-3], datetime.fromisoformat(east[:-3])),
            "timestamptz": (east, datetime.fromisoformat(east).astimezone(UTC)),
            "string": ("", ""),
            "binary": ("\\x00ff", b"\x00\xff"),
        }
        table = lake.create()
        append(table, rows_of(1), 10)
        snapshot = table.snapshot()
        changes = []
        for number, (kind, (text, _)) in enumerate(added.items(), snapshot.next_field_id):
            planned = table.plan_column(kind, kind, field_id=number, initial=text)
            changes.append(Change(kind=ChangeKind.ADD, name=kind, column=planned))
            assert table.refuse_change(changes[-1], snapshot) == ""
        table.commit(
            Commit(base_version=snapshot.version, changes=tuple(changes), mark=mark_at(20))
        )
        expected: dict[str, list[Any]] = {
            "id": [1],
            **{kind: [value] for kind, (_, value) in added.items()},
        }
        lake.check_readers(table, expected)
        assert table.plan_column("x", "date", field_id=99, initial="infinity").initial is None
        wrong = LakeColumn(name="x", type="date", field_id=99, initial="infinity")
        change = Change(kind=ChangeKind.ADD, name="x", column=wrong)
        assert "'infinity' is not a value of type date" in table.refuse_change(change, snapshot)

    def test_changes_that_iceberg_cannot_make_are_named(self, lake: Lake) -> None:
        table = lake.create(2, (*COLUMNS, LakeColumn(name="price", type="decimal(5,2)")))
        snapshot = table.snapshot()

        def refusal(name: str, kind: str) -> str:
            change = Change(
                kind=ChangeKind.WIDEN, name=name, column=column(snapshot, name, type=kind)
            )
            return table.refuse_change(change, snapshot)

        assert refusal("price", "decimal(7,2)") == ""
        assert "decimal(5,2) to decimal(7,3)" in refusal("price", "decimal(7,3)")
        assert "int64 to string" in refusal("id", "string")
        assert "string to int64" in refusal("note", "int64")
        with_value = LakeColumn(name="x", type="int32", field_id=4, initial="7")
        change = Change(kind=ChangeKind.ADD, name="x", column=with_value)
        assert "Iceberg 2" in table.refuse_change(change, snapshot)
        with pytest.raises(FeatureNeeded):
            table.commit(Commit(base_version=0, changes=(change,), mark=mark_at(10)))
        assert table.plan_column("x", "int32", field_id=4, initial="7").initial is None

    def test_an_added_column_with_another_id_than_its_files_is_refused(self, lake: Lake) -> None:
        table = lake.create()
        wrong = LakeColumn(name="x", type="int32", field_id=9)
        change = Change(kind=ChangeKind.ADD, name="x", column=wrong)
        with pytest.raises(CommitRefused, match="gets id 3"):
            table.commit(Commit(base_version=0, changes=(change,), mark=mark_at(10)))
        lake.check(table, notes_of())

    def test_names_are_exchanged_and_used_again_in_one_commit(self, lake: Lake) -> None:
        columns = (COLUMNS[0], *(LakeColumn(name=name, type="string") for name in "abc"))
        table = lake.create(columns=columns)
        append(table, pa.table({"id": [1], "a": ["was a"], "b": ["was b"], "c": ["was c"]}), 10)
        snapshot = table.snapshot()
        again = table.plan_column("c", "int32", field_id=snapshot.next_field_id, initial=None)
        changes = (
            Change(kind=ChangeKind.RENAME, name="a", column=column(snapshot, "a", name="x")),
            Change(kind=ChangeKind.RENAME, name="b", column=column(snapshot, "b", name="a")),
            Change(kind=ChangeKind.RENAME, name="x", column=column(snapshot, "a", name="b")),
            Change(kind=ChangeKind.DROP, name="c"),
            Change(kind=ChangeKind.ADD, name="c", column=again),
        )
        after = table.commit(
            Commit(base_version=snapshot.version, changes=changes, mark=mark_at(20))
        )
        assert [one.field_id for one in after.columns] == [1, 2, 3, 5]
        lake.check(table, {"id": [1], "a": ["was b"], "b": ["was a"], "c": [None]})

    def test_columns_that_another_writer_changed_are_seen(self, lake: Lake) -> None:
        table = lake.create()
        append(table, rows_of(1), 10)
        base = table.snapshot()
        run_sql(lake.session, f"alter table {lake.place.sql_name(table)} add column extra int")
        with pytest.raises(CommitRefused, match="columns"):
            table.commit(Commit(base_version=base.version, mark=mark_at(20)))
        assert table.snapshot(refresh=True).column("extra") is not None


def column(snapshot: Snapshot, name: str, /, **changes: Any) -> LakeColumn:
    """Return a column of a snapshot, with changes."""
    found = snapshot.column(name)
    assert found is not None
    return replace(found, **changes)


class TestCatalogue:
    def test_tables_are_created_found_and_dropped(self, any_lake: Lake) -> None:
        catalogue = any_lake.open()
        assert catalogue.tables() == []
        assert catalogue.find(ORDERS) is None
        table = catalogue.create(ORDERS, COLUMNS, record="of the table")
        batches = TableName("", "penstock_batches")
        catalogue.create(batches, COLUMNS)
        (Path(any_lake.place.warehouse) / "shop" / "_penstock").mkdir()
        assert catalogue.tables() == [batches, ORDERS]
        assert catalogue.find(ORDERS) is table
        assert table.snapshot().record == "of the table"
        with pytest.raises(LakeForeign, match=r"public\.orders exists"):
            any_lake.open().create(ORDERS, COLUMNS)
        append(cast(IcebergTable, table), rows_of(1), 10)
        catalogue.drop(ORDERS)
        assert not Path(table.location).exists()
        assert catalogue.find(ORDERS) is None
        catalogue.drop(ORDERS)
        assert catalogue.tables() == [batches]

    def test_a_foreign_table_that_penstock_does_not_write_is_refused(self, lake: Lake) -> None:
        lake.open().ensure_namespace(("shop", "public"))
        run_sql(
            lake.session,
            f"create table {lake.place.name}.shop.public.orders (id bigint, tags array<string>)"
            " using iceberg",
        )
        catalogue = lake.open()
        with pytest.raises(FeatureUnknown, match="type list"):
            cast(IcebergTable, catalogue.find(ORDERS)).snapshot()

    def test_a_foreign_table_with_positions_for_several_files_is_written(self, lake: Lake) -> None:
        catalogue = lake.open()
        catalogue.ensure_namespace(("shop", "public"))
        name = f"{lake.place.name}.shop.public.orders"
        run_sql(
            lake.session,
            f"create table {name} (id bigint, note string) using iceberg tblproperties("
            "'format-version'='2', 'write.delete.mode'='merge-on-read', "
            "'write.delete.granularity'='partition')",
        )
        run_sql(lake.session, f"insert into {name} values (1, 'n1'), (2, 'n2')")
        run_sql(lake.session, f"insert into {name} values (3, 'n3'), (4, 'n4')")
        run_sql(lake.session, f"delete from {name} where id in (1, 3)")
        table = lake.find()
        snapshot = table.snapshot()
        assert read_pyiceberg(table).sort_by("id").to_pydict() == notes_of(2, 4)
        places = {file.name: [0, 1] for file in snapshot.files if file.row_count == 2}
        table.commit(
            Commit(
                base_version=snapshot.version,
                deletes=delete_rows(table, places),
                adds=(write_file(table, rows_of(5), snapshot.columns),),
                mark=mark_at(10),
            )
        )
        assert set(read_pyiceberg(table)["id"].to_pylist()) <= {5, 2, 4}

    def test_a_catalogue_that_does_not_answer_is_named(
        self, session: Session, tmp_path: Path
    ) -> None:
        place = postgres_place(tmp_path, "postgresql://reader@127.0.0.1:1/none")
        with pytest.raises(LakeUnreachable, match=place.name):
            FORMAT.open(place.url(), session, {})
        with pytest.raises(UrlInvalid, match="no type"):
            FORMAT.open("iceberg://ice/shop", session, {})
