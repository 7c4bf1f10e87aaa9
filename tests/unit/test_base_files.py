"""Files of the base and their rows: what is checked when they are read, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.pipelines.changes import Change, batch, relation
from harness.pipelines.log import ITEM, ITEM_2
from penstock.base import manifest as manifests
from penstock.base.fold import FoldedRows, LogInconsistent, encode, fold
from penstock.base.manifest import (
    BaseCorrupt,
    BaseFile,
    BaseTable,
    Manifest,
    columns_schema,
    load_manifest,
    read_file,
    remove_others,
    save_manifest,
    write_files,
)
from penstock.base.shapes import (
    ShapeUnfit,
    convert_rows,
    copied_at,
    keeps_rows,
    note_copied,
    widest,
)
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.model import Column, Relation


def batch_of(shape: Relation, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    """Return rows in the form in which a file has them."""
    names = [column.name for column in shape.columns]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(found, schema=columns_schema(shape))


def values(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a batch."""
    return [tuple(row.values()) for row in found.to_pylist()]


# -- files -----------------------------------------------------------------------------------------


def test_rows_are_written_once_in_files_of_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file has the rest; empty batches create no file."""
    one, none = batch_of(ITEM, (1, "a"), (2, "b")), batch_of(ITEM)
    monkeypatch.setattr(manifests, "FILE_BYTES", one.nbytes * 2)
    files = list(write_files(tmp_path, ITEM, [none, one, one, none, one], place=3))
    assert [(file.row_count, file.relation) for file in files] == [(4, 3), (2, 3)]
    found = [row for file in files for row in values(read_file(tmp_path, file, ITEM))]
    assert found == values(one) * 3


@pytest.mark.parametrize("change", [{"row_count": 3}, {"size_bytes": 7}, {"crc32c": 1}])
def test_a_file_that_is_not_the_manifests_gives_no_rows(tmp_path: Path, change: Any) -> None:
    """A file with another row count, size or checksum is refused."""
    (file,) = write_files(tmp_path, ITEM, [batch_of(ITEM, (1, "a"), (2, "b"))])
    with pytest.raises(BaseCorrupt, match=file.name):
        read_file(tmp_path, replace(file, **change), ITEM)


def test_a_file_of_another_shape_gives_no_rows(tmp_path: Path) -> None:
    """The columns must be those of its relation, in order."""
    (file,) = write_files(tmp_path, ITEM, [batch_of(ITEM, (1, "a"))])
    with pytest.raises(BaseCorrupt, match="columns"):
        read_file(tmp_path, file, ITEM_2)


def test_only_files_that_no_manifest_names_are_removed(tmp_path: Path) -> None:
    """The manifest, the files that it names and held files stay."""
    kept, other = (next(write_files(tmp_path, ITEM, [batch_of(ITEM, (n, "a"))])) for n in range(2))
    (tmp_path / "held" / "serve").mkdir(parents=True)
    table = BaseTable(schema="public", name="item", relations=(ITEM,), files=(kept,))
    made = Manifest(log_id="a" * 32, number=1, segment=0, gsn=0, tables=(table,))
    save_manifest(tmp_path, made)
    assert remove_others(tmp_path, made) == 1
    assert load_manifest(tmp_path) == made
    assert read_file(tmp_path, kept, ITEM).num_rows == 1
    assert not (tmp_path / other.name).exists()
    assert (tmp_path / "held" / "serve").is_dir()


def test_a_base_is_complete_where_its_last_table_is() -> None:
    """The base is complete at the last table's point, or where its rows are of one moment."""
    file = BaseFile(name="x", row_count=1, size_bytes=1, crc32c=1)
    table = BaseTable(
        schema="public", name="item", relations=(ITEM,), files=(file,), ordinal="5", settled="5"
    )
    later = replace(table, name="own", ordinal="7", settled="9")
    made = Manifest(log_id="a" * 32, number=1, segment=0, gsn=0, tables=(later, table))
    assert made.complete_at == 9
    assert replace(made, tables=(table,)).complete_at == 5
    assert replace(made, tables=()).complete_at == 0


# -- shapes ----------------------------------------------------------------------------------------


def number_columns(shape: Relation, *ids: int) -> Relation:
    """Return a shape whose columns have identities."""
    columns = [replace(one, id=number) for one, number in zip(shape.columns, ids, strict=True)]
    return replace(shape, columns=tuple(columns))


def test_a_column_is_known_by_its_identity() -> None:
    """A column that was dropped and added again under its name has no old values."""
    old, again = number_columns(ITEM, 1, 2), number_columns(ITEM, 1, 3)
    rows = batch_of(ITEM, (1, "old"))
    assert values(convert_rows(rows, old, again)) == [(1, None)]
    renamed = replace(old, columns=(old.columns[0], replace(old.columns[1], name="title")))
    assert values(convert_rows(rows, old, renamed)) == [(1, "old")]


