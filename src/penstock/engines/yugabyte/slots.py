"""Slots of YugabyteDB: made, looked at, and recognised again.

An LSN means something within its slot alone, and a slot that is made anew begins to count anew: the
log keeps the slot's stream id, and with its position the hybrid time up to which the server has
seen everything confirmed (`yb_restart_commit_ht`).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire import quoted_name
from penstock.engines.postgres.connect import literal, quoted, server_errors
from penstock.engines.postgres.source import slot as postgres
from penstock.engines.postgres.source import slot_names
from penstock.engines.postgres.source.client import ReplicationConnection, Row
from penstock.engines.yugabyte.catalog import opened, published
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.model import LOAD_AGAIN, PenstockError, TableName
from penstock.ports.config import Config

PLUGIN = "yboutput"
STATE_FILE = "slot.json"
SERVED = "(penstock)"  # in the version of a server of ours


class SlotReplaced(PenstockError):
    """The slot was dropped and made again: its LSNs are not those of the log."""

    code = "YB02"
    retry = "operator"


class RetentionOver(PenstockError):
    """Changes were not confirmed for longer than the server keeps them."""

    code = "YB03"
    retry = "operator"


class HistoryGone(PenstockError):
    """A later consistent point is needed, and the server has only that of the slot."""

    code = "YB04"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """What a log remembers of its slot. restart_ht: a hybrid time, 0 where it is not known."""

    stream_id: str = ""
    restart_ht: int = 0
    tables: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class YbSlot:
    """A slot: what PostgreSQL says of one, and the dialect's columns.

    is_served: by a penstock (`penstock serve`), which keeps what is not confirmed, however long.
    """

    state: postgres.SlotState
    stream_id: str
    restart_ht: int
    is_served: bool = False


def micros(hybrid_time: int) -> int:
    """The microseconds since 1970 UTC of a hybrid time, which has a counter in its 12 low bits."""
    return hybrid_time >> 12


def read_slot(connection: ReplicationConnection, name: str) -> YbSlot | None:
    """The slot; None where there is none."""
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
    """Whether the log may go on at position in this slot. Pure.

    Raises SlotReplaced, and what PostgreSQL's `check_slot` does.
    """
    state = found.state if found is not None else None
    if found is not None and known.stream_id and found.stream_id != known.stream_id:
        raise SlotReplaced(
            f"slot {name} was made anew (stream {found.stream_id}, the log was filled from "
            f"{known.stream_id}): its LSNs count from its own beginning",
            hint=f"Changes between the two slots are gone; {LOAD_AGAIN}",
            expected=known.stream_id,
            actual=found.stream_id,
        )
    postgres.check_slot(state, name, database=database, position=position, plugin=PLUGIN)
    assert found is not None, "check_slot() refuses it"
    return found


def age_s(restart_ht: int, now_us: int) -> float | None:
    """How long ago the server saw everything confirmed; None where it does not say."""
    return max((now_us - micros(restart_ht)) / 1e6, 0.0) if restart_ht else None


def check_retention(found: YbSlot, name: str, retention_s: float) -> None:
    """Refuse a slot that was left for longer than the server keeps changes. RetentionOver."""
    age = None if found.is_served else age_s(found.restart_ht, REAL_CLOCK.now_us())
    if age is not None and age > retention_s:
        raise RetentionOver(
            f"slot {name} has confirmed nothing for {age / 3600:.1f} hours; the server keeps "
            f"changes for {retention_s / 3600:g} hours, so some may be gone",
            hint="If its flag cdc_intent_retention_ms is higher, say so in source.url: "
            f"?retention_hours=24; otherwise {LOAD_AGAIN}",
        )


def create_slot(
    connection: ReplicationConnection, name: str, *, lsn_type: str, has_snapshot: bool = True
) -> postgres.CreatedSlot:
    """Make the slot; snapshot_id is the hybrid time of its consistent point, if that is wanted.

    The last word is left out for SEQUENCE, which is the default: older servers do not know it.
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
    """Make the publication where there is none. Raises PublicationUnfit, PublicationMissing."""
    found = published(connection, name)
    missing = [table for table in tables if table not in found]
    if not missing:
        return
    listed = ", ".join(quoted(*table) for table in missing)
    if found:
        raise postgres.PublicationUnfit(
            f"publication {name} lacks {len(missing)} of the pipeline's tables: "
            f"{', '.join(map(str, missing))}",
            hint=f"alter publication {quoted(name)} add table {listed};",
        )
    with server_errors(f"making publication {name}"):
        connection.execute(f"create publication {quoted(name)} for table {listed}".encode())


def choose_names(config: Config) -> dict[str, str]:
    """Return keys of [changeExtractor] for a new pipeline; none if the default slot is free."""
    with opened(config.source.url, application_name="penstock init") as connection:
        return slot_names.choose_free(connection, config)
