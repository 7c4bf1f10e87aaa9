"""The fake of oracledb: signatures, binds, rows, data frames, changes, known texts, failures."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlfluff
import sqlglot
from sqlglot.errors import SqlglotError

from sim_oracle import oracledb
from sim_oracle.columns import NanoTime
from sim_oracle.database import Database
from sim_oracle.driver_servers import CONNECT_OPTIONS, install, listen
from sim_oracle.errors import UnknownText
from sim_oracle.grammar import prepare
from sim_oracle.session import ALL_PRIVILEGES, KNOWN_TEXTS, Server
from sim_oracle.texts import KnownTexts, read_texts, shape_of

SIGNATURES = Path(__file__).parents[1] / "data/oracledb_signatures.json"
RECORDED = json.loads(SIGNATURES.read_text(encoding="utf-8"))
LOGIN = {"user": "c##penstock", "password": "secret"}
TYPES = {
    "ID": "NUMBER(10)",
    "N": "NUMBER",
    "DEC": "NUMBER(12,2)",
    "F": "BINARY_DOUBLE",
    "V": "VARCHAR2(40)",
    "D": "DATE",
    "T9": "TIMESTAMP(9)",
    "TZ": "TIMESTAMP(6) WITH TIME ZONE",
    "L": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "Y": "INTERVAL YEAR TO MONTH",
    "S": "INTERVAL DAY TO SECOND",
    "R": "RAW(10)",
    "C": "CLOB",
    "B": "BLOB",
}


class Place:
    """A server and connections to its root and to its PDB."""

    def __init__(self) -> None:
        self.database = Database()
        self.table = self.database.add_table(
            "SHOP", "T", {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)"}, key=["ID"]
        )
        self.server = Server(self.database, texts=KnownTexts(None))
        self.address = listen(self.server)
        self.root = self.connect("ORCL")
        self.pdb = self.connect("shoppdb")

    def connect(self, service: str) -> oracledb.Connection:
        """Return a new connection to a service."""
        return oracledb.connect(f"{self.address}/{service}", **LOGIN)

    def add(self, *keys: int) -> None:
        """Insert rows into T."""
        transaction = self.database.begin()
        for key in keys:
            transaction.insert(self.table, {"ID": key, "NAME": f"n{key}"})
        transaction.commit()

    def names(self) -> dict[int, Any]:
        """Return the names of T by key, as committed."""
        rows = self.table.at(self.database.scn)
        return {int(str(row["ID"])): row["NAME"] for _, row in rows}


@pytest.fixture
def place() -> Place:
    """A place whose server knows every text."""
    return Place()


def run(connection: oracledb.Connection, text: str, binds: Any = None) -> list[Any]:
    """Run a statement; return its rows."""
    cursor = connection.cursor()
    return cursor.fetchall() if cursor.execute(text, binds) else []


def code_of(action: Any) -> str:
    """Return the full code of the error that an action raises."""
    with pytest.raises(oracledb.Error) as raised:
        action()
    code: str = raised.value.args[0].full_code
    return code


# ---------------------------------------------------------------------- signatures


def signature_of(function: Any) -> list[list[Any]]:
    """Return name, kind and default of each parameter."""
    return [
        [one.name, one.kind.name, None if one.default is one.empty else repr(one.default)]
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]


NOT_IN_THE_FAKE = {"Cursor.var"}  # OUT binds are not simulated


@pytest.mark.parametrize("name", sorted({one for one in RECORDED if "." in one} - NOT_IN_THE_FAKE))
def test_a_method_has_the_drivers_signature(name: str) -> None:
    """Names, kinds and defaults of parameters are those recorded from python-oracledb."""
    owner, method = name.split(".")
    assert signature_of(getattr(getattr(oracledb, owner), method)) == RECORDED[name]


def test_connect_knows_the_drivers_options() -> None:
    """An option that the driver does not have is a TypeError."""
    names = {one[0] for one in RECORDED["connect"]}
    assert names == CONNECT_OPTIONS | {"dsn", "user", "password"}
    with pytest.raises(TypeError):
        oracledb.connect("127.0.0.1:1/x", wrong=1)


def test_the_fake_has_nothing_that_the_driver_lacks() -> None:
    """Names, exceptions, constants and defaults are the driver's."""
    assert set(oracledb.__all__) - {"__version__"} <= set(RECORDED["names"])
    for name, bases in RECORDED["exceptions"].items():
        assert [one.__name__ for one in getattr(oracledb, name).__mro__[1:]] == bases
    for name, value in RECORDED["constants"].items():
        assert getattr(oracledb, name) == value
    for name, value in RECORDED["defaults"].items():
        assert getattr(oracledb.defaults, name) == value
    methods = {one.split(".")[1] for one in RECORDED if one.startswith(("Connection.", "Cursor."))}
    for owner in ("Connection", "Cursor", "LOB"):
        found = {one for one in vars(getattr(oracledb, owner)) if not one.startswith("_")}
        known = methods | set(RECORDED["properties"][owner])
        known |= {one.split(".")[1] for one in RECORDED if one.startswith(f"{owner}.")}
        assert found - known <= {"take_frame"}, owner