def test_a_column_of_copied_rows_is_known_by_its_name_at_that_time() -> None:
    """The log has its identity: it was renamed, or dropped and added again, after the copy."""
    rows, copied = batch_of(ITEM, (1, "old")), note_copied(ITEM, 70)
    key, name = number_columns(ITEM, 1, 2).columns
    then = name.name
    for names, wanted in (
        (((0, then), (71, "title")), "old"),
        (((0, "title"), (71, then)), None),
        (((0, then.upper()), (71, "title")), "old"),
        (((71, then),), None),
        (((69, then),), "old"),
        ((), "old"),
    ):
        last = names[-1][1] if names else then
        new = replace(ITEM, columns=(key, replace(name, name=last, names=names)))
        assert values(convert_rows(rows, copied, new)) == [(1, wanted)], names


def test_nothing_is_noted_of_a_copy_whose_columns_have_identities() -> None:
    """Identities are more exact than names."""
    assert note_copied(number_columns(ITEM, 1, 2), 70) == number_columns(ITEM, 1, 2)
    assert copied_at(note_copied(number_columns(ITEM, 1, 2), 70)) is None
    assert copied_at(note_copied(ITEM, 70)) == 70


def test_copied_rows_are_rows_of_a_shape_with_the_same_columns() -> None:
    """The log's base sends them again unless a column is another one since the copy."""
    copied, now = note_copied(ITEM, 70), number_columns(ITEM, 1, 2)
    key, name = now.columns
    assert not copied.same_shape(now)
    assert keeps_rows(copied, now)
    assert keeps_rows(now, replace(now, version=3, since=80))
    other = [
        replace(
            now, columns=(key, replace(name, names=((0, name.name), (71, "title")), name="title"))
        ),
        replace(now, columns=(key, replace(name, names=((0, "title"), (71, name.name))))),
        replace(now, columns=(key, replace(name, source_type="varchar(9)"))),
        replace(now, columns=(key, replace(name, neutral="binary"))),
        replace(now, columns=(key,)),
        replace(now, columns=(key, name, replace(name, name="more", id=3))),
        replace(now, columns=(name, key)),
        replace(now, key=(0, 1)),
        replace(now, source_id=now.source_id + 1),
    ]
    assert [keeps_rows(copied, one) for one in other] == [False] * len(other)


def test_a_new_column_has_the_value_that_rows_have_of_it() -> None:
    """The source says it: there, too, the value is not written into existing rows."""
    price = replace(ITEM_2.columns[2], missing="1.50")
    new = replace(ITEM_2, columns=(*ITEM.columns, price))
    assert values(convert_rows(batch_of(ITEM, (1, "a")), ITEM, new)) == [(1, "a", Decimal("1.50"))]


@pytest.mark.parametrize(
    ("neutral", "old", "new", "is_kept"),
    [
        ("timestamp", "timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp", "timestamp without time zone", "timestamp(3) without time zone", False),
        ("timestamp", "timestamp(3) without time zone", "timestamp(5) without time zone", True),
        ("time", "time(3)", "time(6)", True),
        ("time", "time(3)", "time", False),
        ("timestamp", "datetime(3)", "datetime(6)", True),
        ("timestamp", "datetime(3)", "datetime", False),
        ("timestamp", "datetime", "datetime(3)", True),
        ("timestamp", "datetime", "timestamp", False),
        ("timestamptz", "timestamp(0) with time zone", "timestamp with time zone", True),
        ("date", "date", "week", False),
    ],
)
def test_a_time_keeps_its_values_with_more_digits(
    neutral: str, old: str, new: str, is_kept: bool
) -> None:
    """The server rewrites no row then."""
    before, after = shape(neutral, old), shape(neutral, new)
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(1, kind.type) for kind in columns_schema(before)], schema=columns_schema(before)
    )
    if is_kept:
        assert values(convert_rows(rows, before, after)) == [(None,)]
    else:
        with pytest.raises(ShapeUnfit):
            convert_rows(rows, before, after)


def shape(neutral: str, source_type: str) -> Relation:
    """Return a table of one column."""
    column = Column(name="v", source_type=source_type, neutral=neutral)
    return Relation(schema="public", name="t", columns=(column,), key=(0,), before=(0,))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (shape("float64", "double precision"), shape("float64", "float")),
        (shape("float64", "double precision"), shape("string", "text")),
    ],
)
def test_values_that_the_server_may_have_changed_are_not_taken_over(
    old: Relation, new: Relation
) -> None:
    """The log does not have them: the table is read again."""
    with pytest.raises(ShapeUnfit):
        convert_rows(batch_of(old), old, new)


