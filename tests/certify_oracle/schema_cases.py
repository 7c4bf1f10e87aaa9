"""Cases of DDL: its rows, versions of a table, truncation, redo that is older than the table."""

from __future__ import annotations

import secrets

from certify_oracle.case import Bench, case, changes
from certify_oracle.row_cases import ITEM
from certify_oracle.server import SCHEMA
from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.target.bulk import CREATE_SCHEMA
from penstock.engines.oracle.target.progress import USER_REFUSED


@case("ddl", "version")
def add_column(bench: Bench) -> None:
    """A column is added between two inserts."""
    bench.table("C_ADD", ITEM)
    bench.run("INSERT INTO c_add VALUES (1, 1, 'a')")
    bench.session.run("ALTER TABLE c_add ADD (w NUMBER(5))")
    bench.run("INSERT INTO c_add VALUES (2, 2, 'b', 7)")
    rows = bench.mine()
    ddl = [row for row in rows if row["OPERATION_CODE"] == 5]
    texts = [str(row["SQL_REDO"]).upper() for row in ddl]
    own = {row["XID"] for row in ddl}
    is_alone = not any(row["XID"] in own for row in changes(rows))
    bench.holds("ddl", any("ADD (W" in text for text in texts) and is_alone, texts)
    numbers = [row["DATA_OBJV#"] for row in rows if row["OPERATION_CODE"] == 1]
    bench.holds("version", len(numbers) == 2 and numbers[0] < numbers[1], numbers)


@case("older-redo")
def redo_of_an_older_version(bench: Bench) -> None:
    """Rows from before a new column, mined with the dictionary of after."""
    bench.table("C_OLDER", ITEM)
    bench.run("INSERT INTO c_older VALUES (1, 1, 'a')")
    bench.session.run("ALTER TABLE c_older ADD (w NUMBER(5))")
    row = next(one for one in bench.mine() if one["OPERATION_CODE"] == 1)
    text = row["SQL_REDO"] or ""
    is_known = '"COL 1"' in text or '"ID"' in text or "Dictionary" in (row["INFO"] or "")
    bench.record(status=row["STATUS"], info=row["INFO"], text=text)
    bench.holds("older-redo", is_known, (row["STATUS"], row["INFO"], text))


@case("truncate")
def truncation(bench: Bench) -> None:
    """A table is truncated between two inserts."""
    bench.table("C_TRUNC", ITEM)
    bench.run("INSERT INTO c_trunc VALUES (1, 1, 'a')")
    bench.session.run("TRUNCATE TABLE c_trunc")
    bench.run("INSERT INTO c_trunc VALUES (2, 2, 'b')")
    rows = bench.mine()
    texts = [str(row["SQL_REDO"]).lower() for row in rows if row["OPERATION_CODE"] == 5]
    places = [row["DATA_OBJD#"] for row in rows if row["OPERATION_CODE"] == 1]
    is_right = any(text.startswith("truncate") for text in texts) and len(set(places)) == 2
    bench.holds("truncate", is_right, (texts, places))


@case("create-user")
def owner_of_tables(bench: Bench) -> None:
    """A user that has penstock's tables, as docs/oracle.md creates one."""
    name = f"{SCHEMA}_OWNER"
    bench.server.schemas.append(name)
    number = bench.error_number(CREATE_SCHEMA.format(quote(name)))
    if number in USER_REFUSED:  # before 18c
        password = f"P{secrets.token_hex(12)}"
        text = f'CREATE USER {quote(name)} IDENTIFIED BY "{password}" ACCOUNT LOCK'
        number = bench.error_number(text)
        bench.session.run(f"GRANT UNLIMITED TABLESPACE TO {quote(name)}")
    bench.session.run(f"CREATE TABLE {quote(name, 'KEPT')} (id NUMBER(10))")
    bench.run(f"INSERT INTO {quote(name, 'KEPT')} VALUES (1)")
    found = bench.value(f"SELECT COUNT(*) FROM {quote(name, 'KEPT')}")
    bench.holds("create-user", number == 0 and found == 1, (number, found))
    bench.session.run(f"DROP USER {quote(name)} CASCADE")
    bench.server.schemas.remove(name)


@case("ddl-commits", "merge-key", "merge-stable", "deferred", "locked-row")
def target_rules(bench: Bench) -> None:
    """Rules on which the target relies."""
    bench.table("C_TARGET", ITEM)
    bench.table("C_STAGED", "id NUMBER(10), n NUMBER(10)")
    bench.run("INSERT INTO c_target VALUES (1, 1, 'a')")
    bench.run("INSERT INTO c_staged VALUES (1, 5)", "INSERT INTO c_staged VALUES (1, 6)")
    head = "MERGE INTO c_target t USING c_staged m ON (t.id = m.id) WHEN MATCHED THEN UPDATE SET "
    key = bench.error_number(f"{head} t.id = m.n")
    bench.holds("merge-key", key == 38104, key)
    stable = bench.error_number(f"{head} t.n = m.n")
    bench.holds("merge-stable", stable == 30926, stable)
    other = bench.open()
    bench.session.run("UPDATE c_target SET n = 2")
    select = "SELECT id FROM c_target FOR UPDATE"
    numbers = tuple(
        bench.error_number(f"{select} {wait}", session=other) for wait in ("NOWAIT", "WAIT 1")
    )
    bench.holds("locked-row", numbers == (54, 30006), numbers)
    bench.session.run("CREATE INDEX c_target_n ON c_target (n)")
    bench.session.rollback()
    found = bench.value("SELECT n FROM c_target")
    bench.holds("ddl-commits", found == 2, found)
    bench.session.run(
        f"CREATE TABLE c_child (id NUMBER(10) REFERENCES {SCHEMA}.c_target (id) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )
    bench.session.run("INSERT INTO c_child VALUES (99)")
    try:
        bench.session.commit()
    except Exception as error:
        said = str(error)
    else:
        said = ""
    bench.holds("deferred", "ORA-02091" in said and "ORA-02291" in said, said)