def test_it_is_installed_under_the_drivers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import inside of a test finds the fake."""
    address = install(monkeypatch, Server(Database()))
    driver = importlib.import_module("oracledb")
    assert driver is oracledb
    assert driver.connect(f"{address}/shoppdb", **LOGIN).is_healthy()


# ---------------------------------------------------------------------- connections


def test_a_login_is_checked(place: Place) -> None:
    """Listener, service and password have their errors."""
    wrong = {"user": "c##penstock", "password": "x"}
    assert code_of(lambda: oracledb.connect(f"{place.address}/ORCL", **wrong)) == "ORA-01017"
    assert code_of(lambda: oracledb.connect(f"{place.address}/no", **LOGIN)) == "DPY-6001"
    assert code_of(lambda: oracledb.connect("127.0.0.1:1/ORCL", **LOGIN)) == "DPY-6005"
    place.server.is_down = True
    assert code_of(lambda: place.connect("ORCL")) == "DPY-6005"


def test_the_root_and_the_pdb_see_different_things(place: Place) -> None:
    """The dictionary of a PDB is seen there alone, and mining works at the root alone."""
    query = "SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = 'SHOP'"
    assert (run(place.root, query), run(place.pdb, query)) == ([], [("T",)])
    name = {"f": place.database.logs.groups[1].members[0]}
    add = "BEGIN DBMS_LOGMNR.ADD_LOGFILE(:f, DBMS_LOGMNR.NEW); END;"
    assert code_of(lambda: run(place.pdb, add, name)) == "ORA-65040"
    switch = "ALTER SYSTEM ARCHIVE LOG CURRENT"
    assert code_of(lambda: run(place.pdb, switch)) == "ORA-65040"
    run(place.root, "ALTER SESSION SET CONTAINER = SHOPPDB")
    assert run(place.root, query) == [("T",)]
    assert code_of(lambda: run(place.root, "ALTER SESSION SET CONTAINER = NO")) == "ORA-65011"


def test_a_cut_connection_cannot_be_used(place: Place) -> None:
    """The driver says DPY-4011, then DPY-1001; the transaction is rolled back."""
    run(place.pdb, 'INSERT INTO "SHOP"."T" ("ID") VALUES (:1)', [1])
    place.server.fail_next(3113, "COUNT")
    with pytest.raises(oracledb.DatabaseError) as raised:
        run(place.pdb, 'SELECT COUNT(*) FROM "SHOP"."T"')
    details = raised.value.args[0]
    assert (details.full_code, details.code) == ("DPY-4011", 3113)
    assert details.isrecoverable
    assert code_of(lambda: run(place.pdb, "SELECT 1 FROM DUAL")) == "DPY-1001"
    assert not place.pdb.is_healthy()
    assert place.names() == {}
    assert not place.database.open


def test_a_call_timeout_is_an_error(place: Place) -> None:
    """A statement that takes longer raises DPY-4024."""
    place.server.delays["V$DATABASE"] = 5000
    query = "SELECT CURRENT_SCN FROM V$DATABASE"
    assert len(run(place.root, query)) == 1
    place.root.call_timeout = 1000
    assert code_of(lambda: run(place.root, query)) == "DPY-4024"


def test_failures_can_be_injected(place: Place) -> None:
    """Failures are chosen by text, after some statements, for some, at execution or at a fetch."""
    place.add(1, 2, 3)
    place.server.fail_next(1555, "SHOP", after=1)
    query = 'SELECT "ID" FROM "SHOP"."T"'
    assert len(run(place.pdb, query)) == 3
    assert code_of(lambda: run(place.pdb, query)) == "ORA-01555"
    place.server.fail_next(1013, "SHOP", at_fetch=True, after=1)
    cursor = place.pdb.cursor()
    cursor.execute(query)
    with pytest.raises(oracledb.OperationalError, match="ORA-01013"):
        cursor.fetchall()


# ---------------------------------------------------------------------- binds and texts


def test_binds_are_matched_as_the_driver_does(place: Place) -> None:
    """Missing, unknown and too few values have errors of the driver."""
    query = "SELECT :a FROM DUAL WHERE :b = :a"
    assert run(place.root, query, {"A": 1, "b": 1}) == [(1,)]
    assert run(place.root, query, [1, 1, 1]) == [(1,)]
    assert code_of(lambda: run(place.root, query, {"a": 1})) == "DPY-4010"
    assert code_of(lambda: run(place.root, query)) == "DPY-4010"
    assert code_of(lambda: run(place.root, query, {"a": 1, "b": 1, "c": 1})) == "DPY-4008"
    assert code_of(lambda: run(place.root, query, [1, 2])) == "DPY-4009"
    assert code_of(lambda: run(place.root, query, 5)) == "DPY-2003"
    assert code_of(lambda: place.root.cursor().execute(query, [1], a=1)) == "DPY-2006"
    assert code_of(lambda: place.root.cursor().execute(None)) == "DPY-2001"
    assert run(place.root, "SELECT ':no' FROM DUAL") == [(":no",)]


def test_cursors_have_the_drivers_errors(place: Place) -> None:
    """Closed cursors, and fetches without a query."""
    cursor = place.root.cursor()
    assert cursor.description is None
    assert code_of(cursor.fetchall) == "DPY-1003"
    cursor.execute("COMMIT")
    assert code_of(cursor.fetchone) == "DPY-1003"
    cursor.close()
    assert code_of(lambda: cursor.execute("COMMIT")) == "DPY-1006"
    place.root.close()
    assert code_of(place.root.cursor) == "DPY-1001"


def test_an_unknown_text_fails_the_test(place: Place, tmp_path: Path) -> None:
    """The error is not one of the driver, so that no code of a client handles it."""
    place.server.texts = KnownTexts(KNOWN_TEXTS)
    place.add(1)
    scn = {"s": place.database.scn}
    assert run(place.pdb, 'SELECT "NAME" FROM "SHOP"."T" AS OF SCN :s', scn) == [("n1",)]
    with pytest.raises(UnknownText):
        run(place.root, "SELECT BANNER FROM V$VERSION")
    record = tmp_path / "texts.sql"
    place.server.texts = KnownTexts(None, record)
    for number in (1, 2):
        run(place.root, f"SELECT {number} FROM DUAL")
    assert read_texts(record) == ["SELECT 1 FROM DUAL"]


def test_shapes_ignore_names_and_values() -> None:
    """Quoted names, literals, binds and lengths of lists differ; words do not."""
    first = 'SELECT "A", "B" FROM "S"."T" WHERE "A" IN (:1, :2) AND X = \'a\''
    second = 'select "Q" from "R"."U"  where "Q" in (:a) and X = \'b\''
    assert shape_of(first) == shape_of(second)
    assert shape_of(first) != shape_of(second.replace("X", "Y"))


# Parts of Oracle that both grammars lack, or that only the server knows.
NOT_FOR_SQLFLUFF = (
    "VERSIONS BETWEEN",
    "LOGGING, TEMPORARY",
    "WHERE LOGGING",
    "WHERE ENABLE",
    "ALTER SYSTEM",
    "ADD SUPPLEMENTAL",
    "AS OF SCN",
    "CREATE USER",
    "LOCK TABLE",
    "ROLLBACK TO",
    "SAVEPOINT",
    "T.ROWID",
)


@pytest.mark.parametrize("text", read_texts(KNOWN_TEXTS), ids=lambda one: one[:40])
def test_known_texts_are_oracles_for_other_grammars(text: str) -> None:
    """Each is parsed by sqlfluff's dialect, or by sqlglot's after the simulator's preparation."""
    words = " ".join(text.split())
    if not any(one in words.upper() for one in NOT_FOR_SQLFLUFF):
        named = re.sub(r":(\d)", r":b\1", text)  # its grammar has no numbered binds
        assert sqlfluff.parse(named, dialect="oracle")
    if words.upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE")):
        assert prepare(text).tree.sql(dialect="oracle")
    elif not words.upper().startswith(("BEGIN", "LOCK")):
        try:
            assert sqlglot.parse_one(text, read="oracle")
        except SqlglotError:
            pytest.fail(f"sqlglot does not parse {words}")


