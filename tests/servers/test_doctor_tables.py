"""Doctor's checks of tables and target, each with and without its condition on a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import Exclusion
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.schema import create_tables
from penstock.ports.checks import Severity
from penstock.ports.config import Config
from plugins.doctor import as_role, database_of, find_by_code, one
from plugins.postgres import Server

# -- tables ------------------------------------------------------------------------------------


def test_pk06_tables_wanted(config: Config, run: Callable[[str], None]) -> None:
    """A pattern without tables, or a named table that does not exist, is an error."""
    one(config, "PK06", Severity.ERROR, "public.*")
    run('create table "Orders" (id int primary key)')
    assert find_by_code(config, "PK06") == []
    named = replace(config, source=replace(config.source, tables=("public.orders",)))
    one(named, "PK06", Severity.ERROR, "public.Orders")
    run("create view v as select 1 as n")
    view = replace(config, source=replace(config.source, tables=("public.v",)))
    assert any("view" in f.what for f in find_by_code(view, "PK06"))


def test_pk06_tells_what_is_left_out(config: Config, run: Callable[[str], None]) -> None:
    """Patterns, views and partitions are grouped by reason; a table without columns is separate."""
    run("create table a (id int primary key); create table audit (id int); create table audit_2 ()")
    run("create view v as select 1 as n; create materialized view m as select 1 as n")
    run("create table p (id int primary key) partition by range (id)")
    run("create table p1 partition of p default; create schema wirekite")
    run("create table wirekite.own (id int)")
    wide = replace(config.source, tables=("*.*", "!public.audit*"))
    told = {(f.severity, f.what): f.why for f in find_by_code(replace(config, source=wide), "PK06")}
    assert told == {
        (Severity.INFO, "2 tables are left out: public.audit, public.audit_2"): (
            'of each: "!public.audit*" takes it out'
        ),
        (Severity.INFO, "1 table is left out: public.m"): f"of each: {Exclusion.MATERIALIZED_VIEW}",
        (Severity.INFO, "1 table is left out: public.v"): f"of each: {Exclusion.VIEW}",
        (Severity.INFO, "1 table is left out: public.p1"): f"of each: {Exclusion.PARTITION}",
        (Severity.INFO, "1 table is left out: wirekite.own"): f"of each: {Exclusion.OWN}",
    }


@pytest.mark.parametrize("columns", ["", "g int generated always as (1) stored"])
def test_pk06_tables_of_which_nothing_is_sent(
    config: Config, run: Callable[[str], None], columns: str
) -> None:
    """A wildcard leaves them out with a warning; a name is refused; a column makes them fine."""
    run(f"create table a (id int primary key); create table e ({columns})")
    one(config, "PK06", Severity.WARNING, "public.e", "no columns")
    named = replace(config, source=replace(config.source, tables=("public.a", "public.e")))
    one(named, "PK06", Severity.ERROR, "public.e", "no columns")
    run("alter table e add column id int primary key")
    assert find_by_code(config, "PK06") == find_by_code(named, "PK06") == []


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        ("create table k (n int)", "replica identity full"),
        ("create table k (n int not null unique)", 'using index "k_n_key"'),
        (
            "create table k (n int not null unique);"
            "alter table k replica identity using index k_n_key; alter table k drop constraint"
            " k_n_key",
            "replica identity full",
        ),
        ("create table k (n int primary key deferrable)", "replica identity full"),
    ],
)
def test_pg12_replica_identity(
    config: Config, run: Callable[[str], None], make: str, fix: str
) -> None:
    """A table without identity is an error with the ALTER, which then suffices."""
    run(make)
    finding = one(config, "PG12", Severity.ERROR, "public.k", fix)
    run(finding.command)
    assert find_by_code(config, "PG12") == []


def test_pg12_whole_old_rows(config: Config, run: Callable[[str], None]) -> None:
    """Every table and partition needs identity FULL with fullBeforeImages."""
    run(
        "create table k (n int primary key); create table p (n int primary key) partition by"
        " range (n); create table p1 partition of p for values from (1) to (9)"
    )
    assert find_by_code(config, "PG12") == []
    section = replace(config.change_extractor, full_before_images=True)
    wanting = replace(config, change_extractor=section)
    findings = find_by_code(wanting, "PG12")
    assert sorted(one.what.split()[0] for one in findings) == ["public.k", "public.p1"]
    assert {one.severity for one in findings} == {Severity.ERROR}
    for finding in findings:
        run(finding.command)
    assert find_by_code(wanting, "PG12") == []


@pytest.mark.parametrize(
    ("columns", "fix"),
    [
        ("n int primary key", "replica identity default"),
        ("n int not null unique", 'using index "k_n_key"'),
        ("n int", "replica identity full"),
    ],
)
def test_pg12_replica_identity_nothing(
    config: Config, run: Callable[[str], None], columns: str, fix: str
) -> None:
    """Identity NOTHING is a warning with the error that the server will give to updates."""
    run(f"create table k ({columns}); alter table k replica identity nothing")
    finding = one(config, "PG12", Severity.WARNING, "public.k", fix)
    run("create publication p for table k; insert into k values (1)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
        run("update k set n = 2")
    assert str(refused.value.diag.message_primary) in finding.why
    run(finding.command)
    assert find_by_code(config, "PG12") == []
    run("update k set n = 2")


@pytest.mark.parametrize(
    "make",
    [
        "create table k (n int, {generated}, primary key (n, g))",
        "create table k (n int not null, {generated}, unique (g), unique (n));"
        "alter table k alter g set not null; alter table k replica identity using index k_g_key",
        pytest.param(
            "create table k (n int, {generated}); alter table k replica identity full",
            marks=pytest.mark.server("postgres >= 18"),
        ),
    ],
)
def test_pg12_generated_columns_in_the_identity(
    config: Config, run: Callable[[str], None], make: str
) -> None:
    """A column that is not sent cannot identify a row: an error, and its SQL suffices."""
    run(make.format(generated="g int generated always as (n % 10) stored"))
    finding = one(config, "PG12", Severity.ERROR, "public.k", "generated column")
    run(finding.command)
    assert find_by_code(config, "PG12") == []
    run("create publication p for table k; insert into k values (1), (2)")
    run("update k set n = 13 where n = 2; delete from k where n = 1")


def test_pg12_partitions_with_identity_nothing(config: Config, run: Callable[[str], None]) -> None:
    """The server uses the partitions' identity, and one finding covers all."""
    run("create table p (id int primary key) partition by range (id)")
    run("create table p1 partition of p for values from (0) to (10)")
    run("create table p2 partition of p default")
    run("alter table p replica identity nothing")
    assert find_by_code(config, "PG12") == []
    run("alter table p1 replica identity nothing; alter table p2 replica identity nothing")
    one(config, "PG12", Severity.WARNING, "public.p1", "a partition of public.p")


