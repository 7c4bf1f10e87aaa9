"""Changes and definitions by SQL in the simulated Oracle: rules of Oracle's SQL reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sim_oracle import oracledb
from sim_oracle.database import Database
from sim_oracle.driver_servers import listen
from sim_oracle.session import ALL_PRIVILEGES, Server
from sim_oracle.texts import KnownTexts

LOGIN = {"user": "c##penstock", "password": "secret"}


class Place:
    """A server whose PDB has nothing, and a connection to it."""

    def __init__(self) -> None:
        self.database = Database()
        self.server = Server(self.database, texts=KnownTexts(None))
        self.address = listen(self.server)
        self.connection = self.connect()

    def connect(self) -> oracledb.Connection:
        """Return a new connection to the PDB."""
        return oracledb.connect(f"{self.address}/shoppdb", **LOGIN)

    def run(self, *texts: str, binds: Any = None) -> list[Any]:
        """Run statements; return the rows of the last one."""
        rows: list[Any] = []
        for text in texts:
            cursor = self.connection.cursor()
            rows = cursor.fetchall() if cursor.execute(text, binds) else []
        return rows

    def count(self, text: str, binds: Any = None) -> int:
        """Run a change; return how many rows it changed."""
        cursor = self.connection.cursor()
        cursor.execute(text, binds)
        return cursor.rowcount


@pytest.fixture
def place() -> Place:
    """A place whose server knows every text."""
    return Place()


def code_of(action: Callable[[], Any]) -> int:
    """Return the number of the ORA error that an action raises."""
    with pytest.raises(oracledb.DatabaseError) as raised:
        action()
    code: int = raised.value.args[0].code
    return code


def driver_code_of(action: Callable[[], Any]) -> str:
    """Return the code of the driver's error that an action raises."""
    with pytest.raises(oracledb.Error) as raised:
        action()
    code: str = raised.value.args[0].full_code
    return code


# ---------------------------------------------------------------------- CREATE TABLE


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("a NUMBER(39)", 1727),
        ("a NUMBER(5,130)", 1728),
        ("a VARCHAR2(4001)", 910),
        ("a VARCHAR2(0)", 1723),
        ("a VARCHAR2", 906),
        ("a RAW(2001)", 910),
        ("a TIMESTAMP(10)", 30088),
        ("a BOOLEAN", 902),
        ("a JSON", 902),
        ("a TEXT", 902),
        ("a NUMBER, a NUMBER", 957),
        ("a CLOB PRIMARY KEY", 2329),
        ("a TIMESTAMP WITH TIME ZONE, PRIMARY KEY (a)", 2329),
        ("a VARCHAR2(4000 CHAR) PRIMARY KEY", 1450),
        ("a NUMBER PRIMARY KEY, b NUMBER, PRIMARY KEY (b)", 2260),
        ("a NUMBER, PRIMARY KEY (b)", 904),
        ("a NUMBER REFERENCES nothing", 942),
        ("a LONG, b LONG", 1754),
        (", ".join(f"c{number} NUMBER" for number in range(1001)), 1792),
        (f"{'a' * 129} NUMBER", 972),
        ("mode NUMBER", 904),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_wrong_definition_is_refused(place: Place, columns: str, code: int) -> None:
    """No table is left of it."""
    assert code_of(lambda: place.run(f"CREATE TABLE shop.t ({columns})")) == code
    assert code_of(lambda: place.run("SELECT * FROM shop.t")) == 942


def test_types_depend_on_the_release(place: Place) -> None:
    """JSON came with 21c, BOOLEAN with 23ai, long names with 12.2, long texts by a parameter."""
    place.database.settings.version = "23.0.0.0.0"
    place.database.settings.parameters["max_string_size"] = "EXTENDED"
    place.run("CREATE TABLE shop.t (a BOOLEAN, b JSON, c VARCHAR2(32767))")
    place.database.settings.version = "12.1.0.2.0"
    assert code_of(lambda: place.run(f"CREATE TABLE shop.{'t' * 31} (a NUMBER)")) == 972


def test_names_fold_to_upper_case_without_quotes(place: Place) -> None:
    """A quoted name is taken as it is written."""
    place.run('CREATE TABLE shop.t (id NUMBER, "id" NUMBER)')
    query = "SELECT COLUMN_NAME FROM ALL_TAB_COLS WHERE TABLE_NAME = 'T' ORDER BY COLUMN_ID"
    assert place.run(query) == [("ID",), ("id",)]
    assert code_of(lambda: place.run('SELECT "Id" FROM shop.t')) == 904


def test_a_schema_is_a_user(place: Place) -> None:
    """Tables need their user, and creating in the schema of another needs a privilege."""
    create = "CREATE TABLE wirekite.t (a NUMBER)"
    assert code_of(lambda: place.run(create)) == 1918
    place.run("CREATE USER wirekite NO AUTHENTICATION QUOTA UNLIMITED ON users")
    assert place.run("SELECT USERNAME FROM ALL_USERS WHERE USERNAME = 'WIREKITE'") != []
    assert code_of(lambda: place.run("CREATE USER wirekite NO AUTHENTICATION")) == 1920
    place.database.settings.grants = ALL_PRIVILEGES - {"CREATE ANY TABLE"}
    assert code_of(lambda: place.run(create)) == 1031
    place.database.settings.grants = None
    place.run(create)
    assert code_of(lambda: place.run("DROP USER wirekite")) == 1922
    place.run("DROP USER wirekite CASCADE")


