"""MySQL and MariaDB as sources: the log has what was committed, once and in order."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from harness.pipelines.extract import Stop, log_changes, running, segments_of, until
from harness.pipelines.mysql_extract import OPTIONS, extractor_of, sql
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_tables import ShapeMismatch
from penstock.engines.mysql.connect import connect, run
from penstock.engines.mysql.source.unsupported import StatementLogged, TableMoved
from penstock.extract.extractor import Ended
from penstock.model import DROP_TABLE, MarkerKind, PenstockError
from plugins.mysql import MySQLServer, database_of


def begin_log(url: str, directory: Path) -> None:
    """Begin a log at the present."""
    extractor_of(url, directory).run()


def test_everything_committed_is_in_the_log_and_done_is_written(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """The log is complete with exitWhenIdle: closed segments, CHANGE.DONE."""
    sql(mysql, mysql_url, "create table t (id int primary key, v text)")
    begin_log(mysql_url, tmp_path)
    for number in range(50):
        sql(mysql, mysql_url, f"insert into t values ({number}, 'v')")
    sql(mysql, mysql_url, "update t set v = 'w' where id = 7;; delete from t where id = 8")
    outcome = extractor_of(mysql_url, tmp_path).run()
    assert outcome.ended is Ended.IDLE
    assert outcome.end.gsn == 52
    changes = log_changes(tmp_path)
    assert [c.after["id"] for c in changes[:50]] == list(range(50))
    assert [c.gsn for c in changes] == list(range(1, 53))
    assert (changes[50].op, changes[50].after, changes[50].before) == (
        "U",
        {"id": 7, "v": "w"},
        None,  # the key is the same
    )
    assert (changes[51].op, changes[51].before) == ("D", {"id": 8})
    assert (tmp_path / "log" / "CHANGE.DONE").is_file()
    facts = json.loads((tmp_path / "run" / "extract.json").read_text())
    assert facts["state"] == "idle"
    file, offset = mysql.status()
    assert facts["position"] == f"{file}:{offset}"
    assert facts["server_position"] == f"{file}:{offset}"
    assert facts["slot"].startswith("server_id ")


def test_extraction_goes_on_where_it_ended(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Further runs on the directory continue GSN, trx and segment numbers; one version suffices."""
    sql(mysql, mysql_url, "create table t (id int primary key, v text)")
    begin_log(mysql_url, tmp_path)
    for batch in range(3):
        sql(mysql, mysql_url, f"insert into t values ({batch}, 'v')")
        extractor_of(mysql_url, tmp_path).run()
    changes = log_changes(tmp_path)
    assert [(c.gsn, c.trx, c.after["id"]) for c in changes] == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    with segments_of(tmp_path) as segments:
        versions = {r.version for segment in segments for _, r in segment.relations()}
    assert versions == {1}