@pytest.mark.parametrize(
    ("old", "new", "value", "wanted"),
    [
        (shape("int32", "integer"), shape("int64", "bigint"), 7, 7),
        (shape("int32", "integer"), shape("string", "text"), -7, "-7"),
        (
            shape("decimal(10,2)", "numeric(10,2)"),
            shape("decimal(12,3)", "numeric(12,3)"),
            Decimal("1.25"),
            Decimal("1.250"),
        ),
        (shape("string", "varchar(5)"), shape("string", "varchar(9)"), "a", "a"),
    ],
)
def test_values_that_stay_the_same_are_taken_over(
    old: Relation, new: Relation, value: Any, wanted: Any
) -> None:
    """Every value of the old type is a value of the new type."""
    assert values(convert_rows(batch_of(old, (value,)), old, new)) == [(wanted,)]


def test_a_column_kept_as_text_stays_text() -> None:
    """The column's own type cannot hold the old values; one that is text at the source is
    different.
    """
    text = ITEM_2.with_text_column(2)
    assert widest(ITEM_2, [text]).columns[2].neutral == "string"
    other = replace(text, columns=(*text.columns[:2], replace(text.columns[2], source_type="text")))
    assert widest(ITEM_2, [other]) == ITEM_2


# -- net rows --------------------------------------------------------------------------------------


def test_keys_of_many_columns_are_not_mixed() -> None:
    """The number of their combinations exceeds 64 bits: the first column still counts."""
    count = 1024
    numbers = list(range(count))
    first = pa.array([*numbers, *(n + 1 for n in numbers[:-1]), 0])
    others = [pa.array(numbers * 2) for _ in range(8)]
    keys = encode([[first], *([one] for one in others)], [[pa.array([0])] for _ in range(9)])
    assert keys.size == 2 * count
    assert len(set(keys.after.tolist())) == 2 * count
    assert keys.before.tolist() == [keys.after[0]]


def test_zeros_of_two_signs_are_one_key_and_two_rows() -> None:
    """An index treats them as equal; a row without a key is identified by all of its bits."""
    zeros = [pa.array([0.0, -0.0])]
    assert encode([zeros], [[]]).size == 1
    assert encode([zeros], [[]], whole_rows=True).size == 2


TABLE = relation(("k", "integer", "int32"), ("a", "text", "string"), ("b", "text", "string"))


def fold_changes(
    *changes: Change, again: tuple[Change, ...] = (), **more: Any
) -> list[dict[str, Any]]:
    """Return the net rows of changes for a target."""
    frames = [batch(TABLE, changes)]
    rows = FoldedRows(
        net=fold(TABLE, frames, **more),
        layout=MergeLayout(TABLE),
        frames=[batch(TABLE, again)] if again else frames,
    )
    return [row for part in (*rows.deletes(), *rows.upserts()) for row in part.to_pylist()]


def test_an_unsent_value_is_never_that_of_another_row() -> None:
    """The value is taken from the row's own changes, or from the target."""
    first = Change(op="U", gsn=1, after=(1, None, "y"), absent=frozenset({1}))
    second = Change(op="U", gsn=2, after=(2, "z", None), absent=frozenset({2}))
    found = {
        row["k"]: (row["a"], row["b"], row["wk$absent"]) for row in fold_changes(first, second)
    }
    assert found == {1: (None, "y", b"\2"), 2: ("z", None, b"\4")}


def test_an_unsent_value_of_an_inserted_row_is_an_error() -> None:
    """The row's key may be that of another row in the target."""
    with pytest.raises(LogInconsistent, match="unsent columns"):
        fold_changes(Change(op="I", gsn=1, after=(1, "x", None), absent=frozenset({2})))


def test_an_unsent_value_that_a_moved_row_may_have_elsewhere_is_marked() -> None:
    """The value is marked only if the target may have some of the changes."""
    unsent = frozenset({2})
    moved = Change(op="U", gsn=1, before=(1, None, None), after=(2, "x", None), absent=unsent)
    frames = [batch(TABLE, [moved])]
    assert fold(TABLE, frames, overlaps=True).is_mixed
    assert not fold(TABLE, frames).is_mixed
    back = Change(op="U", gsn=2, before=(2, None, None), after=(1, "x", None), absent=unsent)
    assert fold(TABLE, [batch(TABLE, [moved, back])], overlaps=True).is_mixed
    whole = replace(moved, after=(2, "x", "y"), absent=frozenset())
    assert not fold(TABLE, [batch(TABLE, [whole])], overlaps=True).is_mixed
    stays = Change(op="U", gsn=1, after=(1, "x", None), absent=unsent)
    assert not fold(TABLE, [batch(TABLE, [stays])], overlaps=True).is_mixed


def test_other_frames_at_the_second_reading_are_an_error() -> None:
    """The numbers of changes would refer to other rows."""
    one, two = (Change(op="I", gsn=n, after=(n, "x", "y")) for n in (1, 2))
    with pytest.raises(LogInconsistent, match="second reading"):
        fold_changes(one, two, again=(one,))
