"""Databases and tables of SQL Server that are not those of the log any more.

Not here: capture instances that were created again (`test_sqlserver_source.py`).
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.servers.change_case import Case
from penstock.engines.sqlserver.errors import DatabaseReplaced, TableRenamed
from penstock.model import MarkerKind, TableName


def test_another_database_of_the_same_name_is_refused() -> None:
    """The guid is compared at each connection; a server that shows none is followed."""
    case = Case()
    case.insert(1)
    case.log.follow()
    assert case.log.book.state().database == case.server.guid
    case.server.guid = None
    case.log.reconnect()
    case.log.follow()
    case.server.guid = "0CC31DE0-0000-4000-8000-000000000002"
    case.log.follow()  # a connection stays with its database
    case.log.reconnect()
    with pytest.raises(DatabaseReplaced, match="has the source's name now"):
        case.log.follow()


@pytest.mark.parametrize("changed", ["time", "id", "gone"])
def test_a_restored_database_is_refused(changed: str) -> None:
    """Restored to an earlier time it went on, and has captured more than before."""
    case = Case()
    case.insert(1)
    case.insert(2)
    case.log.follow()
    number, time, told = case.server.commits.pop()
    if changed == "time":
        case.server.commits.append((number, time + timedelta(seconds=5), told))
    elif changed == "id":
        case.server.commits.append((number, time, told + b"7"))
    case.insert(3)
    case.log.reconnect()
    with pytest.raises(DatabaseReplaced, match="was restored"):
        case.log.follow()


def test_a_commit_that_was_cleaned_up_says_nothing() -> None:
    """The mapping may have forgotten the log's newest commit, or all of them."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.server.clean_up(case.log.end.position)
    case.log.reconnect()
    case.log.follow()
    case.insert(2)
    case.log.reconnect()
    case.log.follow()
    assert len(case.log.transactions()) == 2


def test_a_renamed_table_ends_and_is_another_one() -> None:
    """No change is missing: those that are read before the name is known have the old one."""
    case = Case(row_count=4)
    case.insert(1)
    case.log.follow()
    case.table.name = TableName("dbo", "other")
    case.insert(2)
    case.log.follow()
    assert [(one.kind, one.tables) for one in case.log.markers] == [
        (MarkerKind.DDL, (("dbo", "t"),))
    ]
    case.insert(3)
    case.log.follow()
    names = [[seen.table for seen in one] for one in case.log.transactions()]
    assert names == [["t"], ["t"], ["other"]]
    assert case.log.book.id_of(TableName("dbo", "t")) is None


def test_changes_of_a_renamed_table_wait_until_its_end_is_durable() -> None:
    """Changes that come before are read afterwards; none is left out."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.table.name = TableName("dbo", "other")
    case.insert(2)
    case.log.follow(flush=False)
    case.insert(3)
    case.log.follow(flush=False)
    case.log.flush()
    case.log.follow()
    names = [[seen.table for seen in one] for one in case.log.transactions()]
    assert names == [["t"], ["t"], ["other"]]
    assert len(case.log.markers) == 1


def test_a_log_that_lost_the_end_of_a_renamed_table_has_it_again() -> None:
    """The end is later then, and no change is left out."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.table.name = TableName("dbo", "other")
    case.insert(2)
    case.log.follow(flush=False)
    case.insert(3)
    case.log.reconnect()
    case.log.follow()
    case.insert(4)
    case.log.follow()
    names = [[seen.table for seen in one] for one in case.log.transactions()]
    assert names == [["t"], ["t"], ["t"], ["other"]]
    assert len(case.log.markers) == 1


def test_two_tables_that_swap_their_names_end_both() -> None:
    """Each is the other one from then on."""
    case = Case()
    other = case.add_table("u")
    case.insert(1)
    case.insert(2, table=other)
    case.log.follow()
    case.table.name, other.name = other.name, case.table.name
    case.insert(3)
    case.log.follow()
    case.insert(4)
    case.log.follow()
    assert [seen.table for (seen,) in case.log.transactions()] == ["t", "u", "t", "u"]
    assert case.log.book.id_of(TableName("dbo", "u")) == case.table.object_id


@pytest.mark.parametrize(
    ("name", "back"),
    [
        (TableName("dbo", "t'2"), "EXEC sp_rename N'[dbo].[t''2]', N't';"),
        (TableName("old", "t"), "ALTER SCHEMA [dbo] TRANSFER [old].[t];"),
    ],
)
def test_a_table_with_a_name_that_is_not_captured_stops_the_log(name: TableName, back: str) -> None:
    """Changes would no longer be captured; the hint undoes the renaming."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.log.book.may_take = lambda _: False
    case.table.name = name
    case.insert(2)
    with pytest.raises(TableRenamed, match="is named") as caught:
        case.log.follow()
    assert back in caught.value.hint
