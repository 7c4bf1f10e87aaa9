"""Delta's log, without Java: statistics, paths, deletion vectors, shapes, replay of actions."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engines.delta.places import (
    folder_name,
    location_of,
    make_vector,
    name_of_folder,
    parse_vector,
    path_of,
)
from penstock.engines.delta.shape import (
    change_metadata,
    change_protocol,
    check_features,
    columns_of,
    is_wider,
    lake_type,
    new_metadata,
    new_protocol,
    plan_column,
)
from penstock.engines.delta.state import Replay, mark_numbers, parse_mark, plan_actions
from penstock.engines.delta.statistics import (
    TEXT_CHARACTERS,
    high_text,
    low_text,
    make_statistics,
    read_bounds,
    read_row_count,
    widen_bounds,
)
from penstock.engines.lake.format import (
    Change,
    ChangeKind,
    ColumnStatistics,
    Commit,
    CommitRefused,
    DeleteForm,
    DeletionRef,
    FeatureNeeded,
    FeatureUnknown,
    LakeColumn,
    LakeFailed,
    Mark,
    NewDeletes,
    NewFile,
)

FOLDER = "/a lake/public/orders"
COLUMNS = (
    LakeColumn(name="id", type="int64", nullable=False),
    LakeColumn(name="note", type="string"),
)
METADATA = new_metadata(COLUMNS, table_id="t", created_ms=1, key=["id"], record="r")
PROTOCOL = new_protocol(METADATA)


def column(kind: str) -> tuple[LakeColumn, ...]:
    """Return one column x."""
    return (LakeColumn(name="x", type=kind),)


def no_count(location: str) -> int:
    """Fail: all statistics name their rows."""
    raise AssertionError(location)


VALUES = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "decimal(38,10)": st.decimals(
        min_value=-(10**27), max_value=10**27, allow_nan=False, places=10
    ),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(UTC)),
    "string": st.text(max_size=2 * TEXT_CHARACTERS),
}


class TestStatistics:
    @given(
        st.sampled_from(sorted(VALUES)).flatmap(
            lambda kind: st.tuples(st.just(kind), st.lists(VALUES[kind], min_size=1, max_size=5))
        )
    )
    def test_bounds_are_never_narrower_than_the_values(self, case: tuple[str, list[Any]]) -> None:
        kind, values = case
        found = ColumnStatistics(low=min(values), high=max(values))
        text = make_statistics(len(values), {"x": found}, column(kind))
        assert read_row_count(text) == len(values)
        bounds = read_bounds(text, column(kind))
        if "x" in bounds:
            low, high = bounds["x"]
            assert low <= min(values)
            assert high >= max(values)
        elif kind not in ("float64", "timestamp", "timestamptz"):
            assert high_text(kind, max(values)) == ""

    @pytest.mark.parametrize(
        ("kind", "low", "high", "texts"),
        [
            ("int64", -5, 2**63 - 1, ("-5", "9223372036854775807")),
            ("decimal(38,10)", Decimal("-1E+3"), Decimal("1.50"), ("-1000", "1.50")),
            ("date", date(1, 1, 1), date(9999, 12, 31), ('"0001-01-01"', '"9999-12-31"')),
            (
                "timestamp",
                datetime.fromisoformat("2026-01-01T00:00:00.000999"),
                datetime.fromisoformat("2026-01-01T00:00:00.000001"),
                ('"2026-01-01T00:00:00.000"', '"2026-01-01T00:00:00.001"'),
            ),
            (
                "timestamptz",
                datetime.fromisoformat("2026-01-01T02:00:00+02:00"),
                datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"),
                ('"2026-01-01T00:00:00.000Z"', ""),
            ),
            ("float64", float("-inf"), 1.5, ("", "1.5")),
            ("bool", False, True, ("", "")),
            ("binary", b"a", b"b", ("", "")),
            ("string", "a" * 33, "\U0010ffff" * 33, (json.dumps("a" * 32), "")),
        ],
    )
    def test_bounds_as_texts(self, kind: str, low: Any, high: Any, texts: tuple[str, str]) -> None:
        assert (low_text(kind, low), high_text(kind, high)) == texts

    def test_columns_after_the_first_ones_have_none_except_of_the_key(self) -> None:
        columns = [LakeColumn(name=f"c{number}", type="int64") for number in range(40)]
        found = {one.name: ColumnStatistics(low=1, high=2) for one in columns}
        read = json.loads(make_statistics(3, found, columns, ["c39"]))
        assert set(read["minValues"]) == {*(f"c{number}" for number in range(32)), "c39"}

    def test_nan_leaves_no_bounds_and_nulls_are_counted(self) -> None:
        found = ColumnStatistics(low=1.0, high=2.0, nan_count=1, null_count=4)
        read = json.loads(make_statistics(9, {"x": found}, column("float64")))
        assert read == {"numRecords": 9, "nullCount": {"x": 4}}

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "nonsense", '{"minValues":{"x":"?"},"maxValues":{"x":1}}']
    )
    def test_statistics_that_cannot_be_read_are_none(self, text: str) -> None:
        assert read_bounds(text, column("int64")) == {}
        assert read_row_count(text) is None
        assert json.loads(widen_bounds(text, 7)) == {"numRecords": 7, "tightBounds": False}

    def test_bounds_with_deleted_rows_are_not_tight(self) -> None:
        text = '{"numRecords":3,"minValues":{"x":1},"maxValues":{"x":2.50}}'
        wide = widen_bounds(text, 3)
        assert wide == text[:-1] + ',"tightBounds":false}'
        assert widen_bounds(wide, 3) == wide
        assert widen_bounds('{"numRecords":3,"tightBounds":true}', 3) == (
            '{"numRecords":3,"tightBounds":false}'
        )


class TestPlaces:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
    def test_names_of_folders_are_read_back(self, name: str) -> None:
        folder = folder_name(name)
        assert name_of_folder(folder) == name
        assert "/" not in folder
        assert folder[0] not in "._"

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1))
    def test_paths_are_read_back(self, name: str) -> None:
        location = f"{FOLDER}/{name}"
        assert location_of(path_of(location, FOLDER), FOLDER) == location

    @pytest.mark.parametrize(
        ("path", "location"),
        [
            ("part-0.parquet", f"{FOLDER}/part-0.parquet"),
            ("a%20b/c%25.parquet", f"{FOLDER}/a b/c%.parquet"),
            ("file:/else/x%20y.parquet", "/else/x y.parquet"),
            ("file:///else/x.parquet", "/else/x.parquet"),
            ("s3a://bucket/x.parquet", "s3://bucket/x.parquet"),
        ],
    )
    def test_paths_of_other_writers(self, path: str, location: str) -> None:
        assert location_of(path, FOLDER) == location

    def test_files_elsewhere_have_no_path(self) -> None:
        with pytest.raises(ValueError, match="not below"):
            path_of("/else/x.parquet", FOLDER)

    @pytest.mark.parametrize(
        ("location", "storage"),
        [
            (f"{FOLDER}/deletion_vector_11111111-2222-4333-8444-555555555555.bin", "u"),
            (f"{FOLDER}/ab/deletion_vector_11111111-2222-4333-8444-555555555555.bin", "u"),
            (f"{FOLDER}/other name.bin", "p"),
            ("s3://bucket/other.bin", "p"),
        ],
    )
    def test_deletion_vectors_are_read_back(self, location: str, storage: str) -> None:
        ref = DeletionRef(
            form=DeleteForm.DELTA, location=location, offset=1, size_bytes=34, cardinality=2
        )
        made = make_vector(ref, FOLDER)
        assert made["storageType"] == storage
        assert parse_vector(made, FOLDER) == ref

    def test_an_inline_vector_is_read_back(self) -> None:
        ref = DeletionRef(form=DeleteForm.DELTA, size_bytes=5, cardinality=1, inline=b"abcde")
        assert parse_vector(make_vector(ref, FOLDER), FOLDER) == ref


FLOATS = new_metadata([LakeColumn(name="at", type="float64")], table_id="1", created_ms=0)[
    "schemaString"
]


class TestShape:
    @pytest.mark.parametrize(
        "kind",
        [
            "bool",
            "int32",
            "int64",
            "float32",
            "float64",
            "decimal(38,10)",
            "date",
            "timestamp",
            "timestamptz",
            "string",
            "binary",
        ],
    )
    def test_types_are_read_back(self, kind: str) -> None:
        metadata = new_metadata(column(kind), table_id="t", created_ms=1)
        assert columns_of(metadata) == column(kind)
        wanted = {"deletionVectors"} | ({"timestampNtz"} if kind == "timestamp" else set())
        assert set(new_protocol(metadata)["readerFeatures"]) == wanted

    @pytest.mark.parametrize("kind", ["short", {"type": "array"}, "variant"])
    def test_other_types_are_none_of_ours(self, kind: Any) -> None:
        assert lake_type(kind) == ""

    @pytest.mark.parametrize(
        ("before", "after", "can"),
        [
            ("int32", "int64", True),
            ("int64", "int32", False),
            ("int32", "decimal(10,0)", True),
            ("int32", "decimal(12,3)", False),
            ("int64", "decimal(20,0)", True),
            ("int64", "float64", False),
            ("decimal(5,2)", "decimal(7,4)", True),
            ("decimal(5,2)", "decimal(6,4)", False),
            ("decimal(5,2)", "decimal(7,1)", False),
            ("date", "timestamp", True),
            ("int32", "string", False),
            ("string", "decimal(5,2)", False),
        ],
    )
    def test_type_widening(self, before: str, after: str, can: bool) -> None:
        assert is_wider(before, after) is can

    def test_features_are_added_to_the_protocol_when_needed(self) -> None:
        same = change_metadata(
            METADATA,
            [Change(kind=ChangeKind.ADD, name="a", column=LakeColumn(name="a", type="int32"))],
        )
        assert change_protocol(PROTOCOL, same) is None
        mapped = change_metadata(METADATA, [Change(kind=ChangeKind.DROP, name="note")])
        changed = change_protocol(PROTOCOL, mapped)
        assert changed is not None
        assert {"columnMapping", "deletionVectors"} == set(changed["readerFeatures"])
        with pytest.raises(FeatureNeeded, match="columnMapping"):
            change_protocol({"minReaderVersion": 1, "minWriterVersion": 2}, mapped)

    def test_a_name_that_was_dropped_and_added_twice_is_refused(self) -> None:
        again = plan_column(METADATA, "note", "int32", field_id=0)
        assert again.physical == "note-2"
        changes = [
            Change(kind=ChangeKind.DROP, name="note"),
            Change(kind=ChangeKind.ADD, name="note", column=again),
            Change(kind=ChangeKind.RENAME, name="note", column=LakeColumn(name="b", type="int32")),
            Change(kind=ChangeKind.ADD, name="note", column=again),
        ]
        with pytest.raises(FeatureNeeded, match="one name in its files"):
            change_metadata(METADATA, changes)

    def test_a_column_that_is_missing_is_named(self) -> None:
        with pytest.raises(FeatureNeeded, match="no column gone to drop"):
            change_metadata(METADATA, [Change(kind=ChangeKind.DROP, name="gone")])

    @pytest.mark.parametrize(
        ("metadata", "protocol", "feature"),
        [
            ({"partitionColumns": ["at"], "schemaString": FLOATS}, {}, "partitions by a column"),
            ({"configuration": {"delta.constraints.c": "id > 0"}}, {}, "checkConstraints"),
            ({"configuration": {"delta.enableRowTracking": "true"}}, {}, "rowTracking"),
            ({}, {"writerFeatures": ["deletionVectors", "catalogManaged"]}, "catalogManaged"),
            ({}, {"readerFeatures": ["soonInvented"]}, "soonInvented"),
            ({}, {"minReaderVersion": 4}, "protocol 4, 7"),
        ],
    )
    def test_features_that_are_not_written_are_named(
        self, metadata: Any, protocol: Any, feature: str
    ) -> None:
        with pytest.raises(FeatureUnknown, match=feature):
            check_features("public.orders", {**METADATA, **metadata}, {**PROTOCOL, **protocol})


def text_of(*actions: dict[str, Any]) -> str:
    """Return a version of the log."""
    return "\n".join(json.dumps(action) for action in actions)


def add_of(path: str, rows: int, vector: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an add action."""
    action = {
        "path": path,
        "partitionValues": {},
        "size": 9,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"add": {**action, **({"deletionVector": vector} if vector else {})}}


