"""FlexCDC over real servers: the content of changelogs, which add up to the source."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines import mysql_extract
from harness.pipelines.flexcdc import Flex
from harness.servers.mysql_types import values_for
from penstock.consume.flexcdc.captured import DatabaseLeftOut
from penstock.consume.flexcdc.cleanup import clean
from penstock.consume.flexcdc.following import FlexCdc
from penstock.consume.flexcdc.images import ImageIncomplete
from penstock.consume.flexcdc.writing import ChangelogWriter
from plugins.mysql import MySQLServer

OWN = ("dml_type", "uow_id", "fv$server_id", "fv$gsn")


@pytest.fixture
def flex(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> Iterator[Callable[..., Flex]]:
    """Make a FlexCDC between databases of one server."""

    def make(**settings: Any) -> Flex:
        database = f"flex_{mysql_url.rpartition('/')[2]}"
        settings.setdefault("database", database)
        return Flex(mysql_url, mysql.url(), tmp_path, **settings)

    yield make
    mysql.drop_database(mysql.url(f"flex_{mysql_url.rpartition('/')[2]}"))


@pytest.mark.promise
@pytest.mark.each_server
def test_images_units_and_numbers(flex: Callable[..., Flex]) -> None:
    """An insert is 1, a delete -1, an update -1 then 1; a transaction is one unit of work."""
    one = flex()
    one.source_sql(
        "create table t (id int primary key, v varchar(9))", "insert into t values (1, 'a')"
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
    units = one.state_rows("mview_uow", "uow_id")
    assert [(u["uow_id"], u["gsn_hwm"]) for u in units] == [(1, 1), (2, 4), (3, 5)]
    assert units[0]["commit_time"] is None
    assert units[1]["commit_time"] <= units[2]["commit_time"]
    file, _, offset = place.position.rpartition(":")
    status = {s["master_log_file"]: s for s in one.state_rows("binlog_consumer_status", "1, 2")}
    assert status[file]["exec_master_log_pos"] == int(offset)
    one.check("t")


@pytest.mark.each_server
@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "row"])
def test_marked_and_skipped_updates(flex: Callable[..., Flex], bulk: bool) -> None:
    """Each update gives -2 and 2 with mark_updates; skip_before_update omits old
    image and number.
    """
    one = flex(bulk_insert=bulk)
    one.source_sql("create table t (id int primary key, v int)")
    one.begin("t")
    one.source_sql(
        "begin", "insert into t values (1, 1)", "update t set v = 2", "update t set v = 3",
        "delete from t", "commit",
    )  # fmt: skip
    one.extract()
    for settings, expected in (
        ({"mark_updates": True}, [(1, 2), (-2, 3), (2, 4), (-2, 5), (2, 6), (-1, 7)]),
        ({"skip_before_update": True}, [(1, 2), (1, 3), (1, 4), (-1, 5)]),
        ({"skip_before_update": True, "mark_updates": True}, [(1, 2), (2, 3), (2, 4), (-1, 5)]),
    ):
        again = flex(bulk_insert=bulk, **settings)
        with again.state_made():
            pass
        again.add("t")
        again.follow()
        assert [(dml, gsn) for dml, _, gsn in again.images("t")] == expected


@pytest.mark.each_server
@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "row"])
def test_bulk_and_row_mode_write_the_same(
    flex: Callable[..., Flex], bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tables are written in one transaction in pieces: numbers follow the
    order of changes.
    """
    monkeypatch.setattr("penstock.consume.flexcdc.writing.ChangelogWriter.images_max", 3)
    one = flex(bulk_insert=bulk)
    one.source_sql(
        "create table a (id int primary key, v int)", "create table b (id int primary key, v int)"
    )
    one.begin("a", "b")
    one.source_sql("begin")
    one.source_sql(
        "begin",
        *(f"insert into {'ab'[n % 2]} values ({n}, {n})" for n in range(10)),
        "update a set v = v + 1",
        "commit",
        "delete from b where id = 3",
    )
    one.step()
    a, b = one.images("a", "id", "v"), one.images("b", "id", "v")
    assert [gsn for _, _, gsn, *_ in sorted([*a, *b], key=lambda row: row[2])] == [*range(2, 23)]
    assert [row[2:] for row in a[:5]] == [(2 + n, n, n) for n in range(0, 10, 2)]
    assert a[5:7] == [(-1, 2, 12, 0, 0), (1, 2, 13, 0, 1)]
    assert b[-1] == (-1, 3, 22, 3, 3)
    one.check("a", "b")