def test_the_rows_of_another_schema_need_privileges(place: Place) -> None:
    """A table that may be read says that a right is missing; any other does not exist."""
    place.run("CREATE TABLE shop.t (a NUMBER)")
    place.database.settings.grants = ALL_PRIVILEGES - {"INSERT ANY TABLE"}
    insert = "INSERT INTO shop.t VALUES (1)"
    assert code_of(lambda: place.run(insert)) == 1031
    place.database.settings.grants = frozenset({"INSERT ON SHOP.T"})
    place.run(insert)
    assert code_of(lambda: place.run("SELECT * FROM shop.t")) == 942
    assert code_of(lambda: place.run("TRUNCATE TABLE shop.t")) == 942


# ---------------------------------------------------------------------- ALTER TABLE


def test_columns_can_be_changed(place: Place) -> None:
    """Columns are added with a default, renamed, widened and dropped."""
    place.run("CREATE TABLE shop.t (id NUMBER(5) PRIMARY KEY, a VARCHAR2(3 CHAR))")
    place.run("INSERT INTO shop.t VALUES (1, 'abc')")
    place.run('ALTER TABLE shop.t ADD ("B" NUMBER(3) DEFAULT 7 NOT NULL, c DATE)')
    assert place.run("SELECT * FROM shop.t") == [(1, "abc", 7, None)]
    place.run('ALTER TABLE shop.t RENAME COLUMN "B" TO "D"')
    place.run("ALTER TABLE shop.t MODIFY (id NUMBER(9), a VARCHAR2(10 CHAR) NOT NULL)")
    place.run("ALTER TABLE shop.t DROP COLUMN c")
    place.run("INSERT INTO shop.t (id, a) VALUES (123456, 'longer')")
    assert place.run("SELECT * FROM shop.t ORDER BY id") == [(1, "abc", 7), (123456, "longer", 7)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("MODIFY (id VARCHAR2(5))", 1439),
        ("MODIFY (id NUMBER(4))", 1440),
        ("MODIFY (a VARCHAR2(2))", 1441),
        ("MODIFY (a CLOB)", 22858),
        ("MODIFY (id NOT NULL)", 1442),
        ("MODIFY (a NULL)", 1451),
        ("MODIFY (b NOT NULL)", 2296),
        ("MODIFY (x NUMBER)", 904),
        ("ADD (a NUMBER)", 1430),
        ("ADD (n NUMBER NOT NULL)", 1758),
        ("ADD CONSTRAINT u UNIQUE (id)", 2261),
        ("ADD CONSTRAINT p PRIMARY KEY (a)", 2260),
        ("ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES shop.t (a)", 2270),
        ("DROP COLUMN x", 904),
        ("DROP CONSTRAINT x", 2443),
        ("RENAME COLUMN a TO b", 957),
        ("RENAME COLUMN x TO y", 904),
        ("DISABLE CONSTRAINT x", 2431),
    ],
)
def test_a_wrong_change_is_refused(place: Place, change: str, code: int) -> None:
    """The table with its row stays as it is."""
    place.run("CREATE TABLE shop.t (id NUMBER(5) PRIMARY KEY, a VARCHAR2(3), b NUMBER)")
    place.run("INSERT INTO shop.t VALUES (1, 'abc', NULL)")
    place.connection.commit()
    assert code_of(lambda: place.run(f"ALTER TABLE shop.t {change}")) == code
    assert place.run("SELECT * FROM shop.t") == [(1, "abc", None)]


def test_ddl_needs_a_table_without_open_changes(place: Place) -> None:
    """DDL fails at once or waits for DDL_LOCK_TIMEOUT seconds; it commits own changes."""
    place.run("CREATE TABLE shop.t (id NUMBER)", "INSERT INTO shop.t VALUES (1)")
    other = place.connect()
    cursor = other.cursor()
    alter = "ALTER TABLE shop.t ADD (a NUMBER)"
    assert code_of(lambda: cursor.execute(alter)) == 54
    assert code_of(lambda: cursor.execute("TRUNCATE TABLE shop.t")) == 54
    assert code_of(lambda: cursor.execute("DROP TABLE shop.t")) == 54
    cursor.execute("ALTER SESSION SET DDL_LOCK_TIMEOUT = 20")
    timer = threading.Timer(0.1, place.connection.commit)
    timer.start()
    cursor.execute(alter)
    timer.join()
    assert place.run("SELECT * FROM shop.t") == [(1, None)]


