"""Plugin that writes lines of JSON: its keys, values, settings, and what a crash leaves."""

from __future__ import annotations

import datetime
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.plugin_calls import FakeInstance, send
from penstock.consume.plugins import JsonFile
from penstock.consume.plugins.collecting import PluginSettingInvalid
from penstock.consume.plugins.json_file import ColumnNameTaken
from penstock.consume.plugins.line_file import LineFileUnusable
from penstock.host import faults


def open_plugin(directory: Path, **settings: str) -> tuple[JsonFile, FakeInstance]:
    """Return the plugin with a file `out`."""
    instance = FakeInstance(directory, {"json_file": {"path": "out", **settings}})
    plugin = JsonFile()
    plugin.plugin_init(instance)
    return plugin, instance


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of the file."""
    return [json.loads(line) for line in (directory / "out").read_text().splitlines()]


def test_lines_have_the_published_keys(tmp_path: Path) -> None:
    """A line has the columns, the action and the origin; a rolled back change has no line."""
    plugin, instance = open_plugin(tmp_path)
    send(plugin, instance, 7, 10, ("insert", {"id": 9}), commit=False)
    send(
        plugin, instance, 7, 10,
        ("insert", {"id": 1, "v": "ä\n"}), ("update_before", {"id": 1}),
        ("update_after", {"id": 2}), ("delete", {"id": 2}), ("truncate", {}),
    )  # fmt: skip
    metadata = {"MYSQL_TABLE": "item", "MYSQL_SCHEMA": "shop", "MYSQL_TRX": 7}
    assert lines(tmp_path) == [
        {"id": 1, "v": "ä\n", "MYSQL_ACTION": "I", **metadata, "MYSQL_SEQ": 11},
        {"id": 1, "MYSQL_ACTION": "UB", **metadata, "MYSQL_SEQ": 12},
        {"id": 2, "MYSQL_ACTION": "UA", **metadata, "MYSQL_SEQ": 13},
        {"id": 2, "MYSQL_ACTION": "D", **metadata, "MYSQL_SEQ": 14},
        {"MYSQL_ACTION": "T", **metadata, "MYSQL_SEQ": 14},
    ]


def test_without_metadata_and_with_a_filter(tmp_path: Path) -> None:
    """The filter's tables are skipped; lines only have the action."""
    plugin, instance = open_plugin(tmp_path, add_metadata="0", filter="shop.secret, shop.other")
    send(plugin, instance, 1, 0, ("insert", {"id": 1}), table="secret")
    send(plugin, instance, 2, 1, ("insert", {"id": 2}))
    assert lines(tmp_path) == [{"id": 2, "MYSQL_ACTION": "I"}]


def test_values_are_exact(tmp_path: Path) -> None:
    """No value is rounded, and each one is JSON."""
    plugin, instance = open_plugin(tmp_path, add_metadata="0")
    row = {
        "int": 2**63 - 1, "decimal": Decimal("1E+2"), "small": Decimal("0.10"), "bytes": b"\0\xff",
        "date": datetime.date(2026, 3, 4), "nan": float("nan"), "float": 0.1, "null": None,
        "moment": datetime.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=datetime.UTC), "true": True,
        "time": datetime.timedelta(hours=-838, microseconds=-1), "list": [Decimal(1), None],
    }  # fmt: skip
    send(plugin, instance, 1, 0, ("insert", row))
    assert lines(tmp_path) == [
        {
            "int": 2**63 - 1, "decimal": "100", "small": "0.10", "bytes": "AP8=",
            "date": "2026-03-04", "nan": "nan", "float": 0.1, "null": None,
            "moment": "2026-03-04T05:06:07.000008+00:00", "true": True,
            "time": "-838:00:00.000001", "list": ["1", None], "MYSQL_ACTION": "I",
        }
    ]  # fmt: skip


@pytest.mark.promise
def test_a_transaction_that_comes_again_is_written_once(tmp_path: Path) -> None:
    """The file may already have none, some or all of its bytes; two equal rows stay two."""
    images = [("insert", {"id": 1}), ("delete", {"id": 1}), ("insert", {"id": 1})]
    plugin, instance = open_plugin(tmp_path)
    last = send(plugin, instance, 1, 0, *images)
    before = (tmp_path / "out").stat().st_size
    send(plugin, instance, 2, last, *images)
    plugin.plugin_deinit(instance)
    whole = (tmp_path / "out").read_bytes()
    for size in range(before, len(whole) + 1):
        os.truncate(tmp_path / "out", size)
        plugin, instance = open_plugin(tmp_path)
        send(plugin, instance, 2, last, *images)
        plugin.plugin_deinit(instance)
        assert (tmp_path / "out").read_bytes() == whole, size


def test_another_transaction_of_the_same_number_is_written(tmp_path: Path) -> None:
    """Numbers begin at 1 after `setup --force`: a transaction that differs is never skipped."""
    plugin, instance = open_plugin(tmp_path)
    send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    plugin.plugin_deinit(instance)
    plugin, instance = open_plugin(tmp_path)
    send(plugin, instance, 2, 0, ("insert", {"id": 5}))
    send(plugin, instance, 2, 0, ("insert", {"id": 5}))  # not the first any more
    assert [line["id"] for line in lines(tmp_path)] == [1, 5, 5]


def _no_space(_: str) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.promise
def test_a_full_disk_is_an_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """commit_trx does not return; the next start completes the half-written transaction."""
    plugin, instance = open_plugin(tmp_path)
    last = send(plugin, instance, 1, 0, ("insert", {"id": 1}))
    images = [("insert", {"id": 2}), ("insert", {"id": 3, "v": "longer"})]
    with monkeypatch.context() as patch:
        patch.setattr(faults, "point", _no_space)
        with pytest.raises(LineFileUnusable, match="cannot be written: No space left") as caught:
            send(plugin, instance, 2, last, *images)
    assert caught.value.hint
    plugin.plugin_deinit(instance)
    assert not (tmp_path / "out").read_bytes().endswith(b"\n")
    plugin, instance = open_plugin(tmp_path)
    send(plugin, instance, 2, last, *images)
    assert [line["id"] for line in lines(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "path is missing"),
        ({"path": "out", "filter": "item"}, "names 'item', which is not a table"),
        ({"path": "out", "add_metadata": "maybe"}, "add_metadata is 'maybe'"),
        ({"path": "out", "pth": "x"}, "unknown key pth"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    """Settings are refused before any reading; the error names the key and what to write."""
    instance = FakeInstance(tmp_path, {"json_file": settings})
    with pytest.raises(PluginSettingInvalid, match=said) as caught:
        JsonFile().plugin_init(instance)
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text\nwithout an end", "not JSON"),
        (b'{"a":1}\n', "did not write"),
        (b"[]\n", "did not write"),
    ],
)
def test_files_of_others_stay_as_they_are(tmp_path: Path, content: bytes, said: str) -> None:
    """No byte is cut off or appended."""
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(LineFileUnusable, match=said):
        open_plugin(tmp_path)
    assert (tmp_path / "out").read_bytes() == content


def test_a_place_without_a_folder_is_refused(tmp_path: Path) -> None:
    """The error has the path."""
    with pytest.raises(LineFileUnusable, match="cannot be opened: No such file"):
        open_plugin(tmp_path, path="none/out")


def test_a_column_with_one_of_our_names_is_refused(tmp_path: Path) -> None:
    """The column would otherwise be overwritten."""
    plugin, instance = open_plugin(tmp_path)
    with pytest.raises(ColumnNameTaken, match="MYSQL_TRX"):
        send(plugin, instance, 1, 0, ("insert", {"MYSQL_TRX": 1}))
