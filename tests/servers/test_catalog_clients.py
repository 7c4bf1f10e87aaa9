"""The served catalogue beside real servers: both answer clients' queries alike.

`tests/record_catalog_queries.py` recorded the queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from harness.servers.catalog_compare import Pair, Shown, questions
from harness.servers.catalog_tables import publications
from plugins.postgres import Server, first_server
from plugins.shared import SharedServers

VERSIONS = (15, 16, 18)
# Commands of replication, and those that change a session: other modules test them.
NO_QUESTION = re.compile(
    r"\s*(begin|commit|rollback|set|insert|savepoint|release|copy|start_replication|show|"
    r"create_replication_slot|drop_replication_slot|alter_replication_slot|identify_system)\b"
    r'|SELECT "[^()]*" FROM "(public|s2)"."[^"]*"$',
    re.IGNORECASE,
)
# Only a real server has these, so that rows differ. The shape is compared.
OTHER_ROWS = {
    "other databases": re.compile(r"pg_database"),
    "other roles": re.compile(r"pg_roles"),
    "TOAST tables": re.compile(r"relkind IN \('r','p','t','s',''\)"),
    "owner, rights and comment of schema public": re.compile(r"n\.nspowner"),
    "the language plpgsql": re.compile(r"pg_extension"),
    "pages and rows of indexes": re.compile(r'AS "CARDINALITY"'),
    "what changes": re.compile(r"version\(\)|CURRENT_TIMESTAMP|pg_current_(wal|xact)"),
}


@pytest.fixture(scope="module", params=VERSIONS)
def pair(
    request: pytest.FixtureRequest,
    shared_servers: SharedServers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """A real server and a catalogue that claims its version."""
    server: Server = first_server(shared_servers, request.param)
    url = server.make_database("catalog")
    made = Pair(url, tmp_path_factory.mktemp("catalog"), request.param)
    yield made
    made.close()
    server.drop_database(url)


CLIENTS = (
    *("psql 15", "psql 16", "psql 18", "pgjdbc", "psycopg", "Debezium"),
    *("subscriber 15", "subscriber 16", "subscriber 18"),
)


@pytest.mark.parametrize("client", CLIENTS)
def test_questions_of_clients(pair: Pair, client: str) -> None:
    """Each query has the columns, types and rows that the real server returns."""
    asked = 0
    pair.on_real("reset all")
    pair.on_ours("reset all")
    for question in questions(pair.version, client):
        if NO_QUESTION.match(question.sql):
            continue
        asked += 1
        real = pair.on_real(question.sql, question.parameters)
        ours = pair.on_ours(question.sql, question.parameters)
        if isinstance(real, Shown) and any(p.search(question.sql) for p in OTHER_ROWS.values()):
            assert isinstance(ours, Shown), (question.sql, ours)
            assert ours.columns == real.columns, question.sql
        else:
            assert ours == real, question.sql
    pair.on_real("reset all")
    pair.on_ours("reset all")
    assert asked or client == f"subscriber {pair.version}"


SELECTED = (
    "select oid, pubname, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot"
    " from pg_publication order by pubname",
    "select * from pg_publication_tables",
    "select prrelid, prattrs, pg_get_expr(prqual, prrelid) from pg_publication_rel",
    "select schemaname, tablename, hasindexes from pg_tables where schemaname in ('public', 's2')",
    "select schemaname, tablename, indexname, indexdef from pg_indexes where schemaname = 's2'",
    "select table_schema, table_name, table_type from information_schema.tables"
    " where table_schema in ('public', 's2')",
    "select table_name, column_name, ordinal_position, is_nullable, data_type, udt_name,"
    " character_maximum_length, numeric_precision, numeric_scale, datetime_precision"
    " from information_schema.columns where table_schema in ('public', 's2')",
    "select constraint_name, table_name, column_name, ordinal_position"
    " from information_schema.key_column_usage where table_schema in ('public', 's2')",
    "select attrelid, attname, atttypid, attlen, attnum, attndims, atttypmod, attbyval, attalign,"
    " attstorage, attnotnull, attcollation from pg_attribute where attrelid = 'wide'::regclass",
    "select attname, atttypid from pg_attribute where attrelid = 'pg_class'::regclass",
    "select oid, typname, typlen, typtype, typcategory, typelem, typarray, typbasetype, typinput,"
    " typtypmod from pg_type where typname not like '%toast%'",
    "select count(*), relkind from pg_class where relnamespace = 'pg_catalog'::regnamespace"
    " and relkind in ('r', 'v') group by relkind",
    "select 'wide'::regclass, 's2.\"Odd Name\"'::regclass, 'int4'::regtype, 'text[]'::regtype,"
    " 'pg_catalog'::regnamespace, 'array_in'::regproc",
    "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'wide'::regclass",
    "select conname, contype, conkey, pg_get_constraintdef(oid) from pg_constraint"
    " where connamespace = 'public'::regnamespace",
    "select x, pg_size_pretty(x), pg_size_pretty(x::numeric) from (values (0::int8), (-10239),"
    " (10240), (10751), (10752), (20971519), (-20971520), (5000000000000),"
    " (99999999999999999)) v(x)",
)


@pytest.mark.parametrize("sql", SELECTED)
def test_what_a_dba_asks(pair: Pair, sql: str) -> None:
    """Queries on publications, tables and types are answered like by the real server."""
    assert pair.on_ours(sql) == pair.on_real(sql)


REFUSED = (
    "select * from nowhere",
    "select * from public.nowhere",
    "select nothing from pg_class",
    "select c.nothing from pg_class c",
    "select d.oid from pg_class c",
    "select oid from pg_class, pg_type",
    "select nothing(1)",
    "select length(1)",
    "select 1 = 'a'::text",
    "select 'a'::int",
    "select 'nowhere'::regclass",
    "select 'nowhere'::regtype",
    "select 99999999999::int4",
    "select relname, count(*) from pg_class",
    "select relname from pg_class group by relkind",
    "select 1 from pg_class where count(*) > 1",
    "select (select oid from pg_class)",
    "select 1 / 0",
    "select 1 union select 1, 2",
    "select case when 1 then 2 end",
    "select 1 order by 2",
    "select distinct relname from pg_class order by oid",
    "select from_ from",
    "create publication q for table t (id), t (id)",
    "select '{1'::int[]",
    "select * from pg_class c, pg_type c",
    "select coalesce(1, 'a'::text)",
    "select current_setting('nothing')",
    "select set_config('nothing', 'a', false)",
    "select pg_has_role('absent', 'usage')",
    "create publication p",
    "create publication q for table nowhere",
    "create publication q with (publish = 'nothing')",
    "create publication q with (nothing = 1)",
    "drop publication q",
    "alter publication q add table t",
    "alter publication every add table t",
    "alter publication p drop table wide",
    "alter publication p add table t",
    "create publication q for table pg_class",
)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_refused(pair: Pair, sql: str) -> None:
    """Mistakes have the real server's SQLSTATE."""
    real = pair.on_real(sql)
    assert isinstance(real, str), sql
    assert pair.on_ours(sql) == real