def test_indexes_are_unique_by_their_columns(place: Place) -> None:
    """An index of the same columns exists already, and duplicates refuse a unique one."""
    place.run("CREATE TABLE shop.t (id NUMBER PRIMARY KEY, a NUMBER, c CLOB)")
    place.run(
        "INSERT INTO shop.t (id, a) VALUES (1, 1)", "INSERT INTO shop.t (id, a) VALUES (2, 1)"
    )
    assert code_of(lambda: place.run("CREATE INDEX shop.i ON shop.t (id)")) == 1408
    assert code_of(lambda: place.run("CREATE UNIQUE INDEX shop.i ON shop.t (a)")) == 1452
    assert code_of(lambda: place.run("CREATE INDEX shop.i ON shop.t (c)")) == 2327
    place.run("DELETE FROM shop.t WHERE id = 2", "CREATE UNIQUE INDEX shop.i ON shop.t (a)")
    assert code_of(lambda: place.run("INSERT INTO shop.t (id, a) VALUES (3, 1)")) == 1
    place.run("DROP INDEX shop.i", "INSERT INTO shop.t (id, a) VALUES (3, 1)")
    assert code_of(lambda: place.run("DROP INDEX shop.i")) == 1418


def test_a_dropped_table_takes_its_foreign_keys_along(place: Place) -> None:
    """A referred table is dropped and truncated with CASCADE or not at all."""
    place.run(
        "CREATE TABLE shop.p (id NUMBER PRIMARY KEY)",
        "CREATE TABLE shop.c (id NUMBER PRIMARY KEY, p NUMBER REFERENCES shop.p)",
    )
    assert code_of(lambda: place.run("DROP TABLE shop.p")) == 2449
    assert code_of(lambda: place.run("TRUNCATE TABLE shop.p")) == 2266
    place.run("DROP TABLE shop.p CASCADE CONSTRAINTS PURGE", "INSERT INTO shop.c VALUES (1, 5)")


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("NUMBER(3)", 1000, 1438),
        ("NUMBER(3)", "x", 1722),
        ("NUMBER(3)", b"x", 932),
        ("VARCHAR2(2)", "abc", 12899),
        ("VARCHAR2(2)", "éé", 12899),
        ("NUMBER NOT NULL", None, 1400),
        ("VARCHAR2(5) NOT NULL", "", 1400),
        ("RAW(2)", b"abc", 12899),
        ("RAW(2)", "zz", 1465),
        ("DATE", 5, 932),
        ("CLOB", b"x", 932),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    place: Place, kind: str, value: Any, code: int
) -> None:
    """The table stays empty."""
    place.run(f"CREATE TABLE shop.t (a {kind})")
    insert = "INSERT INTO shop.t VALUES (:1)"
    assert code_of(lambda: place.run(insert, binds=[value])) == code
    assert place.run("SELECT COUNT(*) FROM shop.t") == [(0,)]


def test_null_by_an_update_has_a_code_of_its_own(place: Place) -> None:
    """An insert says 1400, an update 1407."""
    place.run("CREATE TABLE shop.t (a NUMBER, b VARCHAR2(5) NOT NULL)")
    place.run("INSERT INTO shop.t VALUES (1, 'x')")
    assert code_of(lambda: place.run("UPDATE shop.t SET b = ''")) == 1407


def test_values_are_converted_to_their_column(place: Place) -> None:
    """Numbers are rounded to the scale, times to their digits; '' is NULL, an empty LOB is not."""
    place.run(
        "CREATE TABLE shop.t (n NUMBER(5,2), f BINARY_FLOAT, d DATE, t TIMESTAMP(3), "
        "c CHAR(3), v VARCHAR2(9), e CLOB, i NUMBER GENERATED ALWAYS AS IDENTITY)"
    )
    cursor = place.connection.cursor()
    time = datetime(2026, 1, 2, 3, 4, 5, 678_900)  # noqa: DTZ001
    cursor.setinputsizes(None, None, None, oracledb.DB_TYPE_TIMESTAMP)
    empty = place.connection.createlob(oracledb.DB_TYPE_CLOB)
    names = "n, f, d, t, c, v, e"
    cursor.execute(
        f"INSERT INTO shop.t ({names}) VALUES (:1, :2, :3, :4, :5, :6, :7)",
        ["1.005", Decimal("0.1"), time, time, "a", "", empty],
    )
    row = place.run(f"SELECT {names}, i FROM shop.t")[0]
    assert row[0] == pytest.approx(1.01)
    assert row[1] == pytest.approx(0.1, abs=1e-7)
    assert row[1] != 0.1
    assert row[2:6] == (time.replace(microsecond=0), time.replace(microsecond=679_000), "a  ", None)
    assert row[6].read() == ""
    assert row[7] == 1
    assert code_of(lambda: place.run("INSERT INTO shop.t (i) VALUES (5)")) == 32795


