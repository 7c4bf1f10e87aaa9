"""Scans through the thin client connector of real nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trustme

from harness.ignite.recordings import plain, show_value
from penstock.codec.ignite import marshal
from penstock.codec.ignite.cache_config import read_cache_config
from penstock.codec.ignite.types import cache_id
from penstock.engines.ignite import thin
from penstock.engines.ignite.directory import open_directory
from penstock.engines.ignite.thin import CacheGone, ScanFailed, open_thin
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.errors import (
    ConnectFailed,
    ConnectionLost,
    LoginRefused,
    ServerUnreachable,
    TlsFailed,
)
from plugins.ignite_live import LiveNode, LiveNodes
from plugins.ignite_node import Ignite

SCENARIOS = ("people", "transactions", "values", "shapes", "tables", "expiring", "destroyed")


def url_of(node: LiveNode, more: str = "") -> IgniteUrl:
    """Return the URL of a node that can be asked."""
    return IgniteUrl.parse(f"{node.url}&address={node.address}{more}")


def test_scans_give_what_a_scan_query_of_the_node_gives(live_node: LiveNode) -> None:
    """Every type is decoded as from the log, partition by partition."""
    for name in SCENARIOS:
        live_node.ask("scenario", name)
    types = open_directory(live_node.url).types_read
    with open_thin(url_of(live_node)) as client:
        caches = client.names()
        assert len(caches) == 10
        for cache in caches:
            folder = live_node.work / f"db/node_1/cache-{cache}"
            config = read_cache_config((folder / "cache_data.dat").read_bytes(), cache)
            assert config.partitions is not None
            number = cache_id(cache)
            found = [
                [
                    show_value(marshal.decode(key, kind, types)),
                    show_value(marshal.decode(value, of, types)),
                ]
                for partition in range(config.partitions)
                for page in client.scan(cache, number, partition)
                for kind, key, of, value in page
            ]
            wanted = [[plain(cell) for cell in entry[:2]] for entry in live_node.scan(cache)]
            assert sorted(found, key=lambda one: repr(one[0])) == sorted(
                wanted, key=lambda one: repr(one[0])
            )
            assert client.size(cache, number) == len(wanted)
        live_node.ask("destroy", "again")
        with pytest.raises(CacheGone) as caught:
            list(client.scan("again", cache_id("again")))
        assert caught.value.fields["cache"] == "again"
        live_node.ask("state", "INACTIVE")
        with pytest.raises(ScanFailed, match="inactive"):
            list(client.scan("person", cache_id("person")))


def test_pages_are_of_bounded_size(live_node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows come a few at a time, small ones many; each once, even if a page is left early."""
    monkeypatch.setattr(thin, "PAGE_BYTES", 64 * 1024)
    live_node.create("large", partitions=1)
    live_node.create("small", partitions=1)
    live_node.ask("fill", "large", 0, 300, 2000)
    live_node.ask("fill", "small", 0, 3000, 1)
    with open_thin(url_of(live_node)) as client:
        for cache, count, least, most in (("large", 300, 16, 40), ("small", 3000, 500, 4096)):
            pages = list(client.scan(cache, cache_id(cache), 0))
            sizes = [len(page) for page in pages]
            assert (sum(sizes), least <= max(sizes) <= most) == (count, True), sizes
            assert len({key for page in pages for _, key, _, _ in page}) == count
            left = client.scan(cache, cache_id(cache), 0)
            next(left)
            left.close()  # type: ignore[attr-defined]
        assert len(list(client.scan("small", cache_id("small")))) == len(pages)


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS:DeprecationWarning")  # of pyignite's own call
def test_log_in_and_lost_connections(ignite_nodes: LiveNodes) -> None:
    """Errors are typed, and never contain the password."""
    node = ignite_nodes.start(authentication="true")
    with pytest.raises(LoginRefused), open_thin(url_of(node)):
        pass
    wrong = url_of(node, "&user=ignite&password=wrongword")
    with pytest.raises(LoginRefused) as caught, open_thin(wrong):
        pass
    assert "wrongword" not in str(caught.value) + str(caught.value.fields)
    with pytest.raises(TlsFailed), open_thin(url_of(node, "&sslmode=require")):
        pass
    elsewhere = IgniteUrl.parse(
        f"{node.url}&address=127.0.0.1:1,{node.address}&user=ignite&password=ignite"
    )
    with open_thin(elsewhere) as client:  # the second address answers
        node.create("words")
        node.ask("put", "words", 1, "one")
        assert client.size("words", cache_id("words")) == 1
        node.kill()
        with pytest.raises(ConnectionLost):
            client.size("words", cache_id("words"))
    with pytest.raises(ServerUnreachable), open_thin(elsewhere):
        pass


