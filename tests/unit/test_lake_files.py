"""Data files and deletions of a lake: their content, how older ones are read, what is refused."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.lake.positions import PositionTable, lake_columns, live
from harness.pipelines.changes import Change, relation
from penstock.codec.lake import DeletionCorrupt
from penstock.codec.types import parse_choices
from penstock.codec.types.source_type import Engine
from penstock.engines.lake import parquet
from penstock.engines.lake.deletions import (
    Deleted,
    DeletionFileFailed,
    read_deleted,
    write_deleted,
)
from penstock.engines.lake.format import (
    CommitRefused,
    DeleteForm,
    LakeColumn,
    LiveFile,
    NewFile,
)
from penstock.engines.lake.lookup import look_up
from penstock.engines.lake.parquet import DataFile, DataFileUnfit, DataWriter
from penstock.engines.lake.writer import LakeWriter
from penstock.ports.target import Counts, StagingChanged, StagingFailed, ValueRefused

ID = LakeColumn(name="id", type="int64", field_id=1, nullable=False)
PRICE = LakeColumn(name="price", type="float64", field_id=2)
NOTE = LakeColumn(name="note", type="string", field_id=3, physical="col-3")


def write(
    folder: Path, columns: Sequence[LakeColumn], values: Sequence[pa.Array], name: str = "a"
) -> NewFile:
    """Write a file of some rows."""
    with DataWriter(f"{folder}/{name}.parquet", columns, {}) as writer:
        writer.write(values)
    assert writer.new_file is not None
    return writer.new_file


def three_rows(folder: Path, name: str = "a") -> NewFile:
    """Write three rows of all columns."""
    values = [
        pa.array([3, 1, 2], pa.int64()),
        pa.array([math.nan, None, 1.5]),
        pa.array([None, "b", "a"]),
    ]
    return write(folder, [ID, PRICE, NOTE], values, name)


def read(file: LiveFile, *columns: LakeColumn) -> list[list[Any]]:
    """Return columns of a file's first row group."""
    data = DataFile(file, {})
    try:
        return [data.read(0, column).to_pylist() for column in columns]
    finally:
        data.close()


def test_a_new_file_has_statistics_of_its_footer(tmp_path: Path) -> None:
    """Statistics are by name; NaN is counted, and never a bound."""
    file = three_rows(tmp_path)
    assert file.row_count == 3
    assert file.size_bytes == Path(file.location).stat().st_size
    assert file.split_offsets == (4,)
    identity, price, note = (file.statistics[name] for name in ("id", "price", "note"))
    assert (identity.low, identity.high, identity.null_count) == (1, 3, 0)
    assert (price.low, price.high, price.null_count, price.nan_count) == (1.5, 1.5, 1, 1)
    assert (note.low, note.high, note.null_count, note.value_count) == ("a", "b", 1, 3)
    assert note.size_bytes > 0


def test_a_new_file_has_ids_and_physical_names(tmp_path: Path) -> None:
    """Readers find columns by them."""
    schema = pq.read_schema(three_rows(tmp_path).location)
    assert schema.names == ["id", "price", "col-3"]
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == [1, 2, 3]
    assert [field.nullable for field in schema] == [False, True, True]


def test_only_columns_with_repeated_values_get_a_dictionary(tmp_path: Path) -> None:
    """Check the footer: dictionaries of distinct values would make a file slower and larger."""
    columns = [LakeColumn(name=name, type="int64") for name in ("id", "kind.of", "none")]
    with DataWriter(f"{tmp_path}/a.parquet", columns, {}) as writer:
        writer.write([pa.array(range(50)), pa.array([7, 8] * 25), pa.nulls(50, pa.int64())])
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    found = [group.column(place).has_dictionary_page for place in range(3)]
    assert found[:2] == [False, True]


def test_a_file_without_rows_does_not_exist(tmp_path: Path) -> None:
    """No file is left to remove."""
    with DataWriter(f"{tmp_path}/a.parquet", [ID], {}) as writer:
        writer.write([pa.array([], pa.int64())])
    assert writer.new_file is None
    assert list(tmp_path.iterdir()) == []


