"""Plugin that writes Debezium's envelope: events, keys, values, and what a crash leaves."""

from __future__ import annotations

import datetime
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.plugin_calls import COMMIT_TIME, FakeInstance, send
from penstock.consume.plugins import DebeziumFile


def open_plugin(
    directory: Path, key: tuple[str, ...] = ("id",), **settings: str
) -> tuple[DebeziumFile, FakeInstance]:
    """Return the plugin with a file `out`."""
    keys = {"path": "out", "topic_prefix": "shop1", **settings}
    instance = FakeInstance(directory, {"debezium_file": keys}, key)
    plugin = DebeziumFile()
    plugin.plugin_init(instance)
    return plugin, instance


def events(directory: Path) -> list[dict[str, Any]]:
    """Return the events of the file."""
    return [json.loads(line) for line in (directory / "out").read_text().splitlines()]


def test_the_envelope(tmp_path: Path) -> None:
    """Each kind of change has op, before, after, source and transaction."""
    plugin, instance = open_plugin(tmp_path)
    send(
        plugin, instance, 7, 10,
        ("insert", {"id": 1, "v": 1}), ("update_before", {"id": 1, "v": 1}),
        ("update_after", {"id": 1, "v": 2}), ("delete", {"id": 1, "v": 2}), ("truncate", {}),
    )  # fmt: skip
    found = events(tmp_path)
    assert {event["destination"] for event in found} == {"shop1.shop.item"}
    assert [event["key"] for event in found] == [{"id": 1}] * 4 + [None]
    values = [event["value"] for event in found]
    assert [value and (value["op"], value["before"], value["after"]) for value in values] == [
        ("c", None, {"id": 1, "v": 1}),
        ("u", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
        ("d", {"id": 1, "v": 2}, None),
        None,  # the tombstone
        ("t", None, None),
    ]
    committed_ms = int(COMMIT_TIME.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    source = values[0]["source"]
    assert source["ts_ms"] == committed_ms
    assert (source["name"], source["db"], source["table"]) == ("shop1", "shop", "item")
    assert (source["ts_us"], source["ts_ns"]) == (committed_ms * 1000, committed_ms * 10**6)
    assert source["snapshot"] == "false"
    assert [value["source"]["at"] for value in values if value] == [
        [7, "0/16B3748", 23803720, row] for row in range(4)
    ]
    assert values[0]["ts_ms"] > committed_ms
    assert values[1]["transaction"] == {"id": "7", "total_order": 2, "data_collection_order": 2}


def test_a_changed_key_is_a_delete_and_a_creation(tmp_path: Path) -> None:
    """A tombstone for the old key is between them, unless the setting disables it."""
    plugin, instance = open_plugin(tmp_path)
    images = [("update_before", {"id": 1}), ("update_after", {"id": 2})]
    send(plugin, instance, 1, 0, *images)
    plugin.plugin_deinit(instance)
    plugin, instance = open_plugin(tmp_path, tombstones_on_delete="0")
    send(plugin, instance, 2, 2, *images)
    assert [(e["key"], e["value"] and e["value"]["op"]) for e in events(tmp_path)] == [
        ({"id": 1}, "d"), ({"id": 1}, None), ({"id": 2}, "c"), ({"id": 1}, "d"), ({"id": 2}, "c"),
    ]  # fmt: skip


def test_a_table_without_a_key_and_an_update_without_the_old_row(tmp_path: Path) -> None:
    """The key is null, and there is no tombstone; before is null."""
    plugin, instance = open_plugin(tmp_path, ())
    send(plugin, instance, 1, 0, ("update_after", {"id": 2}), ("delete", {"id": 2}))
    found = [(e["key"], e["value"]["op"], e["value"]["before"]) for e in events(tmp_path)]
    assert found == [(None, "u", None), (None, "d", {"id": 2})]


def test_values_are_as_debezium_has_them(tmp_path: Path) -> None:
    """Days and microseconds count from 1970, moments with a zone are in UTC, decimals are text."""
    plugin, instance = open_plugin(tmp_path)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    row = {
        "id": 1, "date": datetime.date(1970, 1, 11), "before": datetime.date(1969, 12, 31),
        "time": datetime.time(0, 0, 1, 5), "span": datetime.timedelta(seconds=-2),
        "naive": datetime.datetime(1970, 1, 1, 0, 0, 2),  # noqa: DTZ001
        "aware": datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=zone), "decimal": Decimal("1.10"),
        "bytes": b"\xff", "null": None, "list": [datetime.date(1970, 1, 2)],
    }  # fmt: skip
    send(plugin, instance, 1, 0, ("insert", row))
    assert events(tmp_path)[0]["value"]["after"] == {
        "id": 1, "date": 10, "before": -1, "time": 1_000_005, "span": -2_000_000,
        "naive": 2_000_000, "aware": "2026-03-04T03:06:07Z", "decimal": "1.10", "bytes": "/w==",
        "null": None, "list": [1],
    }  # fmt: skip


@pytest.mark.promise
def test_a_transaction_that_comes_again_is_written_once(tmp_path: Path) -> None:
    """Any part of it may be in the file, although the times at which it is written differ."""
    images = [("delete", {"id": 1}), ("insert", {"id": 1}), ("delete", {"id": 1})]
    plugin, instance = open_plugin(tmp_path)
    last = send(plugin, instance, 1, 0, *images)
    before = (tmp_path / "out").stat().st_size
    send(plugin, instance, 2, last, *images)
    plugin.plugin_deinit(instance)
    whole = (tmp_path / "out").read_bytes()
    expected = [(e["key"], e["value"] and e["value"]["op"]) for e in events(tmp_path)]
    for size in range(before, len(whole) + 1, 7):
        (tmp_path / "out").write_bytes(whole)
        os.truncate(tmp_path / "out", size)
        plugin, instance = open_plugin(tmp_path)
        send(plugin, instance, 2, last, *images)
        plugin.plugin_deinit(instance)
        found = [(e["key"], e["value"] and e["value"]["op"]) for e in events(tmp_path)]
        assert found == expected, size