class TestReplay:
    def replay(self, *versions: str) -> Replay:
        replay = Replay(FOLDER, no_count)
        replay.add_version(0, text_of({"metaData": METADATA}, {"protocol": PROTOCOL}))
        for version, text in enumerate(versions, 1):
            replay.add_version(version, text)
        return replay

    def test_a_file_comes_back_with_its_vector_in_either_order(self) -> None:
        ref = DeletionRef(form=DeleteForm.DELTA, size_bytes=3, cardinality=1, inline=b"abc")
        add = add_of("a.parquet", 5, make_vector(ref, FOLDER))
        remove = {"remove": {"path": "a.parquet", "deletionTimestamp": 1}}
        for text in (text_of(remove, add), text_of(add, remove)):
            state = self.replay(text_of(add_of("a.parquet", 5)), text).state()
            assert [file.dead_count for file in state.snapshot.files] == [1]
            assert state.touched == 2

    def test_commits_that_touch_no_file_are_told_from_others(self) -> None:
        replay = self.replay(
            text_of(add_of("a.parquet", 5)),
            text_of({"commitInfo": {}}, {"txn": {"appId": "x", "version": 7}}),
        )
        state = replay.state()
        assert (state.version, state.touched, dict(state.numbers)) == (2, 1, {"x": 7})

    def test_rows_of_a_file_without_statistics_are_counted(self) -> None:
        add = add_of("a.parquet", 5)
        add["add"].pop("stats")
        replay = Replay(FOLDER, lambda location: 3 if location == f"{FOLDER}/a.parquet" else 0)
        replay.add_version(0, text_of({"metaData": METADATA}, {"protocol": PROTOCOL}, add))
        state = replay.state()
        assert state.snapshot.files[0].row_count == 3
        ref = DeletionRef(form=DeleteForm.DELTA, size_bytes=3, cardinality=1, inline=b"abc")
        commit = Commit(base_version=0, deletes=(NewDeletes(name="a.parquet", ref=ref),))
        made = plan_actions(state, commit, now_ms=1).adds[0]
        assert json.loads(made["stats"]) == {"numRecords": 3, "tightBounds": False}

    def test_a_log_without_metadata_is_refused(self) -> None:
        replay = Replay(FOLDER, no_count)
        replay.add_version(0, text_of({"protocol": PROTOCOL}))
        with pytest.raises(LakeFailed, match="no metadata"):
            replay.state()

    @given(st.integers(-1, 2**62), st.integers(0, 2**62), st.integers(0, 2**127 - 1), st.booleans())
    def test_marks_are_read_back(self, segment: int, gsn: int, position: int, other: bool) -> None:
        mark = Mark(log_id="a", segment=segment, gsn=gsn, position=position, commit_time_us=-gsn)
        numbers = mark_numbers(mark)
        assert all(-(2**63) <= number < 2**63 for number in numbers.values())
        if other:
            numbers |= mark_numbers(Mark(log_id="b", gsn=1))
        assert parse_mark("a", numbers) == mark
        assert parse_mark("c", numbers) is None

    def test_a_commit_makes_the_state_that_its_actions_are_replayed_to(self) -> None:
        before = self.replay(text_of(add_of("a.parquet", 5), add_of("b.parquet", 2))).state()
        ref = DeletionRef(form=DeleteForm.DELTA, size_bytes=3, cardinality=1, inline=b"abc")
        all_rows = DeletionRef(form=DeleteForm.DELTA, size_bytes=3, cardinality=2, inline=b"abc")
        new = NewFile(
            location=f"{FOLDER}/n w.parquet",
            size_bytes=5,
            row_count=4,
            statistics={"id": ColumnStatistics(low=1, high=4)},
        )
        column = plan_column(METADATA, "more", "timestamp", field_id=0)
        commit = Commit(
            base_version=1,
            adds=(new,),
            deletes=(
                NewDeletes(name="a.parquet", ref=ref),
                NewDeletes(name="b.parquet", ref=all_rows),
                NewDeletes(name=new.location, ref=ref),
            ),
            changes=(Change(kind=ChangeKind.ADD, name="more", column=column),),
            mark=Mark(log_id="a", gsn=5, segment=1),
            record="new",
        )
        made = plan_actions(before, commit, now_ms=7)
        assert (made.metadata, made.protocol) != (None, None)
        lines: list[dict[str, Any]] = [{"metaData": made.metadata}, {"protocol": made.protocol}]
        lines += [{"txn": {"appId": app, "version": n}} for app, n in made.numbers.items()]
        lines += [{"remove": one} for one in made.removes] + [{"add": one} for one in made.adds]
        replay = Replay(FOLDER, no_count, before)
        replay.add_version(2, text_of(*lines))
        assert replay.state().snapshot == made.after.snapshot
        assert replay.state().touched == made.after.touched == 2
        files = {file.name: file for file in made.after.snapshot.files}
        assert {name: file.dead_count for name, file in files.items()} == {
            "a.parquet": 1,
            "n%20w.parquet": 1,
        }
        assert files["n%20w.parquet"].bounds == {"id": (1, 4)}
        assert made.after.snapshot.mark == commit.mark

    def test_files_that_are_not_live_are_refused(self) -> None:
        state = self.replay().state()
        with pytest.raises(CommitRefused, match="not live"):
            plan_actions(state, Commit(base_version=0, removes=("gone",)), now_ms=1)

    def test_vectors_need_their_feature(self) -> None:
        replay = Replay(FOLDER, no_count)
        plain = {**METADATA, "configuration": {}}
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        replay.add_version(
            0, text_of({"metaData": plain}, {"protocol": protocol}, add_of("a.parquet", 5))
        )
        ref = DeletionRef(form=DeleteForm.DELTA, size_bytes=3, cardinality=1, inline=b"abc")
        commit = Commit(base_version=0, deletes=(NewDeletes(name="a.parquet", ref=ref),))
        with pytest.raises(FeatureNeeded, match="no deletion vectors"):
            plan_actions(replay.state(), commit, now_ms=1)
