"""Name of a table's changelog."""

from __future__ import annotations

import hashlib

from penstock.model import PenstockError, TableName
from penstock.model.sections import ChangelogNames

NAME_MAX = 63  # PostgreSQL's; of MySQL and MariaDB 64


class ChangelogNameTooLong(PenstockError):
    """The name `<schema>_<table>` is longer than the name of a table may be."""

    code = "FX22"


def changelog_name(table: TableName, style: ChangelogNames) -> str:
    """Return the changelog's name. Raises ChangelogNameTooLong."""
    if style is ChangelogNames.MD5:
        return f"mvlog_{_md5(_md5(table.schema) + _md5(table.name))}"
    name = f"{table.schema}_{table.name}"
    if len(name.encode()) > NAME_MAX:
        raise ChangelogNameTooLong(
            f"the changelog of {table} cannot be called {name}: {len(name.encode())} bytes",
            hint='Set changelog_names = "md5": these names are 38 characters long for any table.',
            table=str(table),
        )
    return name


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
