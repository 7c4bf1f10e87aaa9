"""The ten minutes of docs/ignite.md, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from plugins.ignite_live import LiveNode

PAGE = Path(__file__).parents[2] / "docs" / "ignite.md"
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def block(name: str) -> str:
    """Return a file of the walk, by the comment that it begins with."""
    found = re.search(rf"^ *# {re.escape(name)}\n.*?(?=^ *```)", PAGE.read_text(), re.M | re.S)
    assert found is not None, name
    return textwrap.dedent(found[0])


def test_from_a_node_to_a_table(live_node: LiveNode, target_url: str, tmp_path: Path) -> None:
    """Each step runs with this machine's ports and paths."""
    fill = tmp_path / "fill.py"
    fill.write_text(block("fill.py").replace("10800", str(live_node.thin_port)))
    subprocess.run([sys.executable, fill], check=True, timeout=60)
    text = block("city.toml")
    for was, becomes in (
        ("ignite:///var/lib/ignite/work?consistentId=node-1", live_node.url),
        ("127.0.0.1:10800", live_node.address),
        ("postgresql://loader@127.0.0.1/shop", target_url),
    ):
        assert was in text
        text = text.replace(was, becomes)
    path = tmp_path / "city.toml"
    path.write_text(text + '[spark]\nmaster = "local[2]"\n')
    doctor = penstock("doctor", path, "--json")
    assert [one for one in doctor.result["findings"] if one["severity"] == "E"] == []
    assert penstock("plan", path).code == 0
    with psycopg.connect(target_url, autocommit=True) as sql, Process(path) as run:

        def names() -> list[str]:
            if sql.execute("""select to_regclass('"SQL_PUBLIC_CITY"')""").fetchone() == (None,):
                return []
            found = sql.execute('select "NAME" from "SQL_PUBLIC_CITY" order by "ID"')
            return [row[0] for row in found]

        run.until(lambda: names() == ["Berlin", "Oslo"], "the rows are there")
        live_node.sql("UPDATE city SET name = 'Christiania' WHERE id = 2")
        run.until(lambda: names() == ["Berlin", "Christiania"], "the change is there")
        run.stop()
