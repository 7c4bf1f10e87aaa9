"""Spark's properties that Delta tables need: the part `spark`."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engines.lake.jars import class_path, delta_jars
from penstock.engines.lake.object_store import spark_properties
from penstock.engines.lake.url import parse_url

# The checksum file of each commit costs three quarters of its CPU time, and state reconstruction
# with Spark's 50 partitions most of the rest.
_FIXED: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def properties(url: str) -> Mapping[str, str]:
    """Return the properties, with the jars as the driver's class path. Raises LakeJarsMissing."""
    lake = parse_url(url)
    jars = class_path(delta_jars(is_on_s3=lake.is_on_s3))
    return {**_FIXED, **spark_properties(lake.s3), "spark.driver.extraClassPath": jars}
