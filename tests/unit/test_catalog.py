"""The served catalogue without servers: sessions, publications, durability, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.servers.catalog_compare import FixedState
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Column, Identity, Relation
from penstock.serve.catalog.answers import AsksServer, ConnectionRow, SenderRow, Session, SlotRow
from penstock.serve.catalog.catalog import Catalog, split
from penstock.serve.catalog.publications import find_published
from penstock.serve.catalog.settings import all_rows
from penstock.serve.catalog.tables import TableRead
from penstock.serve.saved_state import SavedState


def column(name: str, kind: str, oid: int, *, nullable: bool = True) -> Column:
    """Return a column of this engine's own type."""
    return Column(name=name, source_type=kind, neutral="string", type_oid=oid, nullable=nullable)


ITEM = Relation(
    schema="public",
    name="item",
    columns=(column("id", "integer", 23, nullable=False), column("note", "text", 25)),
    key=(0,),
    before=(0,),
)
PLAIN = Relation(
    schema="s2",
    name="plain",
    columns=(column("a", "integer", 23), column("b", "text", 25)),
    before=(0, 1),
    identity=Identity.FULL,
)


class Asked:
    """A catalogue with two tables, and one session that asks it."""

    def __init__(self, directory: Path, **more: Any) -> None:
        self.state = FixedState()
        saved = SavedState(directory, log_id="a")
        self.catalog = Catalog(
            saved, database="shop", users=["repl", "other"], state=self.state, **more
        )
        self.catalog.set_relations([ITEM, PLAIN])
        self.session = self.new_session()

    def new_session(self) -> Session:
        """Return another connection."""
        return Session(user="repl", database="shop", process_id=7)

    def __call__(self, sql: str, session: Session | None = None) -> list[tuple[str | None, ...]]:
        """Return the rows of the last statement."""
        rows: list[tuple[str | None, ...]] = []
        for statement in split(sql):
            rows = list(self.catalog.answer(statement, session or self.session).rows)
        return rows

    def catch_refusal(self, sql: str) -> str:
        """Return the SQLSTATE of a refusal."""
        with pytest.raises(Refused) as caught:
            self(sql)
        return caught.value.sqlstate


@pytest.fixture
def catalog_session(tmp_path: Path) -> Asked:
    """A catalogue of version 15."""
    return Asked(tmp_path)


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("select {}", "0A000"),
        ("select 1 order by {}", "42P10"),
        ("select 1 group by {}", "42P10"),
        ("select 1 order by 1.5", "42601"),
        ("select 1 group by 1.5", "42601"),
        ("select ${}", "42P02"),
        ("select '1'::varchar({})", "0A000"),
        ("select '1'::varchar(1.5)", "0A000"),
        ("select '{}'::regclass", "42P01"),
        ("select relname from pg_class where oid = {}", "0A000"),
    ],
)
def test_numbers_of_any_length_are_refused_with_a_code(
    catalog_session: Asked, sql: str, sqlstate: str
) -> None:
    """Long numbers are not a defect of the catalogue: int() accepts only 4,300 digits."""
    assert catalog_session.catch_refusal(sql.format("9" * 5000)) == sqlstate


@pytest.mark.parametrize("version", [14, 15, 16, 17, 18])
def test_the_version_that_is_claimed(tmp_path: Path, version: int) -> None:
    """The version is the same in all places, and the catalogues have its columns."""
    asked = Asked(tmp_path, version=version)
    ((shown, number),) = asked(
        "select current_setting('server_version'), current_setting('server_version_num')"
    )
    assert shown is not None
    assert shown.split(".")[0] == str(version)
    assert number is not None
    assert int(number) // 10_000 == version
    assert asked("select version()")[0][0] == f"PostgreSQL {shown} (penstock)"
    assert asked("show server_version") == [(shown,)]
    ((columns,),) = asked(
        "select count(*) from pg_attribute where attrelid = 'pg_replication_slots'::regclass"
    )
    answer = asked.catalog.answer("select * from pg_replication_slots", asked.session)
    assert columns == str(len(answer.columns or ()))


