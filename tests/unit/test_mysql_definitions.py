"""Definitions from MySQL's catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.definitions import _as_written
from penstock.model import ColumnDefinition

MYSQL = ServerVersion.parse("8.0.15")
COLUMN = ColumnDefinition(name="v", type_text="text", type_oid=0, typmod=-1, generated="s")


@pytest.mark.parametrize(
    ("shown", "created", "expected"),
    [
        ("concat('Ã¼è¡¨','x')", "concat('ü表','x')", "concat('ü表','x')"),
        ("concat('ü','x')", "concat('ü','x')", "concat('ü','x')"),
        ("concat('Ã¼','x')", "concat('Ã¼','x')", "concat('Ã¼','x')"),
        ("concat('表','x')", "concat('y','x')", "concat('表','x')"),
    ],
)
def test_expressions_are_what_show_create_table_says(
    shown: str, created: str, expected: str
) -> None:
    """MySQL 8.0 shows the bytes of UTF-8 as characters of latin1 in information_schema."""
    columns = (replace(COLUMN, default=shown),)
    found = _as_written(columns, lambda: f"`v` text GENERATED ALWAYS AS ({created}) STORED", MYSQL)
    assert found[0].default == expected
