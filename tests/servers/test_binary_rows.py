"""Rows of a chunk in COPY's binary format: the values are those that text COPY gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness.servers.postgres_types import SETUP, has_xml, rows_of, values_for
from harness.twins.pgoutput import assert_same_batch
from penstock.base.manifest import read_file
from penstock.base.shapes import convert_rows
from penstock.codec.columns import after_type
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.exact_text import exact_texts
from penstock.codec.lines import LineDialect
from penstock.codec.postgres.copy_binary_decode import CopyDecoder
from penstock.engines.postgres.connect import connect, literal
from penstock.engines.postgres.source import binary_rows, bulk_reader, copy_frames
from penstock.engines.postgres.source.bulk_reader import (
    BEGIN_READ,
    PostgresBulkReader,
    open_reader,
)
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.snapshot import StorageChunk, copy_sql
from penstock.load import base_job
from penstock.load.base_job import ReadTask
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.bulk import Chunk, ChunkTask, ShapedRows
from penstock.ports.registry import part
from penstock.sql.read_plan import RELATION_OF_PART
from plugins.postgres import Server

T = TableName("public", "t")
MORE = """
    create type kinds.empty as ();
    create type kinds.shape as (a int);
    create function kinds.shout(kinds.shape) returns text language sql immutable
        as 'select ''another text''';
    create cast (kinds.shape as text) with function kinds.shout(kinds.shape) as assignment;
"""


def relation_of(url: str) -> Relation:
    """Return the table in the log's shape."""
    with open_catalog(url) as catalog:
        [definition] = captured_tables(catalog, ["public.t"])
    found: Relation = part(url, RELATION_OF_PART)(definition)
    return found


@contextmanager
def reading(
    url: str, *, only: str = "", expressions: dict[str, str] | None = None
) -> Iterator[tuple[PostgresBulkReader, ChunkTask, Relation]]:
    """Give a worker's session in a new snapshot, the task of the whole table, and its shape.

    only: a condition. expressions: what is selected in place of a column.
    """
    relation = relation_of(url)
    columns = tuple(column.name for column in relation.columns)
    chunk = StorageChunk(
        table=T,
        number=0,
        storage_oid=1,
        storage=T,
        first_block=0,
        last_block=None,
        condition=only,
        size_bytes=0,
        row_estimate=0,
    )
    copy_out = copy_sql(chunk, columns)
    for name, expression in (expressions or {}).items():
        copy_out = copy_out.replace(f'"{name}"', expression, 1)
    with connect(url, application_name="test") as holder:
        holder.execute(BEGIN_READ)
        row = holder.execute("select pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        task = ChunkTask(
            source_url=url,
            target_url="",
            table=T,
            target=T,
            chunk=Chunk(number=0, relation=T, copy_out=copy_out),
            columns=columns,
            binary=False,
            snapshot_id=row[0],
            snapshot_text=row[1],
            plan="",
            replica_role=False,
        )
        reader = open_reader(url, *row)
        assert reader is not None
        try:
            assert not reader.was_rewritten(task)
            yield reader, task, relation
        finally:
            reader.close()


def by_text(url: str, **more: Any) -> list[ShapedRows]:
    """Return the rows by text COPY."""
    found = []
    with reading(url, **more) as (reader, task, relation):
        for block in reader.lines(task, LineDialect.COPY):
            columns = cells_of(block, len(relation.columns))
            rows = inserts(relation, columns, len(columns[0]), gsn=1, trx=1)
            relation = rows.relation
            arrays = rows.batch.column("after").flatten()
            schema = pa.schema(list(after_type(relation)))
            found.append(ShapedRows(relation, pa.RecordBatch.from_arrays(arrays, schema=schema)))
    return found


def by_binary(url: str, **more: Any) -> list[ShapedRows]:
    """Return the rows by binary COPY."""
    with reading(url, **more) as (reader, task, relation):
        batches = reader.batches(task, relation)
        assert batches is not None
        return list(batches)


def texts(found: list[ShapedRows]) -> dict[str, list[str | None]]:
    """Return each column's values as exact texts, by name."""
    [*_, last] = found
    return {
        column.name: [
            text
            for rows in found
            for text in exact_texts(rows.batch.column(at), rows.relation.columns[at].neutral)
        ]
        for at, column in enumerate(last.relation.columns)
    }


def run(url: str, *statements: str) -> None:
    """Execute statements."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def every_type(source_url: str, postgres_version: int) -> dict[str, str]:
    """Create a table with a column of each type, with its extremes; types by column."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute(SETUP)
        connection.execute(MORE)
        values = values_for(postgres_version, set(), with_xml=has_xml(connection))
        values['kinds."empty"'] = ["()"]
        values["kinds.shape"] = ["(1)", "()"]
        values["point[]"] = ['{"(0.1,-0)"}']
        names = {f"c{place}": kind for place, kind in enumerate(values)}
        listed = ", ".join(f"{name} {kind}" for name, kind in names.items())
        connection.execute(f"create table public.t (id int primary key, {listed})".encode())
        for place, row in enumerate(rows_of(values)):
            cells = ", ".join("null" if text is None else literal(text) for text in row)
            connection.execute(f"insert into public.t values ({place}, {cells})".encode())
    return names


