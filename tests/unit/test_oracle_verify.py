"""Comparison and repair of Oracle's tables, with the fake driver in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from penstock.codec.image_cells import EMPTY_AS_NULL, UNFIT_AS_NULL, ImageCell, parse_template
from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.oracle.row_images import image_batch
from penstock.codec.row_images import hash_images, join_cells, text_of
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.codec.types.mapping import Kind
from penstock.control.verify.compare import TablePair, TableResult, compare_tables
from penstock.engines.oracle import checksum
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.engines.oracle.target.repair import OracleRepair
from penstock.engines.oracle.verify import VERIFIER, OracleVerifyReader
from penstock.model import TableName
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.ports.target import Applied
from penstock.ports.verify import (
    Hasher,
    Image,
    Part,
    ReadCancelled,
    RepairRefused,
    RepairTable,
    TableChangedMeanwhile,
    TableGone,
    TargetMoved,
)
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server as OracleServer
from sim_oracle.texts import KnownTexts

ORACLE = Server(engine=Engine.ORACLE, version=(19,))
PAIR = ServerPair(source=ORACLE, target=ORACLE)
HERE, THERE = TableName("SHOP", "T"), TableName("COPY", "T")
COLUMNS = (
    '"ID" NUMBER(10) PRIMARY KEY, "A" VARCHAR2(40 CHAR), "N" NUMBER(12,2), "F" BINARY_DOUBLE,'
    ' "D" DATE, "Z" TIMESTAMP(6) WITH TIME ZONE, "C" CLOB, "B" BLOB'
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> OracleServer:
    """A database without tables."""
    made = OracleServer(Database("ORCL", pdbs=["SHOPPDB"]), texts=KnownTexts(None))
    made.services["address"] = install(monkeypatch, made)
    return made


@pytest.fixture
def url(server: OracleServer) -> str:
    """Return the URL of the database."""
    return f"oracle://c%23%23penstock:secret@{server.services['address']}/shoppdb"


@pytest.fixture
def session(url: str) -> Iterator[Connection]:
    """A session of the test."""
    with connect(url, autocommit=True) as made:
        yield made


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "form", "change", "text"),
    [
        ("NUMBER(1)", "1", Kind.BOOLEAN, "", "1"),
        ("NUMBER(19)", "-9223372036854775808", Kind.INTEGER, "", "-9223372036854775808"),
        ("NUMBER(12,2)", "1.5", Kind.DECIMAL, "", "1.50"),
        ("NUMBER", "1.50", Kind.NUMBER, "", "1.5"),
        ("BINARY_DOUBLE", "0.5", Kind.FLOAT, "", "4503599627370496e-1"),
        ("VARCHAR2(9)", "'Zoë'", Kind.TEXT, "", "Zoë"),
        ("VARCHAR2(9)", "'a  '", Kind.PADDED, "", "a"),
        ("RAW(4)", "HEXTORAW('00ff')", Kind.BYTES, "", "00ff"),
        ("DATE", "DATE '2026-03-04'", Kind.DATE, "", "2026-03-04"),
        ("DATE", "DATE '2026-03-04'", Kind.TIMESTAMP, "", "2026-03-04 00:00:00"),
        ("TIMESTAMP(3)", "TIMESTAMP '2026-03-04 05:06:07.500'", Kind.TIMESTAMP, "",
         "2026-03-04 05:06:07.5"),
        ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP '2026-03-04 05:06:07.5 +02:00'",
         Kind.TIMESTAMPTZ, "", "2026-03-04 03:06:07.5"),
        ("TIMESTAMP(7) WITH TIME ZONE", "TIMESTAMP '2026-03-04 05:06:07.1234567 +02:00'",
         Kind.TEXT, "", "2026-03-04 05:06:07.1234567+02:00"),
        ("BINARY_DOUBLE", "TO_BINARY_DOUBLE('NaN')", Kind.FLOAT, UNFIT_AS_NULL, None),
        ("CLOB", "'x'", Kind.TEXT, EMPTY_AS_NULL, "x"),
    ],
)  # fmt: skip
def test_texts_of_values(
    session: Connection, kind: str, value: str, form: Kind, change: str, text: str | None
) -> None:
    """Texts are those that PostgreSQL prints of the same values."""
    session.run(f'CREATE TABLE "SHOP"."V" ("V" {kind})')
    session.run(f'INSERT INTO "SHOP"."V" VALUES ({value})')
    (definition,) = read_definitions(session, [TableName("SHOP", "V")]).values()
    column = ReadColumn.from_column(definition.columns[0])
    (batch,) = session.arrow(f'SELECT {select_expression(column)} FROM "SHOP"."V"')
    cell = ImageCell("V", form.name, False, False, False, change)
    made = image_batch(batch, [column], [cell])
    assert text_of(made.column(0), form).to_pylist() == [text]


def test_templates_with_a_servers_condition() -> None:
    """The kind is that of the other values."""
    guarded = "case when TIMESTAMP {} < x then null else TIMESTAMP {} end"
    assert parse_template(guarded) == ("TIMESTAMP", UNFIT_AS_NULL)
    assert parse_template("case when x ~ 'y' then z({}) else NUMBER {} end") == ("NUMBER", "")
    assert parse_template("case when always then ROUNDED_30 {} else NUMBER {} end") == (
        "NUMBER",
        "ROUNDED_30",
    )


# --- two tables -----------------------------------------------------------------------------------


@pytest.fixture
def tables(session: Connection) -> Connection:
    """Two equal tables of 40 rows."""
    session.run("CREATE USER COPY NO AUTHENTICATION QUOTA UNLIMITED ON USERS")
    for table in (HERE, THERE):
        session.run(f'CREATE TABLE "{table.schema}"."T" ({COLUMNS})')
        for number in range(40):
            session.run(
                f'INSERT INTO "{table.schema}"."T" VALUES ({number}, \'it{number}\', {number}.25,'
                f" {number}.5, DATE '2026-03-04', TIMESTAMP '2026-03-04 05:06:07.5 +02:00',"
                f" 'text {number}', HEXTORAW('00{number:02}'))"
            )
    return session


def compare(url: str) -> TableResult:
    """Compare the two tables."""
    with connect(url) as reading:
        (definition,) = read_definitions(reading, [HERE]).values()
    with (
        VERIFIER.open_target(url, sessions=2) as source,
        VERIFIER.open_target(url, sessions=2) as target,
    ):
        pair = TablePair(source=definition, target=THERE)
        [result] = compare_tables([pair], source, target, servers=PAIR)
    return result


def test_equal_tables(tables: Connection, url: str) -> None:
    """All rows are equal."""
    del tables
    result = compare(url)
    assert (result.source_rows, result.target_rows, result.equal) == (40, 40, True)


@pytest.mark.parametrize(
    ("statement", "counts"),
    [
        ("""UPDATE "COPY"."T" SET "A" = 'It7' WHERE "ID" = 7""", (0, 0, 1)),
        ("""UPDATE "COPY"."T" SET "C" = 'text  7' WHERE "ID" = 7""", (0, 0, 1)),
        ("""UPDATE "COPY"."T" SET "B" = NULL WHERE "ID" = 7""", (0, 0, 1)),
        ("""UPDATE "COPY"."T" SET "D" = DATE '2026-03-05' WHERE "ID" = 7""", (0, 0, 1)),
        ("""DELETE FROM "COPY"."T" WHERE "ID" = 7""", (1, 0, 0)),
        ("""INSERT INTO "COPY"."T" ("ID") VALUES (77)""", (0, 1, 0)),
    ],
)
def test_one_row_differs(
    tables: Connection, url: str, statement: str, counts: tuple[int, int, int]
) -> None:
    """The row is counted, and named by its key."""
    tables.run(statement)
    result = compare(url)
    assert (result.missing, result.surplus, result.different) == counts
    assert [one.key for one in result.named] == ["(77)" if counts[1] else "(7)"]


def test_what_is_written_later_is_not_seen(tables: Connection, url: str) -> None:
    """All reads are of the SCN at which the reader was opened."""
    with VERIFIER.open_target(url, sessions=1) as reader:
        tables.run('DELETE FROM "COPY"."T" WHERE "ID" < 30')
        parts, _ = reader.parts(THERE, "target")
        shown = Image(key=_cells("ID"), row=_cells("ID"))
        found = [
            row
            for part in parts
            for row in reader.fetch(checksum.bucket_query(shown, part, 4, Hasher.SHARED), "x")
        ]
    assert sum(int(row[1]) for row in found) == 40


def test_a_table_that_is_gone(tables: Connection, url: str) -> None:
    """Before its parts are known, and while it is read."""
    with VERIFIER.open_target(url, sessions=1) as reader:
        with pytest.raises(TableGone):
            reader.parts(TableName("COPY", "NONE"), "target")
        (part, *_), _ = reader.parts(THERE, "target")
        tables.run('DROP TABLE "COPY"."T" PURGE')
        shown = Image(key=_cells("ID"), row=_cells("ID"))
        with pytest.raises(TableGone):
            reader.fetch(checksum.bucket_query(shown, part, 4, Hasher.SHARED), "x")


@pytest.mark.parametrize("number", [1555, 8181, 1466])
def test_undo_that_is_gone(tables: Connection, url: str, server: OracleServer, number: int) -> None:
    """The server cannot read the moment any more; verify may be run again."""
    del tables
    with VERIFIER.open_target(url, sessions=1) as reader:
        (part, *_), _ = reader.parts(THERE, "target")
        shown = Image(key=_cells("ID"), row=_cells("ID"))
        server.fail_next(number, "AS OF SCN")
        with pytest.raises(TableChangedMeanwhile):
            reader.fetch(checksum.bucket_query(shown, part, 4, Hasher.SHARED), "x")


def test_a_cancelled_reader_gives_no_part_of_its_rows(
    tables: Connection, url: str, server: OracleServer
) -> None:
    """A read that goes on, and one that begins later, end with an error."""
    del tables
    with VERIFIER.open_target(url, sessions=1) as reader:
        assert isinstance(reader, OracleVerifyReader)
        (part, *_), _ = reader.parts(THERE, "target")
        shown = Image(key=_cells("ID"), row=_cells("ID"))
        query = checksum.bucket_query(shown, part, 4, Hasher.SHARED)
        server.on_fetch = lambda _: reader._sessions.refuse()
        with pytest.raises(ReadCancelled):
            reader.fetch(query, "x")
        server.on_fetch = lambda _: None
        reader.cancel()
        with pytest.raises(ReadCancelled):
            reader.fetch(query, "x")


def _cells(*names: str) -> str:
    return json.dumps([ImageCell(name, "INTEGER", False, False, False) for name in names])


# --- repair ---------------------------------------------------------------------------------------


def key_hash(number: int) -> int:
    """Return the first hash of a key."""
    rows = pa.record_batch({"ID": pa.array([number])})
    return int(hash_images(join_cells(rows, [["ID", "INTEGER", False, False, False]]))[0, 0])


def test_rows_are_deleted_and_copied_again(tables: Connection, url: str) -> None:
    """Only the chosen rows, with the values of the moment that was compared."""
    tables.run("""UPDATE "COPY"."T" SET "A" = 'wrong' WHERE "ID" IN (3, 5)""")
    shown = Image(key=_cells("ID"), row=_cells("ID"))
    choice = checksum.chosen_rows(shown, 0, (), [key_hash(3)], Hasher.SHARED)
    (definition,) = read_definitions(tables, [HERE]).values()
    names = tuple(column.name for column in definition.columns)
    with (
        VERIFIER.open_target(url, sessions=1) as source,
        closing(OracleRepair(url, PAIR, {})) as repair,
    ):
        repair.check(RepairTable(definition=definition, target=THERE))
        tables.run("""UPDATE "SHOP"."T" SET "A" = 'later' WHERE "ID" = 3""")
        task = ChunkTask(
            source_url="",
            target_url=url,
            table=HERE,
            target=THERE,
            chunk=Chunk(
                number=0,
                relation=HERE,
                copy_out=checksum.select_rows(definition, names, (), choice),
            ),
            columns=names,
            binary=False,
            snapshot_id="",
            snapshot_text="",
            plan="",
            replica_role=False,
        )
        with source.row_reader() as reader, repair.transaction():
            assert repair.delete(THERE, choice) == 1
            assert repair.copy(task, reader) == 1
            part = Part(relation=THERE, size_bytes=1, where="")
            found = repair.fetch(checksum.bucket_query(shown, part, 1, Hasher.SHARED), "x")
            assert [row[1] for row in found] == [40]
    rows = dict(tables.execute('SELECT "ID", "A" FROM "COPY"."T" WHERE "ID" IN (3, 4, 5)'))
    assert rows == {3: "it3", 4: "it4", 5: "wrong"}


def test_a_target_that_has_moved_is_not_repaired(tables: Connection, url: str) -> None:
    """The loader has applied more since the tables were compared."""
    del tables
    with closing(OracleRepair(url, PAIR, {})) as repair:
        repair._progress.ensure_tables()
        repair._progress.bind_log("log")
        with repair.transaction():
            repair.hold(Applied())
        with pytest.raises(TargetMoved), repair.transaction():
            repair.hold(Applied(gsn=5))


def test_tables_that_see_their_rows_go_are_refused(tables: Connection, url: str) -> None:
    """Rows of other tables refer to it."""
    tables.run(
        'CREATE TABLE "COPY"."CHILD" ("ID" NUMBER(10) PRIMARY KEY, "T" NUMBER(10)'
        ' REFERENCES "COPY"."T" ("ID"))'
    )
    (definition,) = read_definitions(tables, [HERE]).values()
    with (
        closing(OracleRepair(url, PAIR, {})) as repair,
        pytest.raises(RepairRefused, match="foreign key"),
    ):
        repair.check(RepairTable(definition=definition, target=THERE))
