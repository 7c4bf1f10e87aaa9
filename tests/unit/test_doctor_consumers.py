"""Checks PK22 and PK23 of doctor: classes of consumers and plugins, before they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pipelines.pipeline import write_pipeline
from penstock.control.doctor.local_checks import consumer_classes, flexcdc_plugins
from penstock.control.pipeline.config import load_config
from penstock.ports.checks import Finding
from penstock.ports.config import Config

MODULE = """
from penstock.consume import CdcConsumer
print("imported")

class Good(CdcConsumer):
    def __init__(self, index):
        raise OSError("doctor makes none")
    def on_events(self, events):
        return True
    @staticmethod
    def stop():
        pass

class Wrong(CdcConsumer):
    def on_events(self):
        return True

class Both(CdcConsumer):
    def on_events(self, events):
        return True
    def on_batches(self, batches):
        return True

class Other:
    pass

def making(index):
    return Good(index)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the pipeline file."""
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    (tmp_path / "doctored_consumers.py").write_text(MODULE)


def config(folder: Path, sections: dict[str, dict[str, object]]) -> Config:
    """Return a pipeline without a target."""
    path = write_pipeline(folder, "postgresql://a@127.0.0.1:1/a", None, sections=sections)
    return load_config(path)


def find_findings(folder: Path, class_: str, **options: object) -> list[Finding]:
    """Return the findings for one consumer."""
    section = {"class": class_}
    more = {"consumers.search.options": options} if options else {}
    return list(consumer_classes(config(folder, {"consumers.search": section, **more})))


def test_classes_that_are_good_are_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Output of their module does not get into doctor's output."""
    assert find_findings(tmp_path, "doctored_consumers:Good", index="a") == []
    assert find_findings(tmp_path, "doctored_consumers:making", index="a") == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("class_", "options", "said"),
    [
        ("doctored_absent:Good", {"index": "a"}, "there is no module doctored_absent"),
        ("doctored_consumers:Gone", {"index": "a"}, "has no Gone"),
        ("doctored_consumers:Good", {}, "does not take these options: missing a required"),
        ("doctored_consumers:making", {"colour": 1}, "does not take these options"),
        ("doctored_consumers:Wrong", {}, "has a on_events that does not take one argument"),
        ("doctored_consumers:Both", {}, "has both on_events and on_batches"),
        ("doctored_consumers:Other", {}, "does not derive from penstock.consume.CdcConsumer"),
    ],
)
def test_a_class_that_would_end_at_its_start(
    tmp_path: Path, class_: str, options: dict[str, object], said: str
) -> None:
    """The finding is a warning with the consumer's name: the load runs without it."""
    (finding,) = find_findings(tmp_path, class_, **options)
    assert (finding.code, finding.severity) == ("PK22", "W")
    assert said in finding.what
    assert "consumer search" in finding.why
    assert "penstock consume shop.toml search" in finding.command


def test_plugins_are_loaded(tmp_path: Path) -> None:
    """One plugin is missing, and one is there."""

    def look(plugin: str) -> list[Finding]:
        section = {"dest": "postgresql://a@127.0.0.1:1/b", "plugin": plugin}
        return list(flexcdc_plugins(config(tmp_path, {"flexcdc": section})))

    assert look("penstock.consume.plugins:Example") == []
    (finding,) = look("doctored_consumers:Gone")
    assert (finding.code, finding.severity) == ("PK23", "W")
    assert "has no Gone" in finding.what
