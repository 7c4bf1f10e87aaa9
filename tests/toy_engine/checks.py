"""Doctor's checks: the part `checks`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from penstock.model import PenstockError
from penstock.ports.checks import Check, Checks, Examined, Finding, Looked, Severity, Side
from penstock.ports.checks import SourceSeen as Seen
from toy_engine.facts import read_captured
from toy_engine.store import Store

TARGET_CHECKS = Checks(Side.TARGET)
CHECKS: Sequence[Check] = TARGET_CHECKS
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = "delete from notes"
CHECKS_OF: Mapping[str, tuple[str, ...]] = {}
NOT_FOUND_BEFORE: Mapping[str, str] = {}


def server_errors(_doing: str) -> AbstractContextManager[None]:
    """Convert nothing: the store's errors have their types already."""
    return nullcontext()


@TARGET_CHECKS.check("TY02", "the file's rights")
def writable(path: Path) -> Iterator[Finding]:
    """Yield a finding unless SQLite can write the file, and others beside it."""
    if not os.access(path.parent, os.W_OK) or not os.access(path, os.W_OK):
        yield Finding(
            code="TY02",
            severity=Severity.ERROR,
            side=Side.TARGET,
            what=f"{path} cannot be written",
            why="nothing can be loaded into it",
            command=f"chmod u+w {path.parent} {path}",
        )


def look_at_source(examined: Examined, looked: Looked) -> Seen:
    """Do the source's checks."""
    try:
        return Seen(tables=tuple(read_captured(examined.config, dropped=())))
    except PenstockError as error:
        looked.away(error, Side.SOURCE)
        return Seen()


def look_at_target(examined: Examined, looked: Looked, source: Seen) -> bool:
    """Do the target's checks; return whether it was reached."""
    del source
    try:
        with closing(Store(examined.config.target.url)) as store:
            looked.look(TARGET_CHECKS, store.path)
    except PenstockError as error:
        looked.away(error, Side.TARGET, TARGET_CHECKS)
        return False
    return True
