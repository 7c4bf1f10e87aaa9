"""Owner of a slot: a line in the comment of the publication; and names that are free at a server.

A slot's name belongs to the whole server, and Wirekite's guide gives every pipeline the same one,
so a second pipeline needs another. No hint of ours drops a slot to free its name: another pipeline
or database may need what the server keeps for it.

A slot has only a name, which Wirekite's guide fixes for every pipeline. So the pipeline that reads
from a slot writes its name beside it, where it can be read whatever the pipeline's target is.
`slot_owner` returns it. A publication of another role may not be commented: such a slot has no
owner, and a standby keeps the one it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg

from penstock.engines.postgres.connect import connect, literal, quote, server_errors
from penstock.engines.postgres.source.slot import SlotInUse
from penstock.model import LOAD_AGAIN, PenstockError
from penstock.ports.config import Config

TAKEN = """
    select slot_name::text as name from pg_replication_slots
    union all
    select pubname::text from pg_publication
"""
NAME_BYTES_MAX = 63
_ODD = re.compile(r"[^a-z0-9_]+")


def choose_names(config: Config) -> dict[str, str]:
    """Return keys of [changeExtractor] for a new pipeline; none if the default slot is free."""
    with connect(config.source.url, application_name="penstock init") as connection:
        return choose_free(connection, config)


def choose_free(connection: psycopg.Connection, config: Config) -> dict[str, str]:
    """Return the same, asked on a connection to the source."""
    section = config.change_extractor
    slot, publication = section.replication_slot, section.publication
    if slot not in _read_taken(connection):
        return {}
    suffix = _ODD.sub("_", config.pipeline.name.lower()).strip("_") or "2"
    return _keys(*free_names(connection, slot, publication, suffix))


def free_names(
    connection: psycopg.Connection, slot: str, publication: str, suffix: str = "2"
) -> tuple[str, str]:
    """Return unused names of a slot and a publication, both with the same suffix."""
    taken = _read_taken(connection)
    number, tail = 1, suffix
    while True:
        names = (_with(slot, tail), _with(publication, tail))
        if taken.isdisjoint(names):
            return names
        number += 1
        tail = str(number + 1) if suffix == "2" else f"{suffix}_{number}"


def own_names_hint(connection: psycopg.Connection, slot: str, publication: str) -> str:
    """Return the lines to type for a pipeline whose slot's name is used by something else."""
    keys = _keys(*free_names(connection, slot, publication))
    lines = ", ".join(f'{key} = "{name}"' for key, name in keys.items())
    return f"Give this pipeline a slot and a publication of its own, in [changeExtractor]: {lines}."


def _keys(slot: str, publication: str) -> dict[str, str]:
    return {"replicationSlot": slot, "publication": publication}


def _with(name: str, tail: str) -> str:
    kept = name.encode()[: NAME_BYTES_MAX - len(tail) - 1].decode(errors="ignore")
    return f"{kept}_{tail[: NAME_BYTES_MAX // 2]}"


def _read_taken(connection: psycopg.Connection) -> set[str]:
    with server_errors("looking at slots and publications"):
        return {row[0] for row in connection.execute(TAKEN).fetchall()}


COMMENT = """
    select coalesce(obj_description(oid, 'pg_publication'), '') as comment,
           pg_has_role(pubowner, 'usage') and not pg_is_in_recovery() as may_change
      from pg_publication
     where pubname = %(publication)s
"""
SLOT_AND_READER = """
    select s.active_pid,
           coalesce(nullif(a.application_name, ''), 'a nameless program') as reader
      from pg_replication_slots as s
      left join pg_stat_activity as a on a.pid = s.active_pid
     where s.slot_name = %(slot)s
"""
_LINE = re.compile(r"^penstock: slot (\S+) is read by pipeline (\S+), log (\S+)\n?", re.MULTILINE)


class SlotOfAnother(PenstockError):
    """The slot belongs to another pipeline, or to another directory of this one."""

    code = "PG74"


class SlotThereBefore(PenstockError):
    """A slot with the pipeline's name already exists, although the pipeline has not begun."""

    code = "PG75"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """Owner of a slot: the pipeline that reads from it, and the id of its change log."""

    pipeline: str
    log_id: str


def slot_owner(connection: psycopg.Connection, publication: str, slot: str) -> SlotOwner | None:
    """Return the reader of the slot; None if it is not known, or there is no such slot.

    connection: to the source's database.
    """
    known = _owners(_comment(connection, publication)[0]).get(slot)
    return known if known is not None and _slot(connection, slot) is not None else None


