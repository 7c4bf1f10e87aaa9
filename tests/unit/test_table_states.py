"""States of single tables on the web page."""

from __future__ import annotations

from harness.pipelines.readings import HOSTILE, ORDERS, status
from penstock.control.status.status import table_facts
from penstock.control.verify.verify import VerifyResult
from penstock.web.pages import Pages
from penstock.web.tasks import Stage, TaskView


def test_a_table_that_has_another_name_now_leaves_the_page() -> None:
    """Handover and bulk load still know the old name; followed tables are listed completely."""
    assert {one.table for one in table_facts(status(), {HOSTILE})} >= {HOSTILE, ORDERS}
    assert {one.table for one in table_facts(status(), {HOSTILE}, whole=True)} == {HOSTILE}


def test_what_verify_has_not_compared_is_on_the_page() -> None:
    """The page shows the reason; all other tables have their lines, equal or not."""
    result = VerifyResult(
        position=5, at="0/5", tables=(), seconds=1.0, not_compared={HOSTILE: "it is <new>"}
    ).as_dict()
    view = TaskView(stage=Stage.DONE, result=result)
    context = {"verify": view, "secret": "", "name": "shop", "file": "shop.toml"}
    shown = Pages().regions(["verify"], context)["verify"]
    assert "is not compared: it is &lt;new&gt;" in shown
    assert "differ" in shown
