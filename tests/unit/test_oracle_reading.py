"""Reading of Oracle's tables on the fake driver: catalogue, ranges of rows, rows as of an SCN."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.planner import snapshot_text
from penstock.engines.oracle.reading.bulk_reader import (
    OracleReader,
    TableAltered,
    open_reader,
    shape_of,
    snapshot_alive,
)
from penstock.engines.oracle.reading.catalog import (
    TableNotCapturable,
    captured_tables,
    read_definitions,
    read_server,
    survey,
    taken_names,
)
from penstock.engines.oracle.reading.chunks import (
    RowChunk,
    plan_chunks,
    read_and_write,
)
from penstock.engines.oracle.reading.definitions import _plain_indexes
from penstock.engines.oracle.reading.read_plan import log_plan, read_plan
from penstock.engines.oracle.reading.relations import relation_of
from penstock.engines.oracle.reading.schema_description import default_of, describe
from penstock.engines.oracle.reading.statements import rows as rows_text
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.sql.schema_translation import Default, DefaultKind, IndexPart
from sim_oracle.columns import parse_column
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server as OracleServer
from sim_oracle.texts import KnownTexts

POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
ORACLE = Server(engine=Engine.ORACLE, version=(19,))
T = {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)"}


class Place:
    """A server with one pluggable database, and what its tables have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = Database("ORCL", pdbs=["SHOPPDB"])
        self.server = OracleServer(self.database)
        address = install(monkeypatch, self.server)
        self.url = f"oracle://c%23%23penstock:secret@{address}/ORCL?pdb=shoppdb"

    def add(self, name: str, columns: dict[str, str], **more: Any) -> Any:
        """Add a table of SHOP."""
        return self.database.add_table("SHOP", name, columns, **more)

    def insert(self, table: Any, rows: list[dict[str, Any]]) -> list[str]:
        """Insert rows in one transaction; return their row ids."""
        transaction = self.database.begin()
        found = [transaction.insert(table, row) for row in rows]
        transaction.commit()
        return found

    def fill(self, table: Any, count: int) -> list[str]:
        """Insert rows with numbers from 1 on."""
        return self.insert(table, [{"ID": at, "NAME": f"n{at}"} for at in range(1, count + 1)])

    def scn(self) -> int:
        """Return the present SCN."""
        with connect(self.url) as session:
            return int(session.execute("SELECT CURRENT_SCN FROM V$DATABASE")[0][0])


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a fresh server."""
    return Place(monkeypatch)


def define(place: Place, name: str) -> TableDefinition:
    """Return the definition of a table of SHOP."""
    with connect(place.url) as session:
        (found,) = captured_tables(session, [f"SHOP.{name}"])
        return found


# -- catalogue -------------------------------------------------------------------------------------


def test_definitions(place: Place) -> None:
    """Columns have the types of the log, and a table without a key is known by all columns."""
    place.add("T", {**T, "PRICE": "NUMBER(12,2)", "N": "NUMBER", "DOC": "CLOB"}, key=["ID"])
    place.add("HEAP", {"A": "NVARCHAR2(10)", "B": "TIMESTAMP(9)"})
    with connect(place.url) as session:
        heap, table = captured_tables(session, ["SHOP.*"])
        assert read_server(session).engine is Engine.ORACLE
        assert read_definitions(session, [table.name, TableName("SHOP", "X")]) == {
            table.name: table
        }
    assert [(one.name, one.type_text, one.neutral) for one in table.columns] == [
        ("ID", "NUMBER(10,0)", "int64"),
        ("NAME", "VARCHAR2(40)", "string"),
        ("PRICE", "NUMBER(12,2)", "decimal(12,2)"),
        ("N", "NUMBER", "string"),
        ("DOC", "CLOB", "string"),
    ]
    assert (table.primary_key, table.identity) == (("ID",), Identity.DEFAULT)
    assert [one.not_null for one in table.columns] == [True, False, False, False, False]
    assert (heap.identity, heap.identity_columns) == (Identity.FULL, ("A", "B"))
    assert heap.columns[1].type_text == "TIMESTAMP(9)"
    assert table.source_id != heap.source_id


def test_hidden_columns_are_not_captured(place: Place) -> None:
    """The server's own columns are left out, and virtual ones have no values in the log."""
    table = place.add("T", T, key=["ID"])
    for name, kind, flags in (
        ("ORA_ARCHIVE_STATE", "VARCHAR2(4000)", {"is_hidden": True}),
        ("SYS_NC00004$", "RAW(126)", {"is_hidden": True}),
        ("SYS_C00005_26013112:00:00$", "NUMBER", {"is_hidden": True}),
        ("SECRET", "NUMBER", {"is_invisible": True}),
        ("TWICE", "NUMBER", {"is_virtual": True}),
    ):
        column = parse_column(name, kind, **flags)
        place.database.append_column(table, column, "alter table", None)
    found = define(place, "T")
    assert [(one.name, one.generated, one.is_invisible) for one in found.columns] == [
        ("ID", "", False),
        ("NAME", "", False),
        ("SECRET", "", True),
        ("TWICE", "v", False),
    ]
    assert [one.name for one in relation_of(found).columns] == ["ID", "NAME", "SECRET"]


