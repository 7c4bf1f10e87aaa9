"""What mutation tables are called: as document 001 prints it, and never two targets alike.

Not here: who has which name, which memo remembers (`prepare.py`).
"""

from __future__ import annotations

import hashlib
import json

from penstock.ports.staging import StagedTable

_HASH_DIGITS = 8


def plain_name(table: StagedTable) -> str:
    """`_database_schema_table` in lower case; several tables may have the same."""
    return "_" + "_".join((*table.group, table.name)).lower()


def exact(table: StagedTable) -> bytes:
    """The exact name of a table, as memo keeps it: distinct tables differ."""
    return json.dumps({"table": [*table.group, table.name]}, ensure_ascii=False).encode()


def table_of(exactly: bytes) -> StagedTable:
    """The inverse of `exact`."""
    *group, name = json.loads(exactly)["table"]
    return StagedTable(tuple(group), name)


def hashed(table: StagedTable, bytes_max: int, suffix: str = "") -> str:
    """A name for where the plain one is taken or too long: with eight digits of a hash.

    Of the exact name. suffix: what stands behind, as in the name of an index.
    """
    digits = hashlib.sha256(exact(table)).hexdigest()[:_HASH_DIGITS]
    end = f"_{digits}{suffix}"
    return shortened(plain_name(table), bytes_max - len(end)) + end


def shortened(name: str, bytes_max: int) -> str:
    """As many whole characters of a name as fit."""
    return name.encode()[:bytes_max].decode(errors="ignore")


OWNERS_PREFIX = "mutations "


def memo_key(name: str) -> str:
    """Where memo keeps whose mutation table has a name."""
    return OWNERS_PREFIX + name