# ---------------------------------------------------------------------- rows


def add_types(place: Place) -> dict[str, Any]:
    """Create a table of all types with a full row and an empty one; return the full row."""
    table = place.database.add_table("SHOP", "TYPES", TYPES, key=["ID"])
    noon = datetime(2026, 7, 1, 12, 0, 0, 5)  # noqa: DTZ001
    row = {
        "ID": 1,
        "N": Decimal("-.5"),
        "DEC": Decimal("7"),
        "F": 0.1,
        "V": "it's",
        "D": noon,
        "T9": NanoTime(noon, 7),
        "TZ": noon.replace(tzinfo=UTC),
        "L": noon.replace(tzinfo=UTC),
        "Y": -14,
        "S": timedelta(days=-1, seconds=5),
        "R": b"\0\xff",
        "C": "text",
        "B": b"data",
    }
    transaction = place.database.begin()
    transaction.insert(table, row)
    transaction.insert(table, {"ID": 2})
    transaction.commit()
    return row


QUERY = f'SELECT {", ".join(TYPES)} FROM "SHOP"."TYPES" ORDER BY "ID"'


def test_values_are_those_of_the_driver(place: Place) -> None:
    """NUMBER without a precision is int or float, zones and nanoseconds are lost."""
    add_types(place)
    run(place.pdb, "ALTER SESSION SET TIME_ZONE = '+02:00'")
    cursor = place.pdb.cursor()
    cursor.execute(QUERY)
    first, second = cursor.fetchall()
    row = dict(zip(TYPES, first, strict=True))
    noon = datetime(2026, 7, 1, 12, 0, 0, 5)  # noqa: DTZ001
    assert (row["ID"], row["N"], row["DEC"], row["F"]) == (1, -0.5, 7.0, 0.1)
    assert [type(row[name]) for name in ("ID", "N", "DEC")] == [int, float, float]
    assert row["D"] == noon.replace(microsecond=0)
    assert (row["T9"], row["TZ"]) == (noon, noon)
    assert row["L"] == noon + timedelta(hours=2)
    assert (row["Y"], row["S"]) == ((-1, -2), timedelta(days=-1, seconds=5))
    assert (row["C"].read(), row["C"].type) == ("text", oracledb.DB_TYPE_CLOB)
    assert (row["B"].read(2, 2), row["B"].size()) == (b"at", 4)
    assert second[1:] == (None,) * (len(TYPES) - 1)
    info = {one[0]: one for one in cursor.description or ()}
    assert info["DEC"][1] == oracledb.NUMBER
    assert info["DEC"][4:6] == (12, 2)
    assert info["N"][4:6] == (0, -127)
    assert info["ID"][6] is False


