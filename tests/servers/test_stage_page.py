"""docs/stage.md: its walk with curl, typed as it stands, ends with the rows that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harness.modules.pages import ROOT, blocks, commands, section
from harness.pipelines.loading import until
from penstock.host.server_process import free_port
from plugins.postgres import Server

WALK = section(ROOT / "docs/stage.md", "Try it with curl")
ADDRESS = "127.0.0.1:26258"
STAGING = "postgresql://stage:${PW}@localhost:5432/_replicator"
TARGET = "postgresql://loader:${PW}@localhost:5432/shop"


def curl(command: str, environment: dict[str, str]) -> str:
    """Run a command of the page in a shell and return what it prints."""
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.mark.timeout(120)
def test_the_walk_with_curl(postgres: Server, tmp_path: Path) -> None:
    """Rows are posted, answered, and are in the target; a wrong request has its cause."""
    url = postgres.make_database("target")
    name = url.rpartition("/")[2].partition("?")[0]
    address = f"127.0.0.1:{free_port()}"
    [file] = blocks(WALK, "toml")
    for was, becomes in (
        (ADDRESS, address),
        (STAGING, url.replace(name, f"{name}_staging")),
        (TARGET, url),
    ):
        assert was in file
        file = file.replace(was, becomes)
    (tmp_path / "try.toml").write_text(file)
    environment = {**os.environ, "TOKEN": "a token of sixteen or more"}
    start, *posts, unknown, health, metrics, status = commands(WALK)
    assert start == "penstock stage try.toml --create"
    assert status == "penstock status try.toml"
    with psycopg.connect(url, autocommit=True) as target:
        [ddl] = blocks(WALK, "sql")
        target.execute(ddl.encode())
        process = subprocess.Popen(
            [sys.executable, "-m", *start.split()], cwd=tmp_path, env=environment
        )
        try:
            here = [
                one.replace(ADDRESS, address).replace("/shop/", f"/{name}/")
                for one in (*posts, unknown, health, metrics)
            ]
            probe = f"{here[-2]} --silent --output /dev/null --write-out '%{{http_code}}' || true"
            until(lambda: curl(probe, environment) == "200")
            for post in here[: len(posts)] * 2:  # the second time changes nothing
                assert curl(post, environment).startswith("HTTP/1.1 200 OK")
            assert target.execute("select * from orders").fetchall() == [(2, 25)]
            assert "nosuch" in curl(here[-3], environment)
            assert "stage_" in curl(here[-1], environment)
            shown = subprocess.run(
                [sys.executable, "-m", *status.split()],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            assert "immediate" in shown.stdout
        finally:
            process.terminate()
            assert process.wait(60) == 0
