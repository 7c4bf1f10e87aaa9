"""Objects that a pipeline leaves at a PostgreSQL source: the slot and the publication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from penstock.engines.postgres.connect import connect, literal, quote, server_errors, statement
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import SlotInUse, read_slot, start_when_free
from penstock.model.removal import Removal

APPLICATION_NAME = "penstock reset"
FREE_WITHIN_S = 10.0  # a killed reader's session lives on for a moment

PUBLICATION = """
    select puballtables, pg_is_in_recovery(),
           case when not pg_has_role(pubowner, 'USAGE') then pg_get_userbyid(pubowner) end
      from pg_publication
     where pubname = %(name)s
"""


def leftovers(url: str, *, slot: str, publication: str, plugin: str = "pgoutput") -> list[Removal]:
    """Return the slot and the publication of these names, as far as they exist.

    plugin: plugin of our slots. Raises SlotInUse while another process reads from the slot.
    """
    return [*_slot(url, slot, plugin), *_publication(url, publication)]


def _slot(url: str, name: str, plugin: str) -> Iterator[Removal]:
    with open_replication(url, application_name=APPLICATION_NAME) as connection:

        def check_free() -> None:
            state = read_slot(connection, name)
            if state is not None and state.active_pid:
                raise SlotInUse(
                    f"slot {name} is read by server process {state.active_pid}",
                    hint="Stop its reader; if it is not known, end its session: "
                    f"select pg_terminate_backend({state.active_pid});",
                    sqlstate="55006",
                )

        start_when_free(
            check_free, lambda: read_slot(connection, name), name=name, wait_s=FREE_WITHIN_S
        )
        state = read_slot(connection, name)
        rows = connection.query("select current_database() as name", doing="asking for its name")
    if state is None:
        return
    by_hand = ""
    if (state.slot_type, state.plugin, state.database) != ("logical", plugin, rows[0]["name"]):
        by_hand = (
            f"it is {state.slot_type}, plugin {state.plugin or 'none'}, database "
            f"{state.database or 'none'}, so penstock did not create it, and leaves it"
        )
    yield Removal(
        what=f"replication slot {name} at the source",
        statements=() if by_hand else (f"select pg_drop_replication_slot({literal(name)});",),
        by_hand=by_hand,
    )


def _publication(url: str, name: str) -> Iterator[Removal]:
    with (
        closing(connect(url, application_name=APPLICATION_NAME)) as connection,
        server_errors(f"looking at publication {name}"),
    ):
        found = connection.execute(PUBLICATION, {"name": name}).fetchone()
    if found is None:
        return
    of_everything, on_standby, owner = found
    if of_everything:
        by_hand = "it is for all tables, so penstock did not make it, and leaves it"
    elif owner is not None:
        by_hand = f"it belongs to role {owner}, so penstock did not make it, and leaves it"
    else:
        by_hand = "a standby cannot; run it on the primary" if on_standby else ""
    yield Removal(
        what=f"publication {name} at the source",
        statements=(f"drop publication {quote(name)};",),
        by_hand=by_hand,
    )


def remove(url: str, removal: Removal) -> None:
    """Carry out one removal. Raises PrivilegeMissing and the other errors of `server_errors`."""
    with (
        closing(connect(url, application_name=APPLICATION_NAME)) as connection,
        server_errors(f"removing {removal.what}"),
    ):
        for text in removal.statements:
            connection.execute(statement(text))