def test_decimals_and_lobs_can_be_fetched_as_values(place: Place) -> None:
    """fetch_decimals and fetch_lobs are arguments or defaults."""
    add_types(place)
    cursor = place.pdb.cursor()
    cursor.execute(QUERY, fetch_decimals=True, fetch_lobs=False)
    row = dict(zip(TYPES, cursor.fetchone(), strict=True))
    assert [row[name] for name in ("ID", "N", "DEC")] == [1, Decimal("-.5"), 7]
    assert all(isinstance(row[name], Decimal) for name in ("ID", "N", "DEC"))
    assert (row["C"], row["B"]) == ("text", b"data")


def test_rows_come_in_round_trips_of_the_array_size(place: Place) -> None:
    """Prefetchrows come with the execution, then arraysize at a time."""
    place.add(*range(25))
    trips: list[str] = []
    place.server.on_fetch = trips.append
    cursor = place.pdb.cursor()
    cursor.arraysize = 10
    cursor.execute('SELECT "ID" FROM "SHOP"."T" ORDER BY "ID"')
    assert len(cursor.fetchmany(5)) == 5
    assert len(cursor.fetchmany()) == 10
    assert len(cursor.fetchall()) == 10
    assert (len(trips), cursor.rowcount) == (4, 25)
    assert cursor.fetchone() is None


