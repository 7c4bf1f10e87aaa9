"""Further followers of an arena's log, which are compared with the source at the end."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg

from harness.pipelines.ddl_changelog import SECTION as FLEXCDC
from harness.pipelines.ddl_changelog import Changelogs
from harness.pipelines.ddl_child import PASSWORD, Child
from harness.pipelines.ddl_processes import Mark, Processes
from harness.pipelines.ddl_script import Statement
from harness.pipelines.ddl_sides import ServedLog, Side, base_differences
from harness.pipelines.ddl_view import SECTION, ViewFollower

NAMES = ("base", "merge", "consumer", "flexcdc")
SERVED = """
[serve]
listen = "127.0.0.1:0"
users = { repl = "${SERVE_PASSWORD}" }
[serve.publications.p]
tables = ["*.*"]
"""
MERGED = """
[pipeline]
name = "shop"
directory = "all"
mode = "data+change"
[merge]
logs = ["../{file}"]
joinSeconds = 1
[changeExtractor]
flushIntervalSeconds = 0.5
"""
ABOUT_TABLE = re.compile(
    r"(?:alter|truncate|drop|create(?: or replace)?) table"
    r' ("(?:[^"]|"")*"|`(?:[^`]|``)*`|\w+)',
    re.IGNORECASE,
)
DDL = ("alter", "create", "drop", "rename", "truncate")


class Follower(Protocol):
    """A further consumer of the log.

    Attributes:
        error: Error that ended it for good; empty while it runs.
    """

    name: str

    @property
    def error(self) -> str:
        """Error that ended it for good; empty while it runs."""
        ...

    def start(self) -> None:
        """Begin to follow."""
        ...

    def tend(self) -> None:
        """Start ended processes again."""
        ...

    def disturb(self) -> None:
        """Kill a process now and then."""
        ...

    def finish(self) -> None:
        """Prepare the comparison."""
        ...

    def has_passed(self, fence: str, number: int) -> bool:
        """Return whether a row of the table of fences has arrived."""
        ...

    def differences(self, source: Side, schema: str, table: str, mark: Mark | None) -> list[str]:
        """Return a table's differences. mark: a row of the table of fences after its last DDL."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Served(Processes):
    """The folded log, as `penstock serve` answers with it."""

    def __init__(
        self,
        name: str,
        file: Path,
        dice: random.Random,
        children: Sequence[Child] = (),
        *,
        has_zero_dates: bool = True,
    ) -> None:
        """Prepare to serve; file is the served pipeline's, children are the processes it needs.

        has_zero_dates: the file does not choose NULL for them.
        """
        super().__init__(children, dice)
        self._has_zero_dates = has_zero_dates
        self.name = name
        self._serve = Child("serve", file)
        self._served: ServedLog | None = None

    def finish(self) -> None:
        """Start to serve."""
        self._serve.start()

    def has_passed(self, fence: str, number: int) -> bool:
        """Return whether a row of the table of fences is served."""
        if self._served is None:
            said = self._serve.last("address")
            if not said:
                return False
            self._served = ServedLog(int(said["address"].rpartition(":")[2]), PASSWORD)
        try:
            _, rows = self._served.rows(*fence.split("."))
        except psycopg.Error:
            return False
        return (str(number),) in rows

    def differences(self, source: Side, schema: str, table: str, mark: Mark | None) -> list[str]:
        """Return the differences of the folded log."""
        assert self._served is not None, "it has passed the last fence"
        return base_differences(
            source, self._served, schema, table, self.name, has_zero_dates=self._has_zero_dates
        )

    def close(self) -> None:
        """End all processes, and the server."""
        super().close()
        if self._served is not None:
            self._served.close()
        self._serve.kill()


def make_merge(file: Path, dice: random.Random) -> Served:
    """Make a pipeline that merges only the log of another one, and keeps a base."""
    folder = file.parent / "merged"
    folder.mkdir()
    merged = folder / "merged.toml"
    merged.write_text(MERGED.format(file=file.name) + SERVED)
    return Served("merge", merged, dice, [Child("merge", merged), Child("load", merged)])


def sections_of(also: Sequence[str], types: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """Return the sections of the pipeline file that these followers need.

    types: choices of [target.types].
    """
    found: dict[str, Mapping[str, Any]] = {}
    if "consumer" in also:
        found["consumers.view"] = SECTION
    if "merge" in also:
        found["changeExtractor"] = {"flushIntervalSeconds": 0.5, "heartbeatSeconds": 0.5}
    if "flexcdc" in also:
        found |= {"flexcdc": FLEXCDC, "flexcdc.types": types}
    return found


def make_followers(
    also: Sequence[str], file: Path, target: Side, dice: random.Random, *, has_zero_dates: bool
) -> list[Follower]:
    """Return the followers of a pipeline.

    also: names of `NAMES`. target: of the pipeline. has_zero_dates: see `Served`.
    """
    if {"base", "merge"} & set(also):  # a log with a target has a base if it is served
        file.write_text(file.read_text() + SERVED)
    makers: dict[str, Callable[[random.Random], Follower]] = {
        "base": lambda own: Served("base", file, own, has_zero_dates=has_zero_dates),
        "merge": lambda own: make_merge(file, own),
        "consumer": lambda own: ViewFollower(file, own),
        "flexcdc": lambda own: Changelogs(file, target, own),
    }
    return [makers[name](random.Random(dice.random())) for name in NAMES if name in also]


class Marks:
    """Rows of the table of fences that follow DDL, each in a later transaction."""

    def __init__(self, fence: str) -> None:
        """Begin without marks; fence is the name of the table, with its schema."""
        self.fence = fence
        self._last: dict[tuple[str, str | None], int] = {}

    def note(self, schema: str, statements: Sequence[Statement], number: int) -> None:
        """Record the row that follows DDL of a history."""
        for statement in statements:
            if is_ddl(statement):
                self._last[schema, table_of(statement)] = number

    def find(self, schema: str, table: str) -> Mark | None:
        """Return the row after the last DDL that may concern a table; None if there was none."""
        numbers = [self._last.get((schema, one), 0) for one in (None, table)]
        if not any(numbers):
            return None
        return Mark(self.fence, max(numbers))


def is_ddl(statement: Statement) -> bool:
    """Return whether it may change definitions."""
    return statement.head.split(" ", 1)[0].lower() in DDL


def table_of(statement: Statement) -> str | None:
    """Return the only table that DDL concerns; None if it is not known."""
    found = ABOUT_TABLE.match(statement.sql)
    if found is None or re.search(r"\b(rename to|inherit|partition)\b", statement.sql, re.I):
        return None
    return _unquote(found[1])


def _unquote(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '"`' else name
