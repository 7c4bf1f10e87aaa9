"""Section [consumers.NAME] and its class: valid values, and one typed error per mistake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.pipelines.pipeline import write_pipeline
from penstock.consume import classes
from penstock.consume.classes import ConsumerClassInvalid, ConsumerClassNotFound, make_consumer
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    ConfigPatternInvalid,
    ConfigValueInvalid,
)
from penstock.control.pipeline.consumers import ConsumerUnknown, section_of
from penstock.model.sections import Start
from penstock.ports.config import Config

MODULE = """
from penstock.consume import CdcConsumer

class Search(CdcConsumer):
    def __init__(self, index, size=3):
        self.index, self.size = index, size
    def on_events(self, events):
        return True

class Batches(CdcConsumer):
    def on_batches(self, batches):
        return True

class Both(Batches):
    def on_events(self, events):
        return True

class Neither(CdcConsumer):
    pass

class NoArgument(Search):
    def on_events(self):
        return True

class Three(Search):
    def on_truncate(self, table, gsn, why):
        pass

class Generating(Search):
    def on_events(self, events):
        yield 1

class Field(Search):
    stop = 3

class Raising(Search):
    def __init__(self):
        raise OSError("no such index")

class Other:
    def on_events(self, events):
        return True

NUMBER = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, which is unloaded afterwards."""
    (tmp_path / "shop_classes.py").write_text(MODULE)
    (tmp_path / "shop_broken.py").write_text("import shop_nothing_of_this_name")
    (tmp_path / "shop_failing.py").write_text("1 / 0")
    (tmp_path / "shop_exiting.py").write_text("raise SystemExit(0)")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    for name in ("shop_classes", "shop_broken", "shop_failing", "shop_exiting"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return tmp_path


def test_a_class_is_found_beside_the_pipeline_file(folder: Path) -> None:
    """The class gets its options as keyword arguments."""
    made: Any = make_consumer("shop_classes:Search", {"index": "items"}, beside=folder)
    assert (type(made).__name__, made.index, made.size) == ("Search", "items", 3)
    assert make_consumer("shop_classes:Batches", {}, beside=folder).alive()


def test_a_class_is_found_by_the_name_of_an_entry_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package offers it in the group penstock.consumers."""
    made = make_consumer("shop_classes:Batches", {}, beside=folder)

    class Points(list[Any]):
        names = frozenset({"batches", "broken"})

    def broken() -> None:
        raise ImportError("half installed")

    def entry_points(*, group: str, name: str = "") -> Points:
        assert group == "penstock.consumers"
        loads = {"batches": lambda: type(made), "broken": broken}
        found = [SimpleNamespace(load=loads[name], value="a:b")] if name in loads else []
        return Points(found)

    monkeypatch.setattr(classes, "entry_points", entry_points)
    assert type(make_consumer("batches", {}, beside=folder)) is type(made)
    with pytest.raises(ConsumerClassNotFound, match="half installed"):
        make_consumer("broken", {}, beside=folder)
    with pytest.raises(ConsumerClassNotFound, match=r"there: batches, broken"):
        make_consumer("others", {}, beside=folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("shop_absent:Search", "there is no module shop_absent"),
        ("shop_classes.sub:Search", "shop_classes"),
        ("shop_broken:Search", "importing shop_broken failed: No module named 'shop_nothing"),
        ("shop_failing:Search", "importing shop_failing failed: ZeroDivisionError"),
        ("shop_exiting:Search", "importing shop_exiting failed: SystemExit: 0"),
        ("shop_classes:Serach", "shop_classes has no Serach"),
        ("shop_classes:", "shop_classes has no empty name"),
        ("search", "no installed package has an entry point"),
    ],
)
def test_a_class_that_is_not_there(folder: Path, text: str, why: str) -> None:
    """The error says what was searched in which place, and the next command."""
    with pytest.raises(ConsumerClassNotFound) as caught:
        make_consumer(text, {"index": "items"}, beside=folder)
    assert why in caught.value.message
    assert "penstock consume FILE NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("Search", {}, "does not take these options: missing a required argument: 'index'"),
        ("Search", {"index": 1, "colour": 2}, "does not take these options"),
        ("Raising", {}, "raised OSError when it was created: no such index"),
        ("Other", {}, "does not derive from penstock.consume.CdcConsumer"),
        ("NUMBER", {}, "is int, not a class"),
        ("Both", {}, "has both on_events and on_batches"),
        ("Neither", {}, "has neither on_events nor on_batches"),
        ("NoArgument", {"index": 1}, "has a on_events that does not take one argument"),
        ("Three", {"index": 1}, "has a on_truncate that does not take one or two arguments"),
        ("Generating", {"index": 1}, "async or a generator"),
        ("Field", {"index": 1}, "has a stop that is not a method"),
    ],
)
def test_a_class_that_is_no_consumer(
    folder: Path, name: str, options: dict[str, Any], why: str
) -> None:
    """Wrong signatures are found before the start, not at the first event."""
    with pytest.raises(ConsumerClassInvalid) as caught:
        make_consumer(f"shop_classes:{name}", options, beside=folder)
    assert why in caught.value.message
    assert "docs/consumers.md" in caught.value.hint


