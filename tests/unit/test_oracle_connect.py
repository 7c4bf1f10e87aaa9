"""Sessions of Oracle on the fake driver: containers, formats, rows, and the class of each error."""

from __future__ import annotations

import sys
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.engines.oracle import connect as module
from penstock.engines.oracle.connect import Connection, connect, connect_root, literal, quote
from penstock.engines.oracle.errors import (
    NameImpossible,
    SessionUnset,
    SnapshotLost,
    ThinModeRefused,
)
from penstock.engines.oracle.server_errors import (
    connect_error,
    error_number,
    is_gone,
    server_error,
    statement_error,
)
from penstock.host.errors import (
    ConnectionLost,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    ServerBusy,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
    safe_to_retry,
)
from penstock.model import PenstockError
from penstock.ports.registry import DriverMissing
from sim_oracle import driver_errors
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import CUT, Server

NAME = "SELECT SYS_CONTEXT('USERENV', 'CON_NAME') FROM DUAL"
ROWS = 'SELECT "ID", "NAME" FROM "SHOP"."T"'
URL = "oracle://u:top%7Dsecret@h/d"
# Errors that end nothing: the reference's section 1b.8.
TRANSIENT = [3113, 3114, 3135, 12537, 12541, 12543, 12547, 12571, 25408, 28, 1033, 1089, 1034]
TRANSIENT += [12514, 12516, 12528, 4030, 4036, 1013, 60, 1555, 8181, 1466, 25303]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a server with one table in one pluggable database."""
    database = Database("ORCL", pdbs=["SHOPPDB"])
    database.add_table("SHOP", "T", {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)"}, key=["ID"])
    server = Server(database)
    server.services["address"] = install(monkeypatch, server)
    return server


def url_of(server: Server, *, pdb: str = "shoppdb", password: str = "secret") -> str:
    """Return the URL of the fake's root service."""
    query = f"?pdb={pdb}" if pdb else ""
    return f"oracle://c%23%23penstock:{password}@{server.services['address']}/ORCL{query}"


def test_each_session_is_in_its_container(server: Server) -> None:
    """Tables are read in the pluggable database, and changes are mined at the root."""
    with connect(url_of(server)) as tables, connect_root(url_of(server)) as root:
        assert tables.execute(NAME) == [("SHOPPDB",)]
        assert root.execute(NAME) == [("CDB$ROOT",)]
        assert root.version[0] >= 12
    with connect_root(url_of(server).replace("/ORCL", "/shoppdb")) as root:
        assert root.execute(NAME) == [("CDB$ROOT",)]


def test_without_a_pluggable_database_nothing_is_entered(server: Server) -> None:
    """The service's own container stays, and SET CONTAINER is not needed."""
    server.database.settings.grants = frozenset({"CREATE SESSION"})
    url = url_of(server, pdb="").replace("/ORCL", "/shoppdb")
    with connect(url) as tables, connect_root(url) as root:
        assert tables.execute(NAME) == root.execute(NAME) == [("SHOPPDB",)]


def test_a_missing_container_is_refused_at_once(server: Server) -> None:
    """The message names it; the session is closed."""
    with pytest.raises(DatabaseUnknown, match="NONE"):
        connect(url_of(server, pdb="none"))