def test_data_frames_have_the_documented_types(place: Place) -> None:
    """NUMBER is int64, decimal or double; texts are large strings; times have no zone."""
    add_types(place)
    frame = place.pdb.fetch_df_all(QUERY)
    kinds = dict(zip(frame.column_names(), pa.table(frame).schema.types, strict=True))
    assert kinds["ID"] == pa.int64()
    assert (kinds["N"], kinds["DEC"]) == (pa.float64(), pa.float64())
    assert (kinds["V"], kinds["C"]) == (pa.large_string(), pa.large_string())
    assert (kinds["R"], kinds["B"]) == (pa.large_binary(), pa.large_binary())
    assert (kinds["D"], kinds["T9"]) == (pa.timestamp("s"), pa.timestamp("ns"))
    nanos = pa.table(frame).column("T9")[0].value % 10**6
    assert nanos == 5007
    decimals = place.pdb.fetch_df_all(QUERY, fetch_decimals=True)
    assert pa.table(decimals).schema.field("DEC").type == pa.decimal128(12, 2)
    assert frame.num_rows() == 2
    query = 'SELECT ROWID FROM "SHOP"."TYPES"'
    assert code_of(lambda: place.pdb.fetch_df_all(query)) == "DPY-3030"
    wanted = pa.schema([("x", pa.int32())])
    narrow = place.pdb.fetch_df_all('SELECT "ID" FROM "SHOP"."TYPES"', requested_schema=wanted)
    assert pa.table(narrow).schema == wanted


def test_data_frames_come_in_batches(place: Place) -> None:
    """The last batch may be shorter; an empty result has one empty batch."""
    place.add(*range(25))
    query = 'SELECT "ID" FROM "SHOP"."T" WHERE "ID" < :top'
    sizes = [one.num_rows() for one in place.pdb.fetch_df_batches(query, {"top": 25}, size=10)]
    assert sizes == [10, 10, 5]
    empty = list(place.pdb.fetch_df_batches(query, {"top": 0}, size=10))
    assert [one.num_rows() for one in empty] == [0]


def test_rows_are_read_by_row_id_ranges(place: Place) -> None:
    """Chunks of extents give each row once, as of an SCN."""
    place.add(*range(1000))
    scn = run(place.root, "SELECT CURRENT_SCN FROM V$DATABASE")[0][0]
    place.add(5000)
    extents = run(
        place.pdb,
        "SELECT RELATIVE_FNO, BLOCK_ID, BLOCKS FROM DBA_EXTENTS"
        " WHERE OWNER = 'SHOP' AND SEGMENT_NAME = 'T' ORDER BY EXTENT_ID",
    )
    number = run(place.pdb, "SELECT DATA_OBJECT_ID FROM ALL_OBJECTS WHERE OBJECT_NAME = 'T'")[0][0]
    assert len(extents) > 1
    found = []
    for file, block, count in extents:
        found += run(
            place.pdb,
            'SELECT "ID" FROM "SHOP"."T" AS OF SCN :scn WHERE ROWID BETWEEN '
            "DBMS_ROWID.ROWID_CREATE(1, :obj, :file, :low, 0) AND "
            "DBMS_ROWID.ROWID_CREATE(1, :obj, :file, :high, 32767)",
            {"scn": scn, "obj": number, "file": file, "low": block, "high": block + count - 1},
        )
    assert sorted(found) == [(key,) for key in range(1000)]


# ---------------------------------------------------------------------- changes


