"""`penstock init` and `penstock copy`: from two URLs to a pipeline, and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import Ran, penstock
from penstock.control.pipeline.config import load_config
from penstock.control.run.new_pipeline import pipeline_name
from plugins.mysql import MySQLServer, database_of


def at(folder: Path, *arguments: object) -> Ran:
    """Run the command line in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_pipeline_file_is_written_from_two_urls(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """The file has the tables found and passwords as variables, says what to do first, and runs."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table orders (id int primary key, made date)")
        source.execute("create table keyless (line text)")
        source.execute('create schema "Odd One"')
        source.execute('create table "Odd One".t (id int primary key)')
    with_password = (
        source_url.replace("@", ":s%40cret@", 1)
        if ":" not in (source_url.partition("://")[2].partition("@")[0])
        else source_url
    )
    password = with_password.partition("://")[2].partition("@")[0].partition(":")[2]
    path = tmp_path / "shop.toml"
    ran = penstock("init", with_password, target_url, "--file", path)
    assert ran.code == 0, ran.err
    text = path.read_text()
    assert "${SOURCE_PASSWORD}" in text
    assert not password or password not in text
    assert 'tables = ["\\"Odd One\\".*", "public.*"]' in text
    assert "# 3 tables: Odd One.t, public.keyless, public.orders" in text
    assert "alter table" in text.lower(), "the keyless table needs a replica identity"
    for command in ("doctor", "run", "verify"):
        assert f"penstock {command} {path}" in ran.out
    environment = {"SOURCE_PASSWORD": "x", "TARGET_PASSWORD": "x"}
    config = load_config(path, {**os.environ, **environment})
    assert config.pipeline.name == pipeline_name(source_url)
    again = penstock("init", with_password, target_url, "--file", path, "--json")
    assert again.error["code"] == "CT83"
    assert path.read_text() == text


def test_a_pipeline_file_for_consumers_is_written_from_one_url(
    source_url: str, tmp_path: Path
) -> None:
    """The file has no target and no mode, comes from the same look at the source, and runs."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table orders (id int primary key, made date)")
        source.execute("create table keyless (line text)")
    path = tmp_path / "shop.toml"
    ran = penstock("init", source_url, "--file", path)
    assert ran.code == 0, ran.err
    text = path.read_text()
    assert 'tables = ["public.*"]' in text
    assert "# 2 tables: public.keyless, public.orders" in text
    assert "alter table" in text.lower(), "the keyless table needs a replica identity"
    assert "[consumers.search]" in text
    assert f"penstock consumers ls {path}" in ran.out
    config = load_config(path, {**os.environ, "SOURCE_PASSWORD": "x"})
    assert (config.has_target, config.pipeline.mode) == (False, "change")
    missing = penstock("init", source_url, "--tables", "none.*", "--json")
    assert missing.error["code"] == "CT82"


def test_types_to_choose_are_written_with_their_choices(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Each loss between engines has its remedies, and the safe choice is made."""
    database = database_of(mysql_url)
    mysql.execute("create table orders (id int primary key, made date)", database)
    path = tmp_path / "shop.toml"
    ran = penstock("init", mysql_url, target_url, "--file", path, "--json")
    assert ran.code == 0, ran.err
    text = path.read_text()
    assert f'"{database}" = "public"' in text
    assert '"zero dates" = "error"' in text
    assert "#   null: NULL in place of such a value" in text
    assert ran.result["tables"] == [f"{database}.orders"]
    passwords = dict.fromkeys(ran.result["variables"], "x")
    config = load_config(path, {**os.environ, **passwords})
    assert config.target.types == {"zero dates": "error"}
    assert "no choice is made" not in text  # doctor was asked with the choices


def test_a_source_without_tables_is_reported(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """No file is written without tables."""
    ran = at(tmp_path, "init", source_url, target_url, "--json")
    assert ran.error["code"] == "CT82"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_tables_are_copied_without_a_file(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Only the rows stay: no folder, no schema wirekite; a target of a pipeline is left alone."""
    database = database_of(mysql_url)
    mysql.execute(
        "create table orders (id int primary key, made date);"
        "create table other (id int primary key);"
        "insert into orders values (1, '2024-02-29'), (2, null)",
        database,
    )
    arguments = ("copy", mysql_url, target_url, "--tables", f"{database}.orders", "--json")
    ran = at(tmp_path, *arguments)
    assert ran.code == 0, ran.err
    assert ran.result == {"copied": [f"{database}.orders"]}
    assert list(tmp_path.iterdir()) == []
    with psycopg.connect(target_url, autocommit=True) as target:
        rows = target.execute("select id, made::text from orders order by id").fetchall()
        assert rows == [(1, "2024-02-29"), (2, None)]
        found = target.execute(
            "select to_regnamespace('wirekite') is null, to_regclass('other') is null"
        ).fetchone()
        assert found == (True, True)
        target.execute("create schema wirekite create table wirekite_log (log_id text)")
        target.execute("insert into wirekite.wirekite_log values ('log-1')")
    assert at(tmp_path, *arguments).error["code"] == "TG03"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://a:b@h:1/shop?sslmode=require", "shop"),
        ("mysql://a@h/My%20Shop", "My-Shop"),
        ("mysql://a@h/", "pipeline"),
        ("mysql://a@h", "pipeline"),
    ],
)
def test_a_pipeline_is_named_after_its_database(url: str, name: str) -> None:
    """The name has only letters that a pipeline's name may have."""
    assert pipeline_name(url) == name
