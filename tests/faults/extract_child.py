"""An extractor in a process of its own, which is killed.

Arguments: URL, directory, and the size of WAL in bytes above which it catches up by COPY.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor


class Recorder:
    """Recorder that keeps nothing; the extractor calls it."""

    def note_opened(self, number: int, position: int) -> None:
        """Ignore that a segment was opened."""

    def note_closed(self, segment: object) -> None:
        """Ignore that a segment was closed."""


def main() -> None:
    """Extract until idle, in many small segments."""
    url, directory, *more = sys.argv[1:]
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
    options = ExtractOptions(
        slot="penstock_kill",
        publication="p",
        exit_when_idle=True,
        idle_wait_s=0.5,
        flush_interval_s=0.1,
        events_per_flush=20,
        operation_count_max=150,
        catch_up_bytes=int(more[0]) if more else 0,
        catch_up_range_bytes=100_000,
    )
    engine = PostgresEngine(url, tables=tables, options=options)
    Extractor(engine, Path(directory), recorder=Recorder(), options=options).run()


if __name__ == "__main__":
    main()