def test_changes_are_transactions_with_redo(place: Place) -> None:
    """Own changes are seen before the commit, others after it; a rollback leaves nothing."""
    other = place.connect("shoppdb")
    insert = 'INSERT INTO "SHOP"."T" ("ID", "NAME") VALUES (:1, :2)'
    cursor = place.pdb.cursor()
    cursor.executemany(insert, [(1, "a"), (2, ""), (3, "c")])
    assert cursor.rowcount == 3
    query = 'SELECT "ID", "NAME" FROM "SHOP"."T" ORDER BY "ID"'
    assert run(place.pdb, query) == [(1, "a"), (2, None), (3, "c")]
    assert run(other, query) == []
    place.pdb.rollback()
    run(place.pdb, insert, [5, "e"])
    cursor.execute('UPDATE "SHOP"."T" SET "NAME" = "NAME" || :x WHERE "ID" = :k', x="!", k=5)
    place.pdb.commit()
    assert run(other, query) == [(5, "e!")]
    (committed,) = place.database.truth()
    assert [change.op for change in committed.changes] == ["c", "u"]
    place.pdb.autocommit = True
    run(place.pdb, 'DELETE FROM "SHOP"."T" WHERE "ID" = 5')
    assert place.names() == {}


def test_rows_of_arrow_can_be_written(place: Place) -> None:
    """executemany() takes a stream, and tells refused rows with batcherrors."""
    place.add(2)
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    insert = 'INSERT INTO "SHOP"."T" ("ID", "NAME") VALUES (:1, :2)'
    cursor = place.pdb.cursor()
    with pytest.raises(oracledb.IntegrityError) as raised:
        cursor.executemany(insert, table)
    assert (raised.value.args[0].offset, raised.value.args[0].code) == (1, 1)
    place.pdb.rollback()
    cursor.executemany(insert, table, batcherrors=True, arraydmlrowcounts=True)
    assert [one.offset for one in cursor.getbatcherrors()] == [1]
    assert cursor.getarraydmlrowcounts() == [1, 0, 1]
    place.pdb.commit()
    assert place.names() == {1: "x", 2: "n2", 3: "z"}
    assert code_of(lambda: cursor.executemany(insert, "rows")) == "DPY-2004"


def test_the_direct_path_commits(place: Place) -> None:
    """Loaded rows cannot be rolled back, and it needs the table for itself."""
    place.pdb.direct_path_load("SHOP", "T", ["ID", "NAME"], pa.table({"i": [1], "n": ["a"]}))
    place.pdb.rollback()
    assert place.names() == {1: "a"}
    other = place.connect("shoppdb")
    run(other, 'UPDATE "SHOP"."T" SET "NAME" = \'b\'')
    load = [(2, "b")]
    action = lambda: place.pdb.direct_path_load("SHOP", "T", ["ID", "NAME"], load)  # noqa: E731
    assert code_of(action) == "ORA-00054"


def test_a_merge_has_its_conditions(place: Place) -> None:
    """DELETE WHERE, WHERE of the insert, and columns of ON that may not be set."""
    place.add(1, 2)
    columns = {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)", "OP": "VARCHAR2(1)"}
    staged = place.database.add_table("SHOP", "M", columns)
    transaction = place.database.begin()
    for key, name, op in ((1, "new", "u"), (2, None, "d"), (3, "c", "c"), (4, None, "d")):
        transaction.insert(staged, {"ID": key, "NAME": name, "OP": op})
    transaction.commit()
    text = (
        'MERGE INTO "SHOP"."T" T USING "SHOP"."M" M ON (T."ID" = M."ID") WHEN MATCHED THEN '
        'UPDATE SET T."NAME" = M."NAME" DELETE WHERE M."OP" = \'d\' WHEN NOT MATCHED THEN '
        'INSERT ("ID", "NAME") VALUES (M."ID", M."NAME") WHERE M."OP" <> \'d\''
    )
    cursor = place.pdb.cursor()
    cursor.execute(text)
    assert cursor.rowcount == 3
    place.pdb.commit()
    assert place.names() == {1: "new", 3: "c"}
    wrong = text.replace('SET T."NAME"', 'SET T."ID"')
    assert code_of(lambda: run(place.pdb, wrong)) == "ORA-38104"
    run(place.pdb, 'INSERT INTO "SHOP"."M" ("ID", "OP") VALUES (1, \'u\')')
    assert code_of(lambda: run(place.pdb, text)) == "ORA-30926"