def test_an_error_removes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups that were written before the error are not left."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 2)
    writer = DataWriter(f"{tmp_path}/a.parquet", [ID], {})
    writer.write([pa.array([1, 2, 3], pa.int64())])
    assert (tmp_path / "a.parquet").exists()
    assert writer.size_bytes > 0
    writer.__exit__(RuntimeError, RuntimeError(), None)
    assert list(tmp_path.iterdir()) == []


def test_null_in_a_column_that_allows_none_is_refused(tmp_path: Path) -> None:
    """A reader may read such a column without its marks of NULL."""
    writer = DataWriter(f"{tmp_path}/a.parquet", [ID], {})
    with pytest.raises(pa.ArrowInvalid, match="column id has a NULL"), writer:
        writer.write([pa.array([None], pa.int64())])


def test_an_existing_name_is_never_written_over(tmp_path: Path) -> None:
    """A late worker cannot change a file that a commit may have named."""
    three_rows(tmp_path)
    with pytest.raises(FileExistsError):
        three_rows(tmp_path)
    assert (tmp_path / "a.parquet").stat().st_size > 100


def test_columns_are_found_after_changes_of_shape(tmp_path: Path) -> None:
    """A renamed column by its id, a wider one by its present type, an added one by its value."""
    file = live(three_rows(tmp_path))
    renamed = replace(PRICE, name="cost", physical="")
    added = LakeColumn(name="size", type="int32", field_id=4, initial="7")
    empty = LakeColumn(name="more", type="string", field_id=5)
    found = read(file, renamed, added, empty, NOTE)
    assert str(found[0]) == "[nan, None, 1.5]"
    assert found[1:] == [[7, 7, 7], [None, None, None], [None, "b", "a"]]
    # A new column under the name of a dropped one has another id.
    assert read(file, replace(PRICE, field_id=9)) == [[None, None, None]]
    old = write(tmp_path, [LakeColumn(name="n", type="int32")], [pa.array([1, 2], pa.int32())], "b")
    assert read(live(old), LakeColumn(name="n", type="int64")) == [[1, 2]]
    assert read(live(old), LakeColumn(name="n", type="decimal(20,0)"))[0] == [1, 2]


def test_timestamps_of_spark_in_96_bits_are_read(tmp_path: Path) -> None:
    """Spark writes them when it rewrites files, for every year."""
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    file = LiveFile(name="a", location=str(path), size_bytes=1, row_count=2)
    assert read(file, LakeColumn(name="at", type="timestamptz")) == [moments]


def test_a_file_of_other_rows_or_types_is_refused(tmp_path: Path) -> None:
    """Positions in such a file would be those of other rows."""
    file = live(three_rows(tmp_path))
    with pytest.raises(DataFileUnfit, match="3 rows, expected 4"):
        DataFile(replace(file, row_count=4), {})
    with pytest.raises(DataFileUnfit, match="column note"):
        read(file, replace(NOTE, type="int64"))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(DataFileUnfit):
        DataFile(replace(file, location=str(broken)), {})
    with pytest.raises(CommitRefused):
        DataFile(replace(file, location=f"{tmp_path}/gone.parquet"), {})


@pytest.mark.parametrize("form", list(DeleteForm))
def test_deletions_are_read_as_they_were_written(tmp_path: Path, form: DeleteForm) -> None:
    """Each file has its own positions, and several deletions of one are joined."""
    files = [live(three_rows(tmp_path, name)) for name in "abc"]
    sets = [np.array([0, 2]), np.arange(5000), np.array([1])]
    deleted = [
        Deleted(file=file, positions=positions, added=1)
        for file, positions in zip(files, sets, strict=True)
    ]
    written = write_deleted(deleted, form, f"{tmp_path}/deletes", "0" * 16, {})
    assert [one.name for one in written] == [file.name for file in files]
    for file, one, positions in zip(files, written, sets, strict=True):
        assert one.ref.cardinality == len(positions)
        assert one.file_size_bytes == Path(one.ref.location).stat().st_size
        found = read_deleted(replace(file, deletes=(one.ref,)), {})
        assert found.tolist() == positions.tolist()
    more = write_deleted(
        [Deleted(file=files[0], positions=np.array([1]), added=1)],
        form,
        str(tmp_path),
        "1" * 16,
        {},
    )
    both = replace(files[0], deletes=(written[0].ref, more[0].ref))
    assert read_deleted(both, {}).tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", list(DeleteForm))
