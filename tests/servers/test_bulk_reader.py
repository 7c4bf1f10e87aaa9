"""A worker's session at PostgreSQL beside statements that change what its snapshot's rows are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harness.servers.peek import run_all
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.bulk_reader import (
    BEGIN_READ,
    PostgresBulkReader,
    open_reader,
)
from penstock.engines.postgres.source.catalog import open_catalog
from penstock.model import PenstockError, TableName

A = TableName("public", "a")
REFUSED, FULL = (PenstockError("refused", hint="", sqlstate=code) for code in ("22P02", "53100"))


@contextmanager
def reading(url: str) -> Iterator[PostgresBulkReader]:
    """Give a worker's session in a new snapshot."""
    with connect(url, application_name="test") as holder:
        holder.execute(BEGIN_READ)
        row = holder.execute("select pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        reader = open_reader(url, *row)
        assert reader is not None
        try:
            yield reader
        finally:
            reader.close()


def task(*columns: str) -> Any:
    """Return a task for table a."""
    return SimpleNamespace(
        doing="copying", table=A, columns=columns, chunk=SimpleNamespace(relation=A)
    )


@pytest.mark.parametrize("other", ["a2 int", "v int"])
def test_a_table_that_got_another_one_s_name_is_planned_again(source_url: str, other: str) -> None:
    """The statement would read the other one's rows, or fail."""
    with open_catalog(source_url) as catalog:
        run_all(
            catalog,
            "create table public.a (id int primary key, v int)",
            f"create table public.b (id int primary key, {other})",
        )
        with reading(source_url) as reader:
            assert not reader.was_rewritten(task("id", "v"))
        with reading(source_url) as reader:
            run_all(
                catalog,
                "alter table public.a rename to c",
                "alter table public.b rename to a",
            )
            assert reader.was_rewritten(task("id", "v"))


@pytest.mark.parametrize("kind", ["mood", "mood[]", "moods"])
def test_a_label_that_was_renamed_is_planned_again(source_url: str, kind: str) -> None:
    """Rows of the snapshot have the new name, which the target's type lacks."""
    with open_catalog(source_url) as catalog:
        run_all(
            catalog,
            "create type public.mood as enum ('sad', 'ok')",
            "create domain public.moods as public.mood[]",
            f"create table public.a (id int primary key, m public.{kind})",
        )
        with reading(source_url) as reader:
            assert not reader.was_rewritten(task("id", "m"))
            assert not reader.tells_rewritten(REFUSED)
            run_all(catalog, "alter type public.mood rename value 'ok' to 'fine'")
            assert reader.tells_rewritten(REFUSED)
            assert not reader.tells_rewritten(FULL)