def test_a_failed_statement_leaves_nothing(place: Place) -> None:
    """The transaction goes on without the statement's rows."""
    place.add(1, 2, 3)
    shift = 'UPDATE "SHOP"."T" SET "ID" = "ID" + 1 WHERE "ID" < 3'
    assert code_of(lambda: run(place.pdb, shift)) == "ORA-00001"
    run(place.pdb, 'UPDATE "SHOP"."T" SET "ID" = "ID" + 1')
    place.pdb.commit()
    assert sorted(place.names()) == [2, 3, 4]


def test_a_change_waits_for_another_session(place: Place) -> None:
    """The change goes on after the other's commit, and is a deadlock after some time."""
    place.add(1)
    other = place.connect("shoppdb")
    run(other, 'SELECT "ID" FROM "SHOP"."T" WHERE "ID" = 1 FOR UPDATE')
    update = 'UPDATE "SHOP"."T" SET "NAME" = \'x\''
    place.server.lock_timeout_s = 0.05
    assert code_of(lambda: run(place.pdb, update)) == "ORA-00060"
    place.server.lock_timeout_s = 20
    timer = threading.Timer(0.1, other.commit)
    timer.start()
    run(place.pdb, update)
    timer.join()
    place.pdb.commit()
    assert place.names() == {1: "x"}


def test_ddl_commits(place: Place) -> None:
    """Tables can be created, altered, truncated and dropped by text."""
    run(place.pdb, 'INSERT INTO "SHOP"."T" ("ID") VALUES (1)')
    create = (
        'CREATE TABLE "SHOP"."N" ("ID" NUMBER(10) NOT NULL, "V" VARCHAR2(5), PRIMARY KEY ("ID"))'
    )
    run(place.pdb, create)
    place.pdb.rollback()
    assert place.names() == {1: None}
    assert code_of(lambda: run(place.pdb, create)) == "ORA-00955"
    run(place.pdb, 'ALTER TABLE "SHOP"."N" ADD ("W" NUMBER(5,2))')
    run(place.pdb, 'INSERT INTO "SHOP"."N" ("ID", "W") VALUES (1, 2.5)')
    place.pdb.commit()
    assert run(place.pdb, 'SELECT * FROM "SHOP"."N"') != []
    run(place.pdb, 'TRUNCATE TABLE "SHOP"."N"')
    assert run(place.pdb, 'SELECT COUNT(*) FROM "SHOP"."N"') == [(0,)]
    run(place.pdb, 'DROP TABLE "SHOP"."N" PURGE')
    assert code_of(lambda: run(place.pdb, 'SELECT COUNT(*) FROM "SHOP"."N"')) == "ORA-00942"


def test_savepoints_by_text(place: Place) -> None:
    """A rollback to a savepoint writes undo rows."""
    insert = 'INSERT INTO "SHOP"."T" ("ID") VALUES (:1)'
    run(place.pdb, insert, [1])
    run(place.pdb, "SAVEPOINT batch")
    run(place.pdb, insert, [2])
    run(place.pdb, "ROLLBACK TO SAVEPOINT batch")
    place.pdb.commit()
    assert place.names() == {1: None}


# ---------------------------------------------------------------------- privileges and views


@pytest.mark.parametrize(
    ("missing", "text", "code"),
    [
        ("SELECT ANY DICTIONARY", "SELECT CURRENT_SCN FROM V$DATABASE", "ORA-00942"),
        ("ALTER SYSTEM", "ALTER SYSTEM ARCHIVE LOG CURRENT", "ORA-01031"),
        ("SET CONTAINER", "ALTER SESSION SET CONTAINER = SHOPPDB", "ORA-01031"),
        ("EXECUTE_CATALOG_ROLE", "BEGIN DBMS_LOGMNR.END_LOGMNR; END;", "ORA-06550"),
        ("LOGMINING", "BEGIN DBMS_LOGMNR.START_LOGMNR(1, 2); END;", "ORA-01031"),
    ],
)
def test_a_missing_privilege_is_an_error(place: Place, missing: str, text: str, code: str) -> None:
    """Each is found by using it."""
    place.database.settings.grants = ALL_PRIVILEGES - {missing}
    assert code_of(lambda: run(place.root, text)) == code


