"""One small Spark session with the jars of the lakes, for tests that need the formats' classes.

It is started as `penstock run` starts it. A JVM has one session, so modules of tests share it
through a fixture with a wider scope, or start one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.engines.delta.spark import properties as delta_properties
from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS, class_path
from penstock.load.session import Session, SessionOptions, start_session

ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def lake_properties(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of a session that reads and writes both formats.

    more: of a catalogue, such as `spark.sql.catalog.ice.type`.
    """
    of_delta = delta_properties("delta+file:///lake")
    return {
        **of_delta,
        "spark.sql.extensions": f"{of_delta['spark.sql.extensions']},{ICEBERG_EXTENSION}",
        "spark.driver.extraClassPath": class_path((*DELTA_JARS, *ICEBERG_JARS)),
        "spark.driver.memory": "768m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        # Delta lists the files of a VACUUM in as many tasks: 10,000 by default.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.adaptive.enabled": "false",
        **(more or {}),
    }


@contextmanager
def lake_session(
    folder: Path, more: Mapping[str, str] | None = None, *, master: str = "local[1]"
) -> Iterator[Session]:
    """Start a session; end it afterwards. folder: for Spark's own files. more: properties."""
    options = SessionOptions(work_directory=folder, master=master, conf=lake_properties(more))
    with start_session(options) as session:
        yield session
