"""Values longer than a TEXT or BLOB of MySQL and MariaDB, sent through merge tables."""

from __future__ import annotations

from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import insert, update
from penstock.ports.target import ValueRefused
from plugins.mysql_loader import MyStart


@pytest.mark.parametrize(
    ("neutral", "column", "longest"),
    [
        ("string", "tinytext", 255),
        ("string", "text", 65535),
        ("binary", "tinyblob", 255),
        ("binary", "blob", 65535),
    ],
)
@pytest.mark.parametrize("way", ["", ", unique (n)", ", unique (n), own int"])
def test_values_longer_than_a_text_or_blob(
    my_start: MyStart, log: LogMaker, neutral: str, column: str, longest: int, way: str
) -> None:
    """Such values are refused: servers would copy only as much as a length of one or two bytes
    says.
    """
    shape = relation(("id", "x", "int32"), ("v", "x", neutral), ("n", "x", "int32"))
    target = my_start(
        f"create table t (id int primary key, v {column}, n int{way}) charset utf8mb4",
        rows_directory=None,
    )
    one: Any = "x" if neutral == "string" else b"x"
    log.transaction(insert(shape, 1, one * longest, 1))
    log.close_segment()
    target.batch()
    assert target.rows("select length(v) from t") == [(longest,)]
    for change in (
        insert(shape, 2, one * (longest + 3), 2),
        update(shape, 1, one * (longest + 1), 1),
    ):
        log.transaction(change)
    log.close_segment()
    with pytest.raises(ValueRefused):
        target.batch()
    assert target.rows("select id, length(v) from t") == [(1, longest)]
