"""SQL Server: not built yet. Its parameters are known, so that they are refused by name."""

from penstock.ports.registry import Descriptor

DESCRIPTOR = Descriptor(
    name="sqlserver",
    shown="SQL Server",
    start_keys=frozenset({"startLsn"}),
    options={"changeExtractor": frozenset({"startLsn"})},
)
