"""Objects that a pipeline created at a MySQL or MariaDB source; see `ports.reset.SourceReset`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.mysql import replica
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover

APPLICATION_NAME = "penstock reset"


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:  # noqa: ARG001
    """Yield nothing of the server except a pause: it keeps nothing else of ours."""
    if handover is not None and handover.stopped:
        yield Removal(
            what=f"the pause of replication ({', '.join(handover.stopped)})",
            statements=("start replica sql_thread;",),
        )


def owner(config: Config, *, log_id: str) -> str:  # noqa: ARG001 - the port's
    """Return the owner of the findings, in words; empty if it is unknown or there is none."""
    return ""


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:  # noqa: ARG001
    """Carry a removal out."""
    assert handover is not None, "it is what was found"
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        replica.start(connection, handover.stopped)
