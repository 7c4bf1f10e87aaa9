"""Doctor's checks of lakes, each with a lake that it accepts and one that it does not."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.engines.lake import checks
from penstock.engines.lake.checks import CHECKS, LakeSubject
from penstock.engines.lake.jars import ICEBERG_JARS, LakeJarsMissing, find_jars
from penstock.engines.lake.url import parse_url
from penstock.model import TableName
from penstock.ports.checks import Finding, Looked
from penstock.ports.registry import PartMissing
from penstock.ports.tables import plan_notes, tables_at

HADOOP_ON_S3 = "iceberg://lake/shop?catalog.type=hadoop&catalog.warehouse=s3%3A%2F%2Fb%2Fw"


def subject_of(url: str, *, is_local_spark: bool = True) -> LakeSubject:
    """Return a subject of the checks."""
    return LakeSubject(lake=parse_url(url), is_local_spark=is_local_spark)


def look(subject: LakeSubject, code: str) -> list[Finding]:
    """Return the findings of one check."""
    looked = Looked(findings=[], only=[code])
    looked.look(CHECKS, subject)
    assert looked.done == 1
    return looked.findings


def test_a_lake_that_can_be_written(tmp_path: Path) -> None:
    """The lake is accepted, and no file is left."""
    subject = subject_of(f"delta+file://{tmp_path}/lake")
    for code in ("LC01", "LC03", "LC04", "LC05"):
        assert look(subject, code) == []
    assert list(tmp_path.rglob("*")) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """A folder cannot be created below a file."""
    (tmp_path / "lake").write_text("")
    (found,) = look(subject_of(f"delta+file://{tmp_path}/lake"), "LC01")
    assert "cannot write" in found.what
    assert found.command


def test_state_of_a_load_stays(tmp_path: Path) -> None:
    """Only the check's own file is removed."""
    kept = tmp_path / "_penstock" / "log.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    assert look(subject_of(f"delta+file://{tmp_path}"), "LC01") == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]


def test_jars_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that fetches them is named."""
    monkeypatch.setenv("MAVEN_ARGS", f"-Dmaven.repo.local={tmp_path}")
    with pytest.raises(LakeJarsMissing, match="iceberg-spark-runtime"):
        find_jars(ICEBERG_JARS)
    (found,) = look(subject_of("delta+file:///lake"), "LC02")
    assert "mvn dependency:get" in found.command
    assert "delta-spark" in found.what


@pytest.mark.parametrize(
    ("url", "severity"),
    [
        ("delta+s3://bucket/lake", "W"),
        (HADOOP_ON_S3, "E"),
        (HADOOP_ON_S3.replace("hadoop", "rest"), ""),
        ("delta+file:///lake", ""),
    ],
)
def test_commits_on_an_object_store(url: str, severity: str) -> None:
    """A catalogue with a server is safe, and so is a disk."""
    assert "".join(one.severity for one in look(subject_of(url), "LC03")) == severity


def test_workers_on_a_cluster_need_a_shared_folder() -> None:
    """A folder may be shared, so this is a warning."""
    (found,) = look(subject_of("delta+file:///lake", is_local_spark=False), "LC04")
    assert found.severity == "W"
    assert look(subject_of("delta+s3://bucket/lake", is_local_spark=False), "LC04") == []


def test_clocks_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage's time is that of a file written now."""

    class Late:
        def now_us(self) -> int:
            return 0

    monkeypatch.setattr(checks, "REAL_CLOCK", Late())
    (found,) = look(subject_of(f"delta+file://{tmp_path}"), "LC05")
    assert "differ by" in found.what


def test_each_check_has_its_code() -> None:
    """The page of lakes lists them."""
    text = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    for check in CHECKS:
        assert f"| {check.code} |" in text
        assert check.title in text


