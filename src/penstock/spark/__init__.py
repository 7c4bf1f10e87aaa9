"""Read a change log in Spark: `spark.read.format("ckt")` and `spark.readStream.format("ckt")`.

Spark finds the format where penstock is installed; `register` announces it to a session that does
not. Partitions are groups of segments. A batch has what was in the log when the data frame was
made; a stream is a consumer of the log, for which segments are kept. Filters are not pushed down:
Spark 4.1 keeps a pushed filter for later queries of the same data frame, which then lack rows. So
limits are options. Not here: the rows as Arrow (`penstock.log.scan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.source import CktSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(session: SparkSession) -> None:
    """Announce the format `ckt` to a session.

    Args:
        session: A SparkSession. Only needed where Spark's own search for data sources is off.
    """
    session.dataSource.register(CktSource)
