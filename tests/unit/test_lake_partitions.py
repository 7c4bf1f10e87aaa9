"""Partitions of lake tables: terms, transforms as pyiceberg has them, rows by partition."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import mmh3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import transforms as theirs
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import date_to_days

from penstock.codec.types import lake_arrow_type
from penstock.engines.iceberg.partition import decode_partition, encode_partition, spec_json
from penstock.engines.lake import partitioned_files
from penstock.engines.lake.format import LakeColumn, LiveFile, PartitionField, Transform
from penstock.engines.lake.murmur3 import hash_bytes, hash_longs
from penstock.engines.lake.parquet import DataFile
from penstock.engines.lake.partitioned_files import PartitionedWriter
from penstock.engines.lake.partitions import (
    PartitionUnfit,
    Term,
    apply_transform,
    constant_array,
    parse_term,
    parse_terms,
    refuse_type,
    resolve_terms,
    split_rows,
    texts_of,
)
from penstock.engines.lake.rewrite import RewriteTask, rewrite_files
from penstock.engines.lake.rows import read_rows
from penstock.engines.lake.upkeep import Limits, choose_files
from penstock.model import TableName
from penstock.ports.target import ValueRefused

ORDERS = TableName("public", "orders")
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001
CASES = {
    "int32": (IntegerType(), st.integers(-(2**31) + 100, 2**31 - 1)),
    "int64": (LongType(), st.integers(-(2**63) + 100, 2**63 - 1)),
    "date": (DateType(), st.dates()),
    "timestamp": (TimestampType(), MOMENTS),
    "timestamptz": (TimestamptzType(), MOMENTS.map(lambda one: one.replace(tzinfo=dt.UTC))),
    "string": (StringType(), st.text(st.characters(exclude_categories=["Cs"]))),
    "binary": (BinaryType(), st.binary()),
    "decimal(12,2)": (DecimalType(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    "decimal(38,0)": (
        DecimalType(38, 0),
        st.integers(-(10**38) + 100, 10**38 - 1).map(Decimal),
    ),
}
THEIRS = {
    Transform.YEAR: theirs.YearTransform(),
    Transform.MONTH: theirs.MonthTransform(),
    Transform.DAY: theirs.DayTransform(),
    Transform.HOUR: theirs.HourTransform(),
    Transform.BUCKET: theirs.BucketTransform(7),
    Transform.TRUNCATE: theirs.TruncateTransform(7),
}


def field_of(kind: str, transform: Transform, argument: int = 0, **more: Any) -> PartitionField:
    """Return a field of a column `c`."""
    return PartitionField(
        source=LakeColumn(name="c", type=kind), transform=transform, argument=argument, **more
    )


class TestTerms:
    @pytest.mark.parametrize(
        ("text", "term"),
        [
            ("region", Term(column="region", transform=Transform.IDENTITY)),
            (" a b ", Term(column="a b", transform=Transform.IDENTITY)),
            ("day(created_at)", Term(column="created_at", transform=Transform.DAY)),
            (
                "bucket( 16 , id )",
                Term(column="id", transform=Transform.BUCKET, argument=16),
            ),
            (
                "truncate(3, a, b)",
                Term(column="a, b", transform=Transform.TRUNCATE, argument=3),
            ),
            ("identity(day(x))", Term(column="day(x)", transform=Transform.IDENTITY)),
        ],
    )
    def test_a_term_is_read_and_shown(self, text: str, term: Term) -> None:
        assert parse_term(text) == term
        assert parse_term(str(term)) == term

    @pytest.mark.parametrize(
        ("texts", "reason"),
        [
            ([], "1 to 32"),
            ([" "], "must name columns"),
            (["days(at)"], "not a transform; known are identity, year"),
            (["bucket(id)"], "takes a number first"),
            (["day(3, at)"], "takes no number"),
            (["bucket(0, id)"], "from 1 to"),
            (["day(at)", "hour(at)"], "one is enough"),
            (["a", "identity(a)"], "one is enough"),
        ],
    )
    def test_a_wrong_term_is_refused(self, texts: list[str], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            parse_terms(texts)

    def test_a_format_without_transforms_says_what_to_write(self) -> None:
        with pytest.raises(ValueError, match=r"day\(at\), and Delta Lake partitions by columns"):
            parse_terms(["day(at)"], has_transforms=False)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("gone", "column gone, which the table does not have"),
            ("hour(day)", "hour.day. is for timestamps, and day is date"),
            ("year(id)", "for dates and timestamps"),
            ("ratio", "all types but floats"),
            ("bucket(2, ratio)", "all types but booleans and floats"),
            ("truncate(2, day)", "integers, decimals"),
        ],
    )
    def test_a_term_that_the_table_cannot_have_is_named(self, text: str, reason: str) -> None:
        columns = [
            LakeColumn(name=name, type=kind)
            for name, kind in (("id", "int64"), ("day", "date"), ("ratio", "float64"))
        ]
        with pytest.raises(PartitionUnfit, match=reason) as refused:
            resolve_terms([parse_term(text)], columns, ORDERS, is_delta=False)
        assert "[target] partition" in refused.value.hint

    def test_delta_takes_columns_whose_text_is_their_value(self) -> None:
        term = parse_term("c")
        fit = {"bool", "int32", "int64", "date", "string", "decimal(5,2)"}
        kinds = {*fit, "timestamp", "timestamptz", "binary", "float64"}
        assert {kind for kind in kinds if not refuse_type(term, kind, is_delta=True)} == fit


class TestTransforms:
    def test_hashes_are_those_of_the_specification(self) -> None:
        assert hash_longs(pa.array([34]).to_numpy()).view("int32").tolist() == [2017239379]
        found = hash_bytes([b"iceberg", b"\0\1\2\3"]).view("int32").tolist()
        assert found == [1210000089, -188683207]

    @given(st.lists(st.binary(max_size=70)))
    def test_hashes_of_bytes(self, values: list[bytes]) -> None:
        assert hash_bytes(values).view("int32").tolist() == [mmh3.hash(one) for one in values]

    @pytest.mark.parametrize("transform", list(THEIRS))
    @pytest.mark.parametrize("kind", list(CASES))
    @given(data=st.data())
    def test_values_are_those_of_pyiceberg(
        self, kind: str, transform: Transform, data: st.DataObject
    ) -> None:
        argument = 7 if transform in (Transform.BUCKET, Transform.TRUNCATE) else 0
        term = Term(column="c", transform=transform, argument=argument)
        their_type, values = CASES[kind]
        their_transform: Any = THEIRS[transform]
        if refuse_type(term, kind):
            assert not their_transform.can_transform(their_type)
            return
        rows = data.draw(st.lists(st.none() | values, min_size=1))
        apply = their_transform.transform(their_type)
        expected = [None if one is None else apply(_internal(one)) for one in rows]
        found = apply_transform(
            field_of(kind, transform, argument), pa.array(rows, lake_arrow_type(kind))
        )
        assert found.to_pylist() == expected

    @given(data=st.data())
    @pytest.mark.parametrize("kind", [*CASES, "bool"])
    def test_a_value_of_a_partition_comes_back_from_its_text(
        self, kind: str, data: st.DataObject
    ) -> None:
        values = st.booleans() if kind == "bool" else CASES[kind][1]
        value = data.draw(st.none() | values)
        array = pa.array([value], lake_arrow_type(kind))
        text = texts_of(array)[0]
        assert constant_array(text, kind, 2).to_pylist() == [value, value]
        column = field_of(kind, Transform.IDENTITY)
        encoded = json.loads(json.dumps(encode_partition([column], (text,))))
        assert decode_partition([column], encoded) == (text,)


def _internal(value: Any) -> Any:
    """Return a value as pyiceberg's transforms take it."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    return date_to_days(value) if isinstance(value, dt.date) else value


