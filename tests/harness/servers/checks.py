"""All of doctor's checks: of this machine, of every engine, of the load."""

from __future__ import annotations

from penstock.control.doctor.load_checks import CLUSTER_CHECKS, LOAD_CHECKS
from penstock.control.doctor.local_checks import (
    CONSUMER_CHECKS,
    DIRECTORY_CHECKS,
    EXTRA_CHECKS,
    HOST_CHECKS,
)
from penstock.ports.checks import Check
from penstock.ports.registry import engines


def every_check() -> list[Check]:
    """Return all checks that are registered anywhere."""
    parts = [engine.part("checks") for engine in engines() if "checks" in engine.parts]
    return [
        *EXTRA_CHECKS,
        *HOST_CHECKS,
        *DIRECTORY_CHECKS,
        *CLUSTER_CHECKS,
        *CONSUMER_CHECKS,
        *(check for part in parts for check in part.CHECKS),
        *LOAD_CHECKS,
    ]
