"""The container image: built from a wheel as docs/deploy/Containerfile says, and used.

No container engine runs it: `harness/servers/container.py` carries out the steps.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from harness.servers.container import Image, build_image

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]

CONFIG = """\
[pipeline]
name = "shop"
mode = "data+change"
directory = "shop"
[source]
url = "{source}"
tables = ["public.item"]
[target]
url = "{target}"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Build the image from wheels that `make dist` makes."""
    context = tmp_path_factory.mktemp("context")
    dist = [sys.executable, ROOT / ".ci" / "dist.py", "--output", context / "dist"]
    subprocess.run([*dist, "--arch", "x86_64", "--python", sys.executable], check=True)
    (context / "requirements.lock").write_bytes((ROOT / "requirements.lock").read_bytes())
    file = ROOT / "docs" / "deploy" / "Containerfile"
    with build_image(file, context, tmp_path_factory.mktemp("image")) as built:
        yield built


def test_the_image_runs_penstock_as_its_user(image: Image) -> None:
    """The version is printed, and nothing else runs as root."""
    done = subprocess.run(image.command("--version"), capture_output=True, text=True, check=True)
    assert "penstock 0." in done.stdout
    assert image.user == "penstock"


def test_a_pipeline_runs_in_the_image_and_stops(
    image: Image, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """Rows arrive, changes follow, the stop signal ends it, and the volume keeps the log."""
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table item (id int primary key, name text)")
        source.execute("insert into item select n, 'item ' || n from generate_series(1, 1000) n")
        config = tmp_path / "shop.toml"
        config.write_text(CONFIG.format(source=source_url, target=target_url))
        volume = tmp_path / "volume"
        volume.mkdir()
        volume.chmod(0o777)
        volumes = {config: "/pipeline/shop.toml", volume: "/pipeline/shop"}
        command = image.command("run", "shop.toml", "--json", volumes=volumes)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            try:
                wait_for(target_url, "select count(*) from item", 1000, running)
                source.execute("update item set name = 'changed' where id <= 10")
                changed = "select count(*) from item where name = 'changed'"
                wait_for(target_url, changed, 10, running)
            finally:
                if running.poll() is None:
                    stop(running, image)
        assert running.returncode == 0
    assert list((volume / "log").glob("*.ckt"))


def wait_for(url: str, query: str, count: int, running: subprocess.Popen[str]) -> None:
    """Wait until a query of the target gives a count."""
    last: object = None
    for _ in range(600):
        assert running.poll() is None, running.communicate()
        try:
            with psycopg.connect(url) as target:
                last = target.execute(query).fetchone()
        except psycopg.errors.UndefinedTable as error:
            last = error
        if last == (count,):
            return
        time.sleep(0.2)
    raise AssertionError(f"{query}: {last}")


def stop(running: subprocess.Popen[str], image: Image) -> None:
    """Send the image's stop signal to its first process, as an engine does."""
    for child in psutil.Process(running.pid).children():
        child.send_signal(signal.Signals[image.stop_signal])
    running.communicate(timeout=120)