def test_the_stream_is_followed_while_it_runs(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Changes arrive within moments; other databases' and uncaptured tables' changes never do."""
    sql(mysql, mysql_url, "create table t (id int primary key);; create table u (id int)")
    stop = Stop()
    name = database_of(mysql_url)
    extractor = extractor_of(
        mysql_url,
        tmp_path,
        stop=stop,
        patterns=(f"{name}.t",),
        options=OPTIONS.__class__(flush_interval_s=0.2),
    )
    with running(extractor) as outcomes:
        until(lambda: extractor.progress.state == "streaming")
        sql(mysql, mysql_url, "insert into u values (1);; insert into t values (5)")
        until(lambda: len(log_changes(tmp_path)) == 1)
        sql(mysql, mysql_url, "flush logs;; insert into t values (6);; drop table u")
        until(lambda: len(log_changes(tmp_path)) == 2)
        stop.asked.set()
    assert outcomes[0].ended is Ended.STOPPED
    assert [c.after["id"] for c in log_changes(tmp_path)] == [5, 6]


@pytest.mark.parametrize(
    "between", ["create temporary table tt (id int)", "insert into m values (7)"]
)
def test_rows_behind_a_savepoint_that_was_gone_back_to_do_not_come(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, between: str
) -> None:
    """A temporary table or MyISAM keeps them in the binlog, followed by the ROLLBACK TO."""
    sql(mysql, mysql_url, "create table t (id int primary key);; create table m like t")
    sql(mysql, mysql_url, "alter table m engine = MyISAM")
    begin_log(mysql_url, tmp_path)
    statements = (
        "insert into t values (1)",
        "savepoint `a``b`",
        between if mysql.is_mariadb else "do 1",  # MySQL with GTIDs accepts neither
        "insert into t values (2)",
        "rollback to savepoint `A``b`",
        "insert into t values (3)",
        "commit",
    )
    with closing(connect(mysql_url, application_name="test", autocommit=False)) as session:
        for statement in statements:
            run(session, statement, doing="a transaction")
    extractor_of(mysql_url, tmp_path).run()
    changed = [c.after["id"] for c in log_changes(tmp_path)]
    assert [number for number in changed if number != 7] == [1, 3]


# -- statements in mid-stream --------------------------------------------------------------------


def relations_of(directory: Path, table: str) -> list[list[str]]:
    """Return the column names of each version that the log has of a table, in order."""
    with segments_of(directory) as segments:
        found = [r for s in segments for _, r in s.relations() if r.name == table]
    versions = {r.version: [column.name for column in r.columns] for r in found}
    return [versions[number] for number in sorted(versions)]


DDL = """
    insert into t values (1, 'a');;
    alter table t add column c int not null default 5;;
    insert into t values (2, 'b', 6);;
    create table other (id int);; insert into other values (1);; truncate other;; drop table other;;
    alter table t modify column v varchar(200) first;;
    insert into t (id, v, c) values (3, 'c', 7);;
    alter table t drop column c, add column d decimal(10,2) default 1.5 after id;;
    update t set v = 'z' where id = 1;;
    truncate table t;;
    insert into t (id, v) values (4, 'd')
"""
DDL_ROWS = [
    ("I", {"id": 1, "v": "a"}),
    ("I", {"id": 2, "v": "b", "c": 6}),
    ("I", {"v": "c", "id": 3, "c": 7}),
    ("U", {"v": "z", "id": 1, "d": Decimal("1.50")}),
    ("I", {"v": "d", "id": 4, "d": Decimal("1.50")}),
]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_table_changes_its_shape_in_mid_stream(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, metadata: str, behind: bool
) -> None:
    """Each row has the columns of its time; without names in the log there is never a wrong one.

    The catalogue has only the last shape when the reader is late: then the log's own names decide,
    and without them the table is read again.
    """
    with mysql.globals(binlog_row_metadata=f"'{metadata}'"):
        sql(mysql, mysql_url, "create table t (id int primary key, v varchar(20))")
        wanted = {"patterns": (f"{database_of(mysql_url)}.t",)}
        extractor_of(mysql_url, tmp_path, **wanted).run()
        if behind:
            sql(mysql, mysql_url, DDL)
            extractor_of(mysql_url, tmp_path, **wanted).run()
            if metadata == "MINIMAL":  # and the last statement says nothing about earlier ones
                with segments_of(tmp_path) as segments:
                    markers = [m for s in segments for m in s.markers()]
                assert markers[-1].kind is MarkerKind.RELOAD
                found = log_changes(tmp_path)
                rows = [(c.op, c.after) for c in found if c.gsn <= markers[-1].gsn]
                assert all(row in DDL_ROWS for row in rows)
                there = mysql.value(
                    "select group_concat(v order by id) from t", database_of(mysql_url)
                )
                again = [c.after["v"] for c in found if c.gsn > markers[-1].gsn and c.after]
                assert ",".join(again) == there
                return
        else:
            for statement in DDL.split(";;"):
                sql(mysql, mysql_url, statement)
                extractor_of(mysql_url, tmp_path, **wanted).run()
    assert [(c.op, c.after) for c in log_changes(tmp_path)] == DDL_ROWS
    names = relations_of(tmp_path, "t")
    assert names[0] == ["id", "v"]
    assert names[-1] == ["v", "id", "d"]
    with segments_of(tmp_path) as segments:
        markers = [m for s in segments for m in s.markers()]
        last = [r for s in segments for _, r in s.relations()][-1]
    assert [(m.kind, m.tables, m.gsn) for m in markers] == [
        (MarkerKind.TRUNCATE, ((database_of(mysql_url), "t"),), 4)
    ]
    assert last.columns[2].missing == "1.50"


def test_an_altered_table_without_rows_is_reported_at_once(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Both shapes are in the log, although no row ever came."""
    sql(mysql, mysql_url, "create table t (id int primary key)")
    begin_log(mysql_url, tmp_path)
    sql(mysql, mysql_url, "alter table t add column c int")
    extractor_of(mysql_url, tmp_path).run()
    assert relations_of(tmp_path, "t") == [["id"], ["id", "c"]]


def test_a_log_that_begins_in_the_past_takes_no_name_from_the_present(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """The names of a table altered since are not guessed if the log has none."""
    with mysql.globals(binlog_row_metadata="'NO_LOG'" if mysql.is_mariadb else "'MINIMAL'"):
        sql(mysql, mysql_url, "create table t (id int primary key, a int, b int)")
        at = BinlogPosition.at(*mysql.status())
        sql(mysql, mysql_url, "insert into t values (1, 2, 3)")
        swapped = "alter table t modify b int after id"
        sql(mysql, mysql_url, swapped)
        with pytest.raises(ShapeMismatch, match="is not known"):
            extractor_of(mysql_url, tmp_path / "wrong", at=at).run()
        at = BinlogPosition.at(*mysql.status())
        sql(mysql, mysql_url, "insert into t (id, a, b) values (2, 5, 6)")
        extractor_of(mysql_url, tmp_path / "right", at=at).run()
    assert [c.after for c in log_changes(tmp_path / "right")] == [{"id": 2, "b": 6, "a": 5}]
    assert not log_changes(tmp_path / "wrong")


SWAPS = {
    "gh-ost": """
        create table _t_ghc (id int);;
        create table _t_gho like t;;
        alter table _t_gho add column c int default 9;;
        insert into _t_gho (id, v) select id, v from t;;
        rename table t to _t_del, _t_gho to t;;
        drop table _t_ghc;; drop table _t_del
    """,
    "pt-osc": """
        create table _t_new like t;;
        alter table _t_new add column c int default 9;;
        insert into _t_new (id, v) select id, v from t;;
        rename table t to _t_old, _t_new to t;;
        drop table _t_old
    """,
}


@pytest.mark.parametrize("tool", list(SWAPS))
def test_tools_for_schema_changes_swap_a_table(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, tool: str
) -> None:
    """Rows of the copy are ignored; after the swap the table has the copy's shape."""
    sql(
        mysql,
        mysql_url,
        "create table t (id int primary key, v text);; insert into t values (1, 'a')",
    )
    begin_log(mysql_url, tmp_path)
    sql(mysql, mysql_url, "insert into t values (2, 'b')")
    sql(mysql, mysql_url, SWAPS[tool])
    sql(mysql, mysql_url, "insert into t values (3, 'c', 4);; update t set v = 'x' where id = 1")
    extractor_of(mysql_url, tmp_path).run()
    assert [(c.op, c.after) for c in log_changes(tmp_path)] == [
        ("I", {"id": 2, "v": "b"}),
        ("I", {"id": 3, "v": "c", "c": 4}),
        ("U", {"id": 1, "v": "x", "c": 9}),
    ]
    assert relations_of(tmp_path, "t") == [["id", "v"], ["id", "v", "c"]]
    assert relations_of(tmp_path, "_t_gho") == []
    with segments_of(tmp_path) as segments:
        last = [r for s in segments for _, r in s.relations()][-1]
    assert last.columns[2].missing == "9"


RENAMES = {
    "rename": ["alter table t rename column v to w"],
    "change": ["alter table t change v w varchar(30)"],
    "twice": ["alter table t rename column v to x", "alter table t change column x w varchar(20)"],
    "another case": ["alter table t change v V varchar(20)"],
    "back": ["alter table t rename column v to w", "alter table t rename column w to v"],
}


@pytest.mark.parametrize("how", list(RENAMES))
def test_a_renamed_column_keeps_its_history(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, how: str
) -> None:
    """The new shape has the column with its identity, so the values of old rows stay in it."""
    statements = RENAMES[how]
    sql(mysql, mysql_url, "create table t (id int primary key);; insert into t values (1)")
    begin_log(mysql_url, tmp_path)
    sql(mysql, mysql_url, "alter table t add column v varchar(20) default 'nine'")
    sql(mysql, mysql_url, "insert into t values (2, 'b')")
    sql(mysql, mysql_url, ";; ".join(statements))
    sql(mysql, mysql_url, "insert into t values (3, 'c');; update t set id = 4 where id = 1")
    extractor_of(mysql_url, tmp_path).run()
    name = {"back": "v", "another case": "V"}.get(how, "w")
    assert [(c.op, c.after) for c in log_changes(tmp_path)] == [
        ("I", {"id": 2, "v": "b"}),
        ("I", {"id": 3, name: "c"}),
        ("U", {"id": 4, name: "nine"}),
    ]
    with segments_of(tmp_path) as segments:
        found = [r for s in segments for _, r in s.relations() if len(r.columns) > 1]
    assert {relation.columns[1].id for relation in found} == {2}
    assert found[-1].columns[1].name == name
    assert found[-1].columns[1].missing == "nine"


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("rename table t to u", TableMoved, "renamed to"),
        (
            "set binlog_format = 'STATEMENT';; insert into t values (5, '5')",
            StatementLogged,
            "text",
        ),
    ],
)
def test_what_rows_do_not_tell_stops_by_name(
    mysql: MySQLServer,
    mysql_url: str,
    tmp_path: Path,
    statement: str,
    error: type[PenstockError],
    said: str,
) -> None:
    """The log has everything before the statement; the next start stops at the same place."""
    sql(
        mysql, mysql_url, "create table t (id int primary key, v text);; create table fresh (x int)"
    )
    begin_log(mysql_url, tmp_path)
    sql(mysql, mysql_url, "insert into t values (1, '1')")
    with mysql.connect(database_of(mysql_url)) as connection, connection.cursor() as cursor:
        for part in statement.split(";;"):
            cursor.execute(part)
    for _ in range(2):
        with pytest.raises(error, match=said):
            extractor_of(mysql_url, tmp_path, takes_renamed=lambda _: False).run()
    assert [c.after for c in log_changes(tmp_path)] == [{"id": 1, "v": "1"}]


