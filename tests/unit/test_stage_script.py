"""Modules of users: valid calls, and the errors for invalid ones."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.control.feeds.feed_process import with_options
from penstock.feeds import script as calls
from penstock.feeds.apply.tables import TableNotThere, dispatch, table_not_there
from penstock.feeds.script import (
    Script,
    StandardMerge,
    UserModuleFailed,
    UserModuleInvalid,
    load_script,
)
from penstock.model import TableDefinition, TableName
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode, StageSection
from penstock.ports.feeds import Mutation, StagedTable, batch_of, mutations_of

G = ("shop", "public")
HEAD = "from penstock.stage.script import *\n"


def load_module(folder: Path, text: str) -> Script:
    """Return the script of a module."""
    (folder / "rules.py").write_text(HEAD + text)
    return load_script("rules", beside=folder)


def table(name: str) -> StagedTable:
    """Return a table of the schema."""
    return StagedTable(G, name)


def test_no_module_says_nothing(tmp_path: Path) -> None:
    """Tables are written plainly."""
    script = load_script("", beside=tmp_path)
    assert script.source(table("t")) is None
    assert not script.table(table("t")).is_rowwise


def test_everything_that_a_table_may_have(tmp_path: Path) -> None:
    """The name may be alone, with schema, with database and in quotes."""
    script = load_module(
        tmp_path,
        """
from datetime import timedelta
configure_table("Orders", cas=["a", "b"], deadlines={"at": "1h30m", "c": 5, "d": timedelta(days=1)},
    exprs={"x": "$0 + 1"}, extras="more", ignore={"p": True, "q": False}, row_limit=7,
    merge=standard_merge(lambda op: {"drop": True}), map=lambda doc, meta: doc,
    delete_key=lambda key, meta: key, apply=lambda ops: get_tx().apply(ops))
configure_table('shop.public."t.x"', ignore=["z"])
configure_table("other.orders", cas=["never"])
""",
    )
    rules = script.table(table("orders"))
    assert rules.rows.cas == ("a", "b")
    assert rules.rows.deadlines == {"at": 5400.0, "c": 5.0, "d": 86400.0}
    assert rules.rows.exprs == {"x": "$0 + 1"}
    assert (rules.rows.extras, rules.rows.ignore, rules.rows.row_limit) == ("more", {"p"}, 7)
    assert rules.rows.wants_target
    assert isinstance(rules.merge, StandardMerge)
    assert rules.is_rowwise
    assert script.table(table("t.x")).rows.ignore == {"z"}
    assert not script.table(table("x")).is_rowwise


def test_a_module_is_imported_afresh(tmp_path: Path) -> None:
    """The module is imported again in a process that has imported it before."""
    for _ in range(2):
        assert len(load_module(tmp_path, "configure_table('t', cas=['a'])").tables) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("configure_source('t')", "one of dispatch and target must be given"),
        ("configure_source('t', target='u', dispatch=print)", "one of dispatch and target"),
        ("configure_source('t', dispatch=lambda d, m: None)", "dispatch needs it"),
        ("configure_source('t', target='u', deletes_to='u')", "deletes_to belongs to dispatch"),
        ("configure_source('t', dispatch=5, deletes_to='u')", "dispatch is not a function"),
        ("configure_source('t', target='a..b')", "'a..b' is not the name of a table"),
        ("configure_table('a.b.c.d')", "is not the name of a table"),
        ("configure_table('')", "is not the name of a table"),
        ("configure_table('t', map=lambda doc: doc)", "map does not take 2 arguments"),
        ("async def f(ops): ...\nconfigure_table('t', apply=f)", "apply is async"),
        ("configure_table('t', merge=standard_merge())", "merge needs cas or deadlines"),
        ("configure_table('t', cas='version')", "cas is a list of columns"),
        ("configure_table('t', deadlines={'a': 'soon'})", "a deadline is like 1h"),
        ("configure_table('t', row_limit=0)", "row_limit is a whole number"),
        ("standard_merge(5)", "fallback is not a function"),
        ("set_options({'listen': 'x'})", "set_options: listen cannot be set"),
        ("get_tx()", r"get_tx\(\) was called outside"),
        ("configure_table('t', nothing=1)", "unexpected keyword argument 'nothing'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("import not_there_at_all", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    """The error is raised at the start, in words."""
    with pytest.raises(UserModuleInvalid, match=said):
        load_module(tmp_path, text)


def test_calls_belong_into_the_module() -> None:
    """Calls are refused inside its functions, and anywhere else."""
    with pytest.raises(UserModuleInvalid, match="outside of the import of userModule"):
        calls.configure_table("t")


def test_options_of_the_module(tmp_path: Path) -> None:
    """Options replace settings that the file omits."""
    text = "set_options({'mode': 'immediate', 'dlqTableName': 'dead', 'bestEffortWindow': '5m'})"
    script = load_module(tmp_path, text)
    found = with_options(StageSection(best_effort_window="2h"), script)
    assert (found.mode, found.dlq_table_name) == (StageMode.IMMEDIATE, "dead")
    assert found.best_effort_window == "2h"
    with pytest.raises(UserModuleInvalid, match="mode = 'fast' is not understood"):
        with_options(StageSection(), load_module(tmp_path, "set_options({'mode': 'fast'})"))


def test_helpers() -> None:
    """Helpers are random UUIDs, and the key of the row that a function is about."""
    assert uuid.UUID(calls.random_uuid()).version == 4
    assert calls.replication_key({"key": ["a", 1]}) == ["a", 1]


# --- sources --------------------------------------------------------------------------------------


def definition_of(one: StagedTable, why: str) -> TableDefinition:
    """Return definitions of tables a, b and c, with these keys."""
    keys = {"a": ("id",), "b": ("id", "n"), "c": ("id",)}
    if one.name not in keys:
        raise table_not_there(one, why)
    return TableDefinition(
        name=TableName("public", one.name), source_id=1, columns=(), primary_key=keys[one.name]
    )


def send_mutations(
    script: Script, *mutations: Mutation, name: str = "feed"
) -> dict[str, list[Any]]:
    """Return the rows for each table, as time, key and row."""
    batches = dispatch(G, {table(name): batch_of(mutations)}, script, definition_of)
    return {
        target.name: [
            (
                one.time.nanos,
                json.loads(one.key),
                None if one.after is None else json.loads(one.after),
            )
            for one in mutations_of(batch)
        ]
        for target, batch in batches.items()
    }


def put(time: int, **row: Any) -> Mutation:
    """Return an upsert."""
    return Mutation(time=Hlc(time), key=json.dumps([row["id"]]), after=json.dumps(row).encode())


def make_delete(time: int, key: Any, before: Any = None) -> Mutation:
    """Return a delete."""
    text = None if before is None else json.dumps(before).encode()
    return Mutation(time=Hlc(time), key=json.dumps([key]), after=None, before=text)


def test_a_table_may_go_into_another(tmp_path: Path) -> None:
    """Tables without a source go to their usual place."""
    script = load_module(tmp_path, "configure_source('feed', target='a')")
    assert send_mutations(script, put(1, id=1), make_delete(2, 1)) == {
        "a": [(1, [1], {"id": 1}), (2, [1], None)]
    }
    assert send_mutations(script, put(1, id=1), name="c") == {"c": [(1, [1], {"id": 1})]}
    assert script.is_source(G, "feed")
    assert not script.is_source(G, "c")


DISPATCH = """
def dispatch(doc, meta):
    assert meta["table"] == "feed" and meta["schema"] == "shop.public", meta
    if doc.get("skip"):
        return None
    return {"a": [{"id": doc["id"], "at": meta["updated"]}],
            "b": [{"id": doc["id"], "n": n, "v": v} for n, v in enumerate(doc["items"])]}
