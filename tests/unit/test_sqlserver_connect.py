"""Errors of Microsoft's driver: which class each becomes. No server is asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from penstock.engines.sqlserver import connect as module
from penstock.engines.sqlserver.connect import (
    Connection,
    connect_error,
    driver,
    is_gone,
    literal,
    quote,
    server_error,
    server_errors,
)
from penstock.engines.sqlserver.errors import RangeInvalid, SystemLibraryMissing
from penstock.host.errors import (
    ConnectFailed,
    ConnectionLost,
    DatabaseRefused,
    LoginRefused,
    PrivilegeMissing,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
    safe_to_retry,
)
from penstock.model import PenstockError
from penstock.ports.registry import DriverMissing

URL = "sqlserver://u:top%7Dsecret@h/d"
# Transient errors by number: the reference's section 1c, S15.
TRANSIENT = [1205, 1222, 4060, 40197, 40501, 40613, 49918, 49919, 49920, 10053, 10054, 10060]
TRANSIENT += [233, 18401, 9001, 3928, 3960]


@pytest.mark.parametrize("number", TRANSIENT)
def test_transient_errors_are_retried(number: int) -> None:
    """S15: such an error stops nothing, whatever SQLSTATE it comes with."""
    for state in ("", "Syntax error or access violation", "General error"):
        error = server_error("reading", number, state, "said")
        assert safe_to_retry(error), number
        assert error.fields["errno"] == number


@pytest.mark.parametrize(
    ("number", "state", "kind"),
    [
        (208, "Base table or view not found", StatementFailed),
        (229, "Syntax error or access violation", PrivilegeMissing),
        (313, "Syntax error or access violation", RangeInvalid),
        (1205, "Serialization failure", StatementInterrupted),
        (596, "Communication link failure", ConnectionLost),
        (0, "Communication link failure", ConnectionLost),
        (0, "Serialization failure", StatementInterrupted),
        (0, "Timeout expired", StatementInterrupted),
        (3906, "Syntax error or access violation", StatementFailed),
        (2627, "Integrity constraint violation", StatementFailed),
        (0, "Syntax error or access violation", StatementFailed),
    ],
)
def test_kinds_of_statement_errors(number: int, state: str, kind: type[PenstockError]) -> None:
    """The number decides; without one the driver's name of the SQLSTATE does."""
    assert type(server_error("reading", number, state, "said")) is kind


def test_a_missing_table_is_known() -> None:
    """208 tells that a table is gone, and nothing else does."""
    assert is_gone(server_error("reading", 208, "", "Invalid object name"))
    assert not is_gone(server_error("reading", 2627, "", "Violation"))


@pytest.mark.parametrize(
    ("state", "said", "kind"),
    [
        ("Invalid authorization specification", "Login failed for user 'u'.", LoginRefused),
        (
            "Syntax error or access violation",
            'Cannot open database "d" requested by the login. The login failed.',
            DatabaseRefused,
        ),
        (
            "Client unable to establish connection",
            "SSL Provider: certificate verify failed",
            TlsFailed,
        ),
        ("Client unable to establish connection", "TCP: Error code 0x2749", ServerUnreachable),
        ("Timeout expired", "Login timeout expired", ServerUnreachable),
        ("Communication link failure", "TCP Provider: Error code 0x2746", ServerUnreachable),
        ("General error", "something else", ConnectFailed),
        ("", "libltdl.so.7: cannot open shared object file", SystemLibraryMissing),
    ],
)
def test_kinds_of_connection_errors(state: str, said: str, kind: type[PenstockError]) -> None:
    """The server's text decides, since the driver tells no number; the password is hidden."""
    error = RuntimeError(f"[Microsoft][SQL Server]{said} top}}secret")
    error.driver_error, error.ddbc_error = state, str(error)  # type: ignore[attr-defined]
    raised = connect_error(URL, error)
    assert type(raised) is kind
    assert "secret" not in raised.message


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the apt line for the system's libraries; a missing package is another error."""

    def fails(name: str) -> ModuleType:
        raise ImportError("libltdl.so.7: cannot open shared object file")

    monkeypatch.setattr(module, "_loaded", [])
    monkeypatch.setattr(module, "import_module", fails)
    with pytest.raises(SystemLibraryMissing) as raised:
        driver()
    assert "apt-get install libltdl7 libkrb5-3" in str(raised.value.hint)
    monkeypatch.undo()
    monkeypatch.setattr(module, "_loaded", [])
    monkeypatch.setitem(sys.modules, "mssql_python", None)
    with pytest.raises(DriverMissing, match="mssql_python") as absent:
        driver()
    assert absent.value.hint == "Run: pip install 'penstock[sqlserver]'"


def test_the_drivers_exceptions_get_the_servers_number() -> None:
    """The number is taken from the diagnostic record, before the driver drops it."""
    cursors = sys.modules[f"{driver().__name__}.cursor"]
    fakes: Any = ModuleType("mssql_python.cursor")
    fakes.__package__ = cursors.__package__

    def raises(kind: int, handle: object, outcome: int) -> None:
        raise driver().OperationalError("Serialization failure", "[Microsoft][SQL Server]victim")

    fakes.check_error = raises
    fakes.ddbc_bindings = SimpleNamespace(
        DDBCSQLGetAllDiagRecords=lambda _: [("[40001] (1205)", "victim"), ("[01000] (3621)", "x")]
    )
    module._remember_number(fakes)
    fakes.check_error(3, object(), 0)
    with pytest.raises(StatementInterrupted) as raised, server_errors("reading"):
        fakes.check_error(3, object(), -1)
    assert raised.value.fields == {"errno": 1205}
    assert raised.value.message == "reading: victim"


class FakeCursor:
    """Cursor of the driver: records statements, returns the same rows for each."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []
        self.description: list[tuple[str]] | None = [("x",)]
        self.rowcount = 7

    def execute(self, *given: Any) -> None:
        """Record a statement and its parameters."""
        self.ran.append(given)

    def fetchall(self) -> list[list[int]]:
        """Return one row."""
        return [[1]]


def test_parameters_are_given_as_one_tuple() -> None:
    """A value that is itself a list is not taken for several values."""
    cursor = FakeCursor()
    raw = SimpleNamespace(cursor=lambda: cursor, close=lambda: None)
    with Connection(raw, "h:1") as connection:
        assert connection.execute("select ?", b"\0") == [(1,)]
        assert connection.run("update t") == 7
        assert connection.columns("select 1") == (["x"], [(1,)])
        cursor.description = None
        assert connection.execute("print 'x'") == []
        connection.begin()
        connection.commit()
        connection.rollback()
    assert cursor.ran[:2] == [("select ?", (b"\0",)), ("update t",)]
    assert [one[0] for one in cursor.ran[-3:]] == [module.BEGIN, module.COMMIT, module.ROLLBACK]
    assert connection.is_closed


def test_names_and_texts_are_quoted() -> None:
    """DBZ-5198 and 4125: a bracket or an apostrophe in a name ends nothing."""
    assert quote("dbo", "a]b[c") == "[dbo].[a]]b[c]"
    assert literal("it's") == "N'it''s'"
    for bad in ("", "a\0b"):
        with pytest.raises(ValueError, match="not an identifier"):
            quote(bad)
