"""The table `memo`, the markers of schema versions in it, and the keys that sign tokens."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg

from penstock.ports.feeds import Keys

VERSIONS: Final = (400, 389, 572, 828)
"""Pull requests of Replicator that changed the staging schema; memo has a marker for each."""
APPLIED: Final = b'{"state":"applied"}'

_GET: Final = "select value from public.memo where key = %s"
_PUT: Final = """
    insert into public.memo (key, value)
    values (%s, %s)
        on conflict (key) do update set value = excluded.value
"""
Connection = psycopg.Connection[Any]


def get(connection: Connection, key: str) -> bytes | None:
    """Return the value of a key."""
    found = connection.execute(_GET, (key,)).fetchone()
    return None if found is None else bytes(found[0])


def put(connection: Connection, key: str, value: bytes) -> None:
    """Put a value, replacing an earlier one."""
    connection.execute(_PUT, (key, value))


def begin_versions(connection: Connection) -> None:
    """Write all markers on a first start: the tables were created in the newest schema."""
    if get(connection, _version_key(VERSIONS[0])) is None:
        for version in VERSIONS:
            put(connection, _version_key(version), APPLIED)


def version_warnings(connection: Connection) -> list[str]:
    """Return warnings about markers that are missing, or of another state."""
    found = {version: get(connection, _version_key(version)) for version in VERSIONS}
    return [
        "Manual schema change required to upgrade to this version: memo "
        + (f"lacks {_version_key(version)}" if value is None else f"says {_state(value)}")
        + f". See https://github.com/cockroachdb/replicator/pull/{version} for additional details."
        for version, value in found.items()
        if value is None or _state(value) != "applied"
    ]


def _version_key(version: int) -> str:
    return f"version-{version}"


def _state(value: bytes) -> str:
    try:
        return str(json.loads(value).get("state"))
    except (ValueError, AttributeError):
        return repr(value)


def read_keys(connection: Connection) -> Keys:
    """Return the active public keys and the revoked tokens."""
    with connection.transaction():
        public = connection.execute(
            "select public_key from public.jwt_public_keys where active order by id"
        ).fetchall()
        revoked = connection.execute("select id from public.jwt_revoked_ids").fetchall()
    return Keys(
        public=tuple(key for (key,) in public), revoked=frozenset(one for (one,) in revoked)
    )
