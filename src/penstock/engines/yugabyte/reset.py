"""Objects of a pipeline at a YugabyteDB source, for a reset; see `ports.reset.SourceReset`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.codec.postgres.pgwire import quoted_name
from penstock.engines.postgres.connect import literal, server_errors
from penstock.engines.postgres.source import slot_leftovers
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot_owner import slot_of_another, slot_owner
from penstock.engines.yugabyte.catalog import connect_catalog
from penstock.engines.yugabyte.extraction import identity
from penstock.engines.yugabyte.options import wire_url
from penstock.engines.yugabyte.slots import PLUGIN
from penstock.model import PenstockError
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover
from penstock.ports.identity import check_identity, stored_identity

APPLICATION_NAME = "penstock reset"
DROP = "DROP_REPLICATION_SLOT"


class SlotReadLately(PenstockError):
    """The server drops a slot only if it was not read for a while (five minutes)."""

    code = "YB05"
    retry = "operator"


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:
    """Yield the removals. Raises SlotReadLately."""
    del handover
    if not config.pipeline.mode.has_change:
        return
    check_identity(config, stored_identity(config), identity(config))
    section = config.change_extractor
    # Checked first: the next steps would wait for a reader that may have been gone for minutes.
    _check_idle(config, section.replication_slot)
    removals = slot_leftovers.leftovers(
        wire_url(config.source.url),
        slot=section.replication_slot,
        publication=section.publication,
        plugin=PLUGIN,
    )
    drop = f"{DROP} {quoted_name(section.replication_slot)};"
    for removal in removals:
        is_slot = "pg_drop_replication_slot" in "".join(removal.statements)
        yield replace(removal, statements=(drop,)) if is_slot else removal


def _check_idle(config: Config, slot: str) -> None:
    with (
        connect_catalog(config.source.url, application_name=APPLICATION_NAME) as connection,
        server_errors(f"looking at slot {slot}"),
    ):
        row = connection.execute(
            f"select active from pg_replication_slots where slot_name = {literal(slot)}".encode()
        ).fetchone()
    if row is not None and row[0]:
        raise SlotReadLately(
            f"slot {slot} was read within the last minutes, and cannot be dropped yet",
            hint="Make sure that no client reads from it, wait five minutes, and run the same "
            "command again.",
        )


def owner(config: Config, *, log_id: str) -> str:
    """Return the owner of the slot, in words. Raises SlotOfAnother."""
    if not config.pipeline.mode.has_change:
        return ""
    section = config.change_extractor
    with connect_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        slot, publication = section.replication_slot, section.publication
        reader = slot_owner(connection, publication, slot)
        if reader is None:
            return ""
        is_other = reader.pipeline != config.pipeline.name
        if is_other or (log_id and reader.log_id != log_id):
            raise slot_of_another(connection, reader, publication, slot)
    return f"the slot belongs to pipeline {reader.pipeline}, change log {reader.log_id}"


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:
    """Drop a slot with the replication command, which every server knows."""
    del handover
    url = wire_url(config.source.url)
    if not removal.statements[0].startswith(DROP):
        slot_leftovers.remove(url, removal)
        return
    with open_replication(url, application_name=APPLICATION_NAME) as connection:
        for statement in removal.statements:
            connection.query(statement.rstrip(";"), doing=f"removing {removal.what}")
