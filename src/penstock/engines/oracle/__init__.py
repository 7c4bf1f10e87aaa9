"""Oracle: not built yet. Its parameters are known, so that they are refused by name."""

from penstock.ports.registry import Descriptor

DESCRIPTOR = Descriptor(
    name="oracle",
    shown="Oracle",
    start_keys=frozenset({"startScn"}),
    options={"changeExtractor": frozenset({"startScn"})},
)
