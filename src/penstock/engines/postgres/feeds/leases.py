"""Leases: names that one holder at a time works under. The table `leases`.

Times are the caller's, in UTC, cut to milliseconds. Not here: when one is renewed
(`penstock.feeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg

from penstock.ports.feeds import Lease

# The second writer waits for the first one's row and then finds it taken: so never both.
_ACQUIRE: Final = """
    insert into public.leases as held (name, expires, nonce, hostname)
    select name, %(expires)s, %(nonce)s, %(hostname)s
      from unnest(%(names)s::text[]) as name
     order by name
        on conflict (name)
        do update set expires = excluded.expires, nonce = excluded.nonce,
                      hostname = excluded.hostname
        where held.expires <= %(now)s
"""
_BUSY: Final = """
    select max(expires)
      from public.leases
     where name = any(%(names)s::text[]) and expires > %(now)s
"""
_RENEW: Final = """
    with ours as (
      select name
        from public.leases
       where name = any(%(names)s::text[]) and nonce = %(nonce)s
       order by name
         for update
    )
    update public.leases
       set expires = %(expires)s
     where name in (select name from ours) and nonce = %(nonce)s
       and (select count(*) from ours) = %(count)s
"""
_RELEASE: Final = "delete from public.leases where name = any(%s::text[]) and nonce = %s"

Connection = psycopg.Connection[Any]


def acquire(
    connection: Connection, names: Sequence[str], now: datetime, lifetime_s: float, hostname: str
) -> Lease | datetime:
    """Return all names; or none, and the time until which another instance holds one of them."""
    wanted = sorted(set(names))
    nonce = uuid4()
    given: dict[str, Any] = {
        "names": wanted,
        "now": _to_column(now),
        "expires": _to_column(now + timedelta(seconds=lifetime_s)),
        "nonce": nonce,
        "hostname": hostname,
    }
    busy: datetime | None = None
    with suppress(psycopg.Rollback), connection.transaction():
        if connection.execute(_ACQUIRE, given).rowcount == len(wanted):
            return _lease(wanted, given)
        # Rows that are ours within this transaction do not count: it is given up.
        given["names"] = _others(connection, wanted, nonce)
        (busy,) = connection.execute(_BUSY, given).fetchone() or (None,)
        raise psycopg.Rollback
    if busy is None:  # released in between
        return acquire(connection, names, now, lifetime_s, hostname)
    return busy.replace(tzinfo=UTC)


def _others(connection: Connection, names: list[str], nonce: UUID) -> list[str]:
    found = connection.execute(
        "select name from public.leases where name = any(%s::text[]) and nonce <> %s",
        (names, nonce),
    )
    return [name for (name,) in found]


def renew(connection: Connection, lease: Lease, now: datetime, lifetime_s: float) -> Lease | None:
    """Return the lease with a later end, or None where a name of it is no longer ours."""
    given = {
        "names": list(lease.names),
        "nonce": lease.nonce,
        "expires": _to_column(now + timedelta(seconds=lifetime_s)),
        "count": len(lease.names),
    }
    if not connection.execute(_RENEW, given).rowcount:
        return None
    return _lease(lease.names, given)


def release(connection: Connection, lease: Lease) -> None:
    """Give up those names that are still ours."""
    connection.execute(_RELEASE, (list(lease.names), lease.nonce))


def _lease(names: Sequence[str], given: dict[str, Any]) -> Lease:
    expires = given["expires"].replace(tzinfo=UTC)
    return Lease(names=tuple(names), nonce=given["nonce"], expires=expires)


def _to_column(time: datetime) -> datetime:
    """Return the time in the column's form: UTC without a zone, whole milliseconds."""
    utc = time.astimezone(UTC).replace(tzinfo=None)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)
