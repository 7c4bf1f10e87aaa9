"""Emptying a target table that other tables refer to removes none of their rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.target.bulk import begin_afresh
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.model import TableName
from penstock.ports.bulk import TablePlan, TargetFires

PARENT = TableName("public", "parent")
SETUP = """
    create table public.parent (id int primary key);
    insert into public.parent values (1), (2);
    create table public.child (id int, parent int);
    insert into public.child values (1, 1);
    create role {role};
    grant usage on schema public, wirekite to {role};
    grant all on all tables in schema public, wirekite to {role};
"""
PLAN = TablePlan(
    source=PARENT,
    target=PARENT,
    columns=("id",),
    binary=False,
    position="0/1",
    snapshot_id="",
    snapshot_text="",
    chunks=(),
)


@pytest.fixture
def target(target_url: str) -> Iterator[psycopg.Connection]:
    """Both tables, and a role named like the database that may not switch triggers off."""
    with connect(target_url, application_name="test") as connection:
        PostgresProgress(connection).ensure_tables()
        PostgresProgress(connection).ensure_marks()
        role = connection.info.dbname
        connection.execute(SETUP.format(role=role).encode())
        try:
            yield connection
        finally:
            connection.execute("reset role")
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())


def rows(connection: psycopg.Connection) -> tuple[int, int]:
    """Return the numbers of rows of the two tables."""
    row = connection.execute(
        "select (select count(*) from public.parent),"
        " (select count(*) from public.child where parent is not null)"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def refer(connection: psycopg.Connection, action: str) -> None:
    """Make the child refer to its parent."""
    connection.execute(
        "alter table public.child add constraint up foreign key (parent)"
        f" references public.parent on delete {action}".encode()
    )


@pytest.mark.parametrize("action", ["cascade", "set null", "no action"])
def test_a_loader_with_rights_leaves_rows_that_refer(
    target: psycopg.Connection, action: str
) -> None:
    """The parent's rows are deleted, to be copied again; the child's rows stay as they are."""
    refer(target, action)
    begin_afresh(target, [PLAN])
    assert rows(target) == (0, 1)


@pytest.mark.parametrize("action", ["cascade", "set null"])
def test_a_loader_without_rights_refuses_to_change_them(
    target: psycopg.Connection, action: str
) -> None:
    """The loader changes nothing then, and names the table."""
    refer(target, action)
    target.execute(f"set role {target.info.dbname}".encode())
    with pytest.raises(TargetFires, match=r"rows of child by its foreign key up"):
        begin_afresh(target, [PLAN])
    assert rows(target) == (2, 1)


def test_a_loader_without_rights_empties_what_no_row_refers_to(
    target: psycopg.Connection,
) -> None:
    """TRUNCATE is refused even then; DELETE is not."""
    refer(target, "no action")
    target.execute("delete from public.child")
    target.execute(f"set role {target.info.dbname}".encode())
    begin_afresh(target, [PLAN])
    assert rows(target) == (0, 0)
