"""Which tables a pipeline has followed so far, dropped ones too.

Not here: the catalogue as it is now (`source.postgres.catalog`).
"""

from __future__ import annotations

from penstock.control.config import Config
from penstock.model import TableName
from penstock.source.extract import followed


def followed_names(config: Config) -> frozenset[TableName]:
    """The tables that the change log follows, or did until they were dropped at the source.

    Empty before changes were extracted. Raises CheckpointCorrupt.
    """
    state = followed(config.layout)
    return state.names if state is not None else frozenset()
