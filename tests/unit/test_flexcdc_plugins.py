"""Plugins: how they are found and called, what is refused by name, and what the example prints."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from penstock.consume.plugins import (
    CALLBACKS,
    Example,
    PluginBase,
    PluginIncomplete,
    PluginNotFound,
    load_plugins,
    row_values_of,
)

TWO = """
from penstock.consume.plugins import PluginBase

class FlexCDC_Plugin(PluginBase):
    pass

class Second(PluginBase):
    row_values = "sql"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of two plugins, and a search path of its own."""
    monkeypatch.setattr("sys.path", [])
    (tmp_path / "two_plugins.py").write_text(TWO)
    return tmp_path


@pytest.mark.parametrize(
    ("plugins", "order", "expected"),
    [
        (["penstock.consume.plugins:Example"], [], ["Example"]),
        (["two_plugins.py"], [], ["FlexCDC_Plugin"]),
        (["two_plugins.py:Second"], [], ["Second"]),
        (["two_plugins.py"], ["Second", "FlexCDC_Plugin"], ["Second", "FlexCDC_Plugin"]),
        (
            ["penstock.consume.plugins:Example", "two_plugins.py"],
            ["Second", "Example"],
            ["Second", "Example"],
        ),
    ],
)
def test_plugins_are_found_and_ordered(
    folder: Path, plugins: list[str], order: list[str], expected: list[str]
) -> None:
    """The settings name them; plugin_order decides which are used, and in which order."""
    found = load_plugins(plugins, order, folder)
    assert [name for name, _ in found] == expected
    assert [type(plugin).__name__ for _, plugin in found] == expected


@pytest.mark.parametrize(
    ("plugins", "order", "said"),
    [
        (["no_such_module:A"], [], "cannot be imported"),
        (["missing.py"], [], "cannot be imported"),
        (["two_plugins.py:Third"], [], "has no Third"),
        (["two_plugins.py"], ["Third"], "plugin_order names Third"),
        (["penstock.consume.plugins.example"], [], "has no FlexCDC_Plugin"),
    ],
)
def test_what_is_not_there_is_named(
    folder: Path, plugins: list[str], order: list[str], said: str
) -> None:
    """One typed error says what is missing, and how it is written."""
    with pytest.raises(PluginNotFound, match=said) as caught:
        load_plugins(plugins, order, folder)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "import sys; sys.exit(0)"])
def test_a_module_that_exits_is_an_error(folder: Path, text: str) -> None:
    """An exit code of 0 would look as if it had been stopped."""
    (folder / "exits.py").write_text(text)
    with pytest.raises(PluginNotFound, match="cannot be imported: SystemExit: 0"):
        load_plugins(["exits.py"], [], folder)
    (folder / "exits_later.py").write_text(
        f"class FlexCDC_Plugin:\n    def __init__(self):\n        {text}\n"
    )
    with pytest.raises(PluginNotFound, match="cannot be created: SystemExit: 0"):
        load_plugins(["exits_later.py"], [], folder)


def test_two_plugins_of_one_name_are_both_called(folder: Path) -> None:
    """Both are called in the order of plugin; plugin_order cannot say which of them it means."""
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(f"{TWO}    place = {name!r}\n")
    both = ["first.py:Second", "second.py:Second"]
    found = load_plugins(both, [], folder)
    assert [plugin.place for _, plugin in found] == ["first", "second"]  # type: ignore[attr-defined]
    with pytest.raises(PluginNotFound, match="names Second, and 2 plugins have that name"):
        load_plugins(both, ["Second"], folder)
    with pytest.raises(PluginNotFound, match="names Second, and 2 plugins have that name"):
        load_plugins(["first.py", "second.py"], ["Second"], folder)


def test_a_plugin_that_plugin_order_leaves_out_is_an_error(folder: Path) -> None:
    """The plugin would silently get no change."""
    with pytest.raises(PluginNotFound, match="plugin names Example, and plugin_order leaves") as e:
        load_plugins(["penstock.consume.plugins:Example", "two_plugins.py"], ["Second"], folder)
    assert "Add Example to plugin_order" in e.value.hint


@pytest.mark.parametrize("callback", CALLBACKS)
def test_each_of_the_nine_callbacks_is_required(tmp_path: Path, callback: str) -> None:
    """A plugin without one of them is refused before the start; the error names the callback."""
    lines = [f"    def {one}(self, *args): pass" for one in CALLBACKS if one != callback]
    (tmp_path / "short.py").write_text("class FlexCDC_Plugin:\n" + "\n".join(lines) + "\n")
    with pytest.raises(PluginIncomplete, match=f"lacks {callback}$"):
        load_plugins(["short.py"], [], tmp_path)


@pytest.mark.parametrize("callback", [*CALLBACKS, "truncate"])
def test_callbacks_take_the_published_arguments(tmp_path: Path, callback: str) -> None:
    """A wrong signature is found before the start, not at the first row."""
    (tmp_path / "odd.py").write_text(
        "from penstock.consume.plugins import PluginBase\n"
        f"class FlexCDC_Plugin(PluginBase):\n    def {callback}(self): pass\n"
    )
    with pytest.raises(PluginIncomplete, match=f"has a {callback} that does not take") as caught:
        load_plugins(["odd.py"], [], tmp_path)
    assert "penstock flexcdc --ini FILE run" in caught.value.hint


def test_unknown_row_values_are_refused(tmp_path: Path) -> None:
    """The value must be python or sql."""
    (tmp_path / "odd.py").write_text(
        "from penstock.consume.plugins import PluginBase\n"
        "class FlexCDC_Plugin(PluginBase):\n    row_values = 'xml'\n"
    )
    with pytest.raises(PluginIncomplete, match="row_values is 'xml'"):
        load_plugins(["odd.py"], [], tmp_path)


def test_a_plugin_says_what_its_rows_hold() -> None:
    """The plugin's own setting has priority over the settings file."""
    assert row_values_of(Example(), "python") == "sql"
    assert row_values_of(PluginBase(), "sql") == "sql"


