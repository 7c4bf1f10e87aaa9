"""Types of a changelog in MySQL and MariaDB, without a server."""

from __future__ import annotations

import pytest

from penstock.engines.mysql.target.changelog import _has_letters, _is_defined_so
from penstock.model import Column, ColumnDefinition

LATIN = "varchar(20) character set latin1 collate latin1_bin"
ALL = "varchar(20) character set utf8mb4 collate utf8mb4_bin"


@pytest.mark.parametrize(
    ("kept", "wanted", "holds"),
    [
        ("varchar(20)", LATIN, True),
        ("varchar(20)", "varchar(20)", True),
        (LATIN, LATIN, True),
        (LATIN, ALL, False),
        (LATIN, "varchar(20)", False),
        (ALL, LATIN, True),
        ("text character set utf8 collate utf8_bin", "text character set utf8mb3", True),
    ],
)
def test_a_changelog_has_all_letters_of_the_rows(kept: str, wanted: str, holds: bool) -> None:
    """The changelog may have been made after the column lost letters that earlier rows have."""
    assert _has_letters(kept, wanted) is holds


@pytest.mark.parametrize(
    ("logged", "now", "same"),
    [
        ("utf8mb4_general_ci", "utf8mb4_general_ci", True),
        ("utf8mb4_general_ci", "latin1_bin", False),
        ("", "latin1_bin", True),
    ],
)
def test_the_catalogue_is_believed_while_it_has_the_collation_of_the_log(
    logged: str, now: str, same: bool
) -> None:
    """The binlog of a server may name no collations."""
    kind = "varchar(20)"
    column = Column(name="b", source_type=kind, neutral="string", collation=logged)
    found = ColumnDefinition(name="b", type_text=kind, type_oid=0, typmod=-1, collation=now)
    assert _is_defined_so(column, found) is same
    assert not _is_defined_so(
        column, ColumnDefinition(name="b", type_text="text", type_oid=0, typmod=-1)
    )
