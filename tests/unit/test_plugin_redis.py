"""The cache in a real Redis server: it has the rows of the tables."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from harness.pipelines.plugin_calls import FakeInstance, send
from harness.servers.receivers import RedisServer
from penstock.consume.plugins import RedisCache
from penstock.consume.plugins.collecting import PluginSettingInvalid
from penstock.consume.plugins.redis_cache import CacheFailed, CacheKeyMissing


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
    made = RedisServer(tmp_path)
    yield made
    made.stop()


Open = Callable[..., tuple[RedisCache, FakeInstance]]


@pytest.fixture
def open_plugin(server: RedisServer, tmp_path: Path) -> Iterator[Open]:
    """Function that makes the plugin."""
    made: list[tuple[RedisCache, FakeInstance]] = []

    def make(
        key: tuple[str, ...] = ("id",), main: dict[str, str] | None = None, **keys: str
    ) -> tuple[RedisCache, FakeInstance]:
        settings = {"redis_cache": {"url": server.url, **keys}, "flexcdc": main or {}}
        plugin, instance = RedisCache(), FakeInstance(tmp_path, settings, key)
        made.append((plugin, instance))
        plugin.plugin_init(instance)
        return plugin, instance

    yield make
    for plugin, instance in made:
        plugin.plugin_deinit(instance)


@pytest.mark.promise
def test_it_is_kept_in_step(server: RedisServer, open_plugin: Open) -> None:
    """The cache follows inserts, updates of rows and keys, and deletes, but no rolled back ones."""
    plugin, instance = open_plugin()
    send(plugin, instance, 2, 0, ("insert", {"id": 1, "v": "a"}), ("insert", {"id": 2, "v": "b"}))
    send(plugin, instance, 3, 2, ("insert", {"id": 3, "v": "no"}), commit=False)
    assert server.rows() == {"shop.item:1": {"id": 1, "v": "a"}, "shop.item:2": {"id": 2, "v": "b"}}
    images = [
        ("update_before", {"id": 1, "v": "a"}), ("update_after", {"id": 4, "v": "c"}),
        ("delete", {"id": 2, "v": "b"}),
    ]  # fmt: skip
    for _ in range(2):  # and when it is repeated
        send(plugin, instance, 3, 2, *images)
        assert server.rows() == {"shop.item:4": {"id": 4, "v": "c"}}


@pytest.mark.promise
def test_a_transaction_is_one_multi(server: RedisServer, open_plugin: Open) -> None:
    """No client sees half of it: one MULTI and EXEC enclose all of its commands."""
    plugin, instance = open_plugin()
    with server.client.monitor() as monitor:
        send(plugin, instance, 2, 0, *(("insert", {"id": n}) for n in range(50)))
        server.client.echo("done")
        commands: list[str] = []
        while not commands or not commands[-1].startswith("ECHO"):
            commands.append(str(monitor.next_command()["command"]))
    names = [command.split()[0] for command in commands]
    greetings = ("HELLO", "CLIENT", "ECHO")  # those of connections
    assert [n for n in names if n not in greetings] == ["MULTI", *["SET"] * 50, "EXEC"]


def test_a_table_that_is_emptied(server: RedisServer, open_plugin: Open) -> None:
    """The table's rows are deleted before the next are written; tables of similar names stay."""
    plugin, instance = open_plugin(prefix="c[a]*:")
    server.client.set("ca:shop.item:1", "1")
    server.client.set("c[a]*:shop.item2:1", "1")
    send(plugin, instance, 2, 0, *(("insert", {"id": n}) for n in range(2500)))
    send(
        plugin, instance, 3, 2500, ("insert", {"id": 9000}), ("truncate", {}), ("insert", {"id": 7})
    )
    assert [*server.rows()] == ["c[a]*:shop.item2:1", "c[a]*:shop.item:7", "ca:shop.item:1"]


def test_keys_of_several_columns_do_not_meet(server: RedisServer, open_plugin: Open) -> None:
    """Values are escaped: `a:b` and `c` differ from `a` and `b:c`."""
    plugin, instance = open_plugin(("x", "y"))
    send(
        plugin, instance, 2, 0,
        ("insert", {"x": "a:b", "y": "c"}), ("insert", {"x": "a", "y": "b:c"}),
        ("insert", {"x": Decimal("1.0"), "y": datetime.date(2026, 1, 2)}),
    )  # fmt: skip
    assert {*server.rows()} == {
        "shop.item:a%3Ab:c", "shop.item:a:b%3Ac", "shop.item:1.0:2026-01-02"
    }  # fmt: skip


@pytest.mark.promise
def test_a_server_that_is_gone_or_refuses(server: RedisServer, open_plugin: Open) -> None:
    """commit_trx raises, so that the position is not stored; the cache has no part of it."""
    plugin, instance = open_plugin()
    server.client.config_set("maxmemory", "1")
    with pytest.raises(CacheFailed, match="OutOfMemory") as caught:
        send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    assert caught.value.hint
    assert server.rows() == {}
    server.stop()
    with pytest.raises(CacheFailed, match=f"127.0.0.1:{server.port}"):
        send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    with pytest.raises(CacheFailed):
        open_plugin()


def test_a_table_without_a_key_is_refused(server: RedisServer, open_plugin: Open) -> None:
    """The error has its name, and says how to skip it."""
    plugin, instance = open_plugin(())
    with pytest.raises(CacheKeyMissing, match=r"shop\.item has no key") as caught:
        send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    assert "filter = shop.item" in str(caught.value.hint)
    assert server.rows() == {}


@pytest.mark.parametrize(
    ("keys", "main", "said"),
    [
        ({"url": "http://host"}, {}, "url is not an address"),
        ({"url": ""}, {}, "url is missing"),
        ({"timeout": "x"}, {}, "timeout is 'x'"),
        ({}, {"skip_before_update": "true"}, "skip_before_update hides"),
    ],
)
def test_bad_settings_are_refused(
    open_plugin: Open, keys: dict[str, str], main: dict[str, str], said: str
) -> None:
    """The error names the key and what to write."""
    with pytest.raises(PluginSettingInvalid, match=said) as caught:
        open_plugin(main=main, **keys)
    assert caught.value.hint