def test_broken_or_missing_deletions_are_refused(tmp_path: Path, form: DeleteForm) -> None:
    """Without them, deleted rows would come back."""
    file = live(three_rows(tmp_path))
    one = Deleted(file=file, positions=np.array([0, 2]), added=2)
    (written,) = write_deleted([one], form, str(tmp_path), "0" * 16, {})
    path = Path(written.ref.location)
    content = path.read_bytes()
    deleted = replace(file, deletes=(written.ref,))
    path.write_bytes(content[:20])
    with pytest.raises(DeletionCorrupt):
        read_deleted(deleted, {})
    path.unlink()
    with pytest.raises(CommitRefused):
        read_deleted(deleted, {})
    (tmp_path / "file").touch()
    with pytest.raises(DeletionFileFailed):
        write_deleted([one], form, f"{tmp_path}/file/below", "0" * 16, {})


SHAPE = relation(("id", "integer", "int32"), ("day", "date", "string"), ("note", "text", "string"))


def fill_table(folder: Path) -> PositionTable:
    """Return a table with two rows."""
    table = PositionTable(folder, SHAPE, lake_columns(SHAPE))
    rows = [(1, "2024-01-01", "a"), (2, None, "b")]
    table.apply([Change(op="I", gsn=at, after=row) for at, row in enumerate(rows, 1)])
    return table


def test_a_value_that_does_not_fit_names_its_column_and_choice(tmp_path: Path) -> None:
    """No row is staged; the message has no value."""
    table = fill_table(tmp_path)
    with pytest.raises(ValueRefused) as caught:
        table.apply([Change(op="U", gsn=3, after=(1, "infinity", "c"))])
    assert "column day of public.t (date) has 1 values that" in caught.value.message
    assert "infinity" not in caught.value.message
    assert '"public.t.day dates out of range" = "null"' in caught.value.hint
    assert len(table.rows()) == 2


def test_a_choice_applies_to_the_column(tmp_path: Path) -> None:
    """NULL where the user chose it."""
    given = {"dates out of range": "null"}
    choices = parse_choices(given, Engine.POSTGRESQL)
    table = fill_table(tmp_path)
    spec = replace(table.spec(9), choices=choices)
    table.spec = lambda _number=0: spec  # type: ignore[method-assign]
    table.apply([Change(op="U", gsn=3, after=(1, "infinity", "c"))])
    assert sorted(table.rows())[0] == (1, None, "c")


def test_a_column_that_is_left_out_is_not_written(tmp_path: Path) -> None:
    """Values of other columns are in their places, also of a row that is completed."""
    columns = lake_columns(SHAPE)
    table = PositionTable(tmp_path, SHAPE, (columns[0], None, columns[2]))
    table.apply([Change(op="I", gsn=1, after=(1, "infinity", "a"))])
    unsent = Change(
        op="U", gsn=2, after=(2, "infinity", "a"), before=(1, None, None), absent=frozenset({1, 2})
    )
    table.apply([unsent])
    assert table.rows() == [(2, "a")]


def test_a_folder_that_cannot_be_written_fails_by_name(tmp_path: Path) -> None:
    """Staging is repeated later."""
    (tmp_path / "data").touch()
    with pytest.raises(StagingFailed, match="rows of public"):
        fill_table(tmp_path)


