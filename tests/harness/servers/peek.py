"""Messages that the server would stream, read by SQL: raw pgoutput without a replication client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from harness.twins.pgoutput import xlog
from penstock.codec.postgres.pgoutput_messages import RelationMessage, relation_message
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote
from penstock.engines.postgres.source.catalog import RelationResolver
from penstock.model import Relation

SLOT = "peek"
PUBLICATION = "peek"


@dataclass(kw_only=True)
class Capture:
    """A database with a publication of all tables and a slot."""

    url: str
    connection: psycopg.Connection

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement)

    def messages(self, *, consume: bool = True) -> list[bytes]:
        """Return the pgoutput messages since the last call, with their letters."""
        function = "get" if consume else "peek"
        with self.connection.transaction():
            # Test servers commit asynchronously; only flushed changes are decoded.
            self.connection.execute("set local synchronous_commit = on")
            self.connection.execute("select pg_logical_emit_message(true, 'flush', '')")
        rows = self.connection.execute(
            f"""
            select data
              from pg_logical_slot_{function}_binary_changes(%s, null, null,
                       'proto_version', '2', 'publication_names', %s)
            """,
            (f"{SLOT}_{self.connection.info.dbname}", PUBLICATION),
        ).fetchall()
        return [bytes(row[0]) for row in rows]

    def relation_messages(self) -> list[RelationMessage]:
        """Return the Relation messages since the last call."""
        return [relation_message(m[1:]) for m in self.messages() if m[:1] == b"R"]


def frames(messages: list[bytes]) -> bytes:
    """Return messages as one wire block."""
    return b"".join(xlog(message) for message in messages)


@contextmanager
def capturing(url: str, *tables: str) -> Iterator[Capture]:
    """Publish tables (`schema.table`, unquoted; none: all of them) and create a slot."""
    with connect(url, application_name="peek", options=EXACT_TEXT_SETTINGS) as connection:
        named = ", ".join(quote(*table.split(".", 1)) for table in tables)
        connection.execute(
            f"create publication {PUBLICATION} for {f'table {named}' if named else 'all tables'}"
            " with (publish_via_partition_root = true)"
        )
        slot = f"{SLOT}_{connection.info.dbname}"
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        yield Capture(url=url, connection=connection)
        connection.execute("select pg_drop_replication_slot(%s)", (slot,))


def run_all(connection: psycopg.Connection, *statements: str) -> None:
    """Run statements in their order."""
    for statement in statements:
        connection.execute(statement)


def resolve_only(resolver: RelationResolver, messages: list[RelationMessage]) -> Relation:
    """Return the relation of the only message."""
    (message,) = messages
    relation = resolver.resolve(message)
    assert relation is not None
    return relation
