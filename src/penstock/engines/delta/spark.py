"""Spark's properties that Delta tables need: the part `spark`."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engines.lake.jars import DELTA_JARS, class_path

# The checksum file of each commit costs three quarters of its CPU time, and state reconstruction
# with Spark's 50 partitions most of the rest.
_FIXED: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def properties(_url: str) -> Mapping[str, str]:
    """Return the properties, with the jars as the driver's class path. Raises LakeJarsMissing."""
    return {**_FIXED, "spark.driver.extraClassPath": class_path(DELTA_JARS)}