SHOP = (
    'CREATE TABLE "SHOP"."CUSTOMER" ("ID" NUMBER(10) GENERATED BY DEFAULT AS IDENTITY, '
    "\"NAME\" VARCHAR2(40 CHAR) DEFAULT 'it''s' NOT NULL, \"SCORE\" NUMBER(12,2) DEFAULT 0, "
    '"SINCE" DATE DEFAULT SYSDATE, "MAIL" VARCHAR2(80), PRIMARY KEY ("ID"), '
    'CONSTRAINT "ONE_MAIL" UNIQUE ("MAIL"))',
    'CREATE TABLE "SHOP"."LINE" ("ORDER_ID" NUMBER(10) NOT NULL, "NO" NUMBER(4) NOT NULL, '
    '"CUSTOMER_ID" NUMBER(10), "SKU" VARCHAR2(12), PRIMARY KEY ("ORDER_ID", "NO"), '
    'CONSTRAINT "OF_CUSTOMER" FOREIGN KEY ("CUSTOMER_ID") REFERENCES "SHOP"."CUSTOMER" ("ID") '
    "ON DELETE CASCADE)",
    'CREATE INDEX "SHOP"."BY_SKU" ON "SHOP"."LINE" ("SKU", "NO")',
    'CREATE TABLE "SHOP"."STAND_IN" ("A" NUMBER(5) NOT NULL, "B" NUMBER(5))',
    'CREATE UNIQUE INDEX "SHOP"."ONE_A" ON "SHOP"."STAND_IN" ("A")',
    'ALTER TABLE "SHOP"."CUSTOMER" DISABLE CONSTRAINT "ONE_MAIL"',
)


def test_keys_indexes_and_defaults(place: Place) -> None:
    """A key that is disabled does not hold, and a unique index stands in for a primary key."""
    place.server.texts = KnownTexts(None)
    with connect(place.url) as session:
        for statement in SHOP:
            session.run(statement)
        customer, line, stand_in = captured_tables(session, ["SHOP.*"])
    assert [(one.name, one.is_whole) for one in customer.unique_keys] == [("ONE_MAIL", False)]
    described = describe(customer)
    assert described.numbered == ("ID",)
    assert described.defaults == {
        "NAME": Default(DefaultKind.LITERAL, "it's"),
        "SCORE": Default(DefaultKind.NUMBER, "0"),
        "SINCE": Default(DefaultKind.NOW),
    }
    assert line.primary_key == ("ORDER_ID", "NO")
    (key,) = line.foreign_keys
    assert (key.columns, key.target.name, key.target_columns) == (
        ("CUSTOMER_ID",),
        "CUSTOMER",
        ("ID",),
    )
    assert (key.on_delete, "ON DELETE CASCADE" in key.definition) == ("CASCADE", True)
    (index,) = describe(line).indexes
    assert (index.name, index.parts) == ("BY_SKU", (IndexPart("SKU"), IndexPart("NO")))
    assert (stand_in.identity, stand_in.identity_columns) == (Identity.INDEX, ("A",))


