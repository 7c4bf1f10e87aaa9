"""The webhook with a real HTTP server: what it sends, when it retries, when it gives up."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.pipelines.plugin_calls import FakeInstance, send
from harness.servers.receivers import Answer, Receiver
from penstock.consume.plugins import Webhook
from penstock.consume.plugins.collecting import PluginSettingInvalid
from penstock.consume.plugins.webhook import SIGNATURE, WebhookFailed

SECRET = "a secret of this test, long enough"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver."""
    made = Receiver()
    yield made
    made.close()


Open = Callable[..., tuple[Webhook, FakeInstance]]


@pytest.fixture
def open_plugin(receiver: Receiver, tmp_path: Path) -> Iterator[Open]:
    """Function that makes the plugin, with short pauses."""
    made: list[tuple[Webhook, FakeInstance]] = []

    def make(**keys: str) -> tuple[Webhook, FakeInstance]:
        settings = {"url": receiver.url, "secret": SECRET, "backoff": "0.02", **keys}
        plugin, instance = Webhook(), FakeInstance(tmp_path, {"webhook": settings})
        plugin.plugin_init(instance)
        made.append((plugin, instance))
        return plugin, instance

    yield make
    for plugin, instance in made:
        plugin.plugin_deinit(instance)


def test_a_transaction_is_one_signed_request(receiver: Receiver, open_plugin: Open) -> None:
    """The request has all images in order; without images none is sent; the connection is kept."""
    plugin, instance = open_plugin()
    last = send(
        plugin, instance, 2, 5,
        ("update_before", {"id": 1, "v": "ä"}), ("update_after", {"id": 1, "v": b"x"}),
    )  # fmt: skip
    last = send(plugin, instance, 3, last)
    send(plugin, instance, 4, last, ("insert", {"id": 9}), commit=False)
    send(plugin, instance, 4, last, ("truncate", {}))
    assert receiver.trx() == [2, 4]
    headers, body = receiver.requests[0]
    place = {"schema": "shop", "table": "item", "key": ["id"]}
    assert json.loads(body) == {
        "trx": 2,
        "gsn": 7,
        "commit_time": "2026-03-04T05:06:07Z",
        "position": "0/16B3748",
        "changes": [
            {"action": "UB", **place, "gsn": 6, "row": {"id": 1, "v": "ä"}},
            {"action": "UA", **place, "gsn": 7, "row": {"id": 1, "v": "eA=="}},
        ],
    }
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers[SIGNATURE] == f"sha256={digest}"
    assert headers["Idempotency-Key"] == "log-9"
    assert headers["Content-Type"] == "application/json"
    assert len(receiver.connections) == 1


@pytest.mark.promise
def test_it_tries_again_with_growing_pauses(receiver: Receiver, open_plugin: Open) -> None:
    """Retries follow errors of server and connection, with the same body and signature."""
    plugin, instance = open_plugin(backoff="0.1")
    receiver.answers = [(500, {}, "broken"), None, (429, {}, ""), (503, {}, "x" * 2000)]
    send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    assert receiver.trx() == [2] * 5
    assert len({(headers[SIGNATURE], body) for headers, body in receiver.requests}) == 1
    pauses = [b - a for a, b in zip(receiver.times, receiver.times[1:], strict=False)]
    assert all(pause >= 0.1 * 2**n for n, pause in enumerate(pauses)), pauses
    send(plugin, instance, 3, 1, ("insert", {"id": 1}))
    assert receiver.trx() == [2, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(("asked", "maximum", "least"), [("3600", "0.4", 0.4), ("1", "60", 1.0)])
def test_the_receiver_may_ask_for_a_longer_pause(
    receiver: Receiver, open_plugin: Open, asked: str, maximum: str, least: float
) -> None:
    """Retry-After is followed, up to the maximum."""
    plugin, instance = open_plugin(backoff_maximum=maximum)
    receiver.answers = [(503, {"Retry-After": asked}, "")]
    send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    assert least <= receiver.times[1] - receiver.times[0] < 30


@pytest.mark.promise
@pytest.mark.parametrize(
    ("answer", "attempts", "said"),
    [
        ((500, {}, "broken"), 3, "in 3 attempts: 500 Internal Server Error: broken"),
        (None, 3, "in 3 attempts: RemoteDisconnected"),
        ((401, {}, "who?"), 1, "in 1 attempts: 401 Unauthorized: who?"),
        ((302, {"Location": "/other"}, ""), 1, "in 1 attempts: 302 Found"),
    ],
)
def test_it_gives_up(
    receiver: Receiver, open_plugin: Open, answer: Answer | None, attempts: int, said: str
) -> None:
    """commit_trx raises an error, so that the position is not stored."""
    plugin, instance = open_plugin(retries="2")
    receiver.answers = [answer] * 3
    with pytest.raises(WebhookFailed, match="did not take transaction 2") as caught:
        send(plugin, instance, 2, 0, ("insert", {"id": 1}))
    assert said in caught.value.message
    assert caught.value.hint
    assert len(receiver.requests) == attempts


def test_a_receiver_that_is_not_there(open_plugin: Open, receiver: Receiver) -> None:
    """Refused connections are retried a limited number of times."""
    receiver.server.shutdown()
    receiver.server.server_close()
    plugin, instance = open_plugin(retries="1")
    with pytest.raises(WebhookFailed, match="in 2 attempts: ConnectionRefusedError"):
        send(plugin, instance, 2, 0, ("insert", {"id": 1}))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"url": "ftp://host/"}, "url is not an address"),
        ({"url": "http://"}, "url is not an address"),
        ({"url": "http://host:port/"}, "url is not an address"),
        ({"secret": ""}, "secret is (missing|empty)"),
        ({"timeout": "0"}, "timeout is '0'"),
        ({"retries": "often"}, "retries is 'often'"),
        ({"retrys": "2"}, "unknown key retrys"),
    ],
)
def test_bad_settings_are_refused(open_plugin: Open, keys: dict[str, str], said: str) -> None:
    """The error names the key and what to write."""
    with pytest.raises(PluginSettingInvalid, match=said) as caught:
        open_plugin(**keys)
    assert caught.value.hint
