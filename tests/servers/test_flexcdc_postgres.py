"""FlexCDC with PostgreSQL as source: changelogs in PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.extract import set_up
from harness.pipelines.flexcdc import Flex
from harness.servers.postgres_types import EXTENSION_VALUES, SETUP, has_xml, values_for
from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.images import ImageIncomplete
from penstock.consume.flexcdc.state import Place, UnitOfWork
from penstock.engines.postgres.connect import literal
from penstock.model import PenstockError
from plugins.mysql import MySQLServer

Make = Callable[..., Flex]


@pytest.fixture
def flex(source_url: str, target_url: str, tmp_path: Path) -> Make:
    """Make a FlexCDC between two databases of PostgreSQL."""

    def make(ddl: str, **settings: Any) -> Flex:
        set_up(source_url, ddl)
        return Flex(source_url, target_url, tmp_path, **settings)

    return make


@pytest.fixture
def across(source_url: str, mysql: MySQLServer, tmp_path: Path) -> Iterator[Make]:
    """Make a FlexCDC from PostgreSQL to MySQL or MariaDB."""
    url = mysql.make_database("flex")
    database = url.rpartition("/")[2]

    def make(ddl: str, **settings: Any) -> Flex:
        set_up(source_url, ddl)
        return Flex(source_url, mysql.url(), tmp_path, database=database, **settings)

    yield make
    mysql.drop_database(url)


@pytest.mark.promise
@pytest.mark.each_server
def test_images_and_place(flex: Make) -> None:
    """Images are like those of a binlog; the position is the LSN, printed and as a number."""
    one = flex(
        "create table t (id int primary key, v text); alter table t replica identity full;"
        "insert into t values (1, 'a')"
    )
    one.begin("t")
    one.source_sql(
        "begin", "insert into t values (2, 'b')", "update t set v = 'c' where id = 1", "commit",
        "delete from t where id = 2",
    )  # fmt: skip
    place = one.step()
    assert one.images("t", "id", "v") == [
        (1, 2, 2, 2, "b"),
        (-1, 2, 3, 1, "a"),
        (1, 2, 4, 1, "c"),
        (-1, 3, 5, 2, "b"),
    ]
    (status,) = one.state_rows("binlog_consumer_status", "1")
    high, low = (int(part, 16) for part in place.position.split("/"))
    assert status["master_log_file"] == place.position
    assert status["exec_master_log_pos"] == (high << 32) + low
    one.check("t")


@pytest.mark.each_server
def test_unchanged_large_values_are_in_new_images(flex: Make) -> None:
    """A value that an update did not send is taken from the old row."""
    one = flex(
        "create table t (id int primary key, n int, big text); alter table t replica identity full;"
        "alter table t alter big set storage external;"
        "insert into t values (1, 1, repeat('x', 9000)), (2, 1, null)"
    )
    one.begin("t")
    one.source_sql("update t set n = 2", "update t set big = 'small' where id = 2")
    one.step()
    one.check("t")
    assert [len(row[3] or "") for row in one.images("t", "big")][:2] == [9000, 9000]


@pytest.mark.each_server
def test_a_changed_shape_and_truncate_in_one_transaction(flex: Make) -> None:
    """Columns are renamed, added and dropped between changes of one transaction."""
    one = flex(
        "create table t (id int primary key, a int, b text); alter table t replica identity full;"
        "insert into t values (1, 1, 'x')"
    )
    one.begin("t")
    one.source_sql(
        "begin", "update t set a = 2", "alter table t rename a to c", "update t set c = 3",
        "alter table t add d text default 'd'", "alter table t drop b", "update t set c = 4",
        "commit", "truncate t", "insert into t values (7, 7, 'new')",
    )  # fmt: skip
    one.step()
    with one.state() as (state, _):
        shape = state.session.shape(one.changelog("t"))
    assert shape is not None
    # The catalogue was ahead of the first rows, so the log does not say that a became c: both
    # have columns, with their values.
    assert {"id", "a", "b", "c", "d"} <= set(shape)
    found = [row[3:] for row in one.images("t", "a", "c")]
    assert found[:5] == [(1, None), (2, None), (None, 2), (None, 3), (None, 3)]
    assert (None, 4) in found
    one.check("t")


@pytest.mark.each_server
def test_without_full_identity_it_stops_by_name(flex: Make) -> None:
    """The server sends only keys: a typed error says what to set, and no value is invented."""
    one = flex("create table t (id int primary key, v text); insert into t values (1, 'a')")
    one.begin("t")
    one.source_sql("update t set v = 'b'")
    one.extract()
    with pytest.raises(ImageIncomplete, match="column v"):
        one.follow()
    assert one.images("t") == []


@pytest.mark.each_server
def test_every_type_adds_up(flex: Make, source_url: str, postgres_version: int) -> None:
    """Types that are not the server's own add up too; a changelog keeps them as text."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        with_xml = has_xml(connection)
    every = values_for(postgres_version, set(), with_xml=with_xml)
    ddl, later = [SETUP], []
    for number, (kind, values) in enumerate(every.items()):
        if kind.removesuffix("[]").removeprefix("kinds.") in EXTENSION_VALUES:
            continue
        first = f"{literal(values[0])}::{kind}"
        ddl.append(
            f"create table t{number} (id int primary key, v {kind});"
            f"alter table t{number} replica identity full;"
            f"insert into t{number} values (0, {first})"
        )
        rows = ", ".join(
            f"({place}, {literal(value)}::{kind})" for place, value in enumerate(values, 1)
        )
        later += [
            f"insert into t{number} values {rows}",
            f"insert into t{number} values (99, null)",
            f"update t{number} set v = null where id = 1",
            f"update t{number} set id = -id where id = 2",
            f"delete from t{number} where id = 0",
        ]
    one = flex("; ".join(ddl))
    tables = [f"t{number}" for number in range(len(every))]
    one.begin(*tables)
    one.source_sql(*later)
    one.step()
    one.check(*tables)


