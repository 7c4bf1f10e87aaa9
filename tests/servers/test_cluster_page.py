"""`docs/cluster.md`: its files are written and its commands are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.host.server_process import free_port
from penstock.load.session import Session
from plugins.cluster import until_listening

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
URL = "postgresql://u@127.0.0.1:1/d"
# Families of names, which Spark's list of properties does not have individually.
FAMILIES = re.compile(
    r"spark\.(executorEnv\.\w+|kubernetes\.authenticate\.serviceAccountName"
    r"|kubernetes\.executor\.volumes\.persistentVolumeClaim\.\w+\.(options\.claimName|mount\.path))"
)


def section(title: str) -> str:
    """Return the page's text below a heading."""
    found: str = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2]
    assert found, title
    return found.partition("\n## ")[0]


def blocks(text: str, kind: str) -> list[str]:
    """Return the code blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Return the commands of the text, without output and comments."""
    lines = "".join(blocks(text, "console")).splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def spark_keys(text: str) -> dict[str, Any]:
    """Return the keys of [spark] in the text."""
    found: dict[str, Any] = {}
    for block in blocks(text, "toml"):
        found |= tomllib.loads(block).get("spark", {})
    return found


TITLES = ("A standalone cluster", "On YARN", "On Kubernetes")


@pytest.mark.parametrize("title", TITLES)
def test_spark_knows_what_is_to_be_written(spark: Session, tmp_path: Path, title: str) -> None:
    """The file is accepted, and each property, even in a comment, is one of Spark's."""
    keys = spark_keys(section(title))
    conf = keys.pop("conf")
    sections: Mapping[str, Mapping[str, Any]] = {"spark": keys, "spark.conf": conf}
    config = load_config(write_pipeline(tmp_path, URL, URL, sections=sections))
    assert config.spark.master == keys["master"]
    assert config.spark.conf == conf
    jvm: Any = spark.context._jvm
    for lists in ("deploy.k8s.Config$", "deploy.yarn.config.package$"):
        jvm.java.lang.Class.forName(f"org.apache.spark.{lists}")
    known = jvm.org.apache.spark.internal.config.ConfigEntry
    names = {*conf, *re.findall(r'^# "(spark[\w.]+)"', section(title), re.MULTILINE)}
    unknown = {n for n in names if not FAMILIES.fullmatch(n) and known.findEntry(n) is None}
    assert unknown == set()
    assert known.findEntry("spark.no.such") is None


@contextmanager
def start_process(command: list[str], home: Path, port: int) -> Iterator[None]:
    """Run one of the cluster's processes; the block begins when it listens at its port."""
    with (home / "cluster.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    try:
        until_listening("127.0.0.1", port, process)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("no_spark")
def test_a_standalone_cluster_from_nothing(
    tmp_path: Path, cluster_home: Path, source_url: str, target_url: str, run: Callable[[str], None]
) -> None:
    """Each command of the page runs in its order, with this machine's names in place
    of the page's.
    """
    run("create table a (id int primary key); insert into a select generate_series(1, 500)")
    port, worker_port = free_port(), free_port()
    archive = tmp_path / "penstock-cluster.tar.gz"
    text = section("A standalone cluster")
    [block] = blocks(text, "toml")
    for old, new in {
        "postgresql://repl:${SOURCE_PASSWORD}@db1:5432/shop": source_url,
        "postgresql://load:${TARGET_PASSWORD}@db2:5432/copy": target_url,
        "/shared/shop": str(tmp_path / "shop"),
        "spark://master:7077": f"spark://127.0.0.1:{port}",
        "/usr/bin/python3.11": os.path.realpath(sys.executable),
        "10.0.0.5": "127.0.0.1",
        '"2g"': '"512m"',
        "/srv/penstock-cluster.tar.gz": str(archive),
    }.items():
        assert old in block
        block = block.replace(old, new)
    file = tmp_path / "shop.toml"
    file.write_text(block + "\n[changeExtractor]\nexitWhenIdle = true\nidleWaitSeconds = 2\n")
    [pack] = commands(section("What the machines need"))
    master, worker, doctor, go = commands(text)
    assert pack[:2] == ["penstock", "cluster-archive"]
    assert penstock("cluster-archive", archive).code == 0
    assert doctor == ["penstock", "doctor", "shop.toml"]
    assert go == ["penstock", "run", "shop.toml"]
    master = [{"master": "127.0.0.1", "7077": str(port)}.get(word, word) for word in master]
    worker = [word.replace("master:7077", f"127.0.0.1:{port}") for word in worker]
    with ExitStack() as stack:
        stack.enter_context(start_process([*master, "--webui-port", "0"], cluster_home, port))
        more = ["--webui-port", "0", "--host", "127.0.0.1", "--port", str(worker_port)]
        stack.enter_context(
            start_process([*worker[:-1], *more, worker[-1]], cluster_home, worker_port)
        )
        told = penstock("doctor", file, timeout_s=300)
        assert told.code == 0, told.out + told.err
        assert "has all that it needs" in told.out
        ran = penstock("run", file, "--json", timeout_s=600)
        assert ran.code == 0, ran.out + ran.err
    where = "select count(*), sum(id) from a"
    with psycopg.connect(target_url) as connection:
        assert connection.execute(where).fetchone() == (500, 125250)
