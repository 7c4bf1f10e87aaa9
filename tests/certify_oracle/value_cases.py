"""Cases of values: every type's text in SQL_REDO, quotes, long statements, large objects."""

from __future__ import annotations

from certify_oracle.case import Bench, case, changes, join_pieces, scan, texts_of
from certify_oracle.mining import read_scn

_UNISTR = "UNISTR('"


@case("scanned", "numbers", "times", "national", "raw", "null")
def all_types(bench: Bench) -> None:
    """A row with a value of every captured type, and one of NULLs."""
    bench.table(
        "C_TYPES",
        "id NUMBER(10) PRIMARY KEY, n NUMBER, d NUMBER(12,2), f BINARY_DOUBLE, c CHAR(6), "
        "nv NVARCHAR2(40), dt DATE, ts TIMESTAMP(9), tz TIMESTAMP(6) WITH TIME ZONE, "
        "lz TIMESTAMP(6) WITH LOCAL TIME ZONE, ym INTERVAL YEAR(4) TO MONTH, "
        "ds INTERVAL DAY(5) TO SECOND(6), r RAW(16)",
    )
    bench.run(
        "INSERT INTO c_types VALUES (1, -0.75, 12.5, 1.5, 'ab', UNISTR('\\00E9t\\4F60'), "
        "DATE '2026-02-28', TIMESTAMP '2026-03-29 01:30:00.123456789', "
        "TIMESTAMP '2026-03-29 01:30:00.5 +05:30', TIMESTAMP '2026-10-25 02:30:00.25 +00:00', "
        "TO_YMINTERVAL('12-03'), TO_DSINTERVAL('5 04:03:02.123456'), HEXTORAW('00DEADBEEF'))",
        "INSERT INTO c_types (id) VALUES (2)",
    )
    rows = changes(bench.mine())
    texts = join_pieces(rows)
    full = texts_of(scan(texts[0]), texts[0], is_new=True)
    empty = texts_of(scan(texts[1]), texts[1], is_new=True)
    bench.record(**full)
    bench.holds("scanned", len(full) == 13, texts[0])
    bench.holds("numbers", (full["N"], full["D"]) == ("'-.75'", "'12.5'"), full)
    bench.holds(
        "times",
        full["DT"].startswith("TO_DATE('")
        and "2026-02-28 00:00:00" in full["DT"]
        and "2026-03-29 01:30:00.123456789" in full["TS"]
        and "+05:30" in full["TZ"]
        and "2026-10-25 02:30:00.25" in full["LZ"]
        and full["YM"].startswith("TO_YMINTERVAL('")
        and full["DS"].startswith("TO_DSINTERVAL('"),
        full,
    )
    bench.holds("national", full["NV"].startswith(_UNISTR), full["NV"])
    bench.holds("raw", full["R"].upper() == "HEXTORAW('00DEADBEEF')", full["R"])
    bench.holds("null", {value for name, value in empty.items() if name != "ID"} == {"NULL"}, empty)


@case("extremes")
def number_spellings(bench: Bench) -> None:
    """Numbers of 38 digits, of small fractions, and of a negative scale."""
    bench.table("C_NUMBERS", "id NUMBER(10) PRIMARY KEY, n NUMBER, s NUMBER(5,-2), i INTEGER")
    big = "9" * 38
    bench.run(f"INSERT INTO c_numbers VALUES (1, {big}, 12345, {big})")
    bench.run("INSERT INTO c_numbers VALUES (2, -0.0000000001, -12345, 0)")
    texts = join_pieces(changes(bench.mine()))
    found = [texts_of(scan(text), text, is_new=True) for text in texts]
    wanted = [(f"'{big}'", "'12300'", f"'{big}'"), ("'-.0000000001'", "'-12300'", "'0'")]
    seen = [(one["N"], one["S"], one["I"]) for one in found]
    bench.holds("extremes", seen == wanted, seen)


@case("years")
def far_years(bench: Bench) -> None:
    """Dates of the first and of the last year."""
    bench.table("C_YEARS", "id NUMBER(10) PRIMARY KEY, d DATE, t TIMESTAMP(6)")
    for number, year in ((1, "0001"), (2, "9999")):
        day = f"{year}-12-31"
        moment = f"TIMESTAMP '{day} 23:59:59.999999'"
        bench.run(f"INSERT INTO c_years VALUES ({number}, DATE '{day}', {moment})")
    texts = join_pieces(changes(bench.mine()))
    found = [texts_of(scan(text), text, is_new=True) for text in texts]
    is_right = all(
        f"{year}-12-31" in one["D"] and f"{year}-12-31 23:59:59.999999" in one["T"]
        for year, one in zip(("0001", "9999"), found, strict=True)
    )
    bench.holds("years", is_right, found)