@pytest.mark.parametrize(
    ("text", "type_text", "expected"),
    [
        ("'a''b'", "VARCHAR2(9)", Default(DefaultKind.LITERAL, "a'b")),
        ("N'é'", "NVARCHAR2(9)", Default(DefaultKind.LITERAL, "é")),
        ("''", "VARCHAR2(9)", None),
        ("NULL", "NUMBER", None),
        ("(-1.5)", "NUMBER", Default(DefaultKind.NUMBER, "-1.5")),
        (".5", "NUMBER", Default(DefaultKind.NUMBER, ".5")),
        ("SYSTIMESTAMP", "TIMESTAMP(6)", Default(DefaultKind.NOW)),
        ("SYSDATE", "VARCHAR2(9)", Default(DefaultKind.OTHER)),
        ("SYS_GUID()", "RAW(16)", Default(DefaultKind.OTHER)),
        (None, "NUMBER", None),
    ],
)
def test_defaults(text: str | None, type_text: str, expected: Default | None) -> None:
    """Texts of the catalogue in the terms of all engines; an empty text is NULL."""
    column = ColumnDefinition(name="C", type_text=type_text, type_oid=0, typmod=-1, default=text)
    assert default_of(column) == expected


def test_an_index_that_the_target_cannot_have(place: Place) -> None:
    """Report expressions and descending order, whose columns the server has named."""
    place.add("T", T, key=["ID"])
    rows = [("T", "BY_UPPER", "NONUNIQUE", "SYS_NC00003$", "ASC")]
    (text,) = _plain_indexes(TableName("SHOP", "T"), rows)
    found = describe(replace(define(place, "T"), indexes=(text, "CREATE BITMAP INDEX x")))
    assert [(one.name, bool(one.unlike)) for one in found.indexes] == [
        ("BY_UPPER", True),
        ("CREATE BITMAP INDEX x", True),
    ]


@pytest.mark.parametrize(
    ("name", "columns", "flags", "reason"),
    [
        ("TEMP", T, {"is_temporary": True}, "temporary"),
        ("MLOG$_T", T, {}, "features"),
        ("BIN$abc", T, {}, "recycle bin"),
        ("DR$IX$I", T, {}, "features"),
        ("A" * 31, T, {}, "30 bytes"),
        ("WIDE", {"ID": "NUMBER(10)", "B" * 31: "NUMBER"}, {}, "30 bytes"),
        ("DOCS", {"ID": "NUMBER(10)", "X": "XMLTYPE"}, {}, "X XMLTYPE"),
        ("FLAGS", {"ID": "NUMBER(10)", "B": "BOOLEAN"}, {}, "B BOOLEAN"),
        ("JS", {"ID": "NUMBER(10)", "J": "JSON"}, {}, "J JSON"),
        ("OBJ", {"ID": "NUMBER(10)", "P": "POINT_T"}, {}, "objects"),
    ],
)
def test_tables_that_are_left_out(
    place: Place, name: str, columns: dict[str, str], flags: dict[str, Any], reason: str
) -> None:
    """A pattern leaves them out with a reason; naming one is refused."""
    place.add(name, columns, key=["ID"], **flags)
    place.add("T", T, key=["ID"])
    with connect(place.url) as session:
        found = survey(session, ["SHOP.*"])
        assert [one.name.name for one in found.tables] == ["T"]
        assert reason in str(found.excluded[0])
        with pytest.raises(TableNotCapturable, match=reason):
            captured_tables(session, [f"SHOP.{name}"])


def test_penstocks_own_tables_and_excluded_ones(place: Place) -> None:
    """Neither is captured, and `!` is the user's own choice."""
    place.database.add_table("WIREKITE", "wirekite_progress", T, key=["ID"])
    place.add("T", T, key=["ID"])
    place.add("U", T, key=["ID"])
    with connect(place.url) as session:
        found = survey(session, ["*.*", "!SHOP.U"])
        assert [str(one.name) for one in found.tables] == ["SHOP.T"]
        assert [(str(one.name), one.pattern) for one in found.excluded] == [
            ("SHOP.U", "!SHOP.U"),
            ("WIREKITE.wirekite_progress", ""),
        ]
        names = taken_names(session, ["*.*", "!SHOP.U"])
        assert [str(name) for name, is_taken in names.items() if is_taken] == ["SHOP.T"]


