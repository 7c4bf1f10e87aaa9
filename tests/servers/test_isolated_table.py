"""`onTableError = "isolate"` in a running pipeline: a table is isolated, shown, and
brought back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from harness.pipelines.tables import line, reach, request
from penstock.control.pipeline.config import load_config
from penstock.web.metrics import expose
from penstock.web.reading import PipelineWatch
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETUP = """
    create table item (id int primary key, n int);
    create table bag (v int); alter table bag replica identity full;
    insert into item values (1, 1); insert into bag values (1)
"""


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    """Two tables and the fence."""
    sections = {"changeLoader": {"onTableError": "isolate"}}
    made = Pair(
        tmp_path_factory.mktemp("isolated"), postgres, tables=("public.*",), sections=sections
    )
    try:
        made.run(SETUP)
        made.start()
        made.settle()
        yield made
    finally:
        made.close()


def test_it_is_left_behind_and_comes_back(pair: Pair) -> None:
    """The others continue; status, table ls, web and metrics say why; resync copies it again."""
    assert pair.process is not None
    pair.target.execute("alter table bag add constraint few check (v < 9)")
    pair.run("insert into bag values (99); update item set n = 2")
    pair.process.until(lambda: line(pair, "public.bag").get("state") == "isolated", "left behind")
    pair.run("insert into bag values (2); update item set n = 3")
    pair.check("item")
    assert pair.target.execute("select v from bag").fetchall() == [(1,)]
    shown = line(pair, "public.bag")
    assert shown["code"] == "TG32"
    assert "table resync shop.toml public.bag" in shown["hint"]
    status = penstock("status", pair.path, "--json").result
    assert status["apart"] == {"public.bag": "isolated"}
    assert status["apart_errors"]["public.bag"]["code"] == "TG32"
    watch = PipelineWatch(load_config(pair.path))
    watch.start()
    pair.process.until(lambda: watch.latest.tables, "the web has looked")
    facts = {str(one.table): one for one in watch.latest.tables}
    assert (str(facts["public.bag"].state), facts["public.bag"].code) == ("left behind", "TG32")
    sample = b'penstock_table_apart{pipeline="shop",state="isolated",table="public.bag"} 1.0'
    assert sample in expose([("shop", watch.latest)])
    watch.close()
    pair.target.execute("alter table bag drop constraint few")
    request(pair, "resync", "public.bag")
    reach(pair, "public.bag", "following")
    pair.run("insert into bag values (3)")
    pair.check("bag", "item")
