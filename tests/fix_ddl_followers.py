"""What else follows the log of an arena, and is compared with the source at the end."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg

from fix_ddl_child import PASSWORD, Child
from fix_ddl_script import Statement
from fix_ddl_sides import ServedLog, Side, base_differences
from fix_ddl_view import SECTION, ViewFollower

NAMES = ("base", "consumer")
SERVED = """
[serve]
listen = "127.0.0.1:0"
users = { repl = "${SERVE_PASSWORD}" }
[serve.publications.p]
tables = ["*.*"]
"""
ABOUT_TABLE = re.compile(
    r"(?:alter|truncate|drop|create(?: or replace)?) table"
    r' ("(?:[^"]|"")*"|`(?:[^`]|``)*`|\w+)',
    re.IGNORECASE,
)
DDL = ("alter", "create", "drop", "rename", "truncate")

Mark = tuple[str, int]


class Follower(Protocol):
    """A further consumer of the log. error: what ended it for good; empty while it runs."""

    name: str

    @property
    def error(self) -> str:
        """What ended it for good; empty while it runs."""
        ...

    def start(self) -> None:
        """Begin to follow."""
        ...

    def tend(self) -> None:
        """Start again what has ended."""
        ...

    def finish(self) -> None:
        """Prepare the comparison."""
        ...

    def has_passed(self, fence: str, number: int) -> bool:
        """Whether a row of the table of fences is followed."""
        ...

    def differences(self, source: Side, schema: str, table: str, mark: Mark | None) -> list[str]:
        """How a table differs. mark: a row of the table of fences after its last DDL."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Base:
    """The fold of the log, as `penstock serve` answers with it."""

    name = "base"

    def __init__(self, file: Path) -> None:
        """file: of the pipeline that is served."""
        self._serve = Child("serve", file)
        self._served: ServedLog | None = None

    error = ""

    def start(self) -> None:
        """Nothing yet: it is asked at the end."""

    def tend(self) -> None:
        """It is not killed."""

    def finish(self) -> None:
        """Start to serve."""
        self._serve.start()

    def has_passed(self, fence: str, number: int) -> bool:
        """Whether a row of the table of fences is served."""
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
        """How the fold differs."""
        del mark
        assert self._served is not None, "it has passed the last fence"
        return base_differences(source, self._served, schema, table)

    def close(self) -> None:
        """End the server."""
        if self._served is not None:
            self._served.close()
        self._serve.kill()


def sections_of(also: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Sections of the pipeline file that these followers need."""
    return {"consumers.view": SECTION} if "consumer" in also else {}


def make_followers(also: Iterable[str], file: Path, dice: random.Random) -> list[Follower]:
    """The followers of a pipeline. also: names of `NAMES`."""
    wanted = set(also)
    if "base" in wanted:
        file.write_text(file.read_text() + SERVED)
    made: list[Follower] = []
    if "base" in wanted:
        made.append(Base(file))
    if "consumer" in wanted:
        made.append(ViewFollower(file, random.Random(dice.random())))
    return made


class Marks:
    """Rows of the table of fences that follow DDL, each in a later transaction."""

    def __init__(self, fence: str) -> None:
        """fence: the name of the table, with its schema."""
        self.fence = fence
        self._last: dict[tuple[str, str | None], int] = {}

    def note(self, schema: str, statements: Sequence[Statement], number: int) -> None:
        """Note the row that follows DDL of a history."""
        for statement in statements:
            if is_ddl(statement):
                self._last[schema, table_of(statement)] = number

    def find(self, schema: str, table: str) -> Mark | None:
        """The row after the last DDL that may concern a table; None if there was none."""
        numbers = [self._last.get((schema, one), 0) for one in (None, table)]
        return (self.fence, max(numbers)) if any(numbers) else None


def is_ddl(statement: Statement) -> bool:
    """Whether it may change definitions."""
    return statement.head.split(" ", 1)[0].lower() in DDL


def table_of(statement: Statement) -> str | None:
    """The only table that DDL concerns; None if it is not known."""
    found = ABOUT_TABLE.match(statement.sql)
    if found is None or re.search(r"\b(rename to|inherit|partition)\b", statement.sql, re.I):
        return None
    name, quote = found[1], found[1][0]
    return name[1:-1].replace(quote * 2, quote) if quote in '"`' else name
