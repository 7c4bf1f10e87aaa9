"""Slots of YugabyteDB: creating, reading and recognising them.

An LSN has a meaning only within its slot, and a recreated slot counts from the beginning. So the
log keeps the slot's stream id and, with its position, the hybrid time up to which the server has
seen everything confirmed (`yb_restart_commit_ht`).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire import quoted_name
from penstock.engines.postgres.connect import literal, quote, server_errors
from penstock.engines.postgres.source import slot as postgres
from penstock.engines.postgres.source import slot_owner
from penstock.engines.postgres.source.client import ReplicationConnection, Row
from penstock.engines.yugabyte.catalog import connect_catalog, read_published
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.model import LOAD_AGAIN, PenstockError, TableName
from penstock.ports.config import Config

PLUGIN = "yboutput"
STATE_FILE = "slot.json"
SERVED = "(penstock)"  # in the version of a `penstock serve`


class SlotReplaced(PenstockError):
    """The slot was dropped and recreated: its LSNs are not those of the log."""

    code = "YB02"
    retry = "operator"


class RetentionOver(PenstockError):
    """Changes were not confirmed for longer than the server keeps them."""

    code = "YB03"
    retry = "operator"


class HistoryGone(PenstockError):
    """A later consistent point is needed, but the server has only that of the slot."""

    code = "YB04"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """Stored facts about a log's slot. restart_ht: a hybrid time, 0 if it is not known."""

    stream_id: str = ""
    restart_ht: int = 0
    tables: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class YbSlot:
    """A slot: PostgreSQL's state of it, and the dialect's columns.

    is_served: the server is a penstock (`penstock serve`), which keeps unconfirmed changes without
    a time limit.
    """

    state: postgres.SlotState
    stream_id: str
    restart_ht: int
    is_served: bool = False


def micros(hybrid_time: int) -> int:
    """Return the microseconds since 1970 UTC of a hybrid time, whose 12 low bits are a counter."""
    return hybrid_time >> 12


def read_slot(connection: ReplicationConnection, name: str) -> YbSlot | None:
    """Read the slot; None if it does not exist."""
    state = postgres.read_slot(connection, name)
    if state is None:
        return None
    rows = connection.query(
        "select yb_stream_id, yb_restart_commit_ht, version() as version from pg_replication_slots "
        f"where slot_name = {literal(name)}",
        doing=f"looking at slot {name}",
    )
    row: Row = rows[0] if rows else {}
    return YbSlot(
        state=state,
        stream_id=row.get("yb_stream_id") or "",
        restart_ht=int(row.get("yb_restart_commit_ht") or 0),
        is_served=SERVED in (row.get("version") or ""),
    )


def check_slot(
    found: YbSlot | None, name: str, *, known: SlotPlace, database: str, position: int
) -> YbSlot:
    """Return the slot if the log may continue in it at this position. Pure.

    Raises SlotReplaced, and the errors of PostgreSQL's `check_slot`.
    """
    state = found.state if found is not None else None
    if found is not None and known.stream_id and found.stream_id != known.stream_id:
        raise SlotReplaced(
            f"slot {name} was recreated (stream {found.stream_id}, the log was filled from "
            f"{known.stream_id}): its LSNs count from its own beginning",
            hint=f"Changes between the two slots are gone; {LOAD_AGAIN}",
            expected=known.stream_id,
            actual=found.stream_id,
        )
    postgres.check_slot(state, name, database=database, position=position, plugin=PLUGIN)
    assert found is not None, "check_slot() refuses it"
    return found


def age_s(restart_ht: int, now_us: int) -> float | None:
    """Return the seconds since the server saw everything confirmed; None if it is not known."""
    return max((now_us - micros(restart_ht)) / 1e6, 0.0) if restart_ht else None


def check_retention(found: YbSlot, name: str, retention_s: float) -> None:
    """Raise RetentionOver if a slot was left for longer than the server keeps changes."""
    age = None if found.is_served else age_s(found.restart_ht, REAL_CLOCK.now_us())
    if age is not None and age > retention_s:
        raise RetentionOver(
            f"slot {name} has confirmed nothing for {age / 3600:.1f} hours; the server keeps "
            f"changes for {retention_s / 3600:g} hours, so some may be gone",
            hint="If its flag cdc_intent_retention_ms is higher, set it in source.url: "
            f"?retention_hours=24; otherwise {LOAD_AGAIN}",
        )


def create_slot(
    connection: ReplicationConnection, name: str, *, lsn_type: str, has_snapshot: bool = True
) -> postgres.CreatedSlot:
    """Create the slot; snapshot_id is the hybrid time of its consistent point, if that is wanted.

    The last word of the command is left out for SEQUENCE, which is the default: older servers do
    not know it.
    """
    faults.point("slot.create.before")
    word = "" if has_snapshot else " NOEXPORT_SNAPSHOT"
    word += "" if lsn_type == "SEQUENCE" else f" {lsn_type}"
    row = connection.query(
        f"CREATE_REPLICATION_SLOT {quoted_name(name)} LOGICAL {PLUGIN}{word}",
        doing=f"making slot {name}",
    )[0]
    faults.point("slot.create.after")
    return postgres.CreatedSlot(
        name=name,
        position=Lsn.parse(row["consistent_point"] or "0/0").ordinal,
        snapshot_id=row["snapshot_name"] or "",
    )


def ensure_publication(connection: psycopg.Connection, name: str, tables: list[TableName]) -> None:
    """Create the publication if it is missing. Raises PublicationUnfit, PublicationMissing."""
    found = read_published(connection, name)
    missing = [table for table in tables if table not in found]
    if not missing:
        return
    listed = ", ".join(quote(*table) for table in missing)
    if found:
        raise postgres.PublicationUnfit(
            f"publication {name} lacks {len(missing)} of the pipeline's tables: "
            f"{', '.join(map(str, missing))}",
            hint=f"alter publication {quote(name)} add table {listed};",
        )
    with server_errors(f"making publication {name}"):
        connection.execute(f"create publication {quote(name)} for table {listed}".encode())


def choose_names(config: Config) -> dict[str, str]:
    """Return keys of [changeExtractor] for a new pipeline; none if the default slot is free."""
    with connect_catalog(config.source.url, application_name="penstock init") as connection:
        return slot_owner.choose_free(connection, config)