def test_slots_and_senders_of_the_moment(catalog_session: Asked) -> None:
    """The views show the server's answer at each question."""
    query = "select slot_name, active, restart_lsn, confirmed_flush_lsn from pg_replication_slots"
    assert catalog_session(query) == []
    slot = SlotRow(slot_name="s", plugin="pgoutput", confirmed_flush_lsn=2**32 + 17, restart_lsn=9)
    catalog_session.state.slot_rows.append(slot)
    assert catalog_session(query) == [("s", "f", "0/9", "1/11")]
    sender = SenderRow(
        pid=9,
        usename="repl",
        application_name="sub",
        client_addr="127.0.0.1",
        client_port=5,
        backend_start="2026-01-01 00:00:00+00",
        flush_lsn=40,
    )
    catalog_session.state.sender_rows.append(sender)
    assert catalog_session(
        "select application_name, state, pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), "
        "usesysid::regrole from pg_stat_replication"
    ) == [("sub", "streaming", str(0x1000028 - 40), "repl")]


@pytest.mark.parametrize("version", [14, 15, 16, 17, 18])
def test_no_column_is_null_because_nobody_knows_it(tmp_path: Path, version: int) -> None:
    """Rows have all columns that a table claims to have; other columns are refused."""
    asked = Asked(tmp_path, version=version)
    asked("create publication p for table item")
    if version >= 15:
        asked("create publication s for tables in schema s2")
    slot = SlotRow(slot_name="s", plugin="pgoutput", confirmed_flush_lsn=1, restart_lsn=1)
    asked.state.slot_rows.append(slot)
    who = {"usename": "repl", "application_name": "", "client_addr": None, "client_port": None}
    start = "2026-01-01 00:00:00+00"
    asked.state.sender_rows.append(SenderRow(pid=1, backend_start=start, **who))
    asked.state.connection_rows.append(ConnectionRow(pid=1, backend_start=start, **who))
    catalog = asked.catalog
    found = catalog._rows.of_model() | catalog._rows.publications(
        catalog.model.publications.current().values()
    )
    found |= {name: list(rows()) for name, rows in catalog._moment.items()}
    found["pg_settings"] = list(all_rows(catalog._context))
    for name, rows in found.items():
        if name in catalog._store.held:
            assert rows, name
            assert not catalog._store.held[name] - rows[0].keys(), name


def test_sizes_and_settings(catalog_session: Asked, tmp_path: Path) -> None:
    """Sizes are printed, and settings of the server itself are shown if they are known."""
    assert catalog_session(
        "select pg_size_pretty(10239), pg_size_pretty(10240), pg_size_pretty(-20971520),"
        " pg_size_pretty(5000000000000)"
    ) == [("10239 bytes", "10 kB", "-20 MB", "4657 GB")]
    assert catalog_session.catch_refusal("show max_replication_slots") == "0A000"
    (tmp_path / "other").mkdir()
    other = Asked(tmp_path / "other", held={"max_replication_slots": "100"})
    assert other("show max_replication_slots") == [("100",)]
    assert other("select setting, enumvals from pg_settings where name = 'wal_level'") == [
        ("logical", "{minimal,replica,logical}")
    ]


