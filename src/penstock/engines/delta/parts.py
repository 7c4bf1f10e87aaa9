"""Parts of the engine that lakes share, made for this format."""

from penstock.engines.delta.catalogue import FORMAT
from penstock.engines.lake.verify import LakeVerifier

VERIFIER = LakeVerifier(FORMAT)