def test_a_missing_table_is_refused_with_the_near_ones(place: Place) -> None:
    """Names count in their case; a table that was dropped after it was followed may be named."""
    place.add("T", T, key=["ID"])
    with connect(place.url) as session:
        with pytest.raises(TableNotCapturable, match=r"there is SHOP\.T") as error:
            captured_tables(session, ["shop.t"])
        assert "ALL_TABLES" in error.value.hint
        gone = TableName("SHOP", "GONE")
        assert captured_tables(session, ["SHOP.GONE"], dropped=[gone]) == []


# -- ranges ----------------------------------------------------------------------------------------


def plan(session: Connection, definition: TableDefinition, scn: int, **more: Any) -> list[RowChunk]:
    """Cut a table into small chunks."""
    options = {
        "is_index_organized": False,
        "bytes_target": 32_768,
        "pieces": 4,
        "rows_target": 100,
        **more,
    }
    return plan_chunks(session, definition, scn=scn, **options)


def read_all(session: Connection, pieces: list[RowChunk], scn: int) -> list[int]:
    """Return the ids that the chunks have together."""
    found: list[int] = []
    for piece in pieces:
        text = rows_text(piece.table, ['"ID"'], scn, piece.condition)
        found += [row[0] for row in session.execute(text)]
    return found


@pytest.mark.parametrize("partitions", [None, {"P1": 801, "P2": 802, "P3": 803}])
def test_ranges_of_row_ids_have_each_row_once(
    place: Place, partitions: dict[str, int] | None
) -> None:
    """Also rows that are deleted, whose row ids are used again, and in extents that are added."""
    options: dict[str, Any] = {"partitions": partitions, "partition_by": "ID"} if partitions else {}
    table = place.add("T", T, key=["ID"], **options)
    row_ids = place.fill(table, 1500)
    scn = place.scn()
    definition = define(place, "T")
    with connect(place.url) as session:
        pieces = plan(session, definition, scn)
        assert len(pieces) > 2
        changes = place.database.begin()
        for row_id in row_ids[::7]:
            changes.delete(table, row_id)
        changes.commit()
        place.insert(table, [{"ID": at, "NAME": "later"} for at in range(1501, 2200)])
        assert sorted(read_all(session, pieces, scn)) == list(range(1, 1501))
        now = place.scn()
        expected = sorted(row["ID"] for _, row in place.database.rows_at(table, now))
        assert sorted(read_all(session, pieces, now)) == expected


def test_an_empty_table_is_one_chunk(place: Place) -> None:
    """There is one extent at most."""
    place.add("T", T, key=["ID"])
    definition = define(place, "T")
    with connect(place.url) as session:
        (piece,) = plan(session, definition, place.scn())
        assert piece.condition == ""


@pytest.mark.parametrize("is_organized", [True, False])
def test_ranges_of_keys(place: Place, is_organized: bool) -> None:
    """Index-organized tables are cut by key, and heaps whose extents the user may not see."""
    table = place.add("T", T, key=["ID"], is_index_organized=is_organized)
    place.fill(table, 1000)
    scn = place.scn()
    if not is_organized:
        place.server.fail_next(942, "DBA_EXTENTS", times=99)
    definition = define(place, "T")
    with connect(place.url) as session:
        pieces = plan(session, definition, scn, is_index_organized=is_organized)
        assert [piece.condition for piece in pieces[:2]] == [
            '"ID" < 101',
            '"ID" >= 101 AND "ID" < 201',
        ]
        assert sorted(read_all(session, pieces, scn)) == list(range(1, 1001))


def test_a_heap_without_key_and_extents_is_one_chunk(place: Place) -> None:
    """Cut it in neither way."""
    table = place.add("T", T)
    place.fill(table, 300)
    place.server.fail_next(942, "DBA_EXTENTS", times=99)
    definition = define(place, "T")
    with connect(place.url) as session:
        (piece,) = plan(session, definition, place.scn())
        assert piece.condition == ""
        with pytest.raises(ValueError, match="size"):
            plan(session, definition, 1, rows_target=0)


