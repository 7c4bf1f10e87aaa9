"""An extractor of a MySQL or MariaDB source in a process of its own, which is killed.

Arguments: URL, directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.engines.mysql.source.beginning import find_beginning
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.extract.extractor import ExtractOptions, Extractor


class Recorder:
    """Recorder that keeps nothing; the extractor calls it."""

    def note_opened(self, number: int, position: int) -> None:
        """Ignore that a segment was opened."""

    def note_closed(self, segment: object) -> None:
        """Ignore that a segment was closed."""


def main() -> None:
    """Extract until idle, in many small segments."""
    url, directory = sys.argv[1:]
    beginning = find_beginning(url, [f"{url.rpartition('/')[2]}.*"])
    options = ExtractOptions(
        exit_when_idle=True,
        idle_wait_s=1.0,
        flush_interval_s=0.1,
        events_per_flush=20,
        operation_count_max=150,
    )
    engine = MySQLEngine(
        url,
        tables=beginning.tables,
        options=options,
        beginning=beginning,
        task=directory,
    )
    Extractor(engine, Path(directory), recorder=Recorder(), options=options).run()


if __name__ == "__main__":
    main()