def test_pg12_partition_with_a_lesser_identity(config: Config, run: Callable[[str], None]) -> None:
    """A partition whose identity lacks the root's columns is an error, never left out silently."""
    run("create table p (id int primary key, n int not null) partition by range (id)")
    run("create table p1 partition of p default")
    assert find_by_code(config, "PG12") == []
    run("create unique index other on p1 (n); alter table p1 replica identity using index other")
    finding = one(config, "PG12", Severity.ERROR, "public.p", "public.p1")
    run(finding.command)
    assert find_by_code(config, "PG12") == []


def test_pg12_partitioned_table_without_key(config: Config, run: Callable[[str], None]) -> None:
    """The server allows updates by the partitions' keys, but a follower cannot apply them."""
    run("create table p (id int not null, n int) partition by range (id)")
    run("create table p1 partition of p for values from (0) to (10)")
    run("create table p2 partition of p default")
    run("alter table p1 add primary key (id); alter table p2 add primary key (id)")
    finding = one(config, "PG12", Severity.ERROR, "public.p", "come without the key")
    assert "fails at the source" not in finding.why
    run("create publication p for table p with (publish_via_partition_root = true)")
    run("insert into p values (1, 1); update p set n = 2; delete from p")
    run(finding.command)
    assert find_by_code(config, "PG12") == []


def test_pg12_does_not_concern_a_mere_copy(
    config: Config, run: Callable[[str], None], tmp_path: Path
) -> None:
    """Tables without keys are accepted, as mode data publishes nothing."""
    run("create table k (n int)")
    copy = pipeline(tmp_path, config.source.url, config.target.url, mode="data")
    assert find_by_code(copy, "PG12") == []


def test_pg14_large_values(config: Config, run: Callable[[str], None]) -> None:
    """Tables with values out of line are reported; with FULL identity they are complete."""
    run("create table a (id int primary key, t text)")
    run("alter table a alter t set storage external")
    assert find_by_code(config, "PG14") == []
    run("insert into a values (1, repeat('x', 10000))")
    one(config, "PG14", Severity.INFO, "a")
    run("alter table a replica identity full")
    assert find_by_code(config, "PG14") == []


