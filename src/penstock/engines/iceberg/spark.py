"""Spark's properties that Iceberg tables need: the part `spark`.

The catalogue's own properties are in the pipeline file, below [spark.conf], and Spark gets them
unchanged. So does the driver of a JDBC catalogue's database: the user adds its jar there.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engines.lake.jars import class_path, iceberg_jars
from penstock.engines.lake.url import parse_url


def properties(url: str) -> Mapping[str, str]:
    """Return the jars as the driver's class path. Raises LakeJarsMissing."""
    jars = class_path(iceberg_jars(is_on_s3=parse_url(url).is_on_s3))
    return {"spark.driver.extraClassPath": jars}
