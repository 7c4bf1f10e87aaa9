"""Doctor's checks of a merge: its logs, their heartbeats, their servers' clocks and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.checks import (
    Checks,
    Examined,
    Finding,
    Looked,
    Severity,
    Side,
    SourceSeen,
    tables_not_read,
)
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, open_source
from penstock.ports.tables import tables_at

MERGE_CHECKS = Checks(Side.SOURCE)
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = ""
CHECKS_OF: Mapping[str, tuple[str, ...]] = {"MG03": ("MG23",)}
NOT_FOUND_BEFORE: Mapping[str, str] = {
    "MG01 MG02 MG04 MG05 MG06 MG07": "of what a log brings or has lost: while logs are merged",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Input of the checks.

    Attributes:
        config: the pipeline with [merge].
        tables: the tables of each log's pipeline, keyed by its name.
    """

    config: Config
    tables: Mapping[str, tuple[TableDefinition, ...]]


def server_errors(doing: str) -> AbstractContextManager[None]:  # noqa: ARG001 - the port's
    """Convert nothing: the logs' own engines raise typed errors."""
    return nullcontext()


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks."""
    config = examined.config
    tables: dict[str, tuple[TableDefinition, ...]] = {}
    for one in config.inputs:
        try:
            found = tables_at(one.source.url).read_captured(one, dropped=())
        except PenstockError as error:
            # The contents of a log are merged without its source.
            found_away = tables_not_read(error, Side.SOURCE)
            looked.findings.append(replace(found_away, severity=Severity.WARNING))
            continue
        tables[one.pipeline.name] = tuple(found)
    looked.look(MERGE_CHECKS, Merged(config=config, tables=tables))
    if len(tables) < len(config.inputs):
        return SourceSeen()
    joined: dict[TableName, TableDefinition] = {}
    for of in tables.values():
        for table in of:
            joined.setdefault(table.name, table)
    return SourceSeen(tables=tuple(joined[name] for name in sorted(joined)))


@MERGE_CHECKS.check("MG20", "heartbeats of the logs", change_only=True)
def heartbeats(merged: Merged) -> Iterator[Finding]:
    """Report logs without heartbeats: each holds the others back while its source is idle."""
    section = merged.config.merge
    assert section is not None, "a file with [merge]"
    for one in merged.config.inputs:
        every = one.change_extractor.heartbeat_seconds
        if not one.source.engine.sends_heartbeats:
            yield Finding(
                code="MG20",
                severity=Severity.INFO,
                side=Side.SOURCE,
                what=f"{one.pipeline.name} has the heartbeats that come with its changes",
                why="without any, nothing of any log is merged while its source is idle",
                command="Where it follows a pipeline of another machine, set heartbeatSeconds = 1 "
                "in [changeExtractor] of that one.",
            )
        elif every == 0 and one.pipeline.name not in section.split:
            yield Finding(
                code="MG20",
                severity=Severity.WARNING,
                side=Side.SOURCE,
                what=f"{one.pipeline.name} has no heartbeats",
                why="while its source is idle nothing of any log is merged",
                command=f"Set heartbeatSeconds = 1 in [changeExtractor] of {one.path.name}, and "
                "start its extraction again.",
            )


@MERGE_CHECKS.check("MG21", "clocks of the servers", change_only=True)
def clocks(merged: Merged) -> Iterator[Finding]:
    """Report sources whose clocks differ by more than clockSkewSeconds."""
    section = merged.config.merge
    assert section is not None, "a file with [merge]"
    ahead: dict[str, float] = {}
    for one in merged.config.inputs:
        if one.pipeline.name not in merged.tables:
            continue  # it is unreachable, which is reported already
        with closing(open_source(one, application_name="penstock doctor")) as source:
            before_us = REAL_CLOCK.now_us()
            now_us = source.state(LogEnd()).now_us
            after_us = REAL_CLOCK.now_us()
        ahead[one.pipeline.name] = (now_us - (before_us + after_us) / 2) / 1e6
    if not ahead:
        return
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    if ahead[last] - ahead[first] > section.clock_skew_seconds:
        yield Finding(
            code="MG21",
            severity=Severity.WARNING,
            side=Side.SOURCE,
            what=f"the clock of {last} is {ahead[last] - ahead[first]:.1f} s ahead of {first}'s",
            why="their transactions are merged by commit time, so in an order that was not theirs",
            command="Let a time service set the servers' clocks.",
        )


@MERGE_CHECKS.check("MG22", "the logs", change_only=True)
def logs(merged: Merged) -> Iterator[Finding]:
    """Report logs that nothing was extracted into yet."""
    for one in merged.config.inputs:
        if not (one.layout.log / "LOG.json").exists():
            yield Finding(
                code="MG22",
                severity=Severity.WARNING,
                side=Side.SOURCE,
                what=f"nothing was extracted into the log of {one.pipeline.name} yet",
                why="it is waited for: nothing of any log is merged",
                command=f"penstock run {one.path.name}",
            )


@MERGE_CHECKS.check("MG23", "tables of several logs", change_only=True)
def shared_tables(merged: Merged) -> Iterator[Finding]:
    """Report tables whose keys or columns differ between logs."""
    first: dict[TableName, tuple[str, TableDefinition]] = {}
    for name, tables in merged.tables.items():
        for table in tables:
            other, known = first.setdefault(table.name, (name, table))
            if known.key_of_changes != table.key_of_changes:
                yield _differs(table.name, "key", other, name, Severity.ERROR)
            elif _columns(known) != _columns(table):
                yield _differs(table.name, "columns", other, name, Severity.WARNING)


def _columns(table: TableDefinition) -> dict[str, str]:
    return {column.name: column.type_text for column in table.columns}


def _differs(table: TableName, what: str, first: str, second: str, severity: Severity) -> Finding:
    return Finding(
        code="MG23",
        severity=severity,
        side=Side.SOURCE,
        what=f"{table} has other {what} in {second} than in {first}",
        why="the merged log has the columns that any of them has, and one key",
        command=f"Give {table} the same {what} at both servers.",
    )


CHECKS = (*MERGE_CHECKS,)
