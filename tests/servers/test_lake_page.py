"""docs/lake.md: its first section, followed as it stands, ends with rows that a reader prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lake.md"
PLACE = "/data/lake"
SOURCE = "postgresql://postgres:${SOURCE_PASSWORD}@localhost:5432/shop"
WITHIN_S = 400.0


def section() -> str:
    """Return the first section of the page."""
    return PAGE.read_text(encoding="utf-8").partition("## From nothing")[2].partition("\n## ")[0]


def blocks(kind: str) -> list[str]:
    """Return its code blocks of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", section(), re.DOTALL)


def lines(text: str, program: str) -> list[list[str]]:
    """Return the commands of a program in a console block, as words."""
    found = [line.removeprefix("$ ").partition(" #")[0] for line in text.splitlines()]
    return [shlex.split(line) for line in found if line.startswith(f"{program} ")]


@pytest.mark.parametrize(("block", "jars"), [(0, ICEBERG_JARS), (2, DELTA_JARS)])
def test_maven_fetches_the_pinned_jars(block: int, jars: tuple[object, ...]) -> None:
    """The page's commands name the jars that penstock looks for, and no others."""
    commands = lines(blocks("console")[block], "mvn")
    named = [words[-1].removeprefix("-Dartifact=") for words in commands]
    assert named == [jar.coordinates for jar in jars]  # type: ignore[attr-defined]
    assert all(words[1:3] == ["dependency:get", "-Dtransitive=false"] for words in commands)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_the_page_ends_with_rows(source_url: str, tmp_path: Path, kind: str) -> None:
    """Plan, doctor and run succeed; the page's Python prints the source's rows meanwhile."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, name text)")
        connection.execute("insert into orders select g, 'name ' || g from generate_series(1, 3) g")
    lake = str(tmp_path / "lake")
    [text] = blocks("toml")
    assert SOURCE in text
    text = text.replace(SOURCE, source_url)
    if kind == "delta":
        assert f'write `url = "delta+file://{PLACE}"`' in section()
        text = text.partition("[spark.conf]")[0]
        text = text.replace("iceberg://lake/shop", f"delta+file://{PLACE}")
    file = tmp_path / "shop.toml"
    file.write_text(text.replace(PLACE, lake))
    commands = lines(blocks("console")[1], "penstock")
    assert [words[1] for words in commands] == ["plan", "doctor", "run"]
    for _, command, name in commands[:2]:
        done = penstock(command, tmp_path / name, timeout_s=WITHIN_S)
        assert done.code == 0, done.out + done.err
    code = blocks("python")[0 if kind == "iceberg" else 1].replace(PLACE, lake)
    with Process(file) as run:
        run.until(lambda: any("bulk load done" in event for event in run.events), "rows", WITHIN_S)
        printed = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ,
        )
        assert printed.returncode == 0, printed.stderr
        for number in (1, 2, 3):
            assert f"name {number}" in printed.stdout, printed.stdout
        run.stop()
