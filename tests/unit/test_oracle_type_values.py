"""Values of every type of SQL Server in Oracle, compared as verify compares them.

The values are those that SQL Server's driver returns; both sides' texts are printed by penstock, so
no server is needed. Values of PostgreSQL and MySQL go through a run with their servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from harness.servers.sqlserver_types import SERVER, TYPES, choices_of, definition, driver_batch
from harness.servers.sqlserver_types import source_texts as texts_of_source
from penstock.codec.columns import arrow_type
from penstock.codec.image_cells import ImageCell, parse_template
from penstock.codec.lines import LineDialect
from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.oracle.row_images import image_batch
from penstock.codec.row_images import text_of
from penstock.codec.sqlserver.columns import SourceColumn, make_columns
from penstock.codec.types import Choices, Engine, Mapping, Server, map_column
from penstock.codec.types.mapping import Kind
from penstock.codec.types.prepare import ValueRefused
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.engines.oracle.target.chunk import insert_rows
from penstock.engines.oracle.target.chunk_rows import ChunkSpec
from penstock.engines.oracle.target.direct_path import Heaps
from penstock.engines.oracle.target.progress import transaction
from penstock.model import Column, PenstockError, Relation, TableName
from penstock.ports.bulk import BulkReader, Chunk, ChunkTask, Lines, ShapedRows
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server as OracleServer
from sim_oracle.texts import KnownTexts

ORACLE = Server(engine=Engine.ORACLE, version=(19,))
NAME = TableName("SHOP", "V")
NULLED = choices_of({"empty values": "null"})
STRICT = choices_of({"empty values": "error"})


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A session of a database without tables."""
    server = OracleServer(Database("ORCL", pdbs=["SHOPPDB"]), texts=KnownTexts(None))
    address = install(monkeypatch, server)
    with closing(
        connect(f"oracle://c%23%23penstock:secret@{address}/shoppdb", autocommit=True)
    ) as made:
        yield made


class OneBatch(BulkReader):
    """Reader of one batch."""

    def __init__(self, rows: ShapedRows) -> None:
        self._rows = rows

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return that it was not."""
        del task
        return False

    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """Refuse: there are only batches."""
        raise NotImplementedError

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows]:
        """Yield the rows."""
        del task, relation
        yield self._rows

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return that it does not."""
        del error
        return False

    def close(self) -> None:
        """Do nothing."""


def rows_of(type_text: str) -> ShapedRows:
    """Return the values of a type in the log's shape, with their numbers."""
    made = make_columns(driver_batch(type_text), [SourceColumn.of("v", type_text)])
    (column,) = made.columns
    relation = Relation(
        schema="dbo",
        name="t",
        columns=(
            Column(name="id", source_type="int", neutral="int32"),
            Column(name="v", source_type=type_text, neutral=column.neutral),
        ),
        key=(0,),
    )
    values = made.arrays[0]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int32()), values.cast(arrow_type(column.neutral))],
        names=["id", "v"],
    )
    return ShapedRows(relation, batch)


def carry(
    session: Connection, type_text: str, choices: Choices, *, is_direct: bool = False
) -> Mapping:
    """Copy the values of a type into a table of Oracle; return the type's mapping."""
    mapping = map_column(definition(type_text), SERVER, ORACLE, choices=choices)
    session.run(f'CREATE TABLE "SHOP"."V" ("id" NUMBER(10), "v" {mapping.target_type})')
    rows = rows_of(type_text)
    spec = ChunkSpec(relation=rows.relation, source_engine="sqlserver", choices=choices)
    task = ChunkTask(
        source_url="", target_url="", table=TableName("dbo", "t"), target=NAME,
        chunk=Chunk(number=0, relation=NAME, copy_out=""), columns=("id", "v"), binary=False,
        snapshot_id="", snapshot_text="", plan="", replica_role=False,
    )  # fmt: skip
    if not is_direct:
        with transaction(session):
            assert insert_rows(session, task, spec, OneBatch(rows)) == rows.batch.num_rows
        return mapping
    session.run("CREATE USER wirekite NO AUTHENTICATION QUOTA UNLIMITED ON USERS")
    with closing(Heaps(session, task, spec)) as heaps:
        heaps.fill(iter([rows]))
        with transaction(session):
            assert heaps.pour() == rows.batch.num_rows
    return mapping


def texts_of_target(session: Connection, mapping: Mapping) -> list[Any]:
    """Return the texts by which the target's values are compared, in the order of their numbers."""
    (found,) = read_definitions(session, [NAME]).values()
    columns = [ReadColumn.from_column(one) for one in found.columns]
    kind, change = parse_template(mapping.equal.target)
    cells = [ImageCell("id", "INTEGER", False, False, False),
             ImageCell("v", kind, False, False, False, change)]  # fmt: skip
    listed = ", ".join(map(select_expression, columns))
    (batch,) = session.arrow(f'SELECT {listed} FROM "SHOP"."V" ORDER BY "id"')
    made = image_batch(batch, columns, cells)
    texts: list[Any] = text_of(made.column(1), Kind[kind]).to_pylist()
    return texts


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("type_text", sorted(TYPES))
def test_values_arrive_as_verify_compares_them(
    session: Connection, type_text: str, is_direct: bool
) -> None:
    """No value is changed but by choice, and an empty one is NULL."""
    mapping = carry(session, type_text, NULLED, is_direct=is_direct)
    assert texts_of_target(session, mapping) == texts_of_source(type_text, mapping)


EMPTY = sorted(
    name
    for name in TYPES
    if any(one in ("", b"") for one in driver_batch(name).column(0).to_pylist())
)


@pytest.mark.parametrize("type_text", EMPTY)
def test_an_empty_value_stops_a_load(session: Connection, type_text: str) -> None:
    """Rows of the chunk are not written."""
    with pytest.raises(ValueRefused):
        carry(session, type_text, STRICT)
    assert session.execute('SELECT COUNT(*) FROM "SHOP"."V"') == [(0,)]


def test_some_types_have_empty_values() -> None:
    """Texts and bytes among them, so that the test above shows something."""
    bases = {name.partition("(")[0] for name in EMPTY}
    assert bases & {"nvarchar", "varchar", "text", "ntext"}, EMPTY
    assert bases & {"varbinary", "image"}, EMPTY