class TestIceberg:
    def test_names_of_fields_are_those_of_iceberg_but_for_columns(self) -> None:
        columns = [LakeColumn(name=name, type="date") for name in ("at", "at_day")]
        fields = [
            PartitionField(source=columns[0], transform=Transform.DAY),
            PartitionField(source=columns[0], transform=Transform.BUCKET, argument=4),
            PartitionField(source=columns[1], transform=Transform.IDENTITY),
        ]
        described = json.loads(spec_json(fields, columns))["fields"]
        assert [one["name"] for one in described] == ["at_day_", "at_bucket", "at_day"]
        assert [one["transform"] for one in described] == ["day", "bucket[4]", "identity"]
        assert [one["source-id"] for one in described] == [1, 1, 2]

    def test_a_day_is_a_date(self) -> None:
        day = field_of("timestamp", Transform.DAY)
        assert encode_partition([day], ("-1",)) == ["1969-12-31"]
        assert decode_partition([day], ["1969-12-31"]) == ("-1",)

    def test_a_moment_without_seconds_is_as_with_them(self) -> None:
        at = field_of("timestamptz", Transform.IDENTITY)
        for text in ("2024-01-02T03:04", "2024-01-02T03:04:00", "2024-01-02T03:04:00.000"):
            assert decode_partition([at], [f"{text}+00:00"]) == ("2024-01-02T03:04:00.000000",)


COLUMNS = (LakeColumn(name="id", type="int64"), LakeColumn(name="c", type="string"))


def rows_of(*pairs: tuple[int, str | None]) -> list[pa.Array]:
    """Return the columns of rows."""
    ids, texts = zip(*pairs, strict=True)
    return [pa.array(ids, pa.int64()), pa.array(texts, pa.string())]


