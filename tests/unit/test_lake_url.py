"""URLs of lakes, and the keys of [target] that belong to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigOtherEngine,
    ConfigUrlInvalid,
    ConfigValueInvalid,
)
from penstock.engines.lake.url import complete_url, parse_url
from penstock.host.errors import UrlInvalid, mask
from penstock.model import TableName
from penstock.ports.config import Config, TargetSection
from penstock.ports.tables import plan_notes, plan_problems

HADOOP = {
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": "/data/lake",
}


def load(folder: Path, target: str, conf: dict[str, str] | None = None) -> Config:
    """Load a pipeline file with these lines below [target]."""
    lines = "\n".join(f'"{key}" = "{value}"' for key, value in (conf or {}).items())
    (folder / "shop.toml").write_text(
        '[pipeline]\nname = "shop"\nmode = "data+change"\ndirectory = "shop"\n'
        '[source]\nurl = "postgresql://u@h/d"\ntables = ["public.*"]\n'
        f"[target]\n{target}\n[spark.conf]\n{lines}\n"
    )
    return load_config(folder / "shop.toml")


@pytest.mark.parametrize(
    ("url", "root", "state"),
    [
        ("delta+file:///data/lake", "file:///data/lake", "file:///data/lake/_penstock"),
        ("delta+file:///data/a%20b/", "file:///data/a%20b", "file:///data/a%20b/_penstock"),
        ("delta+s3://bucket/a/b", "s3://bucket/a/b", "s3://bucket/a/b/_penstock"),
        ("delta+s3://bucket", "s3://bucket", "s3://bucket/_penstock"),
        ("delta+file:///l?state=file:///s", "file:///l", "file:///s"),
    ],
)
def test_a_delta_url_names_a_folder(url: str, root: str, state: str) -> None:
    """The URL is not decoded."""
    lake = parse_url(url)
    assert (lake.format, lake.root, lake.state) == ("delta", root, state)


@pytest.mark.parametrize(
    ("warehouse", "root"),
    [
        ("/data/lake", "file:///data/lake"),
        ("file:/data/lake", "file:///data/lake"),
        ("file:///data/lake/", "file:///data/lake"),
        ("s3a://bucket/w", "s3://bucket/w"),
        ("named", ""),
    ],
)
def test_an_iceberg_url_gets_the_catalogue_of_the_file(warehouse: str, root: str) -> None:
    """The warehouse says where the state is; options are in the URL, too."""
    conf = {**HADOOP, "spark.sql.catalog.lake.warehouse": warehouse, "spark.sql.catalog.x.type": ""}
    section = TargetSection(url="iceberg://lake/shop.eu", format_version=2, file_megabytes=7)
    lake = parse_url(complete_url(section, conf))
    assert (lake.format, lake.catalog, lake.namespace) == ("iceberg", "lake", ("shop", "eu"))
    assert lake.properties == {"type": "hadoop", "warehouse": warehouse}
    assert (lake.root, lake.state) == (root, f"{root}/shop/eu/_penstock" if root else "")
    assert (lake.format_version, lake.file_bytes) == (2, 7 * 2**20)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("delta+file://data/lake", "absolute path"),
        ("delta+file:///", "absolute path"),
        ("delta+s3:///lake", "no bucket"),
        ("delta+file:///l#1", "#"),
        ("delta+file:///l?formatVersion=2", "of Iceberg"),
        ("delta+file:///l?catalog.type=hadoop", "no catalogue"),
        ("delta+file:///l?colour=red", "'colour'"),
        ("iceberg://lake", "no catalogue and namespace"),
        ("iceberg://a-b/shop", "no catalogue and namespace"),
        ("iceberg://lake/sh!op", "'sh!op'"),
        ("iceberg://lake/shop?formatVersion=1", "formatVersion is 1"),
        ("iceberg://lake/shop?fileMegabytes=0", "fileMegabytes is 0"),
        ("iceberg://lake/shop?state=here", "state is here"),
        ("iceberg://lake/shop?partition=[1]", "partition"),
        ("delta+file:///l?partition=%7B%22a%22:[%22day(b)%22]%7D", "columns as they are"),
        ("lake", "no lake"),
    ],
)
def test_a_wrong_url_is_refused(url: str, match: str) -> None:
    """Each refusal says what to write."""
    with pytest.raises(UrlInvalid, match=match) as caught:
        parse_url(url)
    assert caught.value.hint


def test_a_file_with_an_iceberg_target(tmp_path: Path) -> None:
    """Every other part finds all facts in the URL; secrets are not shown."""
    conf = {
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": "jdbc:postgresql://u:hidden@h/d",
        "spark.sql.catalog.lake.jdbc.password": "hidden",
        "spark.sql.catalog.lake.warehouse": "s3://bucket/w",
        "spark.hadoop.fs.s3a.secret.key": "hidden",
    }
    config = load(tmp_path, 'url = "iceberg://lake/shop"\nbatchSeconds = 2.5', conf)
    lake = parse_url(config.target.url)
    assert lake.properties["jdbc.password"] == lake.s3["secret.key"] == "hidden"
    assert config.target.batch_seconds == 2.5
    for shown in (mask(config.target.url), str(config.as_shown()), repr(lake)):
        assert "hidden" not in shown


def test_partitions_are_in_the_url(tmp_path: Path) -> None:
    """One term, or several."""
    lines = 'partition = {"public.a" = "day(at)", "public.ü b" = ["x y", "bucket(4, id)"]}'
    config = load(tmp_path, f'url = "iceberg://lake/shop"\n{lines}', HADOOP)
    found = parse_url(config.target.url).partition
    assert {name: [str(one) for one in terms] for name, terms in found.items()} == {
        "public.a": ["day(at)"],
        "public.ü b": ["x y", "bucket(4, id)"],
    }


def test_plans_say_which_tables_cannot_be_partitioned(tmp_path: Path) -> None:
    """Plans name unknown tables and columns, and columns of an unfit type."""
    lines = 'partition = {"public.a" = ["day(at)", "gone"], "public.b" = "id"}'
    url = load(tmp_path, f'url = "iceberg://lake/shop"\n{lines}', HADOOP).target.url
    tables = {TableName("public", "a"): {"at": "string"}}
    assert plan_problems(url, tables, whole=True) == [
        "[target] partition of public.a: day(at) is for dates and timestamps, and at is string",
        "[target] partition of public.a: gone names the column gone, which the table does not have",
        "[target] partition names public.b, which is not a captured table",
    ]
    assert len(plan_problems(url, tables, whole=False)) == 2
    assert plan_problems("postgresql://u@h/d", tables, whole=True) == []
    assert "public.b is partitioned by id" in " ".join(plan_notes(url, ()))


def test_keys_of_lakes_are_not_shown_for_a_database(tmp_path: Path) -> None:
    """A database has neither files nor their format."""
    config = load(tmp_path, 'url = "postgresql://u@h2/d"')
    assert config.as_shown()["target"].keys() == {"url", "map", "types"}


@pytest.mark.parametrize(
    ("lines", "error", "match"),
    [
        ('url = "postgresql://u@h2/d"\nbatchSeconds = 1', ConfigOtherEngine, "this target is Post"),
        ('url = "delta+file:///l"\nformatVersion = 3', ConfigOtherEngine, "of Apache Iceberg"),
        (
            'url = "delta+file:///l"\napply = "merge"\nhistory = true',
            ConfigValueInvalid,
            "history must be",
        ),
        ('url = "delta+file:///l"\nbatchSeconds = 0', ConfigValueInvalid, "batchSeconds"),
        ('url = "delta+file:///l"\nfileMegabytes = 0', ConfigValueInvalid, "fileMegabytes"),
        ('url = "iceberg://lake/s"\nformatVersion = 1', ConfigValueInvalid, "must be 2 or 3"),
        (
            'url = "delta+file:///l"\npartition = {"public.a" = "day(at)"}',
            ConfigValueInvalid,
            r"partition of public\.a has day\(at\), and Delta Lake partitions by columns",
        ),
        (
            'url = "iceberg://lake/s"\npartition = {"public.a" = ["days(at)"]}',
            ConfigValueInvalid,
            "has days, which is not a transform",
        ),
        ('url = "iceberg://lake/s"\npartition = "at"', ConfigValueInvalid, "partition has a wrong"),
        ('url = "postgresql://u@h2/d"\npartition = {a = "b"}', ConfigOtherEngine, "partition"),
        ('url = "delta+file:///l"\ndirectPath = true', ConfigOtherEngine, "is a key of Oracle"),
        ('url = "iceberg://other/s"', ConfigUrlInvalid, "no properties of the catalogue other"),
        ('url = "delta+file://l"', ConfigUrlInvalid, "absolute path"),
    ],
)
def test_a_wrong_target_section_is_refused(
    tmp_path: Path, lines: str, error: type[Exception], match: str
) -> None:
    """Each refusal names the key."""
    with pytest.raises(error, match=match):
        load(tmp_path, lines, HADOOP)


def test_a_catalogue_without_a_place_needs_one_for_the_state(tmp_path: Path) -> None:
    """A warehouse that only the catalogue's server knows says nothing about folders."""
    conf = {"spark.sql.catalog.lake.type": "rest", "spark.sql.catalog.lake.warehouse": "main"}
    with pytest.raises(ConfigUrlInvalid, match="no folder for its state"):
        load(tmp_path, 'url = "iceberg://lake/shop"', conf)
    load(tmp_path, 'url = "iceberg://lake/shop?state=s3://bucket/penstock"', conf)
