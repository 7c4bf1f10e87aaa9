"""A standby as source: its replay paused, its frozen position read, a snapshot taken there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import ClassVar

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, quote, server_errors
from penstock.engines.postgres.source.slot import ConsistentPoint, list_published
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, Retry, TableName
from penstock.ports.config import Config

APPLICATION_NAME = "penstock handover"
POLL_INTERVAL_S = 0.05
PAUSE_TIMEOUT_S = 60.0
PAUSE_VERSION_MIN = 160000

STANDBY = """
    select pg_is_in_recovery(),
           current_setting('server_version_num')::int,
           case when pg_is_in_recovery() then pg_get_wal_replay_pause_state() else '' end,
           coalesce(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() end, '0/0')::text
"""


class NotAStandby(PenstockError):
    """Mode pause needs a source that replays the log of another server."""

    code = "CT30"


class StandbyTooOld(PenstockError):
    """A standby below 16 cannot decode changes."""

    code = "CT31"


class PublicationOnPrimary(PenstockError):
    """The publication is missing and can only be created on the standby's primary."""

    code = "CT33"


class ReplayNotPaused(PenstockError):
    """The standby did not pause its replay in time."""

    code = "CT32"
    retry: ClassVar[Retry] = "backoff"


def open_source(config: Config) -> psycopg.Connection:
    """Return a plain connection to the source, autocommit, EXACT_TEXT_SETTINGS."""
    return connect(
        config.source.url, application_name=APPLICATION_NAME, options=EXACT_TEXT_SETTINGS
    )


def check_standby(connection: psycopg.Connection) -> None:
    """Refuse a server that mode pause cannot work with. Changes nothing."""
    with server_errors("asking whether the source is a standby"):
        row = connection.execute(STANDBY).fetchone()
    assert row is not None
    if not row[0]:
        raise NotAStandby(
            "mode pause needs a standby, and the source is a primary",
            hint='Name a standby in source.url, or set handover = "snapshot" in [pipeline].',
        )
    if row[1] < PAUSE_VERSION_MIN:
        raise StandbyTooOld(
            f"the standby is PostgreSQL {row[1] // 10000}; changes can be read from 16 on",
            hint='Name the primary in source.url and set handover = "snapshot" in [pipeline].',
        )


def check_publication_there(
    connection: psycopg.Connection, name: str, tables: Iterable[TableName]
) -> None:
    """Refuse a standby without the publication, which it cannot make. Changes nothing."""
    with server_errors(f"looking at publication {name}"):
        standby = connection.execute(STANDBY).fetchone()
        there = connection.execute(
            "select 1 from pg_publication where pubname = %s", (name,)
        ).fetchone()
    if standby is not None and standby[0] and there is None:
        raise PublicationOnPrimary(
            f"publication {name} does not exist, and a standby cannot make it",
            hint=f"On the primary, run: create publication {quote(name)} for table "
            f"{list_published(tables)} with (publish_via_partition_root = true);",
        )


def pause_replay(connection: psycopg.Connection) -> None:
    """Pause a standby's replay, and wait for it. Raises ReplayNotPaused, resumed again."""
    with server_errors("pausing replay"):
        connection.execute("select pg_wal_replay_pause()")
        deadline_s = REAL_CLOCK.monotonic_s() + PAUSE_TIMEOUT_S
        while True:
            row = connection.execute(STANDBY).fetchone()
            if row is not None and row[2] == "paused":
                return
            if REAL_CLOCK.monotonic_s() > deadline_s:
                connection.execute("select pg_wal_replay_resume()")
                raise ReplayNotPaused(
                    f"the standby did not pause its replay within {PAUSE_TIMEOUT_S:.0f} s",
                    hint="Look at the standby's log for what its replay waits for.",
                )
            REAL_CLOCK.sleep(POLL_INTERVAL_S)


def frozen_point(config: Config, kept: ExitStack) -> ConsistentPoint:
    """Return a snapshot of a standby whose replay is paused. Raises ReplayNotPaused."""
    keeper = open_source(config)
    with ExitStack() as guard:
        guard.callback(keeper.close)
        with server_errors("exporting a snapshot of the paused standby"):
            keeper.execute("begin isolation level repeatable read read only")
            exported = keeper.execute("select pg_export_snapshot()").fetchone()
            row = keeper.execute(STANDBY).fetchone()
        assert exported is not None
        assert row is not None
        if row[2] != "paused":
            raise ReplayNotPaused(
                "the standby's replay was resumed by another client",
                hint="Run the same command again, and leave the standby paused meanwhile.",
            )
        guard.pop_all()
    point = ConsistentPoint(Lsn.parse(row[3]).ordinal, str(exported[0]), keeper)
    kept.callback(point.close)
    return point


def paused_point(config: Config, kept: ExitStack) -> ConsistentPoint:
    """Return a later point, in the load process, mode pause. Replay is paused for it if
    necessary.
    """
    connection = kept.enter_context(closing(open_source(config)))
    row = connection.execute(STANDBY).fetchone()
    if row is not None and row[2] != "paused":
        kept.callback(lambda: connection.execute("select pg_wal_replay_resume()"))
        pause_replay(connection)
    return frozen_point(config, kept)
