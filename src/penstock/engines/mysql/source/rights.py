"""Read an account's privileges from SHOW GRANTS, so that nothing has to be tried.

Privileges of active roles count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.engines.mysql.connect import Connection, rows
from penstock.model import TableName

ALL = "ALL PRIVILEGES"
# New names of old privileges count as the old ones.
_SAME = {"BINLOG MONITOR": "REPLICATION CLIENT", "REPLICATION REPLICA": "REPLICATION SLAVE"}
_NAME = r"(?:`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|\*|[^`\"\s.]+)"
_LINE = re.compile(
    rf"(?P<verb>GRANT|REVOKE) (?P<rights>.+?) ON (?:TABLE )?(?P<schema>{_NAME})\.(?P<table>{_NAME})"
    r" (?:TO|FROM) ",
    re.DOTALL,
)
_RIGHT = re.compile(r"\s*([A-Z][A-Z_ ]*[A-Z])\s*(\([^)]*\))?\s*(?:,|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights on everything, a schema or a table. schema: a pattern with % and _, or "*"."""

    rights: frozenset[str]
    schema: str
    table: str
    is_revoked: bool = False

    def covers(self, name: TableName) -> bool:
        """Return whether it applies to this table."""
        if self.table not in ("*", name.name):
            return False
        return self.schema == "*" or bool(_like(self.schema).fullmatch(name.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """All grants of an account."""

    grants: tuple[Grant, ...] = field(default=())

    def has(self, *rights: str) -> bool:
        """Return whether the account has any of these rights on everything (`*.*`)."""
        wanted = {_SAME.get(right.upper(), right.upper()) for right in rights} | {ALL}
        everything = [g for g in self.grants if g.schema == "*" and g.table == "*"]
        return any(grant.rights & wanted for grant in everything if not grant.is_revoked)

    def has_on(self, name: TableName, right: str) -> bool:
        """Return whether the account has a right on a whole table, however it was granted."""
        wanted = {right.upper(), ALL}
        covering = [g for g in self.grants if g.covers(name) and g.rights & wanted]
        # A partial revoke may exclude a schema from a global privilege.
        if any(grant.is_revoked for grant in covering):
            return any(g.schema != "*" for g in covering if not g.is_revoked)
        return bool(covering)

    def lacking_on(self, names: Sequence[TableName], right: str) -> list[TableName]:
        """Return the tables on which the account lacks this privilege."""
        return [name for name in names if not self.has_on(name, right)]


def read_rights(connection: Connection) -> Rights:
    """Return the rights of this connection's account, active roles included."""
    found = rows(connection, "show grants", doing="asking what the account may do")
    lines = [str(next(iter(row.values()))) for row in found]
    return Rights(grants=tuple(grant for line in lines if (grant := parse_grant(line))))


def parse_grant(line: str) -> Grant | None:
    """Read a line of SHOW GRANTS; return None for one about roles or routines."""
    match = _LINE.match(line)
    if match is None or match["rights"].upper().startswith("PROXY"):
        return None
    rights = set()
    at = 0
    text = match["rights"]
    while at < len(text):
        one = _RIGHT.match(text, at)
        if one is None:
            return None
        if one[2] is None:  # a privilege on some columns does not count for the table
            rights.add(_SAME.get(one[1], one[1]))
        at = one.end()
    return Grant(
        rights=frozenset(rights),
        schema=_unquote(match["schema"]),
        table=_unquote(match["table"]),
        is_revoked=match["verb"] == "REVOKE",
    )


def _unquote(name: str) -> str:
    if name[:1] in '`"':
        return name[1:-1].replace(name[0] * 2, name[0])
    return name


def _like(pattern: str) -> re.Pattern[str]:
    """Return a grant's schema as a regular expression: % any letters, _ any letter, a backslash
    protects.
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile(
        "".join(
            re.escape(part[1]) if len(part) == 2 else wild.get(part, re.escape(part))
            for part in parts
        ),
        re.DOTALL,
    )
