"""Data source `ckt` for Spark, which looks for a DefaultSource in packages named `pyspark_…`.

So `spark.read.format("ckt")` works wherever penstock is installed. See `penstock.spark`.
"""

from penstock.spark.source import CktSource as DefaultSource

__all__ = ["DefaultSource"]
