"""Spark's properties for a lake: jars as class path, beside what the pipeline file says."""

from __future__ import annotations

from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS, class_path
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
