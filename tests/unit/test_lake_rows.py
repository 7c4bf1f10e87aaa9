"""Live rows of data files, and the texts by which they are compared with a source's."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.codec.lake.deletion_vectors import make_vector
from penstock.codec.lake.position_deletes import make_position_deletes
from penstock.codec.lake.puffin import make_puffin
from penstock.codec.types.mapping import Form, Kind
from penstock.codec.types.source_type import Engine
from penstock.engines.lake import images
from penstock.engines.lake.format import (
    DeleteForm,
    DeletionRef,
    LakeColumn,
    LakeUnreachable,
    LiveFile,
)
from penstock.engines.lake.rows import read_rows
from penstock.model import TableName
from penstock.ports.verify import ComparedCell, Hasher, Part

COLUMNS = (
    LakeColumn(name="id", type="int64", field_id=1),
    LakeColumn(name="new", type="string", field_id=2),
    LakeColumn(name="added", type="int32", field_id=3, initial="7"),
    LakeColumn(name="later", type="date", field_id=4),
)
DEAD = np.array([0, 3, 70_000], dtype=np.int64)
ROW_COUNT = 70_002


def write_file(folder: Path) -> Path:
    """Write a file from before two columns were added, one renamed, and one widened."""
    path = folder / "data.parquet"
    schema = pa.schema(
        [
            pa.field("old", pa.string(), metadata={"PARQUET:field_id": "2"}),
            pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"}),
        ]
    )
    numbers = list(range(ROW_COUNT))
    pq.write_table(pa.table([list(map(str, numbers)), numbers], schema=schema), path)
    return path


def delete(form: DeleteForm, folder: Path, name: str) -> DeletionRef:
    """Return the reference to deletions in a form."""
    if form is DeleteForm.DELTA:
        vector = make_vector(DEAD)
        return DeletionRef(form=form, size_bytes=len(vector), cardinality=3, inline=vector)
    path = folder / "deletes"
    if form is DeleteForm.POSITIONS:
        path.write_bytes(make_position_deletes(name, DEAD))
        return DeletionRef(form=form, location=str(path), cardinality=3)
    content, (blob,) = make_puffin([(name, DEAD)])
    path.write_bytes(content)
    return DeletionRef(
        form=form,
        location=str(path),
        offset=blob.offset,
        size_bytes=blob.size_bytes,
        cardinality=3,
    )


@pytest.mark.parametrize("form", DeleteForm)
def test_rows_of_an_older_file(form: DeleteForm, tmp_path: Path) -> None:
    """Deleted rows are left out; columns have their present names, types and values."""
    path = write_file(tmp_path)
    name = f"file:{path}"
    file = LiveFile(
        name=name,
        location=str(path),
        size_bytes=path.stat().st_size,
        row_count=ROW_COUNT,
        deletes=(delete(form, tmp_path, name),),
    )
    table = pa.Table.from_batches(read_rows(file, COLUMNS, {}))
    live = [number for number in range(ROW_COUNT) if number not in DEAD]
    assert table.column("id").to_pylist() == live
    assert table.column("new").to_pylist() == list(map(str, live))
    assert table.schema.types == [pa.int64(), pa.string(), pa.int32(), pa.date32()]
    assert set(table.column("added").to_pylist()) == {7}
    assert table.column("later").null_count == len(live)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """The message names it."""
    file = LiveFile(name="x", location=f"{tmp_path}/gone.parquet", size_bytes=1, row_count=1)
    with pytest.raises(LakeUnreachable, match=r"gone\.parquet"):
        list(read_rows(file, COLUMNS, {}))


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (Kind.BOOLEAN, pa.array([True, False, None]), ["1", "0", None]),
        (Kind.INTEGER, pa.array([1, -2], pa.int32()), ["1", "-2"]),
        (Kind.INTEGER, pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), [str(2**64 - 1)]),
        (
            Kind.DECIMAL,
            pa.array([Decimal("0.0000000001"), Decimal("-5"), None], pa.decimal128(38, 10)),
            ["0.0000000001", "-5.0000000000", None],
        ),
        (Kind.NUMBER, pa.array([Decimal("1.50"), Decimal("100")], pa.decimal128(5, 2)),
         ["1.5", "100"]),
        (
            Kind.FLOAT,
            pa.array([1.5, 0.0, -0.0, 5e-324, float("nan"), float("-inf"), None]),
            ["6755399441055744e0", "0", "0", "4503599627370496e-1074", "NaN", "-Infinity", None],
        ),
        (Kind.TEXT, pa.array(["a", "", None]), ["a", "", None]),
        (Kind.PADDED, pa.array(["a  ", None]), ["a", None]),
        (Kind.BYTES, pa.array([b"\0\xff", None]), ["00ff", None]),
        (Kind.RAW_TEXT, pa.array(["é"]), ["c3a9"]),
        (Kind.DATE, pa.array([date(1, 1, 1), date(9999, 12, 31)]), ["0001-01-01", "9999-12-31"]),
        (
            Kind.TIMESTAMP,
            pa.array(["0001-01-01", "2024-02-29T10:00:00.12"]).cast(pa.timestamp("us")),
            ["0001-01-01 00:00:00", "2024-02-29 10:00:00.12"],
        ),
        (
            Kind.TIMESTAMPTZ,
            pa.array([datetime(2024, 2, 29, 10, 20, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            ["2024-02-29 10:20:00"],
        ),
        (
            Kind.GEOMETRY,
            pa.array(["0101000020e6100000" + "0" * 32, "0101000000" + "0" * 32]),
            ["e61000000101000000" + "0" * 32, "00000000" + "0101000000" + "0" * 32],
        ),
    ],
)  # fmt: skip
def test_texts_of_values(kind: Kind, values: pa.Array, texts: list[str | None]) -> None:
    """Texts are those that PostgreSQL prints."""
    assert images.text_of(values, kind).to_pylist() == texts


def test_every_kind_names_its_printer() -> None:
    """A template of a lake is the kind's name, whatever the details."""
    for kind in Kind:
        assert Form(kind=kind, fraction=3, width=4).sql(Engine.DELTA) == f"{kind.name} {{}}"


