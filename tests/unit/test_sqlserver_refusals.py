"""Refusals of a SQL Server target as typed errors, without the values that the server names."""

from __future__ import annotations

import pytest

from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.target.refusals import apply_error
from penstock.host.errors import ConnectionLost, PrivilegeMissing, StatementInterrupted
from penstock.model import PenstockError, TableName
from penstock.ports.target import (
    ForeignKeyBlocked,
    TargetTableMissing,
    UniqueBlocked,
    ValueRefused,
)

T = TableName("dbo", "t")
CASES: list[tuple[int, str, type[PenstockError], str]] = [
    (
        2627,
        "Violation of UNIQUE KEY constraint 'uq'. Cannot insert duplicate key in object 'dbo.t'. "
        "The duplicate key value is (SECRET).",
        UniqueBlocked,
        "uq",
    ),
    (
        2601,
        "Cannot insert duplicate key row in object 'dbo.t' with unique index 'ix'. The duplicate "
        "key value is (SECRET).",
        UniqueBlocked,
        "ix",
    ),
    (
        547,
        'The DELETE statement conflicted with the REFERENCE constraint "fk". The conflict occurred '
        'in database "d", table "dbo.c", column \'p\'.',
        ForeignKeyBlocked,
        "fk",
    ),
    (
        547,
        'The INSERT statement conflicted with the CHECK constraint "ck". The conflict occurred in '
        'database "d", table "dbo.t", column \'n\'.',
        ValueRefused,
        "column n",
    ),
    (
        515,
        "Cannot insert the value NULL into column 'n', table 'd.dbo.t'; column does not allow "
        "nulls.",
        ValueRefused,
        "NULL is not allowed",
    ),
    (
        2628,
        "String or binary data would be truncated in table 'd.dbo.t', column 'n'. Truncated "
        "value: 'SECRET'.",
        ValueRefused,
        "too long",
    ),
    (8115, "Arithmetic overflow error converting bigint to data type int.", ValueRefused, "range"),
    (
        511,
        "Cannot create a row of size 8061 which is greater than the allowable maximum row size of "
        "8060.",
        ValueRefused,
        "8,060 bytes",
    ),
    (
        1946,
        "Operation failed. The index entry of length 902 bytes for the index 'ix' exceeds the "
        "maximum length of 900 bytes for clustered indexes.",
        ValueRefused,
        "900 bytes",
    ),
    (8003, "Too many parameters were provided in this RPC request.", ValueRefused, "2,100"),
    (1702, "CREATE TABLE failed because column 'c' exceeds the maximum", ValueRefused, "1,024"),
    (208, "Invalid object name 'dbo.t'.", TargetTableMissing, "no table dbo.t"),
    (1205, "Transaction was deadlocked", StatementInterrupted, "deadlocked"),
    (1222, "Lock request time out period exceeded.", StatementInterrupted, "Lock"),
    (229, "The INSERT permission was denied", PrivilegeMissing, "denied"),
    (10054, "An existing connection was forcibly closed", ConnectionLost, "closed"),
]


@pytest.mark.parametrize(
    ("number", "said", "kind", "says"), CASES, ids=[f"{n}-{k.__name__}" for n, _, k, _ in CASES]
)
def test_a_refusal_has_its_class_and_no_values(
    number: int, said: str, kind: type[PenstockError], says: str
) -> None:
    """Each names the table and what to change."""
    found = apply_error(server_error("UPDATE", number, "", said), T)
    assert type(found) is kind
    assert says in found.message
    assert "SECRET" not in f"{found.message} {found.hint}"
    assert found.fields["table"] == "dbo.t"
    assert found.hint
