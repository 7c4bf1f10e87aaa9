"""Scripts of random histories: the statements at a source, in order, with pauses."""

from __future__ import annotations

from dataclasses import dataclass

STARTED = "-- the pipeline is started"
SOURCES = "-- sources:"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of SQL.

    Attributes:
        actions: Parts of an ALTER TABLE, each of which can be left out.
    """

    head: str
    actions: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """Whole text."""
        return f"{self.head} {', '.join(self.actions)}" if self.actions else self.head

    @property
    def is_ddl(self) -> bool:
        """Return whether it changes a definition."""
        return self.head.partition(" ")[0] in ("alter", "create", "drop", "rename", "truncate")


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction, or a pause of that many rounds, in each of which a batch may be applied."""

    statements: tuple[Statement, ...] = ()
    pause: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """A history: tables with rows that exist before the pipeline, and the steps after that."""

    source: str
    setup: tuple[Statement, ...]
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        """Text of the script, as a person reads and types it."""
        lines = [f"{one.sql};" for one in self.setup]
        lines.append(STARTED)
        for step in self.steps:
            if step.pause:
                lines.append(f"-- a pause of {step.pause}")
            elif len(step.statements) == 1:
                lines.append(f"{step.statements[0].sql};")
            else:
                lines += ["begin;", *(f"{one.sql};" for one in step.statements), "commit;"]
        return "\n".join(lines)

    @property
    def size(self) -> int:
        """Length for a reader: statements, actions and pauses."""
        listed = [*self.setup, *(one for step in self.steps for one in step.statements)]
        parts = sum(max(1, len(one.actions)) for one in listed)
        return parts + sum(step.pause for step in self.steps)


def read_script(text: str, source: str) -> Script | None:
    """Read a script in the form of `Script.text`, a statement per line; None if for other sources.

    A first line `-- sources: mysql mariadb` says for which kinds of servers it is written.
    """
    setup: list[Statement] = []
    steps: list[Step] = []
    into: list[Statement] | None = None
    is_started = False
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(SOURCES):
            if source not in line.removeprefix(SOURCES).split():
                return None
        elif line == STARTED:
            is_started = True
        elif line.startswith("-- a pause of "):
            steps.append(Step(pause=int(line.rpartition(" ")[2])))
        elif line == "begin;":
            into = []
        elif line == "commit;":
            steps.append(Step(tuple(into or ())))
            into = None
        elif not line.startswith("--"):
            statement = Statement(line.removesuffix(";"))
            if not is_started:
                setup.append(statement)
            elif into is not None:
                into.append(statement)
            else:
                steps.append(Step((statement,)))
    return Script(source, tuple(setup), tuple(steps))