def test_tables_need_their_privileges(place: Place) -> None:
    """Reading as of an SCN needs FLASHBACK as well."""
    place.add(1)
    query = 'SELECT "ID" FROM "SHOP"."T"'
    place.database.settings.grants = ALL_PRIVILEGES - {"FLASHBACK ANY TABLE"}
    assert run(place.pdb, query) == [(1,)]
    scn = place.database.scn
    assert code_of(lambda: run(place.pdb, f"{query} AS OF SCN {scn}")) == "ORA-01031"
    place.database.settings.grants = ALL_PRIVILEGES - {"SELECT ANY TABLE"}
    assert code_of(lambda: run(place.pdb, query)) == "ORA-00942"


def test_views_show_the_state_of_the_database(place: Place) -> None:
    """Settings, incarnations, transactions, loads without logging, columns."""
    place.database.settings.force_logging = "YES"
    place.database.settings.role = "PHYSICAL STANDBY"
    query = "SELECT FORCE_LOGGING, DATABASE_ROLE FROM V$DATABASE"
    assert run(place.root, query) == [("YES", "PHYSICAL STANDBY")]
    assert code_of(lambda: run(place.root, "SELECT NO FROM V$DATABASE")) == "ORA-00904"
    transaction = place.database.begin()
    transaction.insert(place.table, {"ID": 1})
    found = run(place.root, "SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM GV$TRANSACTION")
    assert found == [(*transaction.xid, transaction.start_scn)]
    transaction.rollback()
    place.database.load_without_logging(place.table, [{"ID": 9, "NAME": None}])
    scn = run(place.root, "SELECT UNRECOVERABLE_CHANGE# FROM V$DATAFILE")[0][0]
    assert scn == place.database.unrecoverable_scn
    query = "SELECT NEXT_CHANGE# FROM V$LOG WHERE STATUS = 'CURRENT'"
    assert run(place.root, query) == [(2**64 - 1,)]
    query = "SELECT COLUMN_NAME, DATA_TYPE, DATA_LENGTH FROM ALL_TAB_COLS WHERE TABLE_NAME = :t"
    assert run(place.pdb, query, ["T"]) == [("ID", "NUMBER", 22), ("NAME", "VARCHAR2", 40)]


def test_settings_of_the_session_are_shown(place: Place) -> None:
    """A client can check what it set by its effect."""
    run(place.root, "ALTER SESSION SET NLS_DATE_FORMAT = 'YYYY-MM-DD' NLS_LANGUAGE = 'GERMAN'")
    query = "SELECT VALUE FROM NLS_SESSION_PARAMETERS WHERE PARAMETER = 'NLS_DATE_FORMAT'"
    assert run(place.root, query) == [("YYYY-MM-DD",)]
    query = "SELECT TO_CHAR(RESETLOGS_TIME) FROM V$DATABASE"
    assert run(place.root, query) == [("2026-03-04",)]
    assert code_of(lambda: run(place.root, "ALTER SESSION SET NO_SUCH = 1")) == "ORA-02248"


def test_procedures_can_be_called_by_name(place: Place) -> None:
    """callproc() reaches the same procedures as a block."""
    place.add(1)
    cursor = place.root.cursor()
    name = place.database.logs.groups[1].members[0]
    cursor.callproc("DBMS_LOGMNR.ADD_LOGFILE", [name, 1])
    low, high = place.database.first_scn + 1, place.database.scn
    options = {"STARTSCN": low, "ENDSCN": high, "OPTIONS": 16}
    cursor.callproc("DBMS_LOGMNR.START_LOGMNR", keyword_parameters=options)
    query = "SELECT SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE = 1"
    assert 'insert into "SHOP"."T"' in run(place.root, query)[0][0]
    block = "BEGIN DBMS_LOGMNR.END_LOGMNR; DBMS_LOGMNR.END_LOGMNR; END;"
    assert code_of(lambda: run(place.root, block)) == "ORA-01307"
    assert code_of(lambda: run(place.root, "BEGIN NO_SUCH.THING; END;")) == "ORA-06550"
