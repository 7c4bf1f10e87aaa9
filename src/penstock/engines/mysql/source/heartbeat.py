"""Send heartbeats of a MySQL or MariaDB source: a row of our own table, and a savepoint beside it.

A transaction is logged only if it changes a row. The heartbeat's content is the name of its
savepoint, which is logged as text, so that rows of this table need not be decoded. Not here: the
times at which one is sent (`extract.extractor`), and the marker it becomes (`assemble.py`).
"""

from __future__ import annotations

import re

from penstock.engines.mysql.connect import Connection, connect, run, server_errors, value
from penstock.engines.mysql.source.catalog import OWN_SCHEMA
from penstock.model import TableName

TABLE = TableName(OWN_SCHEMA, "wirekite_heartbeat")
RIGHTS = frozenset({"CREATE", "INSERT", "UPDATE"})
_IS_THERE = """
    select count(*)
      from information_schema.tables
     where table_schema = %s and table_name = %s
"""
# Statements that would be logged although they change nothing are not sent without need.
_MAKE = (
    "create database if not exists wirekite",
    """
    create table if not exists wirekite.wirekite_heartbeat (
        server_id int unsigned not null primary key,
        sent_us   bigint not null
    ) engine = InnoDB
    """,
)
_PUT = """
    insert into wirekite.wirekite_heartbeat (server_id, sent_us)
    values (%s, %s)
    on duplicate key update sent_us = values(sent_us)
"""
_NAME = re.compile(rb"penstock_heartbeat_(\d{1,10})_(\d{1,18})")


class Heartbeats:
    """Sender of heartbeats on a connection that stays open. Used by one thread."""

    def __init__(self, url: str, server_id: int) -> None:
        """Keep the settings; the first heartbeat connects. server_id: ours, as a replica."""
        self._url = url
        self._server_id = server_id
        self._connection: Connection | None = None

    def send(self, sent_us: int) -> None:
        """Commit one. Raises the typed errors of a connection; the next call connects again."""
        connection = self._connect()
        try:
            with server_errors("committing a heartbeat"):
                connection.begin()
                with connection.cursor() as cursor:
                    cursor.execute(_PUT, (self._server_id, sent_us))
                    # After the row: before it there is no transaction to log the savepoint in.
                    cursor.execute(f"savepoint penstock_heartbeat_{self._server_id}_{sent_us}")
                connection.commit()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Connection:
        if self._connection is not None and self._connection.open:
            return self._connection
        connection = connect(self._url, application_name="penstock heartbeat")
        try:
            doing = "creating the heartbeat table"
            if not value(connection, _IS_THERE, (TABLE.schema, TABLE.name), doing=doing):
                for statement in _MAKE:
                    run(connection, statement, doing=doing)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def sent_us_in(savepoint: bytes, server_id: int) -> int | None:
    """Return when the heartbeat of this savepoint was sent; None if it is not one, or not of this
    reader.
    """
    match = _NAME.fullmatch(savepoint)
    if match is None or int(match[1]) != server_id:
        return None
    return int(match[2])