def test_publications_change_alike(pair: Pair) -> None:
    """Both show the same publications after each statement."""
    newer = pair.version >= 15
    steps = [
        "create publication x for table t with (publish = 'insert, delete')",
        "alter publication x add table u, s2.by_index",
        "alter publication x set (publish = 'insert', publish_via_partition_root)",
        "alter publication x drop table u",
        *(
            [
                "alter publication x set table t (id, name) where (name <> 'a' or id in (1, 2))",
                "alter publication x set table t where (name like 'a%' and name not like '_'), u",
                "alter publication x set tables in schema s2",
                "alter publication x add table wide where (c4 and id is not null)",
                "alter publication x drop tables in schema s2",
            ]
            if newer
            else []
        ),
        "alter publication x rename to y",
        "create publication x for all tables",
        "drop publication x, y",
        "drop publication if exists x",
    ]
    shown: list[Any] = []
    for step in steps:
        assert pair.on_ours(step) == pair.on_real(step), step
        for sql in (SELECTED[0].replace("oid, ", ""), SELECTED[1]):
            ours, real = pair.on_ours(sql), pair.on_real(sql)
            assert ours == real, step
            shown.append(ours)
    assert len(set(map(str, shown))) > len(steps)
    assert len(publications(pair.version)) >= 4