def test_columns_of_the_other_dialect(tmp_path: Path) -> None:
    """The columns exist in that dialect, and in no other."""
    query = "select yb_stream_id, yb_restart_commit_ht from pg_replication_slots"
    slot = SlotRow(
        slot_name="s",
        plugin="yboutput",
        confirmed_flush_lsn=1,
        restart_lsn=1,
        yb_stream_id="stream",
        yb_restart_commit_ht=7_000_000_000_000_000_000,
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    there = Asked(tmp_path / "a", dialect="yugabyte")
    there.state.slot_rows.append(slot)
    assert there(query) == [("stream", "7000000000000000000")]
    assert len(there("select * from pg_replication_slots")[0]) == 18
    there("begin isolation level repeatable read; set local yb_read_time to '1234 ht'")
    assert there.session.read_time == "1234"
    stock = Asked(tmp_path / "b")
    assert stock.catch_refusal(query) == "42703"
    assert stock.catch_refusal("set yb_read_time to '1 ht'") == "42704"


def test_words_of_the_other_dialect(tmp_path: Path) -> None:
    """The read time and the present time are there; a stock server knows neither."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    there, stock = Asked(tmp_path / "a", dialect="yugabyte"), Asked(tmp_path / "b")
    assert there("show yb_read_time") == [("0",)]
    there("begin isolation level repeatable read; set local yb_read_time to '1234 ht'")
    assert there("show yb_read_time") == [("1234 ht",)]
    there("commit")
    assert there("show yb_read_time") == [("0",)]
    # For a whole session it would have to hold for every later transaction, too.
    assert there.catch_refusal("set yb_read_time to '1234 ht'") == "0A000"
    letters = "select relreplident from pg_class where relname in ('item', 'plain') order by 1"
    assert there(letters) == [("c",), ("f",)]
    assert stock(letters) == [("d",), ("f",)]
    assert there.catch_refusal("set yb_read_time to 'yesterday'") == "22023"
    there("set yb_read_time to 0")
    time = 1_700_000_000_000_000 << 12
    assert there("select yb_get_current_hybrid_time_lsn()") == [(str(time),)]
    assert there("select * from yb_get_current_hybrid_time_lsn()") == [(str(time),)]
    assert stock.catch_refusal("show yb_read_time") == "42704"
    assert stock.catch_refusal("select yb_get_current_hybrid_time_lsn()") == "42883"


def test_what_a_function_asks_of_the_server(catalog_session: Asked) -> None:
    """The server does it elsewhere, and then the query is asked again."""
    query = "select pg_drop_replication_slot('s')"
    with pytest.raises(AsksServer) as caught:
        catalog_session(query)
    assert caught.value.key == ("pg_drop_replication_slot", "s")
    catalog_session.session.carried_out[caught.value.key] = ""
    assert catalog_session(query) == [("",)]


def test_what_is_said_of_publications(tmp_path: Path) -> None:
    """A comment is durable at COMMIT, is dropped with its publication, and adds no version."""
    asked = Asked(tmp_path)
    asked("create publication p for table item; create publication q for table item")
    versions = len(asked.catalog.model.publications.versions)
    said = "select pubname, obj_description(oid, 'pg_publication') from pg_publication order by 1"
    asked("begin; comment on publication p is 'it''s read\nby two'")
    assert asked(said) == [("p", "it's read\nby two"), ("q", None)]
    assert asked(said, asked.new_session()) == [("p", None), ("q", None)]
    asked("rollback")
    assert asked(said) == [("p", None), ("q", None)]
    asked("begin; comment on publication p is 'read'; savepoint s")
    asked("comment on publication p is 'lost'; rollback to s; commit")
    assert asked(said) == [("p", "read"), ("q", None)]
    asked("comment on publication q is 'other'")
    asked("alter publication p rename to r")
    again = Asked(tmp_path)
    assert again(said) == [("q", "other"), ("r", "read")]
    assert len(again.catalog.model.publications.versions) == versions + 2
    again("comment on publication q is null; drop publication r; create publication r")
    assert again(said) == [("q", None), ("r", None)]
    assert again.catch_refusal("comment on publication absent is 'x'") == "42704"
    assert again.catch_refusal("comment on publication q is 3") == "42601"
    assert again.catch_refusal("comment on table item is 'x'") == "0A000"


def test_what_it_does_not_have_is_refused(catalog_session: Asked) -> None:
    """No empty or wrong answer is given instead."""
    for sql in (
        "select * from pg_statistic",
        "select prosrc from pg_proc",
        "select * from pg_rewrite",
        "show shared_buffers",
        "select pg_table_size('item'::regclass)",
        "select c from pg_class c",
        "with recursive a as (select 1 union all select * from a) select * from a",
        "select 1 from pg_class c full join pg_type t on c.oid = t.typrelid",
        "select extract(julian from now())",
        "select array_agg(distinct relname order by relname) from pg_class",
        "select oid from pg_class for update",
        "select interval '1 day'",
        "insert into item values (1)",
        "vacuum",
        "create table x (a int)",
        "set datestyle to german",
        "set client_encoding to latin1",
        "select x from (values (1)) v(x) tablesample system (1)",
    ):
        assert catalog_session.catch_refusal(sql) == "0A000", sql


def test_rows_of_a_table_are_told_of(catalog_session: Asked) -> None:
    """The reader of a table's rows is told which table it is."""
    with pytest.raises(TableRead) as caught:
        catalog_session('select id from "public"."item"')
    assert (caught.value.schema, caught.value.name, caught.value.sqlstate) == (
        "public",
        "item",
        "0A000",
    )


def test_endless_queries_are_ended(catalog_session: Asked) -> None:
    """A query that would never end is refused, and the next one is answered."""
    sql = "select count(*) from pg_attribute a, pg_attribute b, pg_attribute c, pg_attribute d"
    assert catalog_session.catch_refusal(sql) == "57014"
    assert catalog_session("select 1") == [("1",)]


def test_transactions(catalog_session: Asked) -> None:
    """A rollback also takes back settings, and an error fails the transaction."""
    catalog_session("set application_name = 'a'; begin; set application_name = 'b'")
    catalog_session("set local search_path = s2")
    assert catalog_session(
        "select current_schemas(false), current_setting('application_name')"
    ) == [("{s2}", "b")]
    assert catalog_session.session.transaction == "T"
    assert catalog_session.catch_refusal("select nothing") == "42703"
    assert catalog_session.session.transaction == "E"
    assert catalog_session.catch_refusal("select 1") == "25P02"
    assert catalog_session.catalog.answer("commit", catalog_session.session).tag == "ROLLBACK"
    assert catalog_session.session.transaction == "I"
    assert catalog_session(
        "select current_schemas(false), current_setting('application_name')"
    ) == [("{public}", "a")]
    catalog_session("begin; set local application_name = 'c'; set search_path = s2; commit")
    assert catalog_session(
        "select current_schemas(false), current_setting('application_name')"
    ) == [("{s2}", "a")]


def test_what_clients_are_told_of(catalog_session: Asked) -> None:
    """Settings that clients watch are sent with the answer that changes them."""
    answer = catalog_session.catalog.answer("set application_name to 'x'", catalog_session.session)
    assert answer.reports == {"application_name": "x"}
    answer = catalog_session.catalog.answer(
        "select set_config('DateStyle', 'ISO', false)", catalog_session.session
    )
    assert answer.reports == {"DateStyle": "ISO, MDY"}
    catalog_session("begin; set application_name = 'y'")
    # ROLLBACK takes it back, and the client is told that as well.
    answer = catalog_session.catalog.answer("rollback", catalog_session.session)
    assert answer.reports == {"application_name": "x"}


def test_a_snapshot_needs_its_isolation(catalog_session: Asked) -> None:
    """SET TRANSACTION SNAPSHOT holds only for the transaction."""
    catalog_session("begin isolation level repeatable read; set transaction snapshot '00000003-1'")
    assert catalog_session.session.snapshot == "00000003-1"
    catalog_session("rollback; begin")
    assert catalog_session.session.snapshot is None
    assert catalog_session.catch_refusal("set transaction snapshot 'x'") == "0A000"


def test_publications_are_durable(catalog_session: Asked, tmp_path: Path) -> None:
    """Publications and all oids are the same after a restart."""
    catalog_session("create publication p for table item (id) where (id > 3), s2.plain")
    catalog_session("create publication q for all tables; drop publication q")
    query = "select oid, pubname, pubowner from pg_publication"
    more = "select c.oid, relname, attrs from pg_class c, pg_get_publication_tables('p') g "
    more += "where c.oid = g.relid order by 1"
    before = catalog_session(query), catalog_session(more)
    again = Asked(tmp_path)
    assert (again(query), again(more)) == before
    assert before[1][0][2] == "1"


def test_what_is_acknowledged_is_durable(catalog_session: Asked, tmp_path: Path) -> None:
    """A publication is there after a crash, and tables have their oids in any order."""
    oids = {t.name: t.oid for t in catalog_session.catalog.model.tables.values()}
    catalog_session("create publication p for table item")
    again = Asked(tmp_path)
    assert again("select pubname from pg_publication") == [("p",)]
    (tmp_path / "fresh").mkdir()
    first = Asked(tmp_path / "fresh")
    assert {t.name: t.oid for t in first.catalog.model.tables.values()} == oids
    turned = Catalog(
        SavedState(tmp_path / "fresh", log_id="a"),
        database="shop",
        users=["repl"],
        state=FixedState(),
        version=15,
    )
    turned.set_relations([PLAIN, ITEM])
    assert {t.name: t.oid for t in turned.model.tables.values()} == oids


def test_publications_have_positions(catalog_session: Asked) -> None:
    """The stream asks what was published at a transaction's position."""
    catalog_session("create publication p for table item")
    catalog_session.state.lsn = 0x2000000
    catalog_session("alter publication p set table s2.plain")
    catalog_session.state.lsn = 0x3000000
    catalog_session("drop publication p")
    at = catalog_session.catalog.model.publications.at
    assert "p" not in at(0x1000027)
    found = find_published([at(0x1FFFFFF)["p"]], "public", "item")
    assert found is not None
    assert find_published([at(0x2000000)["p"]], "public", "item") is None
    assert find_published([at(0x2FFFFFF)["p"]], "s2", "plain") is not None
    assert at(0x3000000) == {}


def test_publications_in_transactions(catalog_session: Asked) -> None:
    """Others see them after COMMIT and never after ROLLBACK; a savepoint takes back its part."""
    other = catalog_session.new_session()
    query = "select pubname from pg_publication order by 1"
    catalog_session("begin; create publication a; savepoint one; create publication b")
    assert catalog_session(query) == [("a",), ("b",)]
    assert catalog_session(query, other) == []
    assert catalog_session(query) == [("a",), ("b",)]
    catalog_session("rollback to one")
    assert catalog_session(query) == [("a",)]
    catalog_session("create publication c; commit")
    assert catalog_session(query, other) == [("a",), ("c",)]
    catalog_session("begin; drop publication a")
    assert catalog_session(query) == [("c",)]
    catalog_session("rollback")
    assert catalog_session(query) == [("a",), ("c",)]


def test_publications_together(catalog_session: Asked) -> None:
    """One without a filter sends all rows; other filters count together; lists must agree."""
    catalog_session(
        "create publication a for table item where (id > 3);"
        "create publication b for table item where (id < 2) with (publish = 'insert');"
        "create publication c for table item;"
        "create publication d for table item (id)"
    )
    there = catalog_session.catalog.model.publications.current()
    found = find_published([there["a"], there["b"]], "public", "item")
    assert found is not None
    assert found.filters["insert"] == ("id > 3", "id < 2")
    assert found.filters["update"] == ("id > 3",)
    whole = find_published([there["a"], there["c"]], "public", "item")
    assert whole is not None
    assert whole.filters["insert"] is None
    with pytest.raises(Refused, match="column lists"):
        find_published([there["a"], there["d"]], "public", "item")


def test_filters_and_lists_must_identify_rows(catalog_session: Asked) -> None:
    """A publication is refused if its filter or list cannot decide updates and deletes."""
    assert catalog_session.catch_refusal("create publication p for table item (note)") == "42P10"
    assert (
        catalog_session.catch_refusal("create publication p for table item where (note = 'a')")
        == "42P10"
    )
    catalog_session("create publication p for table item (note) with (publish = 'insert')")
    assert (
        catalog_session.catch_refusal("alter publication p set (publish = 'insert, update')")
        == "42P10"
    )
    catalog_session("create publication f for table s2.plain where (b = 'a')")
    assert (
        catalog_session.catch_refusal(
            "create publication q for table item where (length(note) > 1)"
        )
        == "0A000"
    )
    assert (
        catalog_session.catch_refusal("create publication q for table item where (id > 'a')")
        == "22P02"
    )
    assert (
        catalog_session.catch_refusal("create publication q for table item where (nothing)")
        == "42703"
    )


def test_a_table_that_comes_later(catalog_session: Asked) -> None:
    """A new table is in the publications that match it, and a dropped one is in none."""
    catalog_session("create publication p for all tables")
    query = "select tablename from pg_publication_tables where pubname = 'p' order by 1"
    later = Relation(schema="public", name="later", columns=ITEM.columns, key=(0,), before=(0,))
    catalog_session.catalog.set_relations([ITEM, later])
    assert catalog_session(query) == [("item",), ("later",)]
    assert catalog_session("select to_regclass('s2.plain'), 'later'::regclass") == [(None, "later")]


def test_prepared_statements(catalog_session: Asked) -> None:
    """Parameters get the types that their context gives."""
    sql = "select oid from pg_class where relname = $1 and relnatts > $2 and oid = any($3)"
    prepared = catalog_session.catalog.prepare(sql, catalog_session.session)
    assert prepared.parameters == (19, 21, 1028)
    ((oid,),) = catalog_session("select 'item'::regclass::oid")
    answer = prepared.run(["item", "1", f"{{1,{oid}}}"], catalog_session.session)
    assert answer.rows == [(oid,)]
    with pytest.raises(Refused) as caught:
        prepared.run(["item", "many", "{}"], catalog_session.session)
    assert caught.value.sqlstate == "22P02"
    with pytest.raises(Refused) as caught:
        catalog_session.catalog.prepare("select 1; select 2", catalog_session.session)
    assert caught.value.sqlstate == "42601"


def test_quotes_and_comments(catalog_session: Asked) -> None:
    """Statements are split at their ends, texts stay as they were written."""
    rows = catalog_session(
        "select 'a;b' /* ; */ -- ;\n ; select 'it''s', E'a\\nb', 'a\\nb', $$x'y$$, \"oid\"."
        'oid from (select 1) as "oid"(oid)'
    )
    assert rows == [("it's", "a\nb", "a\\nb", "x'y", "1")]


def test_differences_and_parts_of_times(catalog_session: Asked) -> None:
    """Monitors ask how long ago an event was, and in which hour."""
    later, earlier = (
        "timestamptz '2024-03-01 01:30:00+00'",
        "timestamptz '2024-02-28 23:00:00.5+00'",
    )
    assert catalog_session(
        f"select {later} - {earlier}, {earlier} - {later}, {later} - {later}"
    ) == [("1 day 02:29:59.5", "-1 days -02:29:59.5", "00:00:00")]
    assert catalog_session(f"select extract(epoch from {later} - {earlier}) as lag") == [
        ("95399.5",)
    ]
    assert catalog_session(f"select extract(epoch from {earlier} - {later})") == [("-95399.5",)]
    assert catalog_session(f"select extract(epoch from {earlier}), date_part('hour', {later})") == [
        ("1709161200.5", "1")
    ]
    assert catalog_session(
        f"select date_trunc('day', {later}), date_trunc('quarter', {later})"
    ) == [("2024-03-01 00:00:00+00", "2024-01-01 00:00:00+00")]
    assert catalog_session(
        f"select date_trunc('week', {later}), date_trunc('minute', {earlier})"
    ) == [("2024-02-26 00:00:00+00", "2024-02-28 23:00:00+00")]
    assert float(catalog_session("select extract(epoch from now() - now())")[0][0] or 1) < 1
    assert (
        catalog_session.catch_refusal("select extract(epoch from timestamptz 'yesterday')")
        == "0A000"
    )
    assert catalog_session.catch_refusal("select extract(century from now())") == "0A000"
    assert catalog_session.catch_refusal(f"select {later} + {later}") == "0A000"
    assert (
        catalog_session.catch_refusal(f"select {later} - {earlier} > {earlier} - {later}")
        == "0A000"
    )
    assert catalog_session.catch_refusal(
        f"select {later} - backend_start as x from pg_stat_activity order by x"
    ) == ("0A000")


def test_the_checkpoint_is_the_end_of_the_log(catalog_session: Asked) -> None:
    """The checkpoint has a timeline, which replication tools ask for."""
    query = "select checkpoint_lsn, timeline_id, redo_wal_file from pg_control_checkpoint()"
    assert catalog_session(query) == [("0/1000028", "1", "000000010000000000000001")]
    assert catalog_session(
        "select checkpoint_lsn = pg_current_wal_lsn() from pg_control_checkpoint()"
    ) == [("t",)]