def cell(name: str, kind: Kind, **flags: Any) -> ComparedCell:
    """Return a compared column."""
    text = Form(kind=kind).sql(Engine.ICEBERG)
    given = {"is_any": False, "is_long": False, "is_bytes": False, **flags}
    return ComparedCell(name=name, text=text, **given)


def test_images_and_hashes() -> None:
    """An image tells NULL from every text, and its numbers are those of SHA-256."""
    rows = pa.record_batch({"id": [1, 2], "t": ["a|N", None], "b": [b"x", b"y"]})
    image = images.image(
        [
            cell("id", Kind.INTEGER),
            cell("t", Kind.TEXT, is_any=True),
            cell("b", Kind.BYTES, is_long=True, is_bytes=True),
        ],
        [cell("id", Kind.INTEGER)],
    )
    key, row = json.loads(image.key), json.loads(image.row)
    texts = images.join_cells(rows, row).to_pylist()
    assert texts == [f"1|3:a|N|{sha256(b'x').hexdigest()}", f"2|N|{sha256(b'y').hexdigest()}"]
    hashes = images.hash_rows(rows, key, row)
    digest = sha256(texts[0].encode()).digest()
    assert hashes[0, 2:].tolist() == [
        int.from_bytes(digest[at : at + 8], signed=True) for at in (0, 8)
    ]
    assert images.name_rows(rows, key) == ["(1)", "(2)"]


def test_sums_of_buckets_have_more_than_64_bits() -> None:
    """A server's sum of numbers of 64 bits does not overflow either."""
    hashes = np.array([[5, 0, 2**63 - 1, 0], [5, 0, 2**63 - 1, 0], [6, 0, -(2**63), 0]], np.int64)
    assert images.add_up(hashes, 64) == [(5, 2, 2**64 - 2, 0), (6, 1, -(2**63), 0)]
    assert images.add_up(hashes[:0], 64) == []


def test_questions_are_texts() -> None:
    """A question names the parts of one table, and the wanted numbers."""
    image = images.image([cell("id", Kind.INTEGER)], [])
    assert image.key == image.row
    part = Part(relation=TableName("public", "a"), where="0 3")
    asked = json.loads(images.rows_query(image, [part], 64, [np.int64(3)], Hasher.SHARED))
    assert (asked["parts"], asked["numbers"]) == ([["public", "a", "0 3"]], [3])