def test_a_datetime_is_bound_as_a_date(place: Place) -> None:
    """The driver drops the fraction of a second unless the type is set."""
    place.run("CREATE TABLE shop.t (t TIMESTAMP(6), z TIMESTAMP(6) WITH TIME ZONE)")
    time = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    cursor = place.connection.cursor()
    cursor.execute("INSERT INTO shop.t VALUES (:1, :2)", [time, time])
    assert place.run("SELECT t FROM shop.t") == [(time.replace(microsecond=0),)]
    cursor.setinputsizes(oracledb.DB_TYPE_TIMESTAMP, oracledb.DB_TYPE_TIMESTAMP_TZ)
    cursor.execute("INSERT INTO shop.t VALUES (:1, :2)", [time, time])
    query = "SELECT TO_CHAR(z, 'YYYY-MM-DD HH24:MI:SS.FF6 TZH:TZM') FROM shop.t WHERE t = :t"
    cursor.setinputsizes(t=oracledb.DB_TYPE_TIMESTAMP)
    cursor.execute(query, {"t": time})
    assert cursor.fetchall() == [("2026-01-02 03:04:05.000006 +00:00",)]


def test_not_a_number_needs_a_binary_type(place: Place) -> None:
    """A float is bound as NUMBER, which has no NaN; Arrow's floats are BINARY_DOUBLE."""
    place.run("CREATE TABLE shop.t (a BINARY_DOUBLE)")
    insert = "INSERT INTO shop.t VALUES (:1)"
    nan = float("nan")
    assert driver_code_of(lambda: place.run(insert, binds=[nan])) == "DPY-4004"
    cursor = place.connection.cursor()
    cursor.setinputsizes(oracledb.DB_TYPE_BINARY_DOUBLE)
    cursor.execute(insert, [nan])
    cursor.executemany(insert, pa.table({"a": [nan, float("inf")]}))
    assert len(place.run("SELECT a FROM shop.t")) == 3


def test_unknown_types_of_values_are_refused_by_the_driver(place: Place) -> None:
    """Objects, and values of one column of different types."""
    place.run("CREATE TABLE shop.t (a VARCHAR2(9))")
    insert = "INSERT INTO shop.t VALUES (:1)"
    assert driver_code_of(lambda: place.run(insert, binds=[object()])) == "DPY-3002"
    cursor = place.connection.cursor()
    assert driver_code_of(lambda: cursor.executemany(insert, [["a"], [1]])) == "DPY-3013"
    times = pa.table({"a": pa.array([1], pa.time64("us"))})
    assert driver_code_of(lambda: cursor.executemany(insert, times)) == "DPY-3032"


def test_long_texts_are_for_columns_only(place: Place) -> None:
    """A text over 4000 bytes is a LONG: it may be inserted or assigned, not selected."""
    place.run("CREATE TABLE shop.t (id NUMBER, c CLOB)")
    long = "é" * 3000
    place.run("INSERT INTO shop.t VALUES (:1, :2)", binds=[1, long])
    place.run("UPDATE shop.t SET c = :c WHERE id = 1", binds={"c": long * 2})
    merge = (
        "MERGE INTO shop.t t USING (SELECT :1 AS id, :2 AS c FROM dual) s ON (t.id = s.id) "
        "WHEN MATCHED THEN UPDATE SET t.c = s.c"
    )
    assert code_of(lambda: place.run(merge, binds=[1, long])) == 1461
    lob = place.connection.createlob(oracledb.DB_TYPE_CLOB, long)
    place.run(merge, binds=[1, lob])
    assert place.run("SELECT DBMS_LOB.GETLENGTH(c) FROM shop.t") == [(3000,)]


def test_lobs_cannot_be_compared(place: Place) -> None:
    """Neither by =, nor in an order, a group or DECODE; DBMS_LOB.COMPARE can."""
    place.run("CREATE TABLE shop.t (id NUMBER, c CLOB)")
    place.run("INSERT INTO shop.t VALUES (1, 'x')")
    for wrong in (
        "SELECT id FROM shop.t WHERE c = 'x'",
        "SELECT id FROM shop.t ORDER BY c",
        "SELECT c, COUNT(*) FROM shop.t GROUP BY c",
        "SELECT id FROM shop.t WHERE DECODE(c, TO_CLOB('x'), 1, 0) = 1",
        "DELETE FROM shop.t WHERE c = 'x'",
        "MERGE INTO shop.t a USING shop.t b ON (a.c = b.c) WHEN MATCHED THEN UPDATE SET a.id = 1",
    ):
        assert code_of(lambda text=wrong: place.run(text)) == 932, wrong  # type: ignore[misc]
    query = "SELECT id FROM shop.t WHERE DBMS_LOB.COMPARE(c, TO_CLOB('x')) = 0"
    assert place.run(query) == [(1,)]


# ---------------------------------------------------------------------- constraints