def tls_files(folder: Path) -> None:
    """Write a node's keys, those it trusts, its authority, another one, and a
    client's certificate.
    """
    authority, other = trustme.CA(), trustme.CA()
    node = authority.issue_cert("127.0.0.1", "localhost")
    client = authority.issue_cert("penstock")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    node.cert_chain_pems[0].write_to_path(folder / "node.crt")
    node.private_key_pem.write_to_path(folder / "node.key")
    client.cert_chain_pems[0].write_to_path(folder / "client.crt")
    client.private_key_pem.write_to_path(folder / "client.key")
    word = "pass:penstock"
    for command in (
        ["openssl", "pkcs12", "-export", "-inkey", "node.key", "-in", "node.crt", "-out",
         "node.p12", "-passout", word],
        ["keytool", "-importcert", "-noprompt", "-file", "ca.pem", "-keystore", "trusted.p12",
         "-storetype", "PKCS12", "-storepass", "penstock"],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    for path in folder.iterdir():
        path.chmod(0o644)


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS:DeprecationWarning")  # of pyignite's own call
def test_tls(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """The right authority, a wrong one, none and no TLS; with a login, and with certificates."""
    folder = ignite.folder / "tls"
    folder.mkdir()
    tls_files(folder)
    login, right = "&user=ignite&password=ignite", f"&sslmode=verify-ca&sslrootcert={folder}/ca.pem"
    node = ignite_nodes.start(authentication="true", tlsKeys=folder / "node.p12")
    node.create("words")
    node.ask("put", "words", 1, "one")
    for sslmode in (right, "&sslmode=require"):
        with open_thin(url_of(node, login + sslmode)) as client:
            assert client.size("words", cache_id("words")) == 1
            assert [len(page) for page in client.scan("words", cache_id("words"))] == [1]
    wrong = right.replace("ca.pem", "other.pem")
    with (
        pytest.raises(TlsFailed, match="CERTIFICATE_VERIFY_FAILED"),
        open_thin(url_of(node, login + wrong)),
    ):
        pass
    with pytest.raises(LoginRefused), open_thin(url_of(node, f"&user=ignite&password=no{right}")):
        pass
    with pytest.raises(LoginRefused), open_thin(url_of(node, right)):
        pass
    with pytest.raises(ConnectFailed) as plain_one, open_thin(url_of(node, login)):
        pass
    assert "sslmode=require" in plain_one.value.hint
    node.stop()
    node.start(tlsTrusted=folder / "trusted.p12")
    with (
        pytest.raises((TlsFailed, ConnectFailed)) as refused,
        open_thin(url_of(node, login + right)),
    ):
        pass
    assert "sslcert" in refused.value.hint
    own = f"&sslcert={folder}/client.crt&sslkey={folder}/client.key"
    with open_thin(url_of(node, login + right + own)) as client:
        assert client.size("words", cache_id("words")) == 1


def test_configurations_of_what_a_program_makes(live_node: LiveNode) -> None:
    """Groups, expiry, NOT NULL and defaults are as the node stores them."""
    live_node.create("plain", atomicity="TRANSACTIONAL", group="both", expiry=60_000)
    live_node.sql(
        "create table t (a int, b varchar(7) not null, c decimal(10, 2) default 1.50, "
        "d varchar default 'x', e bigint default 5, primary key (a)) "
        'with "cache_name=t,template=replicated"'
    )
    live_node.sql("create table lower (id int primary key, v int)")
    folder = live_node.work / "db/node_1"
    files = {path.parent.name: path for path in folder.glob("*/*cache_data.dat")}
    plain = read_cache_config(files["cacheGroup-both"].read_bytes(), "plain")
    assert (plain.group, plain.atomicity) == ("both", "TRANSACTIONAL")
    assert plain.expiry is not None
    table = read_cache_config(files["cache-t"].read_bytes(), "t")
    assert (table.mode, table.schema, table.expiry) == ("REPLICATED", "PUBLIC", None)
    (entity,) = table.entities
    assert list(entity.fields) == ["A", "B", "C", "D", "E"]
    assert entity.not_null == {"B"}
    assert (dict(entity.precision), dict(entity.scale)) == ({"B": 7, "C": 10}, {"C": 2})
    assert {name: str(one) for name, one in entity.defaults.items()} == {
        "C": "1.50",
        "D": "x",
        "E": "5",
    }