# -- the section -----------------------------------------------------------------------------


def config_with(folder: Path, lines: str) -> Config:
    """Return the configuration of a pipeline file with these lines at its end."""
    path = write_pipeline(folder, "postgresql://u@localhost/a", "postgresql://u@localhost/b")
    path.write_text(path.read_text() + lines)
    return load_config(path, {})


def test_a_consumer_has_the_published_names_and_defaults(tmp_path: Path) -> None:
    """Only its class is required."""
    config = config_with(
        tmp_path,
        """
[consumers.plain]
class = "a:B"
[consumers.search]
class = "shop_app.search:SearchIndex"
options = { index = "items", password = "secret1" }
tables = ["public.item"]
start = "beginning"
lockTimeout = 50
checkFrequency = 20
keepBinary = false
cdcWalDirectoryMaxSize = 1000000
walForceArchiveTimeout = 700
""",
    )
    plain = config.consumers["plain"]
    assert (plain.lock_timeout, plain.check_frequency, plain.keep_binary) == (1000, 1000, True)
    assert (plain.cdc_wal_directory_max_size, plain.wal_force_archive_timeout) == (0, -1)
    assert (plain.start, plain.size_bytes_max, plain.tables) == (Start.NOW, None, ())
    search = section_of(config, "search")
    assert search.options["index"] == "items"
    assert (search.start, search.size_bytes_max) == (Start.BEGINNING, 1_000_000)
    shown = config.as_shown()["consumers"]["search"]
    assert shown["class"] == "shop_app.search:SearchIndex"
    assert shown["options"] == {"index": "items", "password": "***"}
    with pytest.raises(ConsumerUnknown, match="has no consumer serach") as caught:
        section_of(config, "serach")
    assert caught.value.hint == "Did you mean search?"


@pytest.mark.parametrize(
    ("lines", "kind", "why"),
    [
        ("[consumers.a]\n", ConfigKeyMissing, r"\[consumers\.a\] has no class"),
        ('[consumers.a]\nclass = " "\n', ConfigValueInvalid, "must name a class"),
        ('[consumers]\na = "b"\n', ConfigValueInvalid, "must be sections"),
        ('[consumers.target]\nclass = "a:b"\n', ConfigValueInvalid, "cannot be named 'target'"),
        ('[consumers."a b"]\nclass = "a:b"\n', ConfigValueInvalid, "cannot be named"),
        ('[consumers.a]\nclass = "a:b"\nlock = 1\n', ConfigKeyUnknown, "unknown key lock"),
        ('[consumers.a]\nclass = "a:b"\nlockTimeout = 0\n', ConfigValueInvalid, "more than 0"),
        ('[consumers.a]\nclass = "a:b"\nstart = "then"\n', ConfigValueInvalid, "expected one of"),
        ('[consumers.a]\nclass = "a:b"\ntables = ["x"]\n', ConfigPatternInvalid, "no schema"),
        (
            '[consumers.a]\nclass = "a:b"\ncdcWalDirectoryMaxSize = -1\n',
            ConfigValueInvalid,
            "must be 0",
        ),
        (
            '[consumers.a]\nclass = "a:b"\nwalForceArchiveTimeout = 0\n',
            ConfigValueInvalid,
            "must be -1",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(
    tmp_path: Path, lines: str, kind: type[Exception], why: str
) -> None:
    """Each has a typed error."""
    with pytest.raises(kind, match=why):
        config_with(tmp_path, lines)
