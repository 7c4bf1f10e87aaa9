"""Objects of a pipeline at a PostgreSQL source that a reset removes; see
`ports.reset.SourceReset`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.extraction import read_identity
from penstock.engines.postgres.source import slot_leftovers
from penstock.engines.postgres.source.slot_owner import slot_of_another, slot_owner
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover
from penstock.ports.identity import check_identity, stored_identity

APPLICATION_NAME = "penstock reset"


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:
    """Yield the removals."""
    if handover is not None and handover.paused:
        yield Removal(
            what="the pause of the standby's replay",
            statements=("select pg_wal_replay_resume();",),
        )
    if not config.pipeline.mode.has_change:
        return
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        check_identity(config, stored_identity(config), read_identity(connection, config))
    section = config.change_extractor
    yield from slot_leftovers.leftovers(
        config.source.url, slot=section.replication_slot, publication=section.publication
    )


def owner(config: Config, *, log_id: str) -> str:
    """Return the owner of the slot, in words. Raises SlotOfAnother."""
    if not config.pipeline.mode.has_change:
        return ""
    section = config.change_extractor
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        slot, publication = section.replication_slot, section.publication
        reader = slot_owner(connection, publication, slot)
        if reader is None:
            return ""
        is_other = reader.pipeline != config.pipeline.name
        if is_other or (log_id and reader.log_id != log_id):
            raise slot_of_another(connection, reader, publication, slot)
    return f"the slot belongs to pipeline {reader.pipeline}, change log {reader.log_id}"


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:  # noqa: ARG001
    """Carry a removal out."""
    slot_leftovers.remove(config.source.url, removal)