def test_a_file_whose_bounds_exclude_each_key_is_not_opened(tmp_path: Path) -> None:
    """A batch of a few keys reads the footers of few files; this one does not even exist."""
    table = fill_table(tmp_path)
    table.apply([Change(op="D", gsn=3, before=(1, None, None))])
    (task,) = table._tasks(9, 1)
    far = replace(task.files[0], location=f"{tmp_path}/gone.parquet")
    (outcome,) = look_up(iter([replace(task, files=(far,))]))
    assert outcome.error is not None
    far = replace(far, bounds={task.key[0].name: (100, 200)})
    (outcome,) = look_up(iter([replace(task, files=(far, *task.files))]))
    assert outcome.error is None


def test_errors_of_a_lookup_are_its_outcome(tmp_path: Path) -> None:
    """Spark would pass on only their texts."""
    table = fill_table(tmp_path)
    table.apply([Change(op="D", gsn=3, before=(1, None, None))])
    (task,) = table._tasks(9, 1)
    Path(table.staged[0].keys).unlink()
    (outcome,) = look_up(iter([task]))
    assert isinstance(outcome.error, StagingChanged)
    assert outcome.table == task.table
    (outcome,) = look_up(iter([replace(task, staged=())]))
    assert isinstance(outcome.error, StagingChanged)
    gone = replace(task.files[0], location=f"{tmp_path}/gone.parquet")
    table.apply([Change(op="D", gsn=4, before=(2, None, None))])
    (task,) = table._tasks(10, 1)
    (outcome,) = look_up(iter([replace(task, files=(gone,))]))
    assert isinstance(outcome.error, CommitRefused)


def test_row_groups_that_cannot_have_a_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few row groups are read of a file in the order of its keys."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    shape = relation(("id", "bigint", "int64"), ("note", "text", "string"))
    table = PositionTable(tmp_path, shape, lake_columns(shape))
    rows = [(number, "a") for number in range(1000)]
    table.apply([Change(op="I", gsn=at, after=row) for at, row in enumerate(rows, 1)], sizes=[1000])
    table.apply([Change(op="D", gsn=1001, before=(550, None))])
    (one,) = table.outcomes
    whole = pq.read_metadata(table.files[0].location)
    group = whole.row_group(5).column(0).total_compressed_size
    assert one.scanned_bytes == group
    assert one.found_count == 1
    table.apply([Change(op="D", gsn=1002, before=(5000, None))])
    assert table.outcomes[0].scanned_bytes == 0
    # The worker has the keys in memory, but not those that were dropped since.
    table.apply([Change(op="D", gsn=1003, before=(551, None))])
    assert (table.outcomes[0].scanned_bytes, table.found_count()) == (0, 1)
    monkeypatch.setattr(parquet, "CACHE_BYTES_MAX", 1)
    table.apply([Change(op="D", gsn=1004, before=(750, None))])
    table.apply([Change(op="D", gsn=1005, before=(552, None))])
    assert (table.outcomes[0].scanned_bytes, table.found_count()) == (group, 1)
    parquet._cache.clear()


def test_a_writer_can_be_pickled_and_used_by_several_threads(tmp_path: Path) -> None:
    """Spark sends it to its workers; each call has files of its own."""
    table = fill_table(tmp_path)
    writer = pickle.loads(pickle.dumps(LakeWriter(table.spec(5))))
    assert writer.stamp == 5
    assert writer.layout.schema.field(0).type == pa.int64()
    frames = [writer.layout.batch(np.array([2]), [pa.array([7], pa.int32()), None, None])]
    done: list[Any] = []
    threads = [
        threading.Thread(target=lambda: done.append(writer.write(OneRow(frames)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.adds[0].location for one in done}) == 3


class OneRow:
    """Net rows of one insert; `NetRows`."""

    def __init__(self, frames: list[pa.RecordBatch]) -> None:
        self.counts = Counts(changes=1, upserts=1, new=1)
        self.any_unsent = False
        self.part = 0
        self._frames = frames

    def deletes(self) -> list[pa.RecordBatch]:
        """Return nothing."""
        return []

    def upserts(self) -> list[pa.RecordBatch]:
        """Return the row."""
        return self._frames