def test_values_of_keys_are_exact() -> None:
    """Compare with the texts that the server prints."""
    cases = {
        "NUMBER(10,0)": ("TO_CHAR(\"K\", 'TM9')", "12", "12"),
        "VARCHAR2(9)": ('"K"', "it's", "'it''s'"),
        "NVARCHAR2(9)": ('"K"', "é", "N'é'"),
        "RAW(4)": ('RAWTOHEX("K")', "00FF", "HEXTORAW('00FF')"),
        "DATE": (
            "TO_CHAR(\"K\", 'SYYYY-MM-DD HH24:MI:SS')",
            " 2026-01-02 03:04:05",
            "TO_DATE(' 2026-01-02 03:04:05', 'SYYYY-MM-DD HH24:MI:SS')",
        ),
        "TIMESTAMP(3)": (
            "TO_CHAR(\"K\", 'SYYYY-MM-DD HH24:MI:SS.FF9')",
            " 2026-01-02 03:04:05.000000000",
            "TO_TIMESTAMP(' 2026-01-02 03:04:05.000000000', 'SYYYY-MM-DD HH24:MI:SS.FF9')",
        ),
    }
    for type_text, (shown, text, sql) in cases.items():
        made = ColumnDefinition(name="K", type_text=type_text, type_oid=0, typmod=-1)
        expression, write = read_and_write(made)
        assert (expression, write(text)) == (shown, sql)


# -- rows ------------------------------------------------------------------------------------------


def task_of(place: Place, definition: TableDefinition, scn: int, target: Server) -> ChunkTask:
    """Return the task of a whole table."""
    servers = ServerPair(source=ORACLE, target=target)
    stored = [one for one in definition.columns if not one.generated]
    read = read_plan(stored, servers.mappings(definition), servers)
    with connect(place.url) as session:
        shape = shape_of(session, definition.name)
    return ChunkTask(
        source_url=place.url,
        target_url="",
        table=definition.name,
        target=definition.name,
        chunk=Chunk(
            number=1,
            relation=definition.name,
            copy_out=rows_text(definition.name, read.expressions, scn),
            shape=shape,
        ),
        columns=read.columns,
        binary=False,
        snapshot_id=str(scn),
        snapshot_text="",
        plan="p",
        replica_role=False,
        read_plan=read,
    )


def test_rows_are_those_of_the_scn(place: Place) -> None:
    """Lines for a target, and batches in the shape of the log."""
    columns = {**T, "PRICE": "NUMBER(12,2)", "N": "NUMBER", "DOC": "CLOB", "AT": "DATE"}
    table = place.add("T", columns, key=["ID"])
    row = {"ID": 1, "NAME": "it's\t", "PRICE": Decimal("1.50"), "N": Decimal("0.5"), "DOC": ""}
    (row_id,) = place.insert(table, [row])
    scn = place.scn()
    change = place.database.begin()
    change.update(table, row_id, {"NAME": "later"})
    change.commit()
    definition = define(place, "T")
    task = task_of(place, definition, scn, POSTGRES)
    with connect(place.url) as session:
        reader = OracleReader(session)
        assert not reader.was_rewritten(task)
        lines = reader.lines(task, LineDialect.COPY)
        assert b"".join(lines) == b"1\tit's\\t\t1.50\t0.5\t\t\\N\n"
        assert lines.row_count == 1
        relation = relation_of(definition)
        (shaped,) = reader.batches(task, relation)
        assert shaped.relation == relation
        assert shaped.batch.to_pylist() == [
            {"ID": 1, "NAME": "it's\t", "PRICE": Decimal("1.50"), "N": "0.5", "DOC": "", "AT": None}
        ]
    assert task.read_plan is not None
    assert log_plan(definition.columns).expressions == task.read_plan.expressions


