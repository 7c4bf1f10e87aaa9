"""Stopping and starting the SQL threads of a source that is a replica, by a reset too.

All channels of MySQL and all named connections of MariaDB are included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.engines.mysql.connect import Connection, literal, rows, run
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.rights import read_rights
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover


class NotAReplica(PenstockError):
    """Mode pause needs a source that replicates from another server."""

    code = "CT36"


class ReplicaNotOurs(PenstockError):
    """Mode pause needs the right to stop and start replication."""

    code = "CT37"


def applying(connection: Connection) -> tuple[str, ...]:
    """Return channels or named connections whose SQL thread runs; the unnamed one is ''.

    Raises NotAReplica, ReplicaNotOurs.
    """
    server = connection.server
    everything = "all slaves" if server.is_mariadb else _replica(connection)
    found = _ask(connection, f"show {everything} status", "looking at replication")
    if not found:
        raise NotAReplica(
            "mode pause needs a replica as source; this server has no replication configured",
            hint='Set handover = "snapshot", which needs no pause.',
        )
    enough = _rights_that_do(connection)
    if not read_rights(connection).has(*enough):
        raise _not_ours(connection, f"it lacks {' or '.join(enough)} on *.*")
    states = {
        str(_of(row, "connection_name", "channel_name") or ""): str(
            _of(row, "slave_sql_running", "replica_sql_running")
        )
        for row in found
    }
    return tuple(name for name, state in states.items() if state.lower() != "no")


def _of(row: dict[str, object], *names: str) -> object:
    return next((row[name] for name in names if name in row), None)


def stop(connection: Connection, names: Sequence[str]) -> None:
    """Stop applying, and wait until the transactions that are being applied have ended."""
    for name in names:
        _ask(connection, _statement(connection, "stop", name), "stopping replication")


def start(connection: Connection, names: Sequence[str]) -> None:
    """Start applying again."""
    for name in names:
        _ask(connection, _statement(connection, "start", name), "resuming replication")


def _ask(connection: Connection, sql: str, doing: str) -> list[dict[str, object]]:
    try:
        if sql.startswith("show"):
            return rows(connection, sql, doing=doing)
        run(connection, sql, doing=doing)
    except PrivilegeMissing as error:
        raise _not_ours(connection, error.message) from error
    return []


def _not_ours(connection: Connection, reason: str) -> ReplicaNotOurs:
    return ReplicaNotOurs(
        f"mode pause stops and starts the replica, which this account may not: {reason}",
        hint=f"Run at the source: grant {_rights(connection)} on *.* to 'USER'@'HOST'; or set "
        'handover = "snapshot".',
    )


def _statement(connection: Connection, verb: str, name: str) -> str:
    if connection.server.is_mariadb:
        return f"{verb} slave {literal(name)} sql_thread"
    return f"{verb} {_replica(connection)} sql_thread for channel {literal(name)}"


def _replica(connection: Connection) -> str:
    return "replica" if connection.server.mysql(8, 0, 22) else "slave"


def _rights_that_do(connection: Connection) -> tuple[str, ...]:
    """Return the privileges, any one of which is enough to stop and start a replica."""
    server = connection.server
    if server.mysql(8):
        return "replication_slave_admin", "super"
    if not server.mariadb(10, 5, 2):
        return ("super",)
    return "replication slave admin", *(() if server.mariadb(11, 0, 1) else ("super",))


def _rights(connection: Connection) -> str:
    server = connection.server
    if server.is_mariadb:
        return "replication slave admin, replica monitor" if server.mariadb(10, 5, 2) else "super"
    return "replication_slave_admin" if server.mysql(8) else "super"


APPLICATION_NAME = "penstock reset"


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:  # noqa: ARG001
    """Yield the pause of the replica, if there is one: the server keeps nothing else of ours."""
    if handover is not None and handover.stopped:
        yield Removal(
            what=f"the pause of replication ({', '.join(handover.stopped)})",
            statements=("start replica sql_thread;",),
        )


def owner(config: Config, *, log_id: str) -> str:  # noqa: ARG001 - the port's
    """Return who owns the findings, in words; empty if that is unknown or there is none."""
    return ""


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:  # noqa: ARG001
    """Carry a removal out."""
    assert handover is not None, "it is what was found"
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        start(connection, handover.stopped)