def test_keys_and_checks_hold_at_the_end_of_a_statement(place: Place) -> None:
    """Unique columns, checks, and NULLs that are no duplicates."""
    place.run(
        "CREATE TABLE shop.t (id NUMBER PRIMARY KEY, a NUMBER UNIQUE, b NUMBER CHECK (b > 0), "
        "CONSTRAINT two UNIQUE (a, b))"
    )
    insert = "INSERT INTO shop.t VALUES (:1, :2, :3)"
    place.run(insert, binds=[1, None, None])
    place.run(insert, binds=[2, None, None])
    place.run(insert, binds=[3, 1, Decimal("0.5")])
    assert code_of(lambda: place.run(insert, binds=[4, 1, 1])) == 1
    assert code_of(lambda: place.run(insert, binds=[5, 2, Decimal("-0.5")])) == 2290
    assert code_of(lambda: place.run(insert, binds=[1, 2, 2])) == 1
    place.run("UPDATE shop.t SET a = id", "UPDATE shop.t SET a = a + 1")
    assert code_of(lambda: place.run("UPDATE shop.t SET a = 5")) == 1
    assert place.run("SELECT id, a FROM shop.t ORDER BY id") == [(1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("state", ["", "DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_foreign_keys_are_checked_at_once_or_at_the_commit(place: Place, state: str) -> None:
    """Only a deferrable one can wait for the commit, which rolls back if it does not hold."""
    place.run(
        "CREATE TABLE shop.p (id NUMBER PRIMARY KEY)",
        f"CREATE TABLE shop.c (p NUMBER, CONSTRAINT f FOREIGN KEY (p) REFERENCES shop.p {state})",
        "SET CONSTRAINTS ALL DEFERRED" if state == "DEFERRABLE" else "SELECT 1 FROM DUAL",
    )
    insert = "INSERT INTO shop.c VALUES (1)"
    if not state:
        assert code_of(lambda: place.run(insert)) == 2291
        place.run("INSERT INTO shop.p VALUES (1)", insert)
        assert code_of(lambda: place.run("DELETE FROM shop.p")) == 2292
        assert code_of(lambda: place.run("UPDATE shop.p SET id = 2")) == 2292
        return
    place.run(insert)
    with pytest.raises(oracledb.DatabaseError, match="ORA-02291"):
        place.connection.commit()
    assert place.run("SELECT * FROM shop.c") == []
    place.run("SET CONSTRAINTS ALL DEFERRED", insert, "INSERT INTO shop.p VALUES (1)")
    place.connection.commit()
    assert place.run("SELECT * FROM shop.c") == [(1,)]


def test_a_delete_can_cascade(place: Place) -> None:
    """Rows of the child are deleted, or their columns become NULL."""
    place.run(
        "CREATE TABLE shop.p (id NUMBER PRIMARY KEY)",
        "CREATE TABLE shop.c (p NUMBER REFERENCES shop.p ON DELETE CASCADE)",
        "CREATE TABLE shop.n (p NUMBER REFERENCES shop.p ON DELETE SET NULL)",
        "INSERT INTO shop.p VALUES (1)",
        "INSERT INTO shop.c VALUES (1)",
        "INSERT INTO shop.n VALUES (1)",
        "DELETE FROM shop.p",
    )
    assert place.run("SELECT * FROM shop.c") == []
    assert place.run("SELECT * FROM shop.n") == [(None,)]


def test_constraints_can_be_disabled(place: Place) -> None:
    """Enabling checks the rows unless it is told not to."""
    place.run("CREATE TABLE shop.t (a NUMBER CONSTRAINT u UNIQUE)")
    place.run("ALTER TABLE shop.t DISABLE CONSTRAINT u")
    place.run("INSERT INTO shop.t VALUES (1)", "INSERT INTO shop.t VALUES (1)")
    assert code_of(lambda: place.run("ALTER TABLE shop.t ENABLE CONSTRAINT u")) == 2299
    place.run("ALTER TABLE shop.t ENABLE NOVALIDATE CONSTRAINT u")
    query = "SELECT STATUS, VALIDATED FROM ALL_CONSTRAINTS WHERE CONSTRAINT_NAME = 'U'"
    assert place.run(query) == [("ENABLED", "NOT VALIDATED")]


# ---------------------------------------------------------------------- statements


def test_a_merge_of_binds_inserts_or_updates(place: Place) -> None:
    """Expressions of a branch see the target's row."""
    place.run("CREATE TABLE shop.t (k VARCHAR2(9) PRIMARY KEY, n NUMBER, s NUMBER)")
    merge = (
        "MERGE INTO shop.t t USING (SELECT :1 AS k, :2 AS n FROM dual) s ON (t.k = s.k) "
        "WHEN MATCHED THEN UPDATE SET t.n = GREATEST(t.n, s.n), "
        "t.s = CASE WHEN t.s IS NULL THEN 1 ELSE t.s + 1 END "
        "WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, s.n)"
    )
    for number in (5, 3, 9):
        assert place.count(merge, ["a", number]) == 1
    assert place.run("SELECT k, n, s FROM shop.t") == [("a", 9, 2)]


def test_a_merge_may_have_one_branch(place: Place) -> None:
    """Without the other one nothing is inserted or nothing is updated."""
    place.run("CREATE TABLE shop.t (k NUMBER PRIMARY KEY, n NUMBER)")
    place.run("CREATE TABLE shop.m (k NUMBER, n NUMBER)")
    place.run("INSERT INTO shop.t VALUES (1, 1)")
    place.run("INSERT INTO shop.m VALUES (1, 5)", "INSERT INTO shop.m VALUES (2, 6)")
    head = "MERGE INTO shop.t t USING (SELECT k, n FROM shop.m WHERE n > 0) m ON (t.k = m.k) "
    assert place.count(head + "WHEN MATCHED THEN UPDATE SET t.n = m.n") == 1
    insert = "WHEN NOT MATCHED THEN INSERT (k, n) VALUES (m.k, m.n)"
    assert place.count(head + insert) == 1
    assert place.run("SELECT k, n FROM shop.t ORDER BY k") == [(1, 5), (2, 6)]


def test_rows_are_inserted_from_a_query(place: Place) -> None:
    """A cross join multiplies rows, and BITAND chooses them."""
    place.run(
        "CREATE TABLE shop.m (n NUMBER, v VARCHAR2(5))", "CREATE TABLE shop.t (v VARCHAR2(5))"
    )
    place.connection.cursor().executemany(
        "INSERT INTO shop.m VALUES (:1, :2)", [(1, "a"), (2, "b"), (3, "c")]
    )
    insert = (
        "INSERT INTO shop.t (v) SELECT m.v FROM shop.m m CROSS JOIN "
        "(SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b WHERE BITAND(m.n, 2) = 2"
    )
    assert place.count(insert) == 4
    query = "SELECT v, COUNT(*), COUNT(CASE WHEN v = 'b' THEN 1 END) FROM shop.t GROUP BY v"
    assert sorted(place.run(query)) == [("b", 2, 2), ("c", 2, 0)]
    delete = (
        "DELETE FROM shop.t WHERE ROWID IN (SELECT r FROM (SELECT ROWID AS r, "
        "ROW_NUMBER() OVER (PARTITION BY v ORDER BY ROWID) AS n FROM shop.t) WHERE n <= 1)"
    )
    assert place.count(delete) == 2


def test_null_is_no_value_of_a_comparison(place: Place) -> None:
    """An empty text is NULL in literals, binds and concatenations."""
    place.run("CREATE TABLE shop.t (a VARCHAR2(5), b VARCHAR2(5))")
    place.run("INSERT INTO shop.t VALUES ('', 'x')")
    assert place.run("SELECT COUNT(*) FROM shop.t WHERE a = ''") == [(0,)]
    assert place.run("SELECT COUNT(*) FROM shop.t WHERE a IS NULL AND b || a = 'x'") == [(1,)]
    query = "SELECT DECODE(a, NULL, 'n', 'v'), NVL(a, 'd'), SUBSTR(b, 2) FROM shop.t"
    assert place.run(query) == [("n", "d", None)]
    query = "SELECT COUNT(*) FROM shop.t WHERE DECODE(a, :1, 1, 0) = 1"
    assert place.run(query, binds=[""]) == [(1,)]


def test_numbers_with_a_fraction_are_exact(place: Place) -> None:
    """Comparisons, sums and extremes are those of decimals."""
    place.run("CREATE TABLE shop.t (n NUMBER)")
    numbers = [Decimal("0.1"), Decimal("0.2"), 10, Decimal("-1.5"), 10**30]
    place.connection.cursor().executemany("INSERT INTO shop.t VALUES (:1)", [[n] for n in numbers])
    assert place.run("SELECT COUNT(*) FROM shop.t WHERE n < 0.15") == [(2,)]
    cursor = place.connection.cursor()
    query = "SELECT SUM(n), MAX(n), MIN(n) FROM shop.t WHERE n < 100"
    cursor.execute(query, fetch_decimals=True)
    assert cursor.fetchall() == [(Decimal("8.8"), Decimal(10), Decimal("-1.5"))]


def test_times_are_made_from_texts(place: Place) -> None:
    """TO_TIMESTAMP, FROM_TZ and CAST, each with its own digits."""
    place.run("CREATE TABLE shop.t (t TIMESTAMP(6), z TIMESTAMP(6) WITH TIME ZONE, d DATE)")
    insert = (
        "INSERT INTO shop.t VALUES (TO_TIMESTAMP(:1, 'YYYY-MM-DD HH24:MI:SS.FF6'), "
        "FROM_TZ(TO_TIMESTAMP(:2, 'YYYY-MM-DD HH24:MI:SS.FF6'), '+02:00'), "
        "TO_DATE(:3, 'YYYY-MM-DD'))"
    )
    text = "2026-03-04 05:06:07.123456"
    rows = pa.table({"a": [text], "b": [text], "c": ["2026-03-04"]})
    place.connection.cursor().executemany(insert, rows)
    time = datetime(2026, 3, 4, 5, 6, 7, 123_456)  # noqa: DTZ001
    assert place.run("SELECT t, d FROM shop.t") == [(time, datetime(2026, 3, 4))]  # noqa: DTZ001
    utc = "SELECT SYS_EXTRACT_UTC(z) FROM shop.t"
    assert place.run(utc) == [(time.replace(hour=3),)]
    assert code_of(lambda: place.run("SELECT TO_DATE('x', 'YYYY') FROM DUAL")) == 1861
    assert place.run("SELECT COUNT(*) FROM shop.t WHERE d < SYSDATE + 1") == [(1,)]
    assert place.database.now.replace(tzinfo=UTC) is not None


def test_an_array_stops_at_its_first_error(place: Place) -> None:
    """The rows before it stay; with batcherrors all others do. It is one round trip."""
    place.run("CREATE TABLE shop.t (id NUMBER(2) PRIMARY KEY)")
    insert = "INSERT INTO shop.t VALUES (:1)"
    cursor = place.connection.cursor()
    sent = len(place.server.statements)
    with pytest.raises(oracledb.IntegrityError) as raised:
        cursor.executemany(insert, [[1], [2], [100], [3]])
    assert (raised.value.args[0].code, raised.value.args[0].offset) == (1438, 2)
    assert len(place.server.statements) == sent + 1
    cursor.executemany(insert, [[2], [5], [6]], batcherrors=True)
    assert [(one.code, one.offset) for one in cursor.getbatcherrors()] == [(1, 0)]
    assert place.run("SELECT id FROM shop.t ORDER BY id") == [(1,), (2,), (5,), (6,)]


def test_arrow_columns_are_bound_by_place(place: Place) -> None:
    """Each Arrow type has its own type of bind; NULLs stay NULL."""
    place.run(
        "CREATE TABLE shop.t (i NUMBER(19), d NUMBER(38,10), f BINARY_DOUBLE, v VARCHAR2(9), "
        "c CLOB, r RAW(9), b BLOB, y DATE, t TIMESTAMP(6))"
    )
    time = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    columns = [
        pa.array([2**62, None], pa.int64()),
        pa.array([Decimal("1.5"), None], pa.decimal128(38, 10)),
        pa.array([0.1, None], pa.float64()),
        pa.array(["", None], pa.string()),
        pa.array(["text", None], pa.large_string()),
        pa.array([b"\x00", None], pa.binary()),
        pa.array([b"data", None], pa.large_binary()),
        pa.array([date(2026, 1, 2), None], pa.date32()),
        pa.array([time, None], pa.timestamp("us")),
    ]
    marks = ", ".join(f":{number}" for number in range(1, 10))
    rows = pa.table(columns, names=[f"c{number}" for number in range(9)])
    cursor = place.connection.cursor()
    cursor.executemany(f"INSERT INTO shop.t VALUES ({marks})", rows)
    assert cursor.rowcount == 2
    cursor.execute("SELECT * FROM shop.t", fetch_lobs=False, fetch_decimals=True)
    first, second = cursor.fetchall()
    expected = (
        2**62,
        Decimal("1.5"),
        0.1,
        None,
        "text",
        b"\0",
        b"data",
        datetime(2026, 1, 2),  # noqa: DTZ001 - DATE has no zone
        time,
    )
    assert first == expected
    assert second == (None,) * 9


def test_a_direct_path_load_commits(place: Place) -> None:
    """A load needs a table that no session changes, and refuses values that do not fit."""
    place.run("CREATE TABLE shop.t (id NUMBER(3) PRIMARY KEY, v VARCHAR2(9))")
    connection = place.connection
    place.run("INSERT INTO shop.t VALUES (1, 'own')")
    rows = pa.table({"id": [2, 3], "v": ["a", None]})
    connection.direct_path_load("SHOP", "T", ["ID", "V"], rows)
    connection.rollback()
    assert place.run("SELECT id FROM shop.t ORDER BY id") == [(1,), (2,), (3,)]
    other = place.connect()
    other.cursor().execute("INSERT INTO shop.t VALUES (9, 'other')")
    more = pa.table({"id": [5], "v": ["a"]})
    load = connection.direct_path_load
    assert code_of(lambda: load("SHOP", "T", ["ID", "V"], more)) == 54
    other.rollback()
    assert (
        code_of(lambda: load("SHOP", "T", ["ID", "V"], pa.table({"i": [4000], "v": ["a"]}))) == 1438
    )
    assert code_of(lambda: load("SHOP", "T", ["ID", "V"], pa.table({"i": [2], "v": ["a"]}))) == 1
    assert place.run("SELECT COUNT(*) FROM shop.t") == [(3,)]


# ---------------------------------------------------------------------- locks


@pytest.mark.parametrize(("wait", "code"), [("NOWAIT", 54), ("WAIT 0", 30006), ("", 60)])
def test_a_locked_row_makes_others_wait(place: Place, wait: str, code: int) -> None:
    """A session waits for no time, for some seconds, or until the model's limit."""
    place.run("CREATE TABLE shop.t (id NUMBER)", "INSERT INTO shop.t VALUES (1)")
    place.connection.commit()
    place.server.lock_timeout_s = 0.05
    place.run("SELECT id FROM shop.t WHERE id = 1 FOR UPDATE")
    other = place.connect().cursor()
    assert code_of(lambda: other.execute(f"SELECT id FROM shop.t FOR UPDATE {wait}")) == code
    assert other.execute("SELECT id FROM shop.t FOR UPDATE SKIP LOCKED") is not None
    assert code_of(lambda: other.execute("UPDATE shop.t SET id = 2")) == 60


def test_a_row_is_read_again_after_the_wait(place: Place) -> None:
    """A session that waited for a row sees what the other one committed."""
    place.run("CREATE TABLE shop.t (id NUMBER, n NUMBER)", "INSERT INTO shop.t VALUES (1, 1)")
    place.connection.commit()
    place.run("UPDATE shop.t SET n = 2")
    place.server.lock_timeout_s = 20
    timer = threading.Timer(0.1, place.connection.commit)
    timer.start()
    other = place.connect().cursor()
    other.execute("SELECT n FROM shop.t WHERE id = 1 FOR UPDATE")
    timer.join()
    assert other.fetchall() == [(2,)]


def test_a_table_can_be_locked(place: Place) -> None:
    """Modes exclude one another as the reference has it; readers are never excluded."""
    place.run("CREATE TABLE shop.t (id NUMBER)", "LOCK TABLE shop.t IN SHARE MODE")
    place.server.lock_timeout_s = 0.05
    other = place.connect().cursor()
    other.execute("LOCK TABLE shop.t IN SHARE MODE NOWAIT")
    other.execute("ROLLBACK")
    assert code_of(lambda: other.execute("LOCK TABLE shop.t IN EXCLUSIVE MODE NOWAIT")) == 54
    assert code_of(lambda: other.execute("INSERT INTO shop.t VALUES (1)")) == 60
    assert code_of(lambda: other.execute("DROP TABLE shop.t")) == 54
    assert other.execute("SELECT * FROM shop.t") is not None
    place.connection.commit()
    other.execute("INSERT INTO shop.t VALUES (1)")


def test_a_killed_session_is_dead(place: Place) -> None:
    """The transaction is rolled back, and the next statement raises ORA-00028."""
    place.run("CREATE TABLE shop.t (id NUMBER)", "INSERT INTO shop.t VALUES (1)")
    query = (
        "SELECT SID, SERIAL# FROM V$SESSION WHERE SID = TO_NUMBER(SYS_CONTEXT('USERENV', 'SID'))"
    )
    sid, serial = place.run(query)[0]
    other = place.connect()
    other.cursor().execute(f"ALTER SYSTEM KILL SESSION '{sid},{serial}' IMMEDIATE")
    with pytest.raises(oracledb.DatabaseError, match="ORA-00028"):
        place.run("SELECT 1 FROM DUAL")
    cursor = other.cursor()
    cursor.execute("SELECT COUNT(*) FROM shop.t")
    assert cursor.fetchall() == [(0,)]


def test_a_serializable_transaction_sees_its_beginning(place: Place) -> None:
    """Later rows are not there, and rows that are newer cannot be changed."""
    place.run("CREATE TABLE shop.t (id NUMBER)", "INSERT INTO shop.t VALUES (1)")
    place.connection.commit()
    other = place.connect()
    other.cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    place.run("UPDATE shop.t SET id = 2", "INSERT INTO shop.t VALUES (3)")
    place.connection.commit()
    cursor = other.cursor()
    cursor.execute("SELECT id FROM shop.t")
    assert cursor.fetchall() == [(1,)]
    assert code_of(lambda: cursor.execute("UPDATE shop.t SET id = 9")) == 8177
    other.rollback()
    cursor.execute("SET TRANSACTION READ ONLY")
    assert code_of(lambda: cursor.execute("UPDATE shop.t SET id = 9")) == 1456


@pytest.mark.parametrize("sign", ["", "-"])
def test_numbers_keep_all_digits(place: Place, sign: str) -> None:
    """A bind of 38 digits stays exact through an expression, and so does a literal with a sign."""
    digits = f"{sign}{'9' * 38}"
    place.run("CREATE TABLE t (a NUMBER(38))")
    place.run("INSERT INTO t VALUES (CAST(:1 AS NUMBER))", binds=[Decimal(digits)])
    place.run(f"INSERT INTO t VALUES ({digits})")
    assert place.run("SELECT a FROM t") == [(int(digits),)] * 2


def test_a_statement_has_one_row_in_the_redo(place: Place) -> None:
    """Several columns and clauses of one ALTER TABLE are one DDL statement."""
    place.run("CREATE TABLE t (a NUMBER)")
    before = len(place.database.truth())
    place.run("ALTER TABLE t ADD (b NUMBER, c NUMBER) MODIFY (a DEFAULT 5)")
    texts = [one.ddl for one in place.database.truth()[before:]]
    assert texts == ["ALTER TABLE t ADD (b NUMBER, c NUMBER) MODIFY (a DEFAULT 5)"]

    """The default is a value even if a function computes it."""
    """It is a value like those that statements write, also if a function makes it."""
    place.run("CREATE TABLE shop.t (a NUMBER PRIMARY KEY)")
    place.run("INSERT INTO shop.t VALUES (1)")
    place.run("ALTER TABLE shop.t ADD (b BLOB DEFAULT TO_BLOB(HEXTORAW('41')) NOT NULL)")
    ((large,),) = place.run("SELECT b FROM shop.t")
    assert large.read() == b"A"