def test_a_value_that_does_not_fit_makes_a_new_version(place: Place) -> None:
    """The column is text in the rest of the rows, as in the log."""
    table = place.add("T", {"ID": "NUMBER(10)", "N": "NUMBER(*,0)"}, key=["ID"])
    place.insert(table, [{"ID": 1, "N": Decimal(7)}, {"ID": 2, "N": Decimal(10) ** 39}])
    found = define(place, "T")
    # The fake's catalogue has no NUMBER(*,0).
    wide = replace(found.columns[1], type_text="NUMBER(*,0)", neutral="decimal(38,0)")
    definition = replace(found, columns=(found.columns[0], wide))
    task = task_of(place, definition, place.scn(), POSTGRES)
    with connect(place.url) as session:
        (shaped,) = OracleReader(session).batches(task, relation_of(definition))
    assert shaped.relation.version == 2
    assert shaped.batch.column("N").to_pylist() == ["7", "1" + "0" * 39]


def test_a_table_that_is_altered_meanwhile_is_told(place: Place) -> None:
    """Truncated, or given a column: its rows are not taken; a partition more does no harm."""
    table = place.add("T", T, key=["ID"])
    place.fill(table, 10)
    definition = define(place, "T")
    task = task_of(place, definition, place.scn(), POSTGRES)
    with connect(place.url) as session:
        reader = OracleReader(session)
        lines = iter(reader.lines(task, LineDialect.COPY))
        next(lines)
        place.database.add_column(table, "MORE", "NUMBER")
        with pytest.raises(TableAltered) as error:
            next(lines)
        assert reader.tells_rewritten(error.value)
        assert reader.was_rewritten(task)
    other = place.add("U", T, key=["ID"])
    place.fill(other, 10)
    task = task_of(place, define(place, "U"), place.scn(), POSTGRES)
    place.database.truncate(other)
    with connect(place.url) as session:
        reader = OracleReader(session)
        assert reader.was_rewritten(task)
        with pytest.raises(SnapshotLost) as lost:
            list(reader.lines(task, LineDialect.COPY))
        assert lost.value.fields["errno"] == 1466
        assert reader.tells_rewritten(lost.value)


@pytest.mark.parametrize("code", [1555, 8181, 1466])
@pytest.mark.parametrize("at_fetch", [False, True])
def test_lost_undo_asks_for_a_later_point(place: Place, code: int, at_fetch: bool) -> None:
    """The table is planned again; a cut connection is only retried."""
    table = place.add("T", T, key=["ID"])
    place.fill(table, 10)
    task = task_of(place, define(place, "T"), place.scn(), POSTGRES)
    with connect(place.url) as session:
        reader = OracleReader(session)
        place.server.fail_next(code, "AS OF SCN", at_fetch=at_fetch)
        with pytest.raises(SnapshotLost) as error:
            list(reader.lines(task, LineDialect.COPY))
        assert reader.tells_rewritten(error.value)


def test_a_dropped_table_is_told(place: Place) -> None:
    """Plan it again, which leaves it out."""
    table = place.add("T", T, key=["ID"])
    place.fill(table, 10)
    task = task_of(place, define(place, "T"), place.scn(), POSTGRES)
    place.database.drop_table(table)
    with connect(place.url) as session:
        reader = OracleReader(session)
        assert reader.was_rewritten(task)


def test_a_restored_database_has_other_scns(place: Place) -> None:
    """Then a point has lost its meaning, whatever number it has."""
    place.add("T", T, key=["ID"])
    scn = place.scn()
    with connect_root(place.url) as root:
        text = snapshot_text(root)
    assert snapshot_alive(place.url, str(scn), text)
    reader = open_reader(place.url, str(scn), text)
    assert reader is not None
    reader.close()
    place.database.restore(scn)
    assert not snapshot_alive(place.url, str(scn), text)
    assert open_reader(place.url, str(scn), text) is None


def test_batches_are_small_where_rows_are_large(place: Place) -> None:
    """LOBs of a batch have to fit into memory."""
    table = place.add("T", {"ID": "NUMBER(10)", "DOC": "CLOB"}, key=["ID"])
    place.insert(table, [{"ID": at, "DOC": "x"} for at in range(600)])
    definition = define(place, "T")
    task = task_of(place, definition, place.scn(), POSTGRES)
    with connect(place.url) as session:
        sizes = [
            shaped.batch.num_rows
            for shaped in OracleReader(session).batches(task, relation_of(definition))
        ]
    assert sizes == [256, 256, 88]
