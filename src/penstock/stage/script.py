"""Published names for the user's module of `penstock stage`; `docs/stage.md` describes them.

Not here: their code (`penstock.feeds.script`).
"""

from penstock.feeds.script import (
    MergeOperation,
    MergeResult,
    TargetTransaction,
    configure_source,
    configure_table,
    get_tx,
    random_uuid,
    replication_key,
    set_options,
    standard_merge,
)

__all__ = [
    "MergeOperation",
    "MergeResult",
    "TargetTransaction",
    "configure_source",
    "configure_table",
    "get_tx",
    "random_uuid",
    "replication_key",
    "set_options",
    "standard_merge",
]
