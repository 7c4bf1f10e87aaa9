"""Doctor on live Ignite nodes: facts that only they know, and states of real directories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from harness.ignite.recordings import Calls, unpack_recording
from harness.ignite.turns import ours
from penstock.control.doctor.doctor import Report, examine
from penstock.control.pipeline.config import load_config
from penstock.ports.checks import Finding, Severity
from plugins.ignite_live import LiveNode, LiveNodes
from plugins.ignite_node import Ignite

PASSWORD = "ignite"


def report(node: LiveNode, url: str = "", tables: str = "*", mode: str = "change") -> Report:
    """Return doctor's report on a node, asked at its address."""
    file = node.work.parent / "doctor.toml"
    file.write_text(
        f'[pipeline]\nname = "node"\nmode = "{mode}"\ndirectory = "{node.work.parent / "p"}"\n'
        f'[source]\nurl = "{url or f"{node.url}&address={node.address}"}"\ntables = ["{tables}"]\n'
    )
    return examine(load_config(file))


def findings(node: LiveNode, url: str = "", tables: str = "*") -> dict[str, Finding]:
    """Return the findings above mere information, by code."""
    found = report(node, url, tables).findings
    return {one.code: one for one in found if one.severity is not Severity.INFO}


def test_a_node_as_it_should_be(live_node: LiveNode) -> None:
    """Doctor finds nothing while a consumer keeps up, and asked everything."""
    live_node.create("person")
    live_node.ask("person", "person", 1, "Ann", 1)
    live_node.await_linked()
    ours(live_node.work, Calls(live_node.cdc))
    live_node.give()
    assert findings(live_node) == {}
    assert report(live_node).checks_skipped == 0
    assert report(live_node, live_node.url).checks_skipped > 0


def test_switched_off_in_the_cluster(live_node: LiveNode) -> None:
    """Links are skipped after cdc.disabled; a log can be off for one cache."""
    live_node.ask("property", "cdc.disabled", "true")
    assert findings(live_node)["IG20"].severity is Severity.ERROR  # the gap would be invisible
    live_node.ask("property", "cdc.disabled", "false")
    live_node.create("person")
    live_node.sql("create table city (id int primary key, n varchar)")
    live_node.await_linked()
    ours(live_node.work, Calls(live_node.cdc))
    live_node.give()
    live_node.ask("property", "cdc.disabled", "true")
    assert findings(live_node).keys() == {"IG20"}
    live_node.await_linked()
    found = findings(live_node)
    assert found.keys() == {"IG05", "IG20"}
    assert "--property set --name cdc.disabled --val false" in found["IG20"].command
    assert found["IG20"].severity is Severity.WARNING
    live_node.ask("property", "cdc.disabled", "false")
    live_node.await_linked()
    assert findings(live_node).keys() == {"IG06"}
    live_node.sql("alter table city nologging")
    found = findings(live_node)
    assert found.keys() == {"IG06", "IG17"}
    assert "SQL_PUBLIC_CITY" in found["IG17"].what


def test_settings_of_the_node(ignite_nodes: LiveNodes) -> None:
    """Doctor finds a region without CDC, no forced rotation, a size limit that is reached."""
    node = ignite_nodes.start(plainRegion="true", forceArchive=-1, cdcMax=1_000_000)
    node.create("person")
    node.create("other", region="plain")
    assert [one.code for one in report(node).findings if one.code == "IG22"] == []
    node.create("session", expiry=1000)
    [told] = [one for one in report(node).findings if one.code == "IG22"]
    assert "session" in told.what
    found = findings(node)
    assert found.keys() == {"IG16", "IG18"}
    assert found["IG16"].severity is Severity.WARNING
    assert "other" in found["IG16"].what
    assert findings(node, tables="other")["IG16"].severity is Severity.ERROR
    assert "IG16" not in findings(node, tables="person")
    for _ in range(60):
        node.ask("person", "person", 1, "A" * 50_000, 1)
        if node.await_linked() - node.segments()[-1] > 1:
            break
    found = findings(node)
    assert {"IG05", "IG19"} <= found.keys()
    assert found["IG19"].severity is Severity.WARNING
    assert "cdcWalDirectoryMaxSize" in found["IG19"].why + found["IG19"].what


