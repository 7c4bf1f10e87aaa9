"""Commands with a simulated server on either side: init, plan, copy, status, and a table copied
again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from harness.servers.engines import FIRST, SIMULATED, Place, new_place
from harness.servers.oracle_place import OraclePlace
from penstock.control.doctor.plan import make_plan, plan_lines
from penstock.control.pipeline.config import load_config
from plugins.shared import SharedServers

TABLE = "create table orders (id int primary key, note varchar(20), big text)"
ROWS = "insert into orders values (1, 'a', null), (2, 'A ', 'x')"
CHOSEN = {"target.types": {"*": "error"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Differences between the engines.

    Attributes:
        timed: Statement that creates a table `orders` with a time that has an offset.
        findings: Texts of doctor in a written file about the table `bag` without a key.
        source_choices: Choices that a written file asks for, of a source with `timed`.
        target_choices: Those of a target for PostgreSQL's table with a time.
        planned: Statement that creates a table `a` of some types.
        types: The types of its columns in PostgreSQL.
        of_public: The target's schema of PostgreSQL's schema `public`.
        begins: Beginnings of the types that a target gives to numeric(12,2) and jsonb.
        copied: Table `orders` of PostgreSQL's schema `public` at the target, if no file maps it.
        left: Query of what a copy has left at the target.
    """

    timed: str
    findings: tuple[str, ...]
    source_choices: Mapping[str, str]
    target_choices: Mapping[str, str]
    planned: str
    types: Mapping[str, str]
    of_public: str
    begins: Mapping[str, str]
    copied: str
    left: str


FACTS = {
    "sqlserver": Facts(
        timed="create table orders (id int primary key, at datetimeoffset(3), note varchar(9))",
        findings=(
            "W MS017 dbo.bag has no primary key",
            "ALTER TABLE [dbo].[bag] ADD CONSTRAINT [pk_bag] PRIMARY KEY",
        ),
        source_choices={"nul characters": "error", "offsets": "error"},
        target_choices={"dates out of range": "error"},
        planned="create table a (id int primary key, m money, g uniqueidentifier, t time(3))",
        types={
            "id": "integer",
            "m": "numeric(19,4)",
            "g": "uuid",
            "t": "time(3) without time zone",
        },
        of_public="dbo",
        begins={"n": "decimal(12,2)", "j": "nvarchar(max)"},
        copied="dbo.orders",
        left="select 1 where schema_id('wirekite') is not null",
    ),
    "oracle": Facts(
        timed='CREATE TABLE "orders" ("id" NUMBER(10) PRIMARY KEY, '
        '"at" TIMESTAMP(3) WITH TIME ZONE, "note" VARCHAR2(9))',
        findings=("W OR014 SHOP.bag",),
        source_choices={"nul characters": "error", "offsets": "error"},
        target_choices={"dates out of range": "error", "empty values": "error"},
        planned='CREATE TABLE "a" ("id" NUMBER(10) PRIMARY KEY, "m" NUMBER(19,4), "r" RAW(16), '
        '"t" TIMESTAMP(3))',
        types={
            "id": "bigint",
            "m": "numeric(19,4)",
            "r": "bytea",
            "t": "timestamp(3) without time zone",
        },
        of_public="C##PENSTOCK",
        begins={"n": "NUMBER(12,2)", "j": "CLOB"},
        copied='"C##PENSTOCK"."orders"',
        left="SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = 'WIREKITE'",
    ),
}


def at(folder: Path, *arguments: object) -> Ran:
    """Run the command line in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=400,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_own(place: Place, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement in the server's own words; return its rows."""
    run = place.run_unchanged if isinstance(place, OraclePlace) else place.run
    return run(statement)


@pytest.fixture(params=SIMULATED)
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the simulated engine."""
    return str(request.param)


@pytest.fixture
def places(shared_servers: SharedServers, engine: str) -> Iterator[tuple[Place, Place]]:
    """A simulated database whose tables are captured, and one of PostgreSQL."""
    with ExitStack() as stack:
        kinds = (engine, FIRST)
        captured, other = (stack.enter_context(new_place(shared_servers, one)) for one in kinds)
        yield captured, other


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
def test_a_pipeline_file_is_written(
    places: tuple[Place, Place], engine: str, tmp_path: Path, *, is_source: bool
) -> None:
    """The file has the types to choose, and doctor's findings with the statements to type."""
    source, target = places if is_source else reversed(places)
    facts = FACTS[engine]
    if is_source:
        run_own(source, facts.timed)
        source.make_keyless("bag", "a int")
    else:
        source.run("create table orders (id int primary key, at timestamptz, note varchar(9))")
    path = tmp_path / "shop.toml"
    ran = penstock("init", source.url, target.url, "--file", path, "--json")
    assert ran.code == 0, ran.err
    written = path.read_text()
    namespace = target.namespace if is_source else facts.of_public
    assert f'"{source.namespace}" = "{namespace}"' in written
    assert f"{source.namespace}.orders" in ran.result["tables"]
    passwords = [unquote(urlsplit(one.url).password or "") for one in (source, target)]
    assert not [one for one in passwords if one and f":{one}@" in written]
    config = load_config(path, {**os.environ, **dict.fromkeys(ran.result["variables"], "x")})
    assert config.target.types == (facts.source_choices if is_source else facts.target_choices)
    if is_source:
        assert [one for one in facts.findings if one not in written] == []