"""


def test_a_row_may_become_rows_of_several_tables(tmp_path: Path) -> None:
    """Each has the key of its table, and the same time."""
    text = f"{DISPATCH}\nconfigure_source('feed', dispatch=dispatch, deletes_to='a')"
    script = load_module(tmp_path, text)
    found = send_mutations(
        script, put(1, id=1, items=[5, 6.50]), put(2, id=2, skip=True), make_delete(3, 1)
    )
    assert found == {
        "a": [(1, [1], {"id": 1, "at": "1.0000000000"}), (3, [1], None)],
        "b": [(1, [1, 0], {"id": 1, "n": 0, "v": 5}), (1, [1, 1], {"id": 1, "n": 1, "v": 6.5})],
    }


def test_a_schema_may_be_a_source_and_deletes_a_function(tmp_path: Path) -> None:
    """The function gets the row before, the key's columns if they are known, or the key."""
    script = load_module(
        tmp_path,
        DISPATCH
        + """
def deletes(doc, meta):
    return {"c": [{"id": doc.get("id", doc.get("key"))}]} if doc.get("id") != 9 else None
configure_source("shop.public", dispatch=dispatch, deletes_to=deletes)
""",
    )
    assert send_mutations(script, make_delete(1, 1, before={"id": 7})) == {"c": [(1, [7], None)]}
    assert send_mutations(script, make_delete(1, 1)) == {"c": [(1, [[1]], None)]}
    assert send_mutations(script, make_delete(1, 1), name="a") == {"c": [(1, [1], None)]}
    assert send_mutations(script, make_delete(1, 9), name="a") == {}


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ("{'nowhere': [doc]}", TableNotThere, "dispatch returned a table .shop.public.nowhere. "),
        ("{'b': [{'id': 1}]}", UserModuleFailed, "a row lacks the key's columns n"),
        ("{'a': [{'id': object()}]}", UserModuleFailed, "dispatch of shop.public.feed"),
        ("1 / 0", UserModuleFailed, "ZeroDivisionError"),
    ],
)
def test_a_function_that_fails(tmp_path: Path, rows: str, error: type, said: str) -> None:
    """No part of the request is applied."""
    text = f"configure_source('feed', dispatch=lambda doc, meta: {rows}, deletes_to='a')"
    with pytest.raises(error, match=said):
        send_mutations(load_module(tmp_path, text), put(1, id=1))


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    """The example is imported unchanged."""
    page = (Path(__file__).parents[2] / "docs/stage.md").read_text(encoding="utf-8")
    text = page.split("```python\n# rules.py", 1)[1].split("```", 1)[0]
    (tmp_path / "rules.py").write_text("#" + text)
    script = load_script("rules", beside=tmp_path)
    assert script.table(table("orders")).rows.cas == ("version",)
    assert isinstance(script.table(table("orders")).merge, StandardMerge)
    assert script.table(table("audit")).map is not None
