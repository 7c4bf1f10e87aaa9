"""Resent rows of PostgreSQL that change their shape meanwhile, or are not captured.

Not here: what holds for each engine (`tests/conformance/test_resends.py`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import QUICK, Stop, extractor_of, running, set_up, until
from harness.pipelines.resend import View, answers, ask
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source import table_actions
from penstock.engines.postgres.source.reload import open_reload

LIVE = replace(QUICK, exit_when_idle=False, table_interval_s=0.2)
DDL = """
    create table t (id int primary key, n int, note text);;
    create table u (id int primary key);;
    insert into t select i, i, 'row ' || i from generate_series(1, 2000) i
"""


def source_rows(sql: Any) -> dict[Any, dict[str, Any]]:
    """Return the table as the source has it."""
    rows = sql.execute("select id, n, note from t").fetchall()
    return {(row[0],): dict(zip(("id", "n", "note"), row, strict=True)) for row in rows}


def _read_resend_id(directory: Path) -> int:
    return answers(directory)["public.t"].resend_id


def test_what_cannot_be_sent_is_answered_in_the_published_words(
    source_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not captured, or its shape changes just then; the log continues."""
    set_up(source_url, DDL)
    stop = Stop()
    extractor = extractor_of(source_url, tmp_path, options=LIVE, stop=stop)
    original = open_reload
    with connect(source_url, application_name="test") as sql, running(extractor):

        def alter_first(*given: Any, **more: Any) -> Any:
            monkeypatch.setattr(table_actions, "open_reload", original)
            sql.execute("alter table t add more int")
            return original(*given, **more)

        ask(tmp_path, "public.nothing")
        until(lambda: "public.nothing" in answers(tmp_path))
        assert answers(tmp_path)["public.nothing"].error == (
            "public.nothing is not captured by p: the change log has none of its changes"
        )
        monkeypatch.setattr(table_actions, "open_reload", alter_first)
        ask(tmp_path, "public.t", number=2)
        until(lambda: "public.t" in answers(tmp_path))
        said = answers(tmp_path)["public.t"]
        assert said.error.startswith(
            "the resend was cancelled: public.t changed its shape or its place"
        )
        assert said.hint
        sql.execute("update t set more = 5 where id = 7")
        ask(tmp_path, "public.t", number=3)
        until(lambda: _read_resend_id(tmp_path) == 3)
        assert not answers(tmp_path)["public.t"].error
        expected = source_rows(sql)
        sql.execute("insert into u values (1)")
        until(lambda: View("public.u").read(tmp_path).rows, 30)
        stop.asked.set()
    view = View("public.t").read(tmp_path)
    assert view.reloads == 1
    plain = {
        key: {name: row[name] for name in ("id", "n", "note")} for key, row in view.rows.items()
    }
    assert plain == expected
    assert view.rows[(7,)]["more"] == 5
