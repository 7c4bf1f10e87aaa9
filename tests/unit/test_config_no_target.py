"""A pipeline file without [target]: extraction and consumers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config, need_target
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    TargetMissing,
)
from penstock.ports.config import Config, Mode
from penstock.ports.registry import PartMissing

FILE = """
[pipeline]
name = "shop"
directory = "a shop"
[source]
url = "postgresql://repl@localhost:5432/shop"
tables = ["public.*"]
"""


def config_of(tmp_path: Path, text: str) -> Config:
    """Load `text` as a pipeline file."""
    path = tmp_path / "shop.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, {"MODE": "data"})


def test_target_may_be_left_out(tmp_path: Path) -> None:
    """The mode is change then, and progress is kept in the directory; its place is not secret."""
    config = config_of(tmp_path, FILE)
    assert config.has_target is False
    assert config.pipeline.mode is Mode.CHANGE
    file = f"{tmp_path}/a%20shop/state/wirekite.db"
    assert config.target.url == f"sqlite://{file}"
    assert "target" not in config.as_shown()
    assert config.as_shown()["pipeline"]["mode"] == "change"


def test_mode_change_may_be_said_and_target_too(tmp_path: Path) -> None:
    """The default may be written down; with a target the rules are unchanged."""
    assert config_of(
        tmp_path, FILE.replace("[source]", 'mode = "change"\n[source]')
    ).has_target is (False)
    with_target = FILE + '[target]\nurl = "mysql://u@h/d"\n'
    with pytest.raises(ConfigKeyMissing, match="mode"):
        config_of(tmp_path, with_target)
    config = config_of(tmp_path, with_target.replace("[source]", 'mode = "data"\n[source]'))
    assert (config.has_target, config.pipeline.mode) == (True, Mode.DATA)


@pytest.mark.parametrize("name", ["traget", "Target", "targets"])
def test_a_misspelt_target_is_not_taken_for_none(tmp_path: Path, name: str) -> None:
    """The section is unknown; the error has the nearest known name and its line."""
    with pytest.raises(ConfigKeyUnknown, match=f"line 8.*unknown section {name}") as caught:
        config_of(tmp_path, f'{FILE}[{name}]\nurl = "mysql://u@h/d"\n')
    assert caught.value.hint == "Did you mean target?"


def test_a_target_without_url_is_an_error(tmp_path: Path) -> None:
    """An empty section does not mean that there is no target."""
    with pytest.raises(ConfigKeyMissing, match=r"\[target\] has no url"):
        config_of(tmp_path, FILE.replace("[source]", 'mode = "data"\n[source]') + "[target]\n")


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ('mode = "data"', "line 5, [pipeline]: mode data loads"),
        ('mode = "${MODE}"', "line 5, [pipeline]: mode data loads"),
        ("[dataLoader]", "line 5, [dataLoader]: this section"),
        ('[spark]\nmaster = "local[2]"', "line 5, [spark]: this section"),
        ("[schemaChanges]", "line 5, [schemaChanges]: this section"),
        ("[changeLoader]\nonTableError = 'stop'", "line 6, [changeLoader]: onTableError"),
        ("[changeLoader]\nmaxThreads = 2", "line 6, [changeLoader]: maxThreads"),
    ],
)
def test_what_is_about_loading_is_refused(tmp_path: Path, more: str, place: str) -> None:
    """Such settings would be ignored silently: the error names the place and both ways out."""
    with pytest.raises(TargetMissing) as caught:
        config_of(tmp_path, FILE.replace("[source]", f"{more}\n[source]"))
    assert place in caught.value.message
    assert "[target]" in caught.value.message
    assert "add [target]" in caught.value.hint.replace("Add", "add")
    assert caught.value.code == "CF11"


def test_the_log_may_have_a_base_all_the_same(tmp_path: Path) -> None:
    """Mode data+change without a target keeps one, with or without [serve]; others do not."""
    config = config_of(tmp_path, FILE.replace("[source]", 'mode = "data+change"\n[source]'))
    assert (config.has_base, config.has_target) == (True, False)
    assert not config.pipeline.mode.has_data
    assert not config_of(tmp_path, FILE).has_base


def test_what_extraction_needs_of_the_loader_is_taken(tmp_path: Path) -> None:
    """Extraction needs names of segments, and how often the open one is synced for its readers."""
    text = (
        '[changeLoader]\nchangeFileExtension = "log"\nreadOpenSegment = false\n'
        "applyIntervalSeconds = 0.5\n"
    )
    loader = config_of(tmp_path, FILE + text).change_loader
    assert (loader.change_file_extension, loader.flushed_for_loader_s) == ("log", None)
    with pytest.raises(ConfigKeyUnknown, match="changeFileExtention"):
        config_of(tmp_path, FILE + '[changeLoader]\nchangeFileExtention = "log"\n')


@pytest.mark.parametrize("section", ["source", "target"])
def test_the_progress_file_is_nobody_elses_database(tmp_path: Path, section: str) -> None:
    """SQLite cannot be named as source or target."""
    text = f'{FILE}[target]\nurl = "mysql://u@h/d"\n'.replace(
        "[source]", 'mode = "change"\n[source]'
    )
    old = {"source": "postgresql://repl@localhost:5432/shop", "target": "mysql://u@h/d"}[section]
    with pytest.raises(PartMissing, match="SQLite has no part 'options'"):
        config_of(tmp_path, text.replace(old, "sqlite:///tmp/x.db"))


def test_a_command_that_needs_a_target_says_what_to_run(tmp_path: Path) -> None:
    """A command with a target continues."""
    config = config_of(tmp_path, FILE)
    with pytest.raises(TargetMissing, match=r"shop.toml has no \[target\]: there") as caught:
        need_target(config, "there is nowhere to load", instead="Run `penstock extract FILE`")
    assert caught.value.hint.startswith("Run `penstock extract FILE`; or add [target]")
    other = FILE.replace("[source]", 'mode = "data"\n[source]') + '[target]\nurl = "mysql://u@h/d"'
    need_target(config_of(tmp_path, other), "", instead="")