def test_pg15_unlogged(config: Config, run: Callable[[str], None]) -> None:
    """An unlogged table is left out by a wildcard, and an error when named."""
    run("create unlogged table u (id int primary key); create table a (id int primary key)")
    one(config, "PG15", Severity.WARNING, "public.u", "set logged")
    named = replace(config, source=replace(config.source, tables=("public.u", "public.a")))
    one(named, "PG15", Severity.ERROR, "public.u")
    run("alter table u set logged")
    assert find_by_code(config, "PG15") == []


def test_pg16_generated(config: Config, run: Callable[[str], None]) -> None:
    """Generated columns are not replicated."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PG16") == []
    run("alter table a add g int generated always as (id * 2) stored")
    one(config, "PG16", Severity.INFO, "public.a", "g")


def test_pg21_right_to_read(
    config: Config, run: Callable[[str], None], postgres: Server, role: str
) -> None:
    """Each table that cannot be read is named with the GRANT that suffices."""
    run("create table a (id int primary key)")
    least = as_role(config, postgres, role, "source")
    finding = one(least, "PG21", Severity.ERROR, "public.a")
    run(finding.command)
    assert find_by_code(least, "PG21") == []


def test_pg21_is_one_finding_for_many_tables(
    config: Config, run: Callable[[str], None], postgres: Server, role: str
) -> None:
    """The first tables are named, the others counted, and one command suffices."""
    for number in range(25):
        run(f"create table t{number:02} (id int primary key)")
    least = as_role(config, postgres, role, "source")
    finding = one(least, "PG21", Severity.ERROR, "public.t09 and 15 more")
    assert "public.t10" not in finding.what
    run(finding.command)
    assert find_by_code(least, "PG21") == []
    run("alter table t03 enable row level security; alter table t04 enable row level security")
    one(least, "PG22", Severity.ERROR, "public.t03, public.t04 have row security")


def test_pg22_row_security(
    config: Config, run: Callable[[str], None], postgres: Server, role: str
) -> None:
    """A table with policies that the role may not bypass would be copied in part."""
    run(f"create table a (id int primary key); grant select on a to {role}")
    least = as_role(config, postgres, role, "source")
    assert find_by_code(least, "PG22") == []
    run("alter table a enable row level security")
    one(least, "PG22", Severity.ERROR, "bypassrls")
    assert find_by_code(least, "PG21") == []
    assert find_by_code(config, "PG22") == []


def test_pg24_types(config: Config, run: Callable[[str], None]) -> None:
    """Money and reg* columns are named with what to do."""
    run("create table a (id int primary key, t text)")
    assert find_by_code(config, "PG24") == []
    run("alter table a add p money")
    one(config, "PG24", Severity.WARNING, "money", "numeric")
    run("alter table a drop p, add r regclass")
    one(config, "PG24", Severity.WARNING, "regclass")


def test_pg30_what_is_not_replicated(config: Config, run: Callable[[str], None]) -> None:
    """Large objects and sequences are reported."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PG30") == []
    run("create sequence s")
    one(config, "PG30", Severity.INFO, "1 sequence")
    run("select lo_create(0)")
    assert len(find_by_code(config, "PG30")) == 2


def test_pg30_what_made_tables_lack(config: Config, run: Callable[[str], None]) -> None:
    """Constraints are reported with the statements that create them, and parents of inheritance."""
    run("create table a (id int primary key, n int constraint small check (n < 5))")
    finding = one(config, "PG30", Severity.INFO, "1 CHECK or exclusion constraint")
    assert finding.command == "alter table public.a add constraint small CHECK ((n < 5));"
    run("alter table a drop constraint small; create table b () inherits (a)")
    one(config, "PG30", Severity.INFO, "inherit from public.a")


# -- the target --------------------------------------------------------------------------------


def test_pk07_target_that_takes_no_writes(
    config: Config, run_in_target: Callable[[str], None], target_url: str
) -> None:
    """A read-only target is an error."""
    assert find_by_code(config, "PK07") == []
    run_in_target(
        f"alter database {database_of(target_url)} set default_transaction_read_only = on"
    )
    one(config, "PK07", Severity.ERROR, "read-only")


def test_pk08_and_pk09_rights_in_the_target(
    config: Config,
    run: Callable[[str], None],
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
    target_url: str,
) -> None:
    """A role that may not create is told the GRANT, which then suffices."""
    run("create table a (id int primary key)")
    run_in_target("revoke create on schema public from public")
    least = as_role(config, postgres, role, "target")
    one(least, "PK08", Severity.ERROR, "wirekite")
    finding = one(least, "PK09", Severity.ERROR, "schema public")
    run_in_target(finding.command)
    assert find_by_code(least, "PK09") == []
    run_in_target(f"grant create on database {database_of(target_url)} to {role}")
    assert find_by_code(least, "PK08") == []