@pytest.mark.each_server
def test_a_table_that_is_emptied_is_recorded(flex: Callable[..., Flex]) -> None:
    """TRUNCATE adds a row of dml_type 0 after the last image; no image is lost."""
    one = flex(raise_warnings=True)
    one.source_sql("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    one.begin("t")
    one.source_sql("insert into t values (2, 2)", "truncate table t", "insert into t values (3, 3)")
    one.step()
    assert one.images("t", "id") == [(0, 3, 2, None), (1, 2, 2, 2), (1, 4, 3, 3)]
    one.check("t")
    assert "TRUNCATE" in one.warnings[0]
    units = one.state_rows("mview_uow", "uow_id")
    assert [(u["uow_id"], u["gsn_hwm"]) for u in units] == [(1, 1), (2, 2), (3, 2), (4, 3)]


@pytest.mark.each_server
def test_changelogs_follow_changes_of_shape(flex: Callable[..., Flex]) -> None:
    """Columns are added, renamed, dropped, widened and narrowed; no image loses a value."""
    one = flex()
    one.source_sql(
        "create table t (id int primary key, v varchar(5), w int, x smallint)",
        "insert into t values (1, 'a', 1, 1)",
    )
    one.begin("t")
    one.source_sql(
        "insert into t values (2, 'bbbbb', 2, 2)",
        "alter table t add column first_one int default 7 first, add column y int after v",
        "update t set y = 3 where id = 1",
        "alter table t change w ww bigint",
        "update t set ww = 5000000000 where id = 1",
        "alter table t modify x int, drop column y",
        "update t set v = 'b' where id = 2",
        "alter table t modify v varchar(2)",
        "update t set x = 100000 where id = 2",
    )
    one.step()
    with one.state() as (state, _):
        shape = state.session.shape(one.changelog("t"))
    assert shape is not None
    assert list(shape) == [*OWN, "first_one", "id", "v", "ww", "x"]
    assert "bigint" in shape["ww"]
    assert shape["v"] == "varchar(5)"  # an image has a value that varchar(2) does not hold
    values = [row[3:] for row in one.images("t", "id", "v", "ww", "x")]
    assert values[0] == (2, "bbbbb", 2, 2)
    assert values[-1] == (2, "b", 2, 100000)


@pytest.mark.server("mariadb")
def test_earlier_rows_of_a_json_column_may_have_no_json(flex: Callable[..., Flex]) -> None:
    """The server gives them an empty text, and a later column of the name may have any text."""
    one = flex()
    one.source_sql("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    one.begin("t")
    one.source_sql(
        "alter table t add column b json not null",
        "delete from t where id = 1",
        "insert into t values (2, 2, '[1]')",
    )
    one.step()
    values = [row[3:] for row in one.images("t", "id", "n", "b")]
    assert values[0] == (1, 1, "")
    assert (2, 2, "[1]") in values
    one.source_sql(
        "drop table t",
        "create table t (id int primary key, n int, b varchar(9))",
        "insert into t values (3, 3, 'no')",
    )
    one.step()
    assert one.images("t", "id", "n", "b")[-1][3:] == (3, 3, "no")


@pytest.mark.each_server
def test_every_type_adds_up(flex: Callable[..., Flex], mysql: MySQLServer) -> None:
    """Inserted, updated and deleted values of each type come out as the source has them."""
    one = flex()
    tables = []
    for number, (kind, values) in enumerate(values_for(mysql.is_mariadb).items()):
        tables.append(f"t{number}")
        one.source_sql(
            f"create table t{number} (id int primary key, v {kind})",
            f"insert into t{number} values (0, {values[0]})",
        )
    one.begin(*tables)
    for number, values in enumerate(values_for(mysql.is_mariadb).values()):
        rows = [f"({place}, {value})" for place, value in enumerate([*values, "null"], 1)]
        one.source_sql(
            f"insert into t{number} values {', '.join(rows)}",
            f"update t{number} set v = null where id = 1",
            f"update t{number} set id = -id where id = 2",
            f"delete from t{number} where id = 0",
        )
    one.step()
    one.check(*tables)


@pytest.mark.each_server
def test_tables_are_captured_on_sight(flex: Callable[..., Flex]) -> None:
    """Later tables are captured too with auto_changelog; names with _delta belong to Flexviews."""
    one = flex(auto_changelog=True)
    one.source_sql("create table t (id int primary key, v varchar(9) character set latin1)")
    one.begin()
    one.source_sql(
        "insert into t values (1, 'ä')",
        "create table later (id int primary key)",
        "insert into later values (1)",
        "create table mv_delta (id int primary key)",
        "insert into mv_delta values (1)",
    )
    one.step()
    assert [row[3:] for row in one.images("t", "id", "v")] == [(1, "ä")]
    assert [row[3:] for row in one.images("later", "id")] == [(1,)]
    assert sorted(row["table_name"] for row in one.state_rows("mvlogs", "1")) == ["later", "t"]


@pytest.mark.each_server
def test_only_databases_leaves_others_out(flex: Callable[..., Flex]) -> None:
    """Other databases are captured neither on sight nor by name."""
    one = flex(auto_changelog=True, only_databases=("elsewhere",))
    one.source_sql("create table t (id int primary key)")
    one.begin()
    one.source_sql("insert into t values (1)")
    one.step()
    assert one.state_rows("mvlogs", "1") == []
    with pytest.raises(DatabaseLeftOut):
        one.add("t")


@pytest.mark.each_server
def test_units_older_than_the_retention_go(flex: Callable[..., Flex]) -> None:
    """Old units are removed from every changelog; the newest one stays and carries the number."""
    one = flex()
    one.source_sql("create table a (id int primary key)", "create table b (id int primary key)")
    one.begin("a", "b")
    one.source_sql("insert into a values (1)", "insert into b values (1)", "delete from a")
    one.step()
    with one.state() as (state, _):
        later = datetime.datetime(2100, 1, 1)  # noqa: DTZ001
        assert clean(state, datetime.datetime(2000, 1, 1)).uow_id == 0  # noqa: DTZ001
        assert clean(state, later).uow_id == 3
    assert (len(one.images("a")), len(one.images("b"))) == (1, 0)
    assert [u["uow_id"] for u in one.state_rows("mview_uow", "1")] == [4]
    one.source_sql("insert into a values (2)")
    one.step()
    assert one.images("a")[-1] == (1, 5, 5)


@pytest.mark.each_server
def test_what_is_not_whole_stops_by_name(flex: Callable[..., Flex]) -> None:
    """A log without complete old rows causes a typed error; no image of the
    transaction is written.
    """
    one = flex()
    one.source_sql("create table t (id int primary key, v int)")
    one.begin("t")
    one.source_sql("insert into t values (1, 1)", "update t set v = 2")
    one.extractor(options=mysql_extract.OPTIONS).run()
    with pytest.raises(ImageIncomplete, match="column v"):
        one.follow()
    assert one.images("t") == []


@pytest.mark.promise
@pytest.mark.each_server
def test_a_commit_holds_whole_transactions_alone(
    flex: Callable[..., Flex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image of a transaction exists before its unit, wherever a piece of the log ends."""
    monkeypatch.setattr(ChangelogWriter, "images_max", 4)
    one = flex()
    one.source_sql("create table a (id int primary key)", "create table b (id int primary key)")
    one.begin("a", "b")
    for start in range(0, 90, 9):
        rows = [f"({n})" for n in range(start, start + 9)]
        one.source_sql(
            "begin", f"insert into a values {', '.join(rows[:2])}", "commit",
            "begin", f"insert into b values {', '.join(rows[2:5])}",
            f"insert into a values {', '.join(rows[5:9])}", "commit",
            f"insert into b values {rows[0]}",
        )  # fmt: skip
    commit, seen = ChangelogWriter.commit, []

    def commit_and_watch(self: ChangelogWriter, *arguments: Any) -> None:
        commit(self, *arguments)
        last = one.state_rows("mview_uow", "uow_id")[-1]["uow_id"]
        seen.append(max(uow for table in ("a", "b") for _, uow, _ in one.images(table)) - last)

    monkeypatch.setattr(ChangelogWriter, "commit", commit_and_watch)
    one.step()
    assert len(seen) > 5
    assert set(seen) == {0}
    one.check("a", "b")


@pytest.mark.parametrize("bulk", [True, False])
def test_row_mode_commits_in_time(
    flex: Callable[..., Flex], monkeypatch: pytest.MonkeyPatch, bulk: bool
) -> None:
    """A thousand transactions take one commit if written at once, else one per 200 rows."""
    one = flex(bulk_insert=bulk)
    one.source_sql("create table t (id int primary key)")
    one.begin("t")
    one.source_sql(*(f"insert into t values ({n})" for n in range(1000)))
    commit, commits = ChangelogWriter.commit, []

    def commit_and_watch(self: ChangelogWriter, *arguments: Any) -> None:
        commit(self, *arguments)
        commits.append(len(one.images("t")))

    monkeypatch.setattr(ChangelogWriter, "commit", commit_and_watch)
    one.step()
    written = [count for count in dict.fromkeys(commits) if count]
    assert written == ([1000] if bulk else [200, 400, 600, 800, 1000])
    one.check("t")


def test_waits_grow_by_sleep_increment_up_to_sleep_maximum(
    flex: Callable[..., Flex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait takes one second at first, and longer each time; a change resets it."""
    one = flex(sleep_increment=0.5, sleep_maximum=1.2)
    one.source_sql("create table t (id int primary key)")
    one.begin("t")
    waited: list[float] = []

    def wait(_: FlexCdc, _follower: object, seconds: float, _stop: object) -> None:
        waited.append(seconds)
        if len(waited) == 4:
            one.source_sql("insert into t values (1)")
            one.extract()

    monkeypatch.setattr(FlexCdc, "_wait", wait)
    one.flexcdc().run(lambda: len(waited) == 6, on_place=lambda _: None)
    assert waited == [1.5, 2.0, 2.2, 2.2, 1.5, 2.0]
