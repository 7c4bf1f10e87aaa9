"""Names of slots and publications that are free at a server.

A slot's name belongs to the whole server, and document 000 gives every pipeline the same one, so a
second pipeline needs another. No hint of ours drops a slot to free its name: another pipeline or
database may need what the server keeps for it.
"""

from __future__ import annotations

import re

import psycopg

from penstock.engines.postgres.connect import connect, server_errors
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
    """Return a slot and a publication that are not there, with one suffix to both."""
    taken = _read_taken(connection)
    number, tail = 1, suffix
    while True:
        names = (_with(slot, tail), _with(publication, tail))
        if taken.isdisjoint(names):
            return names
        number += 1
        tail = str(number + 1) if suffix == "2" else f"{suffix}_{number}"


def own_names_hint(connection: psycopg.Connection, slot: str, publication: str) -> str:
    """Return what to type for a pipeline whose slot's name belongs to something else."""
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
