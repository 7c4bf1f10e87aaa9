"""Doctor's checks of a YugabyteDB source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.yugabyte import slots
from penstock.engines.yugabyte.catalog import connect_catalog, tables_of
from penstock.engines.yugabyte.options import retention_s, wire_url
from penstock.engines.yugabyte.tables import stored_place
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError
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

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "CHECKS_OF_A_NEW_TABLE",
    "DROP_PROGRESS",
    "NOT_FOUND_BEFORE",
    "look_at_source",
    "server_errors",
]

SOURCE_CHECKS = Checks(Side.SOURCE)
CHECKS = SOURCE_CHECKS
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = ""
CHECKS_OF: Mapping[str, tuple[str, ...]] = {"YB02": ("YB20",), "YB03": ("YB21",)}
NOT_FOUND_BEFORE: Mapping[str, str] = {
    "YB01": "of a table: doctor reports it when it reads the tables",
    "YB04": "of a snapshot: while tables are loaded",
    "YB05": "of a reset: while the slot is dropped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Input of the checks. found: the slot."""

    config: Config
    found: slots.YbSlot | None
    database: str


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks."""
    config = examined.config
    try:
        with connect_catalog(config.source.url, application_name="penstock doctor") as connection:
            tables = tables_of(connection, config.source.tables, dropped=examined.followed())
            database = connection.info.dbname
        with open_replication(
            wire_url(config.source.url), application_name="penstock doctor"
        ) as replication:
            found = slots.read_slot(replication, config.change_extractor.replication_slot)
        judged, new = examined.judged(tables)
    except PenstockError as error:
        looked.findings.append(tables_not_read(error, Side.SOURCE))
        looked.skip(SOURCE_CHECKS)
        return SourceSeen()
    looked.findings.extend(new)
    seen = Seen(config=config, found=found, database=database)
    looked.look(SOURCE_CHECKS, seen, typed=server_errors)
    return SourceSeen(tables=tuple(judged))


@SOURCE_CHECKS.check("YB20", "the replication slot", change_only=True)
def slot(seen: Seen) -> Iterator[Finding]:
    """Report a slot that cannot continue the log."""
    place = stored_place(seen.config)
    if seen.found is None and not place.stream_id:
        return
    try:
        slots.check_slot(
            seen.found,
            seen.config.change_extractor.replication_slot,
            known=place,
            database=seen.database,
            position=0,
        )
    except PenstockError as error:
        yield Finding(
            code="YB20",
            severity=Severity.ERROR,
            side=Side.SOURCE,
            what=error.message,
            why="the change log cannot go on from this slot",
            command=error.hint,
        )


@SOURCE_CHECKS.check("YB21", "what the server keeps for the slot", change_only=True)
def retention(seen: Seen) -> Iterator[Finding]:
    """Report a slot that has confirmed nothing for most of the time that changes are kept."""
    if seen.found is None or seen.found.is_served:
        return
    kept_s = retention_s(seen.config.source.url)
    age = slots.age_s(seen.found.restart_ht, REAL_CLOCK.now_us())
    if age is None or age < kept_s / 2:
        return
    yield Finding(
        code="YB21",
        severity=Severity.ERROR if age > kept_s else Severity.WARNING,
        side=Side.SOURCE,
        what=f"the slot has confirmed nothing for {age / 3600:.1f} of the {kept_s / 3600:g} hours "
        "for which the server keeps changes",
        why="changes that are not confirmed in time are gone, and the tables must be loaded again",
        command=f"penstock run {seen.config.path.name}",
    )
