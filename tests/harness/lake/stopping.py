"""Loader whose Spark stops without it, in a process of its own: a JVM has one Spark context.

`python -m harness.lake.stopping KIND MOMENT FOLDER` loads a log into a lake. At one commit Spark
stops, as after an error of its own that it cannot survive, and its JVM runs on. It prints what came
of it, in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.lake.applying import Shop, content_of, create_table
from harness.lake.sides import DeltaSide, IcebergSide, Side, rows_of
from harness.lake.spark import lake_properties
from penstock.engines.delta.table import DeltaTable
from penstock.engines.iceberg.table import IcebergTable
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import SessionKeeper, SessionOptions
from penstock.log.layout import list_segments

STOPS_AT = 6
"""Number of the commit at which Spark stops: in the second batch or the third."""


class Runs:
    """An action that is always RUN."""

    def word(self) -> str:
        """Return RUN."""
        return "RUN"


class Stop:
    """The stop of Spark at a commit."""

    def __init__(self, sessions: SessionKeeper, moment: str) -> None:
        """Keep the sessions. moment: `before` or `after` the commit."""
        self._sessions, self._moment = sessions, moment
        self.commit_count = 0

    def around(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        """Return a table's commit at which Spark stops once."""

        def stopping(table: Any, commits: Any) -> Any:
            self.commit_count += 1
            is_now = self.commit_count == STOPS_AT
            if is_now and self._moment == "before":
                self._sessions.get().spark.sparkContext().stop()
            done = commit(table, commits)
            if is_now and self._moment == "after":
                self._sessions.get().spark.sparkContext().stop()
            return done

        return stopping


def load(kind: str, moment: str, folder: Path) -> dict[str, Any]:
    """Load a log of random changes; return the number of sessions and what is equal."""
    lake = folder / "lake"
    conf = lake_properties(
        {"spark.sql.catalog.ice1.type": "hadoop", "spark.sql.catalog.ice1.warehouse": str(lake)}
    )
    options = SessionOptions(work_directory=folder / "spark", master="local[1]", conf=conf)
    sessions = SessionKeeper(options)
    side: Side
    if kind == "delta":
        side = DeltaSide(sessions.get(), lake)
    else:
        side = IcebergSide(sessions.get(), lake, 3)
    shop = Shop(folder / "log", 11)
    for table in shop.tables:
        create_table(side.catalogue(), table.shape, is_delta=kind == "delta")
    shop.write(40)
    last = list_segments(folder / "log")[-1].number
    stop = Stop(sessions, moment)
    changed: Any = DeltaTable if kind == "delta" else IcebergTable
    changed.commit = stop.around(changed.commit)
    loader = Loader(
        LoaderOptions(
            url=side.url,
            log_directory=folder / "log",
            state_directory=folder,
            run_directory=folder,
            max_files_per_batch=1,
            exit_when_done=False,
        ),
        sessions,
        stop=lambda: loader.state.applied_segment >= last,
        actions=Runs(),
    )
    loader.run()
    side.session = sessions.get()
    equal = [
        table.name.name
        for table in shop.tables
        if content_of(rows_of(side.read(table.name))) == table.content
    ]
    sessions.close()
    return {
        "restarts": sessions.restart_count,
        "commits": stop.commit_count,
        "batches": loader.state.batch_count,
        "equal": equal,
    }


if __name__ == "__main__":
    found = load(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.stdout.write(json.dumps(found) + "\n")