@pytest.mark.each_server
def test_every_type_has_the_text_of_text_copy(
    every_type: dict[str, str], source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value with its extremes, NULLs, and values that a type cannot hold; also row by row."""
    expected, found = by_text(source_url), by_binary(source_url)
    assert {(one.relation.columns[0].neutral, one.relation.name) for one in found} == {
        ("int32", "t")
    }
    same, seen = texts(expected), texts(found)
    assert len(seen["id"]) > 10
    assert seen["id"] == same["id"]
    differing = {
        every_type[name]: (one, other)
        for name in every_type
        for one, other in zip(same[name], seen[name], strict=True)
        if one != other
    }
    assert differing == {}
    last = {column.name: column.neutral for column in found[-1].relation.columns}
    assert last == {column.name: column.neutral for column in expected[-1].relation.columns}
    monkeypatch.setattr(copy_frames, "plain", lambda _: False)
    for one, other in zip(by_binary(source_url), found, strict=True):
        assert one.relation == other.relation
        assert_same_batch(one.batch, other.batch)


@pytest.mark.each_server
def test_rows_that_fit_are_equal_bit_by_bit(every_type: dict[str, str], source_url: str) -> None:
    """No column becomes text by either way, and the batches have the same bits."""
    fit = {
        "c_date": "date '0044-03-15 BC' + n",
        "c_time": "time '00:00:00.000001' + n * interval '1.1 s'",
        "c_at": "timestamp '1899-12-31 23:59:59.999999' + n * interval '31.001 days'",
        "c_tz": "timestamptz '2024-02-29 12:00:00.5+05:30' - n * interval '3 months'",
        "c_num": "(n * 1.05 - 300)::numeric(12,2)",
        "c_wide": "(n * 1e20 / 7)::numeric(38,10)",
        "c_neg": "(n * 100)::numeric(10,-2)"
        if server_major(source_url) >= 15
        else "n::numeric(10)",
        "c_free": "n / 7.0",
        "c_f8": "case n % 5 when 0 then '-0'::float8 when 1 then '-NaN'::float8"
        " when 2 then '-Infinity'::float8 else n / 3.0::float8 end",
        "c_f4": "(n / 3.0::float8)::float4",
        "c_doc": "jsonb_build_object('n', n, 'text', repeat('ä表', n % 7))",
        "c_null": "nullif(n % 3, 0)",
        "c_bytes": "decode(md5(n::text), 'hex')",
        "c_uuid": "md5(n::text)::uuid",
        "c_flag": "n % 2 = 0",
        "c_char": "left('ab', n % 3)::char(5)",
    }
    listed = ", ".join(f"{expression} as {name}" for name, expression in fit.items())
    run(
        source_url,
        "drop table public.t",
        f"create table public.t as select n, {listed} from generate_series(1, 20000) n",
    )
    expected, found = by_text(source_url), by_binary(source_url)
    shape = found[0].relation
    assert {column.neutral for column in shape.columns} >= {"date", "decimal(38,10)", "float32"}
    assert all(one.relation == shape for one in (*expected, *found))
    assert len(expected) > 1
    assert_same_batch(join_batches(expected), join_batches(found))


def server_major(url: str) -> int:
    """Return the server's major version."""
    with psycopg.connect(url) as connection:
        return connection.info.server_version // 10_000


def join_batches(found: list[ShapedRows]) -> pa.RecordBatch:
    """Return all rows as one batch."""
    table = pa.Table.from_batches([one.batch for one in found]).combine_chunks()
    [batch] = table.to_batches()
    return batch


def test_a_value_that_does_not_fit_makes_the_rest_text(source_url: str) -> None:
    """Rows before it keep their type; the relation of the rest is a new version."""
    run(
        source_url,
        "create table public.t (id int primary key, at timestamptz, n numeric(8,2))",
        "insert into public.t select n, timestamptz '2024-02-29 12:00:00+00', n from"
        " generate_series(1, 9) n",
        "update public.t set at = 'infinity' where id = 4",
        "update public.t set n = 'NaN' where id = 7",
        "vacuum full public.t",
    )
    run(source_url, "cluster public.t using t_pkey")
    found = by_binary(source_url)
    kinds = [[column.neutral for column in one.relation.columns] for one in found]
    assert kinds == [
        ["int32", "timestamptz", "decimal(8,2)"],
        ["int32", "string", "decimal(8,2)"],
        ["int32", "string", "string"],
    ]
    assert [one.batch.num_rows for one in found] == [3, 3, 3]
    assert [one.relation.version for one in found] == [1, 2, 3]
    assert texts(found) == texts(by_text(source_url))


def test_expressions_and_conditions(source_url: str) -> None:
    """The query may select expressions, and only some rows."""
    run(
        source_url,
        "create table public.t (id int primary key, v text, d date)",
        "insert into public.t select n, 'v' || n, date '2024-01-01' + n from"
        " generate_series(1, 99) n",
    )
    more = {
        "only": "id between 10 and 20",
        "expressions": {"v": "reverse(v)", "d": "(d + 1)::date"},
    }
    found = texts(by_binary(source_url, **more))
    assert found == texts(by_text(source_url, **more))
    assert found["v"][0] == "01v"
    assert by_binary(source_url, only="id < 0") == []


def test_what_has_no_binary_form_stays_text(source_url: str) -> None:
    """An expression of another type, columns that differ, and a table without columns."""
    run(source_url, "create table public.t (id int primary key, v int)")
    with reading(source_url, expressions={"v": "v::int8"}) as (reader, task, relation):
        assert reader.batches(task, relation) is None
    with reading(source_url, expressions={"v": "v, v"}) as (reader, task, relation):
        assert reader.batches(task, relation) is None
    run(source_url, "drop table public.t", "create table public.t ()")
    relation = Relation(schema="public", name="t", columns=())
    with connect(source_url, application_name="test") as connection:
        made = binary_rows.open_batches(
            connection,
            'copy (select  from only "public"."t") to stdout',
            relation,
            labels=(),
            doing="x",
        )
        assert made is None


def test_errors_of_the_server_are_typed(source_url: str) -> None:
    """An error after some rows, and one of the query itself."""
    run(
        source_url,
        "create table public.t (id int primary key, v int)",
        "insert into public.t select n, 5000 - n from generate_series(1, 9999) n",
    )
    with reading(source_url, expressions={"v": "(100 / v)"}) as (reader, task, relation):
        batches = reader.batches(task, relation)
        assert batches is not None
        with pytest.raises(PenstockError) as caught:
            list(batches)
        assert caught.value.fields["sqlstate"] == "22012"
    with reading(source_url, expressions={"v": "missing"}) as (reader, task, relation):
        with pytest.raises(PenstockError) as caught:
            reader.batches(task, relation)
        assert caught.value.fields["sqlstate"] == "42703"


@pytest.mark.parametrize(
    ("name", "value", "code"), [("ended", False, "DC72"), ("row_count", 7, "LD40")]
)
def test_a_copy_that_ends_early_is_refused(
    source_url: str, monkeypatch: pytest.MonkeyPatch, name: str, value: int, code: str
) -> None:
    """Without the trailer, or with fewer rows than the server counted, rows may be missing."""
    run(source_url, "create table public.t (id int)", "insert into public.t values (1), (2)")
    other = type("Other", (CopyDecoder,), {name: property(lambda _: value, lambda _, __: None)})
    monkeypatch.setattr(binary_rows, "make_copy_decoder", lambda *given: other(*given))
    with pytest.raises(PenstockError) as caught:
        by_binary(source_url)
    assert caught.value.code == code


def test_labels_of_enums_go_as_they_are(source_url: str) -> None:
    """The binary form of a label is its text, so the server need not print it."""
    run(
        source_url,
        "create type public.mood as enum ('sad', 'ok')",
        "create table public.t (id int primary key, v public.mood)",
        "insert into public.t values (1, 'ok'), (2, null)",
    )
    found = by_binary(source_url)
    assert texts(found) == {"id": ["1", "2"], "v": ["ok", None]} == texts(by_text(source_url))


def test_under_tls_rows_are_the_same(tls_postgres: Server) -> None:
    """There the frames come by calls of libpq, row by row."""
    url = tls_postgres.make_database("binary_rows")
    try:
        run(
            url,
            "create table public.t (id int primary key, v text, n numeric)",
            "insert into public.t select n, repeat('ä', n % 99), n / 3.0 from"
            " generate_series(1, 30000) n",
        )
        assert texts(by_binary(url)) == texts(by_text(url))
    finally:
        tls_postgres.drop_database(url)


def test_bases_of_both_ways_are_equal(
    every_type: dict[str, str],
    source_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files of a base that was read by text and of one that was read in binary hold equal rows."""

    def base(folder: Path) -> tuple[Relation, list[dict[str, Any]]]:
        folder.mkdir()
        with reading(source_url) as (_, task, relation):
            outcome = base_job._read(
                ReadTask(chunk=task, relation=relation, dialect=LineDialect.COPY, directory=folder)
            )
        shape = outcome.written[-1].relation
        rows = [
            row
            for written in outcome.written
            for file in written.files
            for row in convert_rows(
                read_file(folder, file, written.relation), written.relation, shape
            ).to_pylist()
        ]
        return shape, sorted(rows, key=lambda row: int(row["id"]))

    binary = base(tmp_path / "binary")
    monkeypatch.setattr(bulk_reader, "open_batches", lambda *_, **__: None)
    text = base(tmp_path / "text")
    columns = [(column.name, column.neutral) for column in binary[0].columns]
    assert columns == [(column.name, column.neutral) for column in text[0].columns]
    assert len(binary[1]) > 10
    assert repr(binary[1]) == repr(text[1])  # NaN is not equal to itself
