"""Doctor for Apache Ignite: the checks IG01 to IG22, of a node as source."""

# The modules put their checks into the lists when they are imported, in this order.
from penstock.engines.ignite.checks import cluster_checks, node_checks  # noqa: F401
from penstock.engines.ignite.checks.looking import look_at_source, server_errors
from penstock.engines.ignite.checks.probe import CLUSTER_CHECKS, NODE_CHECKS, PLACE_CHECKS

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "CHECKS_OF_A_NEW_TABLE",
    "DROP_PROGRESS",
    "NOT_FOUND_BEFORE",
    "look_at_source",
    "server_errors",
]

CHECKS = (*PLACE_CHECKS, *NODE_CHECKS, *CLUSTER_CHECKS)
CHECKS_OF_A_NEW_TABLE = ("IG11", "IG16", "IG17")
DROP_PROGRESS = ""  # it cannot be a target
CHECKS_OF = {"IG51": ("IG09",), "IG52": ("IG01",)}
NOT_FOUND_BEFORE: dict[str, str] = {}