@pytest.mark.each_server
def test_a_table_met_when_a_transaction_empties_it(
    flex: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changelog is created before the transaction's first row, while none of it
    is committed.
    """
    one = flex(
        "create table a (id int primary key); create table b (id int primary key);"
        "alter table a replica identity full; insert into b values (1)",
        auto_changelog=True,
    )
    one.begin()
    one.source_sql("insert into a values (1)")
    one.step()
    meet, seen = Changelogs.meet, []

    def meet_and_watch(self: Changelogs, *arguments: Any) -> None:
        meet(self, *arguments)
        seen.append(len(one.images("a")))

    monkeypatch.setattr(Changelogs, "meet", meet_and_watch)
    one.source_sql(
        "insert into a values (2)",
        "begin", "insert into a values (3)", "truncate table b", "insert into a values (4)",
        "commit", "insert into b values (5)",
    )  # fmt: skip
    one.step()
    assert seen == [2]
    assert [row[:2] for row in one.images("a")] == [(1, 2), (1, 3), (1, 4), (1, 4)]
    assert [row[0] for row in one.images("b")] == [0, 1]


def test_the_first_transaction_of_a_killed_run_is_waited_for(flex: Make) -> None:
    """The server may still be committing when the next run looks where to begin."""
    one = flex("create table t (id int primary key); alter table t replica identity full")
    with one.state_made():
        pass
    behind = Place(log_id="a", segment=0, trx=1, position="0/1")
    with one.flexcdc().connect() as (first, _):
        first.session.begin()
        first.check_place(Place())
        first.put_units([UnitOfWork(uow_id=2, commit_time=None, gsn_hwm=7)])
        first.move(behind)
        following = one.flexcdc()
        with following.connect() as (second, _), ThreadPoolExecutor(1) as pool:
            settled = pool.submit(following._load_progress, second)
            with pytest.raises(TimeoutError):
                settled.result(0.5)
            first.session.commit()
            assert settled.result(30).place == behind
            assert settled.result().unit.gsn_hwm == 7


SIMPLE = (
    "create table t (id int primary key, n bigint, d numeric(12,2), f double precision, b bool,"
    " s varchar(20), x text, y bytea, j jsonb, u uuid, dt date, ts timestamp(3), tz timestamptz,"
    " i interval, a int[], big numeric(38,10)); alter table t replica identity full;"
    "insert into t (id) values (1)"
)


@pytest.mark.promise
@pytest.mark.each_server
def test_across_engines(across: Make) -> None:
    """PostgreSQL's types become MySQL's and MariaDB's, as the loader would write them."""
    one = across(SIMPLE)
    one.begin("t")
    one.source_sql(
        r"""insert into t values (2, -9223372036854775808, 1.5, 0.1, true, 'ä''\', 'x' || chr(9),
            '\x00ff', '{"a": [1, null]}', gen_random_uuid(), '2024-02-29',
            '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.123456+02', '1 day 2 hours', '{1,null}',
            0.0000000012)""",
        "update t set n = 7, b = false where id = 2",
        "update t set s = 'changed', d = -1.25, big = 1234567890123456789012345678.0123456789",
        "delete from t where id = 1",
    )
    one.step()
    one.check("t")


@pytest.mark.each_server
def test_values_that_the_destination_cannot_hold_stop_it(across: Make) -> None:
    """A NaN causes a typed error before anything is written; losses need the user's choice."""
    one = across(SIMPLE)
    one.begin("t")
    one.source_sql("update t set n = 1", "update t set f = 'NaN'")
    one.extract()
    with pytest.raises(PenstockError) as caught:
        one.follow()
    assert caught.value.hint
    assert one.images("t") == []
