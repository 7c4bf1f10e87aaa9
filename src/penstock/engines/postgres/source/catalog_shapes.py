"""The catalogue's relations as the stream wants them, remembered durably.

Versions are numbered over the whole life of a log, so they are kept in a file that is always at
least as new as the rows: it is written before a run with a new version is given out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.codec.postgres.pgoutput_messages import RelationMessage
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.relations import RelationResolver
from penstock.model import Relation


class CatalogShapes:
    """The `Shapes` of a pipeline. `keep` may be called from two threads."""

    def __init__(
        self, resolver: RelationResolver, *, save: Callable[[Sequence[Relation]], None]
    ) -> None:
        """Take the resolver and what keeps all relations durably."""
        self._resolver = resolver
        self._save = save
        self._saved = resolver.relations()
        self._keeping = threading.Lock()

    def resolve(self, message: RelationMessage) -> Relation | None:
        """See Shapes."""
        with server_errors(f"reading the definition of {message.schema}.{message.name}"):
            return self._resolver.resolve(message)

    def widen(self, relation: Relation, column: int) -> Relation:
        """See Shapes."""
        return self._resolver.widen(relation, column)

    def keep(self) -> None:
        """Make new versions durable; called before rows of them are given out."""
        with self._keeping:
            relations = self._resolver.relations()
            if relations != self._saved:
                self._save(relations)
                self._saved = relations
