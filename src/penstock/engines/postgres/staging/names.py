"""Names of mutation tables: as document 001 prints them, and never the same for two targets."""

from __future__ import annotations

import hashlib
import json

from penstock.ports.staging import StagedTable

_HASH_DIGITS = 8


def plain_name(table: StagedTable) -> str:
    """`_database_schema_table` in lower case; several tables may have the same."""
    return "_" + "_".join((*table.group, table.name)).lower()


def exact(table: StagedTable) -> bytes:
    """Return the exact name of a table, as memo keeps it: distinct tables differ."""
    return json.dumps({"table": [*table.group, table.name]}, ensure_ascii=False).encode()


def table_of(exactly: bytes) -> StagedTable:
    """Return the inverse of `exact`."""
    *group, name = json.loads(exactly)["table"]
    return StagedTable(tuple(group), name)


def hash_name(table: StagedTable, bytes_max: int, suffix: str = "") -> str:
    """Return a name with eight digits of a hash, if the plain one is taken or too long.

    The hash is of the exact name. suffix: end of the name, as for an index.
    """
    digits = hashlib.sha256(exact(table)).hexdigest()[:_HASH_DIGITS]
    end = f"_{digits}{suffix}"
    return shorten(plain_name(table), bytes_max - len(end)) + end


def shorten(name: str, bytes_max: int) -> str:
    """Return as many whole characters of a name as fit."""
    return name.encode()[:bytes_max].decode(errors="ignore")


OWNERS_PREFIX = "mutations "


def memo_key(name: str) -> str:
    """Return the key in memo for the owner of a mutation table."""
    return OWNERS_PREFIX + name
