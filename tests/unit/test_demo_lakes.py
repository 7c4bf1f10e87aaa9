"""Lakes of `penstock demo`: what is missing is told, with the command, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pipelines.cli import call_cli
from penstock.control.run import demo
from penstock.engines.lake.jars import LakeJarsMissing
from penstock.model import TableName
from penstock.ports.demo import demo_lakes
from penstock.ports.lake import ReaderMissing

LAKES = ["delta", "iceberg"]


def run(name: str) -> None:
    """Begin a demo into a lake in the working directory."""
    demo.run_demo(lambda: pytest.fail("it must not start"), print, lake=name)


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder, as if Java were there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "require_java", lambda: None)


def test_both_formats_are_lakes() -> None:
    """Each format is one, by the name of its engine."""
    assert sorted(demo_lakes()) == LAKES


@pytest.mark.parametrize("name", LAKES)
def test_missing_jars(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command that fetches them is named."""
    monkeypatch.setenv("MAVEN_ARGS", f"-Dmaven.repo.local={tmp_path}/none")
    with pytest.raises(LakeJarsMissing) as caught:
        run(name)
    assert "mvn dependency:get" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_library(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra that installs it is named."""

    def find_nothing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("penstock.engines.lake.versions.import_module", find_nothing)
    with pytest.raises(ReaderMissing, match=library) as caught:
        run(name)
    assert "pip install 'penstock[lake]'" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", LAKES)
def test_a_lake_that_exists(name: str, tmp_path: Path) -> None:
    """The lake of an earlier demo is not touched."""
    (tmp_path / f"penstock-demo-{name}").mkdir()
    with pytest.raises(demo.DemoLakeExists) as caught:
        run(name)
    assert f"rm -r {tmp_path}/penstock-demo-{name}" in caught.value.hint


@pytest.mark.parametrize("name", LAKES)
def test_lines_that_read_a_table(name: str) -> None:
    """There are three, and names with quotes are written so that Python reads them."""
    lines = demo_lakes()[name].reading_lines(Path("/it's a lake"), TableName("public", "purchase"))
    assert len(lines) == 3
    compile("\n".join(lines), name, "exec")


def test_another_word_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The lakes are named."""
    code, _, err = call_cli(capsys, "demo", "--target", "hudi")
    assert code == 2
    assert "delta, iceberg" in err