def test_settings_that_a_trigger_changes_are_seen_by_their_effect(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts the setting, but prints something else."""
    for broken in ("DD-MON-RR", "SYYYY-MM-DD HH24:MI"):
        text = module.SET_FORMATS.replace(f"'{module.DATE_MASK}'", f"'{broken}'")
        with monkeypatch.context() as patched:
            patched.setattr(module, "SET_FORMATS", text)
            with pytest.raises(SessionUnset, match="2026-02-28 00:00:00"):
                connect(url_of(server))
    for key, value in (("TIME_ZONE", "02:00"), ("NLS_NUMERIC_CHARACTERS", ",.")):
        text = module.SET_FORMATS.replace(f"{key} = '{module.SETTINGS[key]}'", f"{key} = '{value}'")
        with monkeypatch.context() as patched:
            patched.setattr(module, "SET_FORMATS", text)
            with pytest.raises(SessionUnset):
                connect(url_of(server))


def test_rows_and_changes(server: Server) -> None:
    """Lists have the asked size, a change is visible after its commit, and a rollback undoes."""
    with connect(url_of(server)) as one, connect(url_of(server)) as other:
        insert = 'INSERT INTO "SHOP"."T" ("ID", "NAME") VALUES (:1, :2)'
        assert one.run_many(insert, [(number, f"n{number}") for number in range(5)]) == 5
        assert other.execute(ROWS) == []
        one.commit()
        assert [len(part) for part in other.rows(ROWS, array_rows=2)] == [2, 2, 1]
        assert next(other.rows(ROWS, decimals=True))[0][0] == Decimal(0)
        table = pa.table({"a": pa.array([7], pa.int64()), "b": ["seven"]})
        assert one.run_many(insert, table) == 1
        update = 'UPDATE "SHOP"."T" SET "NAME" = :name WHERE "ID" = :key'
        assert one.run(update, name="x", key=3) == 1
        assert one.run(update.replace(":name", ":1").replace(":key", ":2"), "y", 4) == 1
        one.rollback()
        assert len(other.execute(ROWS)) == 5
        assert other.columns(ROWS)[0] == ["ID", "NAME"]
        batches = list(other.arrow(ROWS, rows=3))
        assert [batch.num_rows for batch in batches] == [3, 2]
        one.load_direct("SHOP", "T", ["ID", "NAME"], table)
        assert len(other.execute(ROWS)) == 6


def test_an_empty_result_has_no_batches(server: Server) -> None:
    """Neither lists nor batches are empty."""
    with connect(url_of(server)) as one:
        assert list(one.rows(ROWS)) == []
        assert list(one.arrow(ROWS)) == []


def test_a_cut_connection_is_lost(server: Server) -> None:
    """Statements and fetches tell it; close() is then harmless."""
    for at_fetch in (False, True):
        with connect(url_of(server)) as one:
            server.fail_next(CUT, '"SHOP"."T"', at_fetch=at_fetch)
            with pytest.raises(ConnectionLost) as caught:
                one.execute(ROWS)
            assert caught.value.fields == {"errno": 3113, "driver": "DPY-4011"}
            one.close()


def test_a_slow_statement_is_interrupted(server: Server) -> None:
    """The time limit of a session is one of round trips."""
    server.delays['"SHOP"."T"'] = 2500
    with (
        connect(url_of(server), timeout_s=2) as one,
        pytest.raises(StatementInterrupted, match="2000 ms"),
    ):
        one.execute(ROWS)


def test_connections_that_fail(server: Server) -> None:
    """Password, service and listener have different errors, and no message has the password."""
    with pytest.raises(LoginRefused) as refused:
        connect(url_of(server, password="wr0ng"))
    assert "wr0ng" not in str(refused.value)
    with pytest.raises(ServerBusy, match="nothere"):
        connect(url_of(server, pdb="").replace("/ORCL", "/nothere"))
    server.is_down = True
    with pytest.raises(ServerUnreachable):
        connect(url_of(server))


@pytest.mark.parametrize("number", TRANSIENT)
def test_transient_errors_are_retried(number: int) -> None:
    """Such an error needs no operator, whether the driver knows it or not."""
    for name in (f"ORA-{number:05d}", ""):
        error = server_error("reading", number, name, "said")
        assert safe_to_retry(error), number
        assert error.fields["errno"] == number


@pytest.mark.parametrize(
    ("doing", "number", "name", "kind"),
    [
        ("SELECT 1 FROM T", 942, "ORA-00942", StatementFailed),
        ("SELECT GROUP# FROM V$LOG", 942, "ORA-00942", PrivilegeMissing),
        ("SELECT BLOCKS FROM DBA_EXTENTS", 942, "ORA-00942", PrivilegeMissing),
        ("SELECT 1 FROM T", 1031, "ORA-01031", PrivilegeMissing),
        ("SELECT 1 FROM T", 1555, "ORA-01555", SnapshotLost),
        ("SELECT 1 FROM T", 0, "DPY-4011", ConnectionLost),
        ("SELECT 1 FROM T", 600, "DPY-4011", ConnectionLost),
        ("SELECT 1 FROM T", 0, "DPY-4024", StatementInterrupted),
        ("SELECT 1 FROM T", 0, "DPY-4010", StatementFailed),
        ("INSERT", 1, "ORA-00001", StatementFailed),
        ("SELECT", 1109, "ORA-01109", ServerBusy),
    ],
)
def test_kinds_of_statement_errors(
    doing: str, number: int, name: str, kind: type[PenstockError]
) -> None:
    """The number decides, or else the driver's name; a hidden view is a missing right."""
    assert type(server_error(doing, number, name, "said")) is kind


def test_a_missing_package_is_a_missing_right() -> None:
    """ORA-06550 alone is a defect of the call."""
    block = "BEGIN DBMS_LOGMNR.END_LOGMNR; END;"
    said = "ORA-06550: line 1: PLS-00201: identifier 'DBMS_LOGMNR' must be declared"
    assert type(server_error(block, 6550, "ORA-06550", said)) is PrivilegeMissing
    other = "ORA-06550: line 1: PLS-00306: wrong number or types of arguments"
    assert type(server_error(block, 6550, "ORA-06550", other)) is StatementFailed


def test_the_error_inside_a_recursive_one_counts() -> None:
    """ORA-00604 says nothing alone."""
    text = "ORA-00604: error occurred at recursive SQL level 1\nORA-01555: snapshot too old"
    error = driver_errors.DatabaseError(driver_errors.ErrorDetails(text, 604))
    assert error_number(error) == 1555
    assert isinstance(statement_error("reading", error), SnapshotLost)


@pytest.mark.parametrize(
    ("text", "number", "kind"),
    [
        ("DPY-6000: Listener refused connection. (Similar to ORA-12660)", 0, ThinModeRefused),
        ("DPY-6000: Listener refused connection. (Similar to ORA-12516)", 0, ServerBusy),
        ("DPY-3015: password verifier type 0x939 is not supported", 0, ThinModeRefused),
        ("DPY-3010: connections to this database server version are not", 0, ThinModeRefused),
        ("DPY-6001: Service d is not registered with the listener", 0, ServerBusy),
        ("DPY-6006: The name on the server certificate does not match", 0, TlsFailed),
        ("DPY-6005: cannot connect. [SSL: CERTIFICATE_VERIFY_FAILED]", 0, TlsFailed),
        ("DPY-6005: cannot connect. [Errno 111] Connection refused", 0, ServerUnreachable),
        ("ORA-28000: The account is locked. top}secret", 28000, LoginRefused),
        ("ORA-01045: user U lacks CREATE SESSION privilege", 1045, LoginRefused),
        ("ORA-01033: initialization or shutdown in progress", 1033, ServerBusy),
        ("ORA-03113: end-of-file on communication channel", 3113, ServerUnreachable),
    ],
)
def test_kinds_of_connect_errors(text: str, number: int, kind: type[PenstockError]) -> None:
    """A restart of the server is retried, a wrong password or a missing feature is not."""
    error = driver_errors.DatabaseError(driver_errors.ErrorDetails(text, number))
    typed = connect_error(URL, error)
    assert type(typed) is kind
    assert "top}secret" not in str(typed)
    assert typed.hint


def test_a_missing_table_is_known() -> None:
    """942 tells that a table is gone, and nothing else does."""
    assert is_gone(server_error("reading", 942, "", "no table"))
    assert not is_gone(server_error("reading", 1, "", "violation"))


def test_the_driver_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the message has the command."""
    monkeypatch.setitem(sys.modules, "oracledb", None)
    with pytest.raises(DriverMissing, match="oracledb") as missing:
        connect(URL)
    assert "penstock[oracle]" in missing.value.hint


def test_closing_twice(server: Server) -> None:
    """The second time does nothing."""
    one = connect(url_of(server))
    one.close()
    one.close()
    assert one.is_closed


def test_texts_of_sql() -> None:
    """Names and texts are quoted; a name that Oracle cannot have is refused."""
    assert quote("SHOP", "T$ x") == '"SHOP"."T$ x"'
    assert literal("it's") == "'it''s'"
    for name in ("", 'a"b', "a\0"):
        with pytest.raises(NameImpossible, match="cannot have the name"):
            quote(name)


def test_versions_are_numbers() -> None:
    """The driver's text becomes a tuple that can be compared."""
    raw = SimpleNamespace(version="19.22.0.0.0")
    assert Connection(raw, "h").version >= (12, 2)
