"""Spark's properties for a lake: jars as class path, beside what the pipeline file says."""

from __future__ import annotations

from pathlib import Path

from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.engines.lake.jars import (
    DELTA_JARS,
    ICEBERG_JARS,
    class_path,
    delta_jars,
    iceberg_jars,
)
from penstock.load.session import session_options
from penstock.load.spark_properties import add_needed
from penstock.ports.registry import spark_needs

CLASS_PATH = "spark.driver.extraClassPath"
EXTENSIONS = "spark.sql.extensions"


def test_a_lake_needs_the_jars_of_its_format() -> None:
    """A lake needs the jars of its format."""
    delta = spark_needs("delta+file:///data/lake")
    assert delta[CLASS_PATH] == class_path(DELTA_JARS)
    assert spark_needs("iceberg://ice/shop")[CLASS_PATH] == class_path(ICEBERG_JARS)
    assert delta["spark.databricks.delta.writeChecksumFile.enabled"] == "false"


def test_a_lake_on_s3_needs_more_jars_and_says_where_it_is() -> None:
    """A lake in an object store needs the classes that reach it; Delta's are Hadoop's."""
    delta = spark_needs("delta+s3://bucket/lake?s3a.endpoint=http://127.0.0.1:9")
    assert delta[CLASS_PATH] == class_path(delta_jars(is_on_s3=True))
    assert delta["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert delta["spark.hadoop.fs.s3a.path.style.access"] == "true"
    iceberg = spark_needs("iceberg://ice/shop?catalog.type=jdbc&catalog.warehouse=s3://b/w")
    assert iceberg[CLASS_PATH] == class_path(iceberg_jars(is_on_s3=True))


def test_executors_on_other_machines_get_the_jars(tmp_path: Path) -> None:
    """Spark sends the jars to a cluster's executors, and none to those below the driver."""
    for master, count in (("spark://host:7077", len(DELTA_JARS)), ("local[2]", 0)):
        path = write_pipeline(
            tmp_path,
            "postgresql://u@h/d",
            "delta+file:///data/lake",
            sections={"spark": {"master": master}},
        )
        conf = session_options(load_config(path)).conf
        assert len([jar for jar in conf.get("spark.jars", "").split(",") if jar]) == count


def test_a_database_needs_nothing() -> None:
    """A database needs nothing."""
    assert spark_needs("postgresql://host/shop") == {}


def test_lists_are_joined_and_other_values_are_the_users() -> None:
    """Lists are joined and other values are the user's."""
    needed = {CLASS_PATH: "/delta.jar", EXTENSIONS: "delta", "spark.one": "ours"}
    given = {CLASS_PATH: "/driver.jar", "spark.one": "theirs", "spark.two": "2"}
    assert add_needed(given, needed) == {
        CLASS_PATH: "/driver.jar:/delta.jar",
        EXTENSIONS: "delta",
        "spark.one": "theirs",
        "spark.two": "2",
    }
    assert add_needed(given, {}) == given
