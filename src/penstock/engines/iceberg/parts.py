"""Parts of the engine that lakes share, made for this format."""

from penstock.engines.iceberg.catalogue import FORMAT
from penstock.engines.lake.reset import LakeReset
from penstock.engines.lake.verify import LakeVerifier

LEFTOVERS = LakeReset(FORMAT)
VERIFIER = LakeVerifier(FORMAT)
