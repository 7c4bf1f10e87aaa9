"""Spark's properties that Iceberg tables need: the part `spark`.

The catalogue's own properties are in the pipeline file, below [spark.conf], and Spark gets them
unchanged. So does the driver of a JDBC catalogue's database: the user adds its jar there.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engines.lake.jars import ICEBERG_JARS, class_path


def properties(_url: str) -> Mapping[str, str]:
    """Return the jars as the driver's class path. Raises LakeJarsMissing."""
    return {"spark.driver.extraClassPath": class_path(ICEBERG_JARS)}
