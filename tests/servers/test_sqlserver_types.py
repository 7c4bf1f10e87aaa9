"""Types of SQL Server with their extremes, carried to real servers by the table of types.

The values are as Microsoft's driver returns them (`harness.servers.sqlserver_types`).
"""

from __future__ import annotations

import pytest

from harness.servers.sqlserver_types import (
    FINE,
    SERVER,
    TYPES,
    WITH_OFFSET,
    Carried,
    carry,
    choices_of,
    definition,
)
from harness.servers.types_across import MySQLSide, PostgresSide, mysql_side, postgres_side
from penstock.codec.types import Engine, builtin_types, map_column
from penstock.codec.types.source_type import SourceType

ALL_KEPT = {
    "nanoseconds": "round",
    "offsets": "utc",
    "nul characters": "remove",
    "digits": "text",
    "long keys": "error",
}
AS_TEXT = {
    "nanoseconds": "text",
    "offsets": "text",
    "nul characters": "remove",
    "digits": "text",
    "long keys": "error",
}


def check_arrived(side: PostgresSide | MySQLSide, chosen: dict[str, str], mark: str) -> None:
    """Check that both ways write every value, equal to the source's."""
    for place, name in enumerate(TYPES):
        found = carry(name, side, f"{mark}{place}", choices_of(chosen))
        assert found.errors == {}, name
        assert found.bulk_error == "", name
        assert len(found.source) == len(TYPES[name].values) + 1
        assert [found.change[n] for n in range(len(found.source))] == found.source, name
        assert found.bulk == found.change, name
        assert found.source.count(None) == 1, name


def check_refused(side: PostgresSide | MySQLSide, mark: str) -> None:
    """Check that `error` stops at the values that would lose something, and at no other."""
    errors = dict.fromkeys((*ALL_KEPT, "nanoseconds"), "error")
    for place, name in enumerate(sorted(FINE | WITH_OFFSET)):
        found = carry(name, side, f"{mark}{place}", choices_of(errors))
        lost = {number for number, value in enumerate(TYPES[name].values) if _loses(name, value)}
        assert set(found.errors) == lost, (name, found.errors)
        assert lost, name
        assert found.bulk_error, name
        check_others(found, name)


def _loses(name: str, value: object) -> bool:
    if isinstance(value, int):
        return bool(value % 1000)
    text = str(value)
    fraction = text[19:].partition("+")[0].partition("-")[0]
    return len(fraction) > 7 or (name in WITH_OFFSET and not text.endswith("+00:00"))


def check_others(found: Carried, name: str) -> None:
    """Check that the values without an error are equal."""
    for number, text in enumerate(found.source):
        if number not in found.errors:
            assert found.change[number] == text, (name, number)


@pytest.mark.parametrize(("chosen", "mark"), [(ALL_KEPT, "k"), (AS_TEXT, "t")])
def test_into_postgres(target_url: str, chosen: dict[str, str], mark: str) -> None:
    """Every value arrives in PostgreSQL, as a change and in bulk alike."""
    with postgres_side(target_url) as side:
        check_arrived(side, chosen, mark)


def test_refused_by_postgres(target_url: str) -> None:
    """A lossy value is not written without a choice."""
    with postgres_side(target_url) as side:
        check_refused(side, "e")


@pytest.mark.parametrize(
    ("chosen", "mark"), [(ALL_KEPT, "k"), (AS_TEXT, "t"), (ALL_KEPT | {"digits": "round"}, "r")]
)
def test_into_mysql(mysql_url: str, chosen: dict[str, str], mark: str) -> None:
    """Every value arrives in MySQL and MariaDB, as a change and in bulk alike."""
    with mysql_side(mysql_url) as side:
        check_arrived(side, chosen, mark)


def test_refused_by_mysql(mysql_url: str) -> None:
    """A lossy value is not written without a choice."""
    with mysql_side(mysql_url) as side:
        check_refused(side, "e")


def test_every_type_has_values() -> None:
    """Every type of SQL Server is among those that are carried."""
    bases = {SourceType.of(definition(name), Engine.SQLSERVER).base for name in TYPES}
    assert bases == builtin_types(Engine.SQLSERVER)
    for name in TYPES:
        assert not map_column(definition(name), SERVER, SERVER).losses, name