def test_a_plan_says_what_readers_must_know() -> None:
    """Notes depend on the format and on the types of the columns."""
    delta = " ".join(plan_notes("delta+file:///lake", {"timestamp"}))
    assert "timestampNtz" in delta
    assert "timestampNtz" not in " ".join(plan_notes("delta+file:///lake", {"timestamptz"}))
    assert "format 3" in " ".join(plan_notes("iceberg://lake/shop", ()))
    assert "format 2" in " ".join(plan_notes("iceberg://lake/shop?formatVersion=2", ()))
    assert plan_notes("postgresql://h/d", ()) == []
    assert str(tables_at("delta+file:///lake").server_of("delta+file:///lake")).startswith("Delta")


@pytest.mark.parametrize(
    "ask",
    [
        lambda tables, config: tables.read_captured(config, dropped=()),
        lambda tables, config: tables.read_followed(config, added=()),
        lambda tables, config: tables.shift(config),
    ],
)
def test_a_lake_is_no_source(ask: Callable[[object, object], object]) -> None:
    """The error says so, whatever is asked."""

    @dataclasses.dataclass
    class Source:
        url: str = "delta+file:///lake"

    @dataclasses.dataclass
    class Pipeline:
        source: Source

    with pytest.raises(PartMissing, match="target only"):
        ask(tables_at("delta+file:///lake"), Pipeline(Source()))


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No keys of Amazon's in the environment or a file."""
    for name in checks._KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_keys")
def test_keys_of_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys must be found, both of them, and by workers on other machines, too."""
    url = "delta+s3://bucket/lake"
    (found,) = look(subject_of(url), "LC06")
    assert (found.severity, "no keys for s3://bucket/lake" in found.what) == ("W", True)
    (found,) = look(subject_of(f"{url}?s3a.access.key=a"), "LC06")
    assert (found.severity, "secret.key is not set" in found.what) == ("E", True)
    keys = "s3a.access.key=a&s3a.secret.key=b"
    assert look(subject_of(f"{url}?{keys}", is_local_spark=False), "LC06") == []
    assert look(subject_of("delta+file:///lake"), "LC06") == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    assert look(subject_of(url), "LC06") == []
    (found,) = look(subject_of(url, is_local_spark=False), "LC06")
    assert "this machine's environment alone" in found.what


def test_a_catalogue_that_does_not_answer(tmp_path: Path) -> None:
    """A port without a server, a folder that is missing, and no address are reported."""
    lake = "iceberg://lake/shop?catalog.warehouse=/data/w&"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rest = f"{lake}catalog.type=rest&catalog.uri=http://127.0.0.1:{port}"
        jdbc = f"{lake}catalog.type=jdbc&catalog.uri=jdbc:postgresql://127.0.0.1:{port}/d"
        assert look(subject_of(rest), "LC07") == look(subject_of(jdbc), "LC07") == []
    for url in (rest, jdbc):
        (found,) = look(subject_of(url), "LC07")
        assert f"127.0.0.1:{port}" in found.what
    (found,) = look(subject_of(f"{lake}catalog.type=rest"), "LC07")
    assert "has no uri" in found.what
    sqlite = f"{lake}catalog.type=jdbc&catalog.uri=jdbc:sqlite:{tmp_path}"
    assert look(subject_of(f"{sqlite}/c.db"), "LC07") == []
    (found,) = look(subject_of(f"{sqlite}/no/c.db"), "LC07")
    assert "there is no folder" in found.what
    assert look(subject_of("delta+file:///lake"), "LC07") == []


def test_tables_without_a_key_cannot_be_merged() -> None:
    """Name each of them, if Spark merges rows."""
    merges = subject_of("delta+file:///lake?apply=merge")
    events = TableName("public", "events")
    assert look(merges, "LC09") == []
    (found,) = look(replace(merges, keyless=(events,)), "LC09")
    assert "public.events has no key" in found.what
    assert 'apply = "position"' in found.command
    assert look(replace(subject_of("delta+file:///lake"), keyless=(events,)), "LC09") == []


def test_versions_that_end_too_early() -> None:
    """Versions are kept for an hour at least."""
    url = "delta+file:///lake?versionHours="
    assert look(subject_of(f"{url}1"), "LC08") == []
    (found,) = look(subject_of(f"{url}0.5"), "LC08")
    assert "0.5 hours" in found.what
