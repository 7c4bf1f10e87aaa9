"""Configuration of a pipeline with a MySQL or MariaDB source."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigOtherEngine,
    ConfigStartRefused,
    ConfigUrlInvalid,
    ConfigValueInvalid,
)
from penstock.engines.mysql.log_start import _taken_renamed, asked_position, server_id_of
from penstock.model import TableName
from penstock.ports.config import Config

FILE = """
[pipeline]
name = "shop"
mode = "{mode}"
directory = "shop"
[source]
url = "{url}"
tables = ["shop.*"]
[target]
url = "postgresql://loader:x@localhost:5433/shop"
[changeExtractor]
exitWhenIdle = false
{more}
"""
URL = "mysql://repl:x@localhost:3306/shop"


def config_of(folder: Path, more: str = "", *, mode: str = "change", url: str = URL) -> Config:
    """Load a file with these lines in [changeExtractor]."""
    path = folder / "shop.toml"
    path.write_text(FILE.format(mode=mode, url=url, more=more))
    return load_config(path, {})


@pytest.mark.parametrize(
    "url", [URL, "mariadb://repl:x@localhost/", "mysql://repl@h:1/a?sslmode=verify-full"]
)
def test_urls_of_these_servers_are_taken(tmp_path: Path, url: str) -> None:
    """The URL need not name a database: `tables` names databases."""
    assert config_of(tmp_path, url=url).source.engine.name == "mysql"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://localhost/shop", "no user"),
        ("mysql://repl:geheim@localhost/shop?nonsense=1", "unknown option"),
        ("mysql://repl:geheim@localhost:x/shop", "cannot be read"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(tmp_path: Path, url: str, said: str) -> None:
    """The message does not contain the password."""
    with pytest.raises(ConfigUrlInvalid, match=said) as caught:
        config_of(tmp_path, url=url)
    assert "geheim" not in caught.value.message


def test_urls_of_targets_are_looked_at_alike(tmp_path: Path) -> None:
    """No database is needed; a mistyped option is found before the start."""
    config_of(tmp_path)
    path = tmp_path / "shop.toml"
    whole = path.read_text()
    before, _, after = whole.partition("[target]")
    rest = after.split("\n", 2)[2]
    for query, said in (("", ""), ("?sslmod=require", "unknown option")):
        path.write_text(f'{before}[target]\nurl = "mysql://repl:x@localhost:3306/{query}"\n{rest}')
        if not said:
            assert load_config(path, {}).target.url.endswith(":3306/")
            continue
        with pytest.raises(ConfigUrlInvalid, match=said) as caught:
            load_config(path, {})
        assert "[target]" in caught.value.message


def test_a_starting_position_is_file_and_offset(tmp_path: Path) -> None:
    """The offset may be omitted, or both."""
    more = 'binlogFile = "mysql-bin.000042"\nbinlogPosition = 1234\nserverId = 77'
    config = config_of(tmp_path, more)
    assert str(asked_position(config)) == "mysql-bin.000042:1234"
    assert server_id_of(config) == 77
    assert str(asked_position(config_of(tmp_path, 'binlogFile = "b.000001"'))) == "b.000001:4"
    assert asked_position(config_of(tmp_path)) is None
    assert server_id_of(config_of(tmp_path)) >= 2**31


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("binlogPosition = 4", "needs binlogFile"),
        ('binlogFile = "binlog"', "binlogFile"),
        ('binlogFile = "b.000001"\nbinlogPosition = 3', "at least 4"),
        ("binlogFile = 7", "binlogFile"),
        ("serverId = -1", "serverId"),
        ("serverId = 4294967296", "serverId"),
    ],
)
def test_positions_that_are_none_are_refused(tmp_path: Path, more: str, said: str) -> None:
    """Invalid positions are refused before any server is asked."""
    with pytest.raises(ConfigValueInvalid, match=said):
        config_of(tmp_path, more)


def test_in_data_and_change_the_handover_finds_the_position(tmp_path: Path) -> None:
    """Setting one is an error; our id as a replica may be set."""
    with pytest.raises(ConfigStartRefused, match="binlogFile"):
        config_of(tmp_path, 'binlogFile = "b.000001"', mode="data+change")
    assert config_of(tmp_path, "serverId = 5", mode="data+change").change_extractor.server_id == 5


@pytest.mark.parametrize(
    "line", ['replicationSlot = "s"', 'publication = "p"', "keepMessages = true", "startScn = 4"]
)
def test_other_engines_parameters_are_refused_by_name(tmp_path: Path, line: str) -> None:
    """Such parameters would have no effect here."""
    with pytest.raises(ConfigOtherEngine, match="MySQL or MariaDB"):
        config_of(tmp_path, line)


@pytest.mark.parametrize(
    ("target", "section", "is_taken"),
    [
        (None, {}, True),
        (None, {"consumers.one": {"class": "a:B"}}, True),
        ("postgresql://u:p@h/t", {}, True),
        ("postgresql://u:p@h/t", {"consumers.one": {"class": "a:B"}}, True),
        ("postgresql://u:p@h/t", {"source": {"newTables": "leave"}}, False),
    ],
)
def test_a_renamed_table_is_followed_if_new_tables_are_added(
    tmp_path: Path, target: str | None, section: dict[str, dict[str, str]], is_taken: bool
) -> None:
    """Readers of the log beside a target get its rows when its capture begins."""
    config = pipeline(
        tmp_path, "mysql://u:p@h/shop", target, mode="change", tables=["shop.*"], sections=section
    )
    assert _taken_renamed(config)(TableName("shop", "renamed")) is is_taken
