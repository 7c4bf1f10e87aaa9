"""Parts of the engine that lakes share, made for this format."""

from penstock.engines.delta.catalogue import FORMAT
from penstock.engines.lake.by_hand import LakeByHand
from penstock.engines.lake.repair import make_repair
from penstock.engines.lake.reset import LakeReset
from penstock.engines.lake.target import LakeEngine
from penstock.engines.lake.verify import LakeVerifier
from penstock.ports.target import TargetEngine

LEFTOVERS = LakeReset(FORMAT)
VERIFIER = LakeVerifier(FORMAT)
UPKEEP = LakeByHand(FORMAT)
REPAIR = make_repair(FORMAT)


def make_target() -> TargetEngine:
    """Return the engine of one load."""
    return LakeEngine(FORMAT)
