"""Doctor's checks of PostgreSQL servers: what a source must be like, and what a target must."""

# Checks are registered when their module is imported.
from penstock.engines.postgres.checks import (  # noqa: F401
    identity,
    server,
    slot,
    tables,
    target,
)