FOLLOWED = {
    "its name goes on": "alter table t change v w varchar(9), add v int",
    "a name taken over": (
        "alter table t rename column v to w;; alter table t rename column n to v"
    ),
    "dropped and added": "alter table t drop column v, add v varchar(9) default 'z' after id",
    "a stored default": (
        "set time_zone = '+05:00';; alter table t add c timestamp default '2024-01-01 00:00:00'"
    ),
}
READ_AGAIN = {
    "another type": "alter table t modify v int;; alter table t rename column v to w",
    "twice": "alter table t modify n bigint;; alter table t modify n int",
    "a number for each row": "alter table t add k int not null auto_increment, add key (k)",
    "a label's case": "alter table t modify e enum('A', 'b')",
    "another character set": "alter table t convert to character set latin1",
}


@pytest.mark.parametrize("how", [*FOLLOWED, *READ_AGAIN])
def test_what_existing_rows_are_after_a_statement(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, how: str
) -> None:
    """Existing rows follow from the statement, or the server is asked; otherwise the table is
    reread.
    """
    sql(
        mysql,
        mysql_url,
        "create table t (id int primary key, v varchar(9) character set utf8mb4, n int, "
        "e enum('a', 'b')) default character set utf8mb4",
    )
    begin_log(mysql_url, tmp_path)
    statement = {**FOLLOWED, **READ_AGAIN}[how]
    sql(mysql, mysql_url, "insert into t values (1, '1', 10, 'a'), (2, '2', 20, 'b')")
    with mysql.connect(database_of(mysql_url)) as connection, connection.cursor() as cursor:
        for part in f"{statement};; delete from t where id = 2".split(";;"):
            cursor.execute(part)
        connection.commit()
    extractor_of(mysql_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        kinds = [marker.kind for one in segments for marker in one.markers()]
        relations = [r for one in segments for _, r in one.relations()]
    assert kinds == ([MarkerKind.RELOAD] if how in READ_AGAIN else [])
    assert relations[-1].awaits_reload == ""
    assert any(relation.awaits_reload for relation in relations) is (how in READ_AGAIN)
    if how == "a stored default":
        assert relations[-1].columns[-1].missing == "2023-12-31 19:00:00"


@pytest.mark.server("mariadb")
@pytest.mark.parametrize(
    "statement",
    [
        "alter ignore table t add unique (v)",
        "alter ignore table t modify v varchar(1)",
        "set statement sql_mode = '', lock_wait_timeout = 5 for alter table t modify v varchar(1)",
    ],
)
def test_rows_that_mariadb_takes_away_unsaid_are_read_again(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, statement: str
) -> None:
    """Only MariaDB still has ALTER IGNORE, and statements with their own settings."""
    sql(mysql, mysql_url, "create table t (id int primary key, v varchar(9))")
    begin_log(mysql_url, tmp_path)
    before = "insert into t values (1, 'aa'), (2, 'aa')"
    sql(mysql, mysql_url, f"{before};; {statement};; insert into t values (3, 'b')")
    there = mysql.value("select group_concat(id, v order by id) from t", database_of(mysql_url))
    assert there in ("1aa,3b", "1a,2a,3b")
    extractor_of(mysql_url, tmp_path).run()
    with segments_of(tmp_path) as segments:
        (reload,) = [m for one in segments for m in one.markers() if m.kind is MarkerKind.RELOAD]
    rows = [c.after for c in log_changes(tmp_path) if c.gsn > reload.gsn and c.after]
    assert ",".join(f"{row['id']}{row['v']}" for row in rows) == there


@pytest.mark.server("mariadb")
def test_what_set_statement_stands_in_front_of_is_followed(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """A statement with its own settings is followed like one without."""
    sql(mysql, mysql_url, "create table t (id int primary key);; insert into t values (1)")
    begin_log(mysql_url, tmp_path)
    setting = "set statement lock_wait_timeout = 5 for"
    sql(mysql, mysql_url, f"{setting} truncate table t;; {setting} alter table t add c int")
    sql(mysql, mysql_url, "insert into t values (2, 3)")
    extractor_of(mysql_url, tmp_path).run()
    assert [(c.op, c.after) for c in log_changes(tmp_path)] == [("I", {"id": 2, "c": 3})]
    with segments_of(tmp_path) as segments:
        kinds = [marker.kind for one in segments for marker in one.markers()]
    assert kinds == [MarkerKind.TRUNCATE]


def test_a_table_is_dropped_and_made_again(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """TRUNCATE removes earlier rows where the new table begins. New tables are captured, too."""
    sql(mysql, mysql_url, "create table t (id int primary key, v text)")
    begin_log(mysql_url, tmp_path)
    sql(
        mysql,
        mysql_url,
        """insert into t values (1, 'a');; drop table t;;
           create table if not exists t (id varchar(5) primary key);;
           create table if not exists t (other int);;
           insert into t values ('x');; create table n (id int);; insert into n values (1)""",
    )
    extractor_of(mysql_url, tmp_path).run()
    assert [c.after for c in log_changes(tmp_path)] == [{"id": 1, "v": "a"}, {"id": "x"}, {"id": 1}]
    with segments_of(tmp_path) as segments:
        told = [(m.gsn, m.kind, m.data) for s in segments for m in s.markers()]
    truncate = {"cascade": False, "restart_identity": True}
    assert told == [(1, MarkerKind.DDL, DROP_TABLE), (1, MarkerKind.TRUNCATE, truncate)]


@pytest.mark.each_server
def test_whole_old_rows_are_in_the_log_when_asked_for(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Each update and delete has the complete old row with full_before_images; the
    key is the same.
    """
    sql(mysql, mysql_url, "create table t (id int primary key, v text, w int default 3)")
    whole = replace(OPTIONS, full_before_images=True)
    begin_log(mysql_url, tmp_path)
    sql(mysql, mysql_url, "insert into t values (1, 'a', null);; update t set w = 4")
    extractor_of(mysql_url, tmp_path, options=whole).run()
    sql(mysql, mysql_url, "alter table t add column x int default 5;; update t set v = 'b'")
    sql(mysql, mysql_url, "delete from t")
    extractor_of(mysql_url, tmp_path, options=whole).run()
    _, updated, again, deleted = log_changes(tmp_path)
    assert updated.before == {"id": 1, "v": "a", "w": None}
    assert updated.after == {"id": 1, "v": "a", "w": 4}
    assert again.before == {"id": 1, "v": "a", "w": 4, "x": 5}
    assert deleted.before == {"id": 1, "v": "b", "w": 4, "x": 5}
    with segments_of(tmp_path) as segments:
        keys = {r.key for segment in segments for _, r in segment.relations()}
    assert keys == {(0,)}


@pytest.mark.each_server
def test_an_old_row_that_is_not_whole_stops_the_extraction(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """A session with minimal images causes a typed error that names the column; nothing is
    invented.
    """
    sql(
        mysql,
        mysql_url,
        "create table t (id int primary key, v text);; insert into t values (1, 'a')",
    )
    begin_log(mysql_url, tmp_path)
    with closing(connect(mysql_url, application_name="test")) as connection:
        run(connection, "set session binlog_row_image = 'MINIMAL'", doing="setting")
        run(connection, "update t set v = 'b'", doing="updating")
    with pytest.raises(PenstockError, match="column v"):
        extractor_of(mysql_url, tmp_path, options=replace(OPTIONS, full_before_images=True)).run()
    assert log_changes(tmp_path) == []
