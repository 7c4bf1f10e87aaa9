"""`penstock plan`: the target's type of each column, asked of real servers, and blocked starts."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline, write_pipeline
from penstock import cli
from penstock.control.doctor.plan import Plan, PlanRefused, check, make_plan, plan_lines
from penstock.control.pipeline.config import load_config
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of

CHOSEN = {"target.types": {"*": "error"}}


def from_mysql(folder: Path, source: str, target: str, **sections: dict[str, str]) -> Config:
    """Return a pipeline from MySQL to PostgreSQL."""
    named = {f"target.{name}": dict(keys) for name, keys in sections.items()}
    patterns = [f"{database_of(source)}.*"]
    return load_config(
        write_pipeline(folder, source, target, mode="change", tables=patterns, sections=named)
    )


def run_command(*arguments: str) -> int:
    """Return the exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        cli.run_guarded(list(arguments))
    return int(caught.value.code or 0) if isinstance(caught.value.code, int | None) else 1


def text(plan: Plan) -> str:
    """Return the plan as it is printed."""
    return "\n".join(plan_lines(plan))


def test_mysql_to_postgres(
    tmp_path: Path, mysql: MySQLServer, mysql_url: str, target_url: str
) -> None:
    """Every column has its type there; a possible loss stops a run until the user chooses."""
    database = database_of(mysql_url)
    mysql.execute(
        "create table item (id bigint unsigned primary key, day date, name varchar(20))", database
    )
    plan = make_plan(from_mysql(tmp_path, mysql_url, target_url))
    (table,) = plan.tables
    held = {c.name: (c.mapping.target_type, c.mapping.exact) for c in table.columns}
    assert held == {
        "id": ("numeric(20,0)", True),
        "day": ("date", False),
        "name": ("character varying(20)", False),
    }
    assert set(plan.missing) == {"zero dates", "nul characters"}
    with pytest.raises(PlanRefused) as caught:
        check(from_mysql(tmp_path, mysql_url, target_url))
    assert caught.value.fields["loss"] == "zero dates"
    assert '"zero dates" = "error"' in caught.value.hint
    printed = text(plan)
    assert "TO BE CHOSEN" in printed
    assert '"nul characters" = "error"' in printed
    types = {"*": "error", f"{database}.item.day zero dates": "text"}
    chosen = check(from_mysql(tmp_path, mysql_url, target_url, types=types, map={database: "shop"}))
    assert chosen is not None
    assert chosen.tables[0].target == ("shop", "item")
    assert [c.mapping.target_type for c in chosen.tables[0].columns][1] == "text"
    assert "this pipeline may run" in text(chosen)


def test_the_pasted_choices_are_enough(
    tmp_path: Path, mysql: MySQLServer, mysql_url: str, target_url: str
) -> None:
    """The lines that the plan prints below [target.types] can be put into the file unchanged."""
    mysql.execute("create table t (a date, b text, c int primary key)", database_of(mysql_url))
    path = from_mysql(tmp_path, mysql_url, target_url).path
    printed = text(make_plan(load_config(path)))
    path.write_text(path.read_text() + printed[printed.index("\n[target.types]\n") :])
    assert make_plan(load_config(path)).may_run


def test_postgres_to_mysql(
    tmp_path: Path, source_url: str, mysql: MySQLServer, mysql_url: str
) -> None:
    """Keys without a length, enums and values stored as text are reported."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create type mood as enum ('sad')")
        source.execute("create table t (k text primary key, m mood, j jsonb, at timestamptz)")
    plan = make_plan(pipeline(tmp_path, source_url, mysql_url, sections=CHOSEN))
    columns = {c.name: c.mapping for c in plan.tables[0].columns}
    assert columns["k"].target_type.startswith("varchar(768)")
    assert columns["m"].target_type.startswith("varchar(63)")
    assert columns["j"].target_type.startswith("longtext")
    assert columns["at"].target_type == "datetime(6)"
    assert plan.may_run
    # The target accepts every type of the plan.
    body = ", ".join(f"`{name}` {mapping.target_type}" for name, mapping in columns.items())
    mysql.execute(f"create table t ({body}, primary key (k))", database_of(mysql_url))


def test_one_engine_has_the_same_types(tmp_path: Path, source_url: str, target_url: str) -> None:
    """A table between PostgreSQL servers is one line, and a run needs no choice."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table t (k int primary key, v numeric, w text[])")
    config = pipeline(tmp_path, source_url, target_url)
    plan = make_plan(config)
    assert plan.may_run
    assert "public.t to public.t: same types" in text(plan)
    assert check(config) is None


def test_mysql_to_itself_has_the_same_types(
    tmp_path: Path, mysql: MySQLServer, mysql_url: str
) -> None:
    """Within the same engine no choice is needed, whatever the types."""
    name = database_of(mysql_url)
    mysql.execute("create table t (k int primary key, d date, j json, s varchar(9))", name)
    plan = make_plan(from_mysql(tmp_path, mysql_url, mysql_url))
    assert plan.may_run
    assert all(column.mapping.exact for _, column in plan.each())


def test_names_that_would_be_one_are_refused(
    tmp_path: Path, source_url: str, mysql_url: str
) -> None:
    """MySQL does not distinguish columns by case: both are named."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute('create table t (k int primary key, "Name" text, name text)')
    config = pipeline(tmp_path, source_url, mysql_url, sections=CHOSEN)
    assert any("Name and name" in problem for problem in make_plan(config).problems)
    with pytest.raises(PlanRefused):
        check(config)


def test_what_is_not_there_is_reported(tmp_path: Path, source_url: str, mysql_url: str) -> None:
    """A named table or column that does not exist is not ignored silently."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table t (k int primary key)")
    types = {"target.types": {"public.t.x not a number": "null"}}
    config = pipeline(
        tmp_path, source_url, mysql_url, tables=["public.t", "public.gone"], sections=types
    )
    told = " ".join(make_plan(config).problems)
    assert "public.gone" in told
    assert "public.t.x" in told


def test_the_command_line(
    tmp_path: Path,
    source_url: str,
    mysql_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit code is 1 with a choice to make, 0 without; JSON says the same; run refuses."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table t (k int primary key, v real)")
    path = write_pipeline(tmp_path, source_url, mysql_url)
    assert run_command("plan", str(path), "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["missing"] == {"not a number": shown["missing"]["not a number"]}
    assert shown["tables"][0]["columns"][1]["target_type"] == "float"
    for command in ("run", "load"):
        assert run_command(command, str(path), "--json") == 1
        assert json.loads(capsys.readouterr().err)["code"] == "CT72"
    path = write_pipeline(tmp_path, source_url, mysql_url, sections=CHOSEN)
    cli.cli.main(["plan", str(path)], standalone_mode=False)
    assert "may run" in capsys.readouterr().out
