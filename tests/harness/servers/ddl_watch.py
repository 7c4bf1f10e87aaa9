"""Tables whose changes send no rows, and the actions of a watch over them."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.ddl_watch import (
    Action,
    DdlWatch,
    Reload,
    StopPipeline,
    WatchState,
)
from penstock.engines.postgres.source.table_shape import ReloadReason
from penstock.model import TableName

PUBLICATION = "Watched p"
SETUP = """
    create schema other;
    create table public.t (
        id int primary key, v varchar(5), n numeric(6,2), i int, d int default 4,
        g int generated always as (i + 1) stored);
    insert into public.t select i, 'x', i, i from generate_series(1, 50) as i;
    create table public.root (id int, v text, w int) partition by list (id);
    create table public.one partition of public.root for values in (1);
    create table public.two partition of public.root for values in (2)
        partition by list (v);
    create table public.two_a partition of public.two for values in ('a');
    insert into public.root values (1, 'x'), (2, 'a');
    create table public.loose (id int, v text, w int);
    insert into public.loose values (3, 'z');
    create table public.quiet (id int primary key);
    create type public.mood as enum ('glad', 'sad');
    create type public.pair as (a int, b public.mood);
    create domain public.moods as public.mood[];
    create domain public.some_moods as public.moods check (cardinality(value) > 0);
    create table public.typed (id int primary key, m public.some_moods, p public.pair[]);
    create publication "Watched p" for table public.t, public.root, public.quiet,
        public.typed
        with (publish_via_partition_root = true);
"""


def watching(
    url: str,
    connection: psycopg.Connection,
    state: WatchState | None = None,
    takes_renamed: Callable[[TableName], bool] = lambda _: True,
    *,
    reads_renamed: bool = False,
) -> tuple[psycopg.Connection, DdlWatch]:
    """Return a connection to the catalogue, and a watch over the captured tables on it."""
    tables = captured_tables(connection, ["public.*", "!public.loose"])
    own = open_catalog(url)
    return own, DdlWatch(
        own,
        tables,
        publication=PUBLICATION,
        state=state,
        takes_renamed=takes_renamed,
        reads_renamed=reads_renamed,
    )


def all_due(watch: DdlWatch) -> list[Action]:
    """Return all actions, after settling them."""
    actions = []
    while (action := watch.due(2**64 - 1)) is not None:
        actions.append(action)
        watch.settle(action)
    return actions


def summary(actions: list[Action]) -> list[tuple[str, str]]:
    """Return each action with its reason or the class of its error."""
    result = []
    for action in actions:
        detail = ""
        if isinstance(action, Reload):
            detail = action.reason.name
        elif isinstance(action, StopPipeline):
            detail = type(action.error).__name__
            assert action.error.hint
        result.append((type(action).__name__, detail))
    return result


RELATION = [("RelationChanged", "")]
NOTHING: list[tuple[str, str]] = []


def read_again(reason: ReloadReason) -> list[tuple[str, str]]:
    """Return the only action for a table that is reloaded: the reload, with its reason."""
    return [("Reload", reason.name)]
