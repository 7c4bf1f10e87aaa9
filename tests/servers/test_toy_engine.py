"""`penstock run` with an engine from outside the package, as a source and as a target.

The engine is in `toy_engine`; nothing below src/ knows it. Not here: the duties of every source and
every target (`tests/conformance/`).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from plugins.toy import ITEM, ToyDatabase

pytestmark = pytest.mark.usefixtures("toy_installed")
MANY = range(1, 1201)  # three chunks, and pieces of one transaction
Toys = tuple[ToyDatabase, ToyDatabase]


def pipeline(folder: Path, source: str, target: str, **options: Any) -> Path:
    """Write a pipeline that flushes often and needs little of Spark."""
    extractor = {**LIVELY, **options.pop("extractor", {})}
    sections = {"changeExtractor": extractor, "spark": {"master": "local[2]"}}
    return write_pipeline(folder, source, target, sections=sections, **options)


def in_postgres(url: str) -> list[tuple[str | None, ...]]:
    """Return the items as text, in the order of a toy."""
    with psycopg.connect(url, autocommit=True) as sql:
        if sql.execute("select to_regclass('public.item')").fetchone() == (None,):
            return []
        found = sql.execute("select id::text, name, price::text from public.item").fetchall()
    return sorted(found, key=str)


def check_commands(path: Path) -> None:
    """Check the commands for a running pipeline, at both engines."""
    doctor = penstock("doctor", path, "--json")
    assert doctor.result["checks_skipped"] == 0
    assert [one for one in doctor.result["findings"] if one["severity"] == "E"] == []
    status = penstock("status", path, "--json").result
    assert status["bulk"]["phase"] == "done"
    assert status["applied"] is not None
    assert status["extracted_files"]
    assert status["loaded_files"]
    assert penstock("lag", path, "--json").result["extracting"]
    verify = penstock("verify", path, "--json")
    assert verify.code == 0, verify.err
    assert verify.result["equal"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_toy_is_brought_into_postgres(toys: Toys, target_url: str, tmp_path: Path) -> None:
    """Rows are loaded, then changes, even those made while no process runs. Both sides agree."""
    source, _ = toys
    source.insert(*MANY)
    path = pipeline(tmp_path, source.url, target_url)
    with Process(path) as run:
        source.buy(5000)

        def equal() -> bool:
            return in_postgres(target_url) == source.rows(at_source=True)

        run.until(equal, "what was there is in the target")
        for number in range(6000, 6020):
            source.buy(number)
        run.until(equal, "changes are in the target")
        check_commands(path)
        run.stop()
    source.buy(7000)
    source.insert(*range(8000, 9200))
    again = penstock("run", write_again(path), "--json")
    assert again.code == 0, again.err
    assert in_postgres(target_url) == source.rows(at_source=True)
    text = penstock("log", "ls", path, "--json").out
    assert re.search(r'"position": ?"#\d+"', text), text
    assert penstock("verify", path, "--json").result["equal"]


def write_again(path: Path) -> Path:
    """Rewrite the pipeline so that it ends when its source is idle; return its path."""
    text = path.read_text()
    path.write_text(text.replace("[changeExtractor]", "[changeExtractor]\nexitWhenIdle = true"))
    return path


@pytest.mark.spark
@pytest.mark.slow
def test_postgres_is_brought_into_a_toy(source_url: str, toys: Toys, tmp_path: Path) -> None:
    """Rows are loaded, then changes: keys that move, TRUNCATE, a new column."""
    _, target = toys
    with psycopg.connect(source_url, autocommit=True) as sql:
        sql.execute("create table item (id int primary key, name text, price numeric(12,2))")
        sql.execute(
            "insert into item select g, e'a\\tb\\\\' || g, g from generate_series(1, 900) g"
        )
        sql.execute("create table gone (id int primary key)")
        sql.execute("insert into gone values (1)")
        path = pipeline(tmp_path, source_url, target.url)
        with Process(path) as run:

            def equal() -> bool:
                return in_postgres(source_url) == target.rows(at_source=False)

            run.until(equal, "what was there is in the target")
            sql.execute("update item set id = -id, name = null where id % 7 = 0")
            sql.execute("delete from item where id % 5 = 0")
            sql.execute("insert into item values (5000, '', 0.1)")
            sql.execute("truncate gone")
            run.until(equal, "changes are in the target")
            check_commands(path)
            run.stop()
        sql.execute("alter table item add column more int default 3")
        sql.execute("insert into item values (6000, 'x', 1, 4)")
        again = penstock("run", write_again(path), "--json")
        assert again.code == 0, again.err
        found = {row[0]: row[-1] for row in target.rows(at_source=False)}
        assert found["6000"] == "4"
        assert set(found.values()) == {"3", "4"}
        assert target.store.rows(ITEM._replace(name="gone")) == []
        assert penstock("verify", path, "--json").result["equal"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("half", ["extract", "load"])
def test_a_half_that_is_killed_loses_nothing(half: str, toys: Toys, tmp_path: Path) -> None:
    """The run from a toy into a toy restarts the half, and every change is there once."""
    source, target = toys
    source.insert(*MANY)
    path = pipeline(tmp_path, source.url, target.url)
    with Process(path) as run:

        def equal() -> bool:
            return target.rows(at_source=False) == source.rows(at_source=True)

        run.until(equal, "what was there is in the target")
        before = pids(path)[half]
        for number in range(5000, 5060):
            source.buy(number)
            if number == 5030:
                os.kill(before, signal.SIGKILL)
        run.until(lambda: pids(path)[half] not in (0, before), "another one runs")
        run.until(equal, "all changes are in the target")
        run.stop()
    assert penstock("verify", path, "--json").result["equal"]
    changes = [row for row in source.store.log(commit=0) if row.op != "shape"]
    lines = penstock("log", "cat", path, "--json").out.splitlines()
    logged = [line for line in lines if re.search(r'"letter": ?"[IUD]"', line)]
    assert len(logged) == len(changes) - len(MANY), "every change once"


def pids(path: Path) -> dict[str, int]:
    """Return the process ids of run, extract and load; 0 for one that does not run."""
    return {process.name: process.pid for process in processes(load_config(path))}


def test_doctor_and_plan_know_it(toys: Toys, tmp_path: Path) -> None:
    """Doctor and plan know the engine before anything runs."""
    source, target = toys
    path = pipeline(tmp_path, source.url, target.url)
    doctor = penstock("doctor", path, "--json")
    assert (doctor.code, doctor.result["checks_skipped"]) == (0, 0), doctor.out
    plan = penstock("plan", path, "--json").result
    assert plan["ok"]
    assert [table["table"] for table in plan["tables"]] == ["public.item"]
    target.store.path.unlink()
    doctor = penstock("doctor", path, "--json")
    assert codes(doctor.result["findings"]) == ["HS24"]


def codes(findings: Sequence[dict[str, str]]) -> list[str]:
    """Return the codes of the findings that stop a run."""
    return [one["code"] for one in findings if one["severity"] == "E"]


def test_without_its_package_it_is_unknown(toys: Toys, tmp_path: Path) -> None:
    """The scheme is reported by name, like any unknown one."""
    path = pipeline(tmp_path, toys[0].url, toys[1].url)
    found = penstock("plan", path, "--json", environment={"PYTHONPATH": ""})
    assert found.code != 0
    assert "toy://" in found.error["error"]
    assert found.error["code"] == "CF07", found.error