def test_pk08_and_pk12_tables_of_penstock_that_belong_to_another_role(
    config: Config,
    run: Callable[[str], None],
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
) -> None:
    """The SQL suffices, and no finding of doctor says to run doctor."""
    run("create table a (id int primary key)")
    run_in_target(f"create table a (id int primary key); alter table a owner to {role}")
    with connect(config.target.url, application_name="test") as connection:
        create_tables(connection, [], {})
        PostgresProgress(connection).ensure_marks()
    run_in_target(f"grant all on schema wirekite to {role}")
    least = as_role(config, postgres, role, "target")
    finding = one(least, "PK08", Severity.ERROR, "belongs to")
    unfit = one(least, "PK12", Severity.ERROR, "could not be done")
    assert "doctor" not in unfit.command
    run_in_target(finding.command)
    assert find_by_code(least, "PK08") == find_by_code(least, "PK12") == []


def test_pk10_right_to_write_tables(
    config: Config,
    run: Callable[[str], None],
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
) -> None:
    """Existing tables must accept penstock's writes."""
    run("create table a (id int primary key)")
    run_in_target("create table a (id int primary key)")
    least = as_role(config, postgres, role, "target")
    finding = one(least, "PK10", Severity.ERROR, "public.a")
    run_in_target(finding.command)
    assert find_by_code(least, "PK10") == []


def test_pk11_source_is_target(config: Config, run: Callable[[str], None], tmp_path: Path) -> None:
    """A database is not copied onto itself; into another schema it may be."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PK11") == []
    url = config.source.url
    one(pipeline(tmp_path, url, url), "PK11", Severity.ERROR, "onto itself")
    apart = pipeline(tmp_path, url, url, sections={"target.map": {"public": "copy"}})
    assert find_by_code(apart, "PK11") == []


def test_pk12_shape(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """A target table of another shape is an error that names the column."""
    run("create table a (id int primary key, t text)")
    run_in_target("create table a (id int primary key, t text)")
    assert find_by_code(config, "PK12") == []
    run_in_target("alter table a alter t type int using 1")
    one(config, "PK12", Severity.ERROR, "public.a", "t is integer, expected text")


def test_pk13_type_the_target_cannot_hold(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """A column whose type the target cannot have is an error before anything is created."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PK13") == []
    run('create collation odd from "C"; create table b (id int primary key, t text collate odd)')
    one(config, "PK13", Severity.ERROR, "odd")
    run_in_target('create collation odd from "C"')
    assert find_by_code(config, "PK13") == []


def test_pk14_tables_in_mode_change(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None], tmp_path: Path
) -> None:
    """Each table must exist in mode change, which creates none; the other modes create them."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PK14") == []
    change = pipeline(tmp_path, config.source.url, config.target.url, mode="change")
    one(change, "PK14", Severity.ERROR, "public.a", "pg_dump")
    run_in_target("create table a (id int primary key)")
    assert find_by_code(change, "PK14") == []


def test_pg32_identity_and_deferrable_keys(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """GENERATED ALWAYS and deferrable keys are reported."""
    run("create table a (id int primary key, n int)")
    run_in_target("create table a (id int primary key, n int)")
    assert find_by_code(config, "PG32") == []
    run_in_target("alter table a alter id add generated always as identity")
    run_in_target("alter table a add unique (n) deferrable")
    assert [f.severity for f in find_by_code(config, "PG32")] == [Severity.INFO] * 2


def test_pg33_and_pg34_triggers(
    config: Config,
    run: Callable[[str], None],
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
) -> None:
    """Triggers count only if they fire on penstock's writes, which the role decides."""
    run("create table a (id int primary key)")
    run_in_target("create table a (id int primary key)")
    run_in_target("create function f() returns trigger language plpgsql as 'begin return new; end'")
    run_in_target("create trigger t before insert on a for each row execute function f()")
    assert find_by_code(config, "PG33") == []
    assert find_by_code(config, "PG34") == []
    least = as_role(config, postgres, role, "target")
    one(least, "PG33", Severity.ERROR, "disable trigger")
    one(least, "PG34", Severity.WARNING, "session_replication_role")
    run_in_target("alter table a add parent int references a (id)")
    one(least, "PG34", Severity.ERROR, "a_parent_fkey")
    run_in_target("alter table a enable always trigger t")
    one(config, "PG33", Severity.WARNING, "trigger t")