@case("floats")
def binary_floats(bench: Bench) -> None:
    """Binary floats, NaN and infinity among them."""
    bench.table("C_FLOATS", "id NUMBER(10) PRIMARY KEY, f BINARY_FLOAT, d BINARY_DOUBLE")
    bench.run("INSERT INTO c_floats VALUES (1, 1.5, 0.1)")
    text = "INSERT INTO c_floats VALUES (2, TO_BINARY_FLOAT('nan'), TO_BINARY_DOUBLE('inf'))"
    bench.run(text)
    texts = join_pieces(changes(bench.mine()))
    found = [texts_of(scan(one), one, is_new=True) for one in texts]
    bench.record(plain=found[0]["D"], nan=found[1]["F"], infinity=found[1]["D"])
    value = float(found[0]["D"].strip("'"))
    bench.holds("floats", abs(value - 0.1) < 1e-8, found)


@case("quotes", "scanned", "empty")
def text_traps(bench: Bench) -> None:
    """Texts with quotes, commas, keywords and line ends; an empty one."""
    bench.table("C_TRAPS", "id NUMBER(10) PRIMARY KEY, v VARCHAR2(200)")
    values = ["it's", "a','b", '\' and "V" IS NULL', "x''y", "line\nline", "; commit; --", ""]
    bench.session.run_many("INSERT INTO c_traps VALUES (:1, :2)", list(enumerate(values)))
    bench.session.commit()
    texts = join_pieces(changes(bench.mine()))
    found = [texts_of(scan(text), text, is_new=True)["V"] for text in texts]
    wanted = ["'" + one.replace("'", "''") + "'" if one else "NULL" for one in values]
    bench.holds("scanned", len(found) == len(values), texts)
    bench.holds("quotes", found[:-1] == wanted[:-1], found)
    bench.holds("empty", found[-1] == "NULL", found[-1])


@case("pieces")
def long_statement(bench: Bench) -> None:
    """A statement whose text is longer than 4000 bytes, with quotes at the cuts."""
    bench.table("C_LONG", "id NUMBER(10) PRIMARY KEY, a VARCHAR2(4000), b VARCHAR2(4000)")
    quotes = "'" * 3900
    bench.session.run("INSERT INTO c_long VALUES (:1, :2, :3)", 1, quotes, "é" * 1900)
    bench.session.commit()
    rows = [row for row in bench.mine() if row["OPERATION_CODE"] == 1]
    text = join_pieces(rows)[0]
    found = texts_of(scan(text), text, is_new=True)
    is_whole = found["A"] == "'" + quotes * 2 + "'" and found["B"] == "'" + "é" * 1900 + "'"
    flags = [row["CSF"] for row in rows]
    bench.holds("pieces", len(rows) > 2 and flags[-1] == 0 and is_whole, flags)


@case("lob-insert", "lob-unlogged", "lob-as-of")
def large_objects(bench: Bench) -> None:
    """A short and a long CLOB and BLOB, and an update of another column."""
    bench.table("C_LOBS", "id NUMBER(10) PRIMARY KEY, n NUMBER, c CLOB, b BLOB")
    bench.session.run("INSERT INTO c_lobs VALUES (:1, :2, :3, :4)", 1, 1, "short", b"\x01\x02")
    bench.session.run("INSERT INTO c_lobs VALUES (:1, :2, :3, :4)", 2, 2, "l" * 20_000, b"z" * 9000)
    bench.session.commit()
    with bench.server.open_root() as root:
        scn = read_scn(root)
    bench.run("UPDATE c_lobs SET n = 7 WHERE id = 2")
    update_rows = bench.mine()
    inserts = [row for row in update_rows if row["OPERATION_CODE"] == 1]
    updates = [row for row in changes(update_rows) if "'7'" in (row["SQL_REDO"] or "")]
    bench.record(codes=[row["OPERATION_CODE"] for row in update_rows])
    bench.holds("lob-insert", len(inserts) == 2, [row["SQL_REDO"][:200] for row in inserts])
    is_absent = all(
        '"C"' not in row["SQL_REDO"] and '"B"' not in row["SQL_REDO"] for row in updates
    )
    bench.holds("lob-unlogged", updates and is_absent, [row["SQL_REDO"] for row in updates])
    text = f"SELECT c FROM c_lobs AS OF SCN {scn} WHERE id = 2"
    bench.holds("lob-as-of", bench.value(text) == "l" * 20_000)


@case("too-long", "bound-date")
def limits(bench: Bench) -> None:
    """Values that do not fit, and a datetime with a fraction of a second."""
    import datetime

    bench.table("C_LIMITS", "v VARCHAR2(3), n NUMBER(3), t TIMESTAMP(6)")
    numbers = (
        bench.error_number("INSERT INTO c_limits (v) VALUES ('abcd')"),
        bench.error_number("INSERT INTO c_limits (n) VALUES (1000)"),
    )
    bench.holds("too-long", numbers == (12899, 1438), numbers)
    time = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_900)  # noqa: DTZ001 - TIMESTAMP has no zone
    bench.session.run("INSERT INTO c_limits (t) VALUES (:1)", time)
    found = bench.value("SELECT t FROM c_limits")
    bench.session.rollback()
    bench.holds("bound-date", found == time.replace(microsecond=0), found)