def test_the_example_prints_as_published() -> None:
    """The example prints exactly what the PHP one prints for an update and a rollback."""
    file = io.StringIO()
    plugin, instance = Example(file), Any
    plugin.plugin_init(instance)
    plugin.begin_trx(44, 107, instance)
    plugin.update_before({"c1": "5", "c2": "'a'"}, "test", "t3", 44, 108, instance)
    plugin.update_after({"c1": "4", "c2": "'a'"}, "test", "t3", 44, 109, instance)
    plugin.insert({"c1": "1"}, "test", "t3", 44, 110, instance)
    plugin.delete({"c1": "NULL"}, "test", "t3", 44, 111, instance)
    plugin.commit_trx(44, 111, instance)
    plugin.rollback_trx(45, instance)
    plugin.plugin_deinit(instance)
    assert file.getvalue() == (
        "PLUGIN STARTUP\n"
        "START TRANSACTION: trx_id: 44, Prev GSN: 107\n"
        "TRX_ID: 44, Schema:test, Table: t3, DML: UPDATE (OLD), AT: 108\n"
        "Array\n(\n    [c1] => 5\n    [c2] => 'a'\n)\n"
        "TRX_ID: 44, Schema:test, Table: t3, DML: UPDATE (NEW), AT: 109\n"
        "Array\n(\n    [c1] => 4\n    [c2] => 'a'\n)\n"
        "TRX_ID: 44, Schema:test, Table: t3, DML: INSERT, AT: 110\n"
        "Array\n(\n    [c1] => 1\n)\n"
        "TRX_ID: 44, Schema:test, Table: t3, DML: DELETE, AT: 111\n"
        "Array\n(\n    [c1] => NULL\n)\n"
        "COMMIT: trx_id: 44, Last GSN: 111\n"
        "ROLLBACK: trx_id: 45\n"
        "PLUGIN SHUTDOWN\n"
    )
