"""Names of a database: their spelling, and their PostgreSQL spelling where they are too long.

SQL Server compares names without regard to case and keeps the case in which they were created.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable

POSTGRES_BYTES_MAX = 63
Load = Callable[[], Iterable[tuple[str, bool]]]


def short_name(name: str) -> str:
    """Return a name as PostgreSQL can hold it: a long one keeps its beginning and a hash."""
    if len(name.encode()) <= POSTGRES_BYTES_MAX:
        return name
    kept = name.encode()[:40].decode(errors="ignore")
    return f"{kept}~{hashlib.sha256(name.encode()).hexdigest()[:20]}"


def quote_name(name: str) -> str:
    """Return a PostgreSQL identifier."""
    return '"' + short_name(name).replace('"', '""') + '"'


def literal(text: str | None) -> str:
    """Return a PostgreSQL text literal."""
    return "null" if text is None else "'" + text.replace("'", "''") + "'"


class NameBook:
    """Names that exist in a database, for all its sessions.

    Attributes:
        version: Number that rises with each change of names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, str] = {}
        self._systems: dict[str, str] = {}
        self._exact: frozenset[str] = frozenset()
        self.version = 0
        self._loaded = -1

    def note_change(self) -> None:
        """Let the names be read again, because DDL has run."""
        with self._lock:
            self.version += 1

    def spelling(self, name: str, load: Load, *, is_system: bool = False) -> str:
        """Return the spelling of an existing name that equals this one but for case.

        Args:
            name: Name as a statement writes it.
            load: Returns names, each with whether it is one of the system's.
            is_system: Whether the system's names come before those of users.
        """
        if self._loaded != self.version:
            with self._lock:
                version = self.version
                names = list(load())
                self._exact = frozenset(known for known, is_systems in names if not is_systems)
                self._users = {known.lower(): known for known, is_sys in names if not is_sys}
                self._systems = {known.lower(): known for known, is_sys in names if is_sys}
                self._loaded = version
        folded = name.lower()
        if is_system and folded in self._systems:
            return self._systems[folded]
        if name in self._exact:
            return name
        return self._users.get(folded) or self._systems.get(folded) or name
