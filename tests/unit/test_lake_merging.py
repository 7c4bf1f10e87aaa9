"""Statements by which Spark merges staged rows into a lake's table. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from penstock.engines.delta.state import (
    has_own_mark,
    merge_properties,
    read_merged,
)
from penstock.engines.lake.format import LakeColumn, LakeRows, Mark, Merge
from penstock.engines.lake.merging import (
    DELETED,
    OPEN,
    ROWS,
    emptying_sql,
    merge_sql,
    missing_sql,
    view_schemas,
)
from penstock.engines.lake.options import target_problems
from penstock.engines.lake.url import parse_url
from penstock.engines.lake.writer import staged_columns
from penstock.host.errors import UrlInvalid
from penstock.ports.config import Apply, TargetSection

KEY = LakeColumn(name="id", type="int64")
DAY = LakeColumn(name="d`y", type="date")
NOTE = LakeColumn(name="note", type="string")
MARK = Mark(log_id="a-log", segment=3, gsn=70, trx=7, position=2**90, commit_time_us=5)


def merge_of(*columns: LakeColumn, keys: int = 1, **bounds: tuple[Any, Any]) -> Merge:
    """Return a merge of a table whose first columns are the key."""
    staged = [one for one in staged_columns(columns, merges=True) if one is not None]
    part = LakeRows(in_table=1, key_count=1, key_bounds=bounds)
    return Merge(
        base_version=1,
        columns={one.file_name: one for one in staged},
        key=tuple(one.file_name for one in staged[:keys]),
        parts=(part,),
    )


def test_rows_are_updated_or_inserted() -> None:
    """Name every column; names in files are plain, those of the table are quoted."""
    text = merge_sql("t", merge_of(KEY, DAY), frozenset({ROWS}))
    assert text.splitlines() == [
        "MERGE INTO t t USING (SELECT true AS is_row, row0, row1 FROM penstock_rows) s",
        "ON t.`id` = s.row0",
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.row0, t.`d``y` = s.row1",
        "WHEN NOT MATCHED AND s.is_row THEN INSERT (`id`, `d``y`) VALUES (s.row0, s.row1)",
    ]


def test_deleted_keys_alone_change_no_row() -> None:
    """Have neither an update nor an insert."""
    text = merge_sql("t", merge_of(KEY, NOTE), frozenset({DELETED}))
    assert text.splitlines() == [
        "MERGE INTO t t USING (SELECT false AS is_row, CAST(key0 AS bigint) AS row0, "
        "CAST(NULL AS string) AS row1 FROM penstock_deleted) s",
        "ON t.`id` = s.row0",
        "WHEN MATCHED AND NOT s.is_row THEN DELETE",
    ]


def test_rows_without_columns_take_those_of_their_old_row() -> None:
    """Join rows to complete with the table by the key that they had there."""
    text = merge_sql("t", merge_of(KEY, NOTE), frozenset({OPEN, DELETED}))
    assert "CASE WHEN o.absent_row1 THEN t.`note` ELSE o.row1 END AS row1" in text
    assert "FROM penstock_open o JOIN t t ON t.`id` = o.key0" in text
    assert "UNION ALL SELECT false AS is_row" in text
    assert missing_sql("t", merge_of(KEY, NOTE)) == (
        "SELECT count(*) AS missing FROM penstock_open o LEFT ANTI JOIN t t ON t.`id` = o.key0"
    )


@pytest.mark.parametrize(
    ("column", "bounds", "expected"),
    [
        (KEY, (3, 9), " AND t.`id` BETWEEN 3 AND 9"),
        (
            DAY,
            (date(2026, 1, 2), date(2026, 3, 4)),
            " AND t.`d``y` BETWEEN DATE'2026-01-02' AND DATE'2026-03-04'",
        ),
        (NOTE, ("a", "b"), ""),
    ],
)
def test_files_are_passed_over_by_the_bounds_of_keys(
    column: LakeColumn, bounds: tuple[Any, Any], expected: str
) -> None:
    """Write bounds where their literals are exact."""
    merge = merge_of(column, **{column.name: bounds})
    condition = merge_sql("t", merge, frozenset({ROWS})).splitlines()[1]
    assert condition == f"ON t.{condition.split('.')[1].split(' =')[0]} = s.row0{expected}"


def test_a_part_without_bounds_excludes_nothing() -> None:
    """Know the bounds of all keys, or use none. A part without keys to look up has none."""
    merge = merge_of(KEY, id=(3, 9))
    unknown = LakeRows(in_table=1, key_count=1)
    both = replace(merge, parts=(*merge.parts, unknown))
    assert "BETWEEN" not in merge_sql("t", both, frozenset({ROWS}))
    only_new = replace(merge, parts=(*merge.parts, replace(unknown, key_count=0)))
    assert "BETWEEN 3 AND 9" in merge_sql("t", only_new, frozenset({ROWS}))


def test_an_emptied_table_is_replaced_in_one_statement() -> None:
    """Overwrite with the rows that there are; without rows, delete."""
    merge = merge_of(KEY, NOTE)
    assert emptying_sql("t", merge, frozenset({ROWS})) == (
        "INSERT OVERWRITE t (`id`, `note`) SELECT row0, row1 FROM penstock_rows"
    )
    assert emptying_sql("t", Merge(base_version=1), frozenset()) == "DELETE FROM t"


def test_views_have_the_schema_of_the_files() -> None:
    """Name flags, keys and columns with Spark's types."""
    schemas = view_schemas(merge_of(KEY, LakeColumn(name="at", type="timestamp")))
    assert schemas == {
        ROWS: "row0 bigint, row1 timestamp_ntz",
        OPEN: "absent_row0 boolean, absent_row1 boolean, key0 bigint, row0 bigint, "
        "row1 timestamp_ntz",
        DELETED: "key0 bigint",
    }


def test_delta_keeps_the_whole_mark_in_the_text_for_the_user() -> None:
    """Read the mark again from the commit's actions; text of others is none."""
    said = merge_properties(MARK, 4)
    text = said["spark.databricks.delta.commitInfo.userMetadata"]
    info = json.dumps({"commitInfo": {"operation": "MERGE", "userMetadata": text}})
    assert read_merged(f'{{"add":{{"path":"x"}}}}\n{info}') == MARK
    assert said["spark.databricks.delta.write.txnVersion"] == "4"
    assert said["spark.databricks.delta.write.txnAppId"] == "penstock:a-log:merges"
    assert read_merged('{"commitInfo":{"userMetadata":"penstock.mark"}}') is None


def test_a_commit_of_ours_is_told_from_a_merge() -> None:
    """Know our own commits by their transaction numbers."""
    assert has_own_mark('{"txn":{"appId":"penstock:a-log","version":3}}')
    assert not has_own_mark('{"txn":{"appId":"penstock:a-log:merges","version":3}}')
    assert not has_own_mark('{"txn":{"appId":"other","version":3}}')


def test_a_history_is_refused_with_merge() -> None:
    """Refuse the two in a pipeline file and in a URL."""
    target = TargetSection(url="delta+file:///lake", apply=Apply.MERGE, history=True)
    assert [key for key, _ in target_problems(target)] == ["history"]
    assert parse_url("delta+file:///lake?apply=merge").merges
    assert not parse_url("delta+file:///lake").merges
    with pytest.raises(UrlInvalid, match="not by MERGE"):
        parse_url("delta+file:///lake?apply=merge&history=true")
    with pytest.raises(UrlInvalid, match="apply is quick"):
        parse_url("delta+file:///lake?apply=quick")