class TestRows:
    FIELDS = (field_of("string", Transform.IDENTITY),)

    def test_rows_keep_their_order_in_each_partition(self) -> None:
        rows = rows_of((1, "b"), (2, None), (3, ""), (4, "b"), (5, None))
        found = {
            partition: arrays[0].to_pylist()
            for partition, arrays in split_rows(self.FIELDS, COLUMNS, rows, table=ORDERS)
        }
        assert found == {("b",): [1, 4], (None,): [2, 5], ("",): [3]}

    def test_a_renamed_column_is_known_by_its_name_in_files(self) -> None:
        renamed = (COLUMNS[0], LakeColumn(name="new", type="string", physical="c"))
        ((partition, _),) = split_rows(self.FIELDS, renamed, rows_of((1, "x")), table=ORDERS)
        assert partition == ("x",)

    def test_rows_without_the_column_are_in_the_partition_of_null(self) -> None:
        rows = split_rows(self.FIELDS, COLUMNS[:1], rows_of((1, "x"))[:1], table=ORDERS)
        assert [partition for partition, _ in rows] == [(None,)]

    @pytest.mark.parametrize(
        ("text", "said"),
        [("", "an empty text"), ("__HIVE_DEFAULT_PARTITION__", "the text __HIVE_DEFAULT")],
    )
    def test_a_text_that_would_become_null_is_refused(self, text: str, said: str) -> None:
        fields = (field_of("string", Transform.IDENTITY, empty_is_null=True),)
        with pytest.raises(ValueRefused, match=rf"column c of public\.orders has {said}"):
            list(split_rows(fields, COLUMNS, rows_of((1, "x"), (2, text)), table=ORDERS))


class TestFiles:
    FIELDS = (field_of("string", Transform.IDENTITY),)

    def writer(self, folder: Path, **more: Any) -> PartitionedWriter:
        return PartitionedWriter(str(folder / "f"), COLUMNS, {}, self.FIELDS, table=ORDERS, **more)

    def test_each_partition_has_a_file(self, tmp_path: Path) -> None:
        with self.writer(tmp_path) as writer:
            writer.write(rows_of((1, "a"), (2, "b")))
            writer.write(rows_of((3, "a")))
        assert sorted((one.partition, one.row_count) for one in writer.new_files) == [
            (("a",), 2),
            (("b",), 1),
        ]
        for file in writer.new_files:
            assert set(pq.read_table(file.location).column("c").to_pylist()) == set(file.partition)

    def test_a_file_is_ended_at_its_size(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(partitioned_files, "WAITING_BYTES_MAX", 0)
        with self.writer(tmp_path, file_bytes=1) as writer:
            for number in range(3):
                writer.write(rows_of((number, "a")))
                writer.write(rows_of((number, "a")))
        assert sum(one.row_count for one in writer.new_files) == 6
        assert len(writer.new_files) == 3

    def test_few_files_are_open_and_few_rows_wait(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(partitioned_files, "WAITING_BYTES_MAX", 0)
        monkeypatch.setattr(partitioned_files, "OPEN_MAX", 2)
        with self.writer(tmp_path) as writer:
            for number in range(20):
                writer.write(rows_of((number, str(number % 5))))
                begun = [one for one in writer._open.values() if one.size_bytes]
                assert len(begun) <= 2
                assert not any(one.waiting_bytes for one in begun)
        found = [row for one in writer.new_files for row in pq.read_table(one.location).to_pylist()]
        assert sorted(row["id"] for row in found) == list(range(20))

    def test_an_error_leaves_no_open_file(self, tmp_path: Path) -> None:
        writer = self.writer(tmp_path)
        writer.write(rows_of((1, "a")))
        writer._open["a",].flush()
        assert list(tmp_path.iterdir())
        error = pa.ArrowInvalid("of the rows")
        writer.__exit__(type(error), error, None)
        assert not list(tmp_path.iterdir())


def live(file: Any, **more: Any) -> LiveFile:
    """Return a file as a live one."""
    return LiveFile(
        name=file.location,
        location=file.location,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        **more,
    )


class TestLiveFiles:
    def test_a_file_without_the_column_has_the_value_of_its_partition(self, tmp_path: Path) -> None:
        with PartitionedWriter(
            str(tmp_path / "f"), COLUMNS[:1], {}, TestRows.FIELDS, table=ORDERS
        ) as writer:
            writer.write(rows_of((1, ""), (2, ""))[:1])
        file = live(writer.new_files[0], partition=("é/ x",), constants={"c": "é/ x"})
        (batch,) = read_rows(file, COLUMNS, {})
        assert batch.to_pylist() == [{"id": 1, "c": "é/ x"}, {"id": 2, "c": "é/ x"}]
        data = DataFile(file, {})
        assert data.read(0, COLUMNS[1]).to_pylist() == ["é/ x"] * 2
        data.close()
        task = RewriteTask(
            files=(file,), before=COLUMNS, columns=COLUMNS, location=str(tmp_path / "again.parquet")
        )
        (outcome,) = rewrite_files(iter([task]))
        assert outcome.file is not None
        assert outcome.file.partition == ("é/ x",)
        assert pq.read_table(outcome.file.location).column("c").to_pylist() == ["é/ x"] * 2

    def test_files_of_one_partition_are_joined_among_themselves(self) -> None:
        def small(number: int, partition: str | None) -> LiveFile:
            return LiveFile(
                name=str(number),
                location="",
                size_bytes=100,
                row_count=1,
                partition=(partition,),
            )

        files = [small(number, "ab"[number % 2]) for number in range(6)] + [small(6, None)]
        groups = choose_files(files, Limits(count=3))
        assert [{one.partition for one in group} for group in groups] == [{("a",)}, {("b",)}]
        assert all(len(group) == 3 for group in groups)