def test_another_path_and_another_node(ignite_nodes: LiveNodes) -> None:
    """The node's CdcWalPath is not that of url; the address is another node's."""
    one = ignite_nodes.start("node-1", cdcPath="db/wal/elsewhere")
    two = ignite_nodes.start("node-2")
    one.ask("baseline")
    one.create("person")
    found = findings(one)
    assert found.keys() == {"IG01", "IG21"}
    assert "cdcWalPath=db/wal/elsewhere" in found["IG21"].command
    found = findings(one, f"{one.url}&address={one.address}&cdcWalPath=db/wal/elsewhere")
    assert found == {}
    assert "IG15" in findings(one, f"{two.url}&address={two.address}".replace("node-2", "node-1"))


def test_no_log(ignite_nodes: LiveNodes) -> None:
    """The directories exist with WalMode NONE, but nothing is written."""
    node = ignite_nodes.start(walMode="NONE")
    node.create("person")
    node.ask("person", "person", 1, "Ann", 1)
    found = findings(node)
    assert {"IG14", "IG17"} <= found.keys()
    assert found["IG14"].severity is found["IG17"].severity is Severity.ERROR


def test_encryption(ignite: Ignite, ignite_nodes: LiveNodes) -> None:
    """An encrypted cache is reported."""
    keys = ignite.folder / "keys.jks"
    subprocess.run(
        ["keytool", "-genseckey", "-alias", "ignite.master.key", "-keystore", keys, "-storetype",
         "PKCS12", "-keyalg", "aes", "-storepass", "penstock", "-keysize", "256"],
        check=True, capture_output=True,
    )  # fmt: skip
    keys.chmod(0o644)
    node = ignite_nodes.start(keystore=keys)
    node.create("secret", encryption="true")
    node.create("person")
    found = findings(node)
    assert found.keys() == {"IG11"}
    assert "secret" in found["IG11"].what


def test_the_node_cannot_be_asked(ignite_nodes: LiveNodes) -> None:
    """A node that is down, an unknown user or an inactive cluster is a warning while rows wait."""
    node = ignite_nodes.start(authentication="true")
    node.create("person")
    address = f"{node.url}&address={node.address}"
    [refused] = findings(node, address).values()
    assert (refused.severity, "user=" in refused.command) == (Severity.WARNING, True)
    found = findings(node, f"{address}&user=ignite&password={PASSWORD}")
    assert found == {}
    node.ask("state", "INACTIVE")
    [inactive] = findings(node, f"{address}&user=ignite&password={PASSWORD}").values()
    assert "cluster is inactive" in inactive.what
    node.stop()
    [away] = findings(node, address).values()
    assert away.severity is Severity.WARNING
    assert node.address in away.what


def test_with_a_target(tmp_path: Path, target_url: str) -> None:
    """The target's checks know the caches' tables: possible losses need a choice."""
    work = unpack_recording("one", tmp_path / "work")
    file = tmp_path / "node.toml"
    file.write_text(
        f'[pipeline]\nname = "node"\nmode = "change"\ndirectory = "{tmp_path / "p"}"\n'
        f'[source]\nurl = "ignite://{work}?consistentId=node-1"\ntables = ["typed"]\n'
        f'[target]\nurl = "{target_url}"\n'
    )
    found = [one for one in examine(load_config(file)).findings if one.code == "PK17"]
    assert any("typed.TS" in one.what and "nanoseconds" in one.command for one in found), found
    file.write_text(file.read_text() + '[target.types]\n"*" = "error"\n')
    errors = examine(load_config(file)).errors
    assert [one for one in errors if one.code.startswith("PK17")] == []
    # A table may hold more than the cache shows: its columns grow with their values.
    with psycopg.connect(target_url, autocommit=True) as sql:
        sql.execute('create table public.typed ("DE" numeric, "CH" varchar(3))')
    [shape] = [one for one in examine(load_config(file)).errors if one.code == "PK12"]
    assert "CH is character varying(3), expected character varying(5)" in shape.what
    assert "DE is" not in shape.what