def test_a_plan_has_the_types_of_the_other_side(
    places: tuple[Place, Place], engine: str, tmp_path: Path
) -> None:
    """Both directions can run, and each type that is created exists at the target."""
    captured, other = places
    facts = FACTS[engine]
    run_own(captured, facts.planned)
    other.run("create table b (id int primary key, n numeric(12,2), j jsonb, i interval)")
    mapped: dict[str, Any] = {**CHOSEN, "target.map": {captured.namespace: "public"}}
    tables = [f"{captured.namespace}.*"]
    plan = make_plan(
        load_config(
            write_pipeline(tmp_path, captured.url, other.url, tables=tables, sections=mapped)
        )
    )
    assert plan.may_run, list(plan_lines(plan))
    types = {one.name: one.mapping.target_type for one in plan.tables[0].columns}
    assert types == facts.types
    mapped = {**CHOSEN, "target.map": {"public": captured.namespace}}
    plan = make_plan(
        load_config(
            write_pipeline(tmp_path, other.url, captured.url, tables=["public.b"], sections=mapped)
        )
    )
    assert plan.may_run, list(plan_lines(plan))
    types = {one.name: one.mapping.target_type for one in plan.tables[0].columns}
    for name, begin in facts.begins.items():
        assert types[name].startswith(begin)
    listed = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    run_own(captured, f"create table planned ({listed})")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
def test_tables_are_copied_without_a_file(
    places: tuple[Place, Place], engine: str, tmp_path: Path, *, is_source: bool
) -> None:
    """Only the rows stay, and nothing of penstock's; a table with rows is left as it is."""
    source, target = places if is_source else reversed(places)
    source.run(TABLE, ROWS)
    name = f"{source.namespace}.orders"
    arguments = ("copy", source.url, target.url, "--tables", name, "--json")
    ran = at(tmp_path, *arguments)
    assert ran.code == 0, ran.err
    assert ran.result == {"copied": [name]}
    assert list(tmp_path.iterdir()) == []
    table = "orders" if is_source else FACTS[engine].copied
    shown = run_own(target, f"select * from {table}")
    assert sorted(shown) == [(1, "a", None), (2, "A ", "x")]
    if is_source:
        with psycopg.connect(target.url) as session:
            assert session.execute("select to_regnamespace('wirekite')").fetchone() == (None,)
    else:
        assert run_own(target, FACTS[engine].left) == []
    again = at(tmp_path, *arguments)
    assert again.error["code"] == "PK15"
    assert "orders" in again.error["hint"]
    assert run_own(target, f"select count(*) from {table}") == [(2,)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
def test_a_table_is_copied_again(
    places: tuple[Place, Place], tmp_path: Path, *, is_source: bool
) -> None:
    """After `table resync`, a row that was changed at the target is the source's again."""
    source, target = places if is_source else reversed(places)
    source.run(TABLE, ROWS)
    file = write_pipeline(
        tmp_path,
        source.url,
        target.url,
        tables=[f"{source.namespace}.orders"],
        sections={
            **CHOSEN,
            "target.map": {source.namespace: target.namespace},
            "changeExtractor": {"exitWhenIdle": True, "flushIntervalSeconds": 0.5},
            "spark": {"master": "local[2]"},
        },
    )
    assert penstock("run", file, timeout_s=400).code == 0
    target.run("update orders set note = 'wrong' where id = 1", "delete from orders where id = 2")
    found = penstock("verify", file, "--json", timeout_s=400)
    assert found.code != 0
    assert not found.result["equal"]
    asked = penstock("table", "resync", file, f"{source.namespace}.orders", timeout_s=200)
    assert asked.code == 0, asked.err
    source.run("insert into orders values (3, 'new', null)")
    done = penstock("run", file, timeout_s=400)
    assert done.code == 0, done.err
    found = penstock("verify", file, "--json", timeout_s=400)
    assert found.code == 0, found.out + found.err
    shown = "select id, note, big from orders order by id"
    assert target.run(shown) == [(1, "a", None), (2, "A ", "x"), (3, "new", None)]
    status = penstock("status", file, "--json", timeout_s=200).result
    assert status["bulk"]["phase"] == "done"
    listed = penstock("table", "ls", file, timeout_s=200)
    assert "orders" in listed.out