def claim_slot(
    connection: psycopg.Connection, publication: str, slot: str, owner: SlotOwner
) -> None:
    """Check that the slot has no other owner, and record its owner. Raises SlotOfAnother."""
    comment, may_change = _comment(connection, publication)
    known = _owners(comment).get(slot)
    if known is not None and known.log_id != owner.log_id:
        raise slot_of_another(connection, known, publication, slot, pipeline=owner.pipeline)
    if known != owner and may_change:
        line = f"penstock: slot {slot} is read by pipeline {owner.pipeline}, log {owner.log_id}"
        _write(connection, publication, _without(comment, slot) + line)


def disclaim_slot(connection: psycopg.Connection, publication: str, slot: str) -> None:
    """Forget the owner of a slot that does not exist. Does nothing without the privilege."""
    comment, may_change = _comment(connection, publication)
    if slot in _owners(comment) and may_change:
        _write(connection, publication, _without(comment, slot))


def check_adoptable(connection: psycopg.Connection, publication: str, slot: str) -> None:
    """Check that a pipeline without a log may continue from an existing slot.

    Raises SlotOfAnother if it has another owner, SlotInUse if it is being read.
    """
    known = slot_owner(connection, publication, slot)
    if known is not None:
        raise slot_of_another(connection, known, publication, slot)
    row = _slot(connection, slot)
    if row is not None and row[0] is not None:
        raise SlotInUse(
            f"slot {slot} is being read by {row[1]}, server process {row[0]}",
            hint=own_names_hint(connection, slot, publication),
            pid=row[0],
        )


def slot_of_another(
    connection: psycopg.Connection,
    known: SlotOwner,
    publication: str,
    slot: str,
    *,
    pipeline: str = "",
) -> SlotOfAnother:
    """Return the error for a slot whose publication names another owner in its comment.

    Args:
        connection: to the source's database.
        known: the owner.
        publication: name of the publication.
        slot: name of the slot.
        pipeline: name of the pipeline that wanted to read from the slot; one of the owner's name
            may be the owner, without the directory in which its log was.
    """
    hint = (
        f"{own_names_hint(connection, slot, publication)} If pipeline {known.pipeline} is "
        "given up, `penstock reset` with its file removes its slot."
    )
    if known.pipeline == pipeline:
        hint = (
            f"If the directory of pipeline {pipeline} was deleted, {LOAD_AGAIN}. If the slot is "
            f"that of another directory: {own_names_hint(connection, slot, publication)}"
        )
    return SlotOfAnother(
        f"slot {slot} belongs to pipeline {known.pipeline}, log {known.log_id}: changes that are "
        "read here would be missing there",
        hint=hint,
        pipeline=known.pipeline,
        log_id=known.log_id,
    )


def slot_there_before(
    connection: psycopg.Connection, publication: str, slot: str
) -> SlotThereBefore:
    """Return the error for a slot that a new pipeline would have to create itself."""
    return SlotThereBefore(
        f"slot {slot} exists already, but this pipeline has not begun: another pipeline or program "
        f"may need it",
        hint=f"{own_names_hint(connection, slot, publication)} If the slot is left over from this "
        f"pipeline's deleted directory, {LOAD_AGAIN}",
    )


def _slot(connection: psycopg.Connection, slot: str) -> tuple[int | None, str] | None:
    """Return its reader's process and name; None if there is no such slot."""
    with server_errors(f"looking at slot {slot}"):
        return connection.execute(SLOT_AND_READER, {"slot": slot}).fetchone()


def _comment(connection: psycopg.Connection, publication: str) -> tuple[str, bool]:
    with server_errors(f"looking at publication {publication}"):
        row = connection.execute(COMMENT, {"publication": publication}).fetchone()
    return (row[0], row[1]) if row is not None else ("", False)


def _owners(comment: str) -> dict[str, SlotOwner]:
    return {
        match[1]: SlotOwner(pipeline=match[2], log_id=match[3]) for match in _LINE.finditer(comment)
    }


def _without(comment: str, slot: str) -> str:
    """Return the comment without the slot's line, so another can follow; foreign text stays."""
    kept = _LINE.sub(lambda match: "" if match[1] == slot else match[0], comment)
    return kept if not kept or kept.endswith("\n") else f"{kept}\n"


def _write(connection: psycopg.Connection, publication: str, comment: str) -> None:
    said = literal(comment.rstrip("\n")) if comment.strip() else "null"
    with server_errors(f"commenting publication {publication}"):
        connection.execute(f"comment on publication {quote(publication)} is {said}".encode())
